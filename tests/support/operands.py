"""Operands of the primitive for tests/primitives and tests/ffi."""

import jax.numpy as jnp
import numpy as np

from jax_fp4_indexer.calls.block_scores import Static
from jax_fp4_indexer.configs.block_scores import DEFAULT_SCRATCH_LIMIT
from jax_fp4_indexer.primitives import wire
from jax_fp4_indexer.specs.block_scores import SPEC

OPERANDS = SPEC.operand_names
STATIC = dict(path="decode", fp4_format="nvfp4", scale_layout="public", mask=1, max_seqlen_q=2, k_tiles=3)


def static(*, max_scratch_bytes=DEFAULT_SCRATCH_LIMIT, **changed):
    """The static part of a call of the primitive: STATIC with changes."""
    given = {**STATIC, **changed}
    return Static(format=given.pop("fp4_format"), max_scratch_bytes=max_scratch_bytes, **given)


def attributes(path, fp4_format, scale_layout, mask, max_seqlen_q, pages, implementation):
    """The attributes of the custom call."""
    values = dict(
        path=path,
        format=fp4_format,
        scale_layout=scale_layout,
        mask=mask,
        max_seqlen_q=max_seqlen_q,
        pages_per_pass=pages,
    )
    return wire.attributes(SPEC, values, implementation)


def operands(
    tokens=4, heads_q=4, heads_kv=2, num_pages=3, num_indices=6, fp4_format="nvfp4", scale_layout="public", seed=0
):
    """A list of operands: two sequences that share the tokens, 200 and 230 keys, random codes, scales around 1."""
    rng = np.random.default_rng(seed)
    choices = {"path": "decode", "format": fp4_format, "scale_layout": scale_layout}
    sizes = {
        "tokens": tokens,
        "heads_q": heads_q,
        "heads_kv": heads_kv,
        "num_pages": num_pages,
        "num_indices": num_indices,
        "num_seqs": 2,
    }
    types = SPEC.operand_types(choices, {**sizes, **SPEC.fixed(choices)})
    low, high = (0x30, 0x40) if fp4_format == "nvfp4" else (120, 134)
    made = {
        "q_scale": lambda shape: rng.integers(low, high, shape),
        "k_scale": lambda shape: rng.integers(low, high, shape),
        "kv_indices": lambda shape: rng.integers(0, num_pages, shape),
        "cu_seqlens_q": lambda shape: [0, tokens // 2, tokens],
        "cu_seqlens_k": lambda shape: [0, 200, 430],
        "cu_page_offsets": lambda shape: [0, 2, 4],
        "qo_offset": lambda shape: [100, 200],
        "head_scale": lambda shape: rng.uniform(0.5, 2, shape),
    }
    return [
        jnp.asarray(np.asarray(made.get(name, lambda shape: rng.integers(0, 256, shape))(shape)).astype(dtype))
        for name, (dtype, shape) in types.items()
    ]
