"""The primitive of block scores: its scratch, and how a device of a mesh makes its own operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax

from ..calls.block_scores import NO_DERIVATIVE, operands
from ..calls.ragged import causal_offset, token_range
from ..reference.block_scores import definition
from ..specs.block_scores import SPEC
from .kernel_call import KernelCall
from .scratch import scratch_plan
from .splits import Cut, Operands


def scratch(attributes: Mapping[str, Any], sizes: Mapping[str, Any], limit: int) -> tuple[dict[str, int], Any]:
    """({"pages_per_pass": pages}, bytes) of a call."""
    named = (sizes[name] for name in ("num_seqs", "tokens", "heads_q", "heads_kv", "num_indices"))
    pages, size = scratch_plan(attributes["path"], attributes["format"], int(attributes["max_seqlen_q"]), *named, limit)
    return {"pages_per_pass": pages}, size


def own_heads(operands: Operands, attributes: Mapping[str, Any], first: Any) -> tuple[Operands, dict[str, Any]]:
    """MMA-ordered k scales of all heads (pages and heads are one axis there) become those of the device's KV heads."""
    if attributes["scale_layout"] == "public":
        return {}, {}
    num_pages, own = operands["k"].shape[:2]
    k_scale = operands["k_scale"]
    by_head = k_scale.reshape(num_pages, -1, *k_scale.shape[1:])
    return {
        "k_scale": lax.dynamic_slice_in_dim(by_head, first, own, 1).reshape(num_pages * own, *by_head.shape[2:])
    }, {}


def own_tokens(operands: Operands, attributes: Mapping[str, Any], first: Any) -> tuple[Operands, dict[str, Any]]:
    """The metadata of all tokens becomes that of the tokens of q; a causal mask then needs offsets."""
    given = (
        operands["qo_offset"]
        if attributes["mask"] == 2
        else causal_offset(operands["cu_seqlens_q"], operands["cu_seqlens_k"])
    )
    cu_seqlens_q, offset = token_range(operands["cu_seqlens_q"], given, first, operands["q"].shape[0])
    changed: dict[str, jax.Array] = {"cu_seqlens_q": cu_seqlens_q}
    return (changed | {"qo_offset": offset}, {"mask": 2}) if attributes["mask"] else (changed, {"mask": 0})


CALL = KernelCall(
    SPEC,
    operands,
    definition,
    no_derivative=NO_DERIVATIVE,
    scratch=scratch,
    reshard=("head_scale",),
    cuts=(Cut("tokens", own_tokens), Cut("heads_kv", own_heads, ("k_scale",))),
)
