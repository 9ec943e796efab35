"""A block-score call: what is known while tracing (`Static`), how arguments are checked, and the operands that they
become."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..configs.block_scores import GROUPS, HEAD_DIM, PAGE, choose_path
from ..errors import message
from ..formats import scale_layout as layouts
from ..formats import scales
from ..specs.block_scores import SPEC
from . import fp4, must

OP = SPEC.api
PAGES_REMEDY = "A page holds 128 keys of every KV head: regroup a cache with pages of another size."
CODES_REMEDY = "The head dimension is 128: 64 bytes of packed codes, or 128 float4_e2m1fn values."
NO_DERIVATIVE = (
    f"{OP} selects what to attend to and has no derivative. Wrap its arguments (not its result) in jax.lax.stop_gradient, "
    "or compute it outside of the function that is differentiated."
)


@dataclasses.dataclass(frozen=True)
class Static:
    """The static part of a call: attributes of its spec and the size of its result, by their names; hashable, so that
    equal calls share a program.

    max_scratch_bytes bounds what a prefill may take; `pages_per_pass` follows from it and from the shapes.
    """

    path: str
    format: str
    scale_layout: str
    mask: int  # 0 none, 1 causal with offset k_len - q_len, 2 causal with qo_offset
    max_seqlen_q: int
    k_tiles: int
    max_scratch_bytes: int


def check(
    q_fp4: Any,
    k_fp4: Any,
    q_scale: Any,
    k_scale: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    cu_page_offsets: Any,
    *,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    kv_indices: Any,
    fp4_format: Any,
    causal: Any,
    qo_offset: Any,
    scale_layout: Any,
    q_global_scale: Any,
    k_global_scale: Any,
    implementation: Any,
    implementations: Sequence[str | None],
    max_scratch_bytes: Any,
) -> tuple[Static, dict[str, Any]]:
    """Everything that shapes, dtypes and static arguments can get wrong; returns (Static, the arrays as given, by
    argument).

    Never reads the contents of an array, so traced and concrete arguments take the same path.
    """
    must.choice(OP, "fp4_format", fp4_format, tuple(scales.FORMATS))
    must.choice(OP, "scale_layout", scale_layout, layouts.LAYOUTS)
    must.choice(OP, "implementation", implementation, implementations)
    sizes = {}
    for name, value, least, bits, remedy in (
        ("max_seqlen_q", max_seqlen_q, 1, 31, "Pass the longest query length of the batch, or 1 if there is none."),
        ("max_seqlen_k", max_seqlen_k, 0, 31, "Pass the longest key length of the batch."),
        ("max_scratch_bytes", max_scratch_bytes, 0, 63, "Pass a number of bytes; the default is 256 MiB."),
    ):
        sizes[name] = must.static_int(OP, name, value, least, remedy, bits)
    causal = must.static_bool(OP, "causal", causal)
    if qo_offset is not None and not causal:
        raise ValueError(
            message(
                OP,
                "qo_offset",
                qo_offset,
                "None with causal=False",
                "Drop qo_offset, or pass causal=True for it to shift the mask.",
            )
        )

    arrays = {
        "q_fp4": q_fp4,
        "k_fp4": k_fp4,
        "q_scale": q_scale,
        "k_scale": k_scale,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "cu_page_offsets": cu_page_offsets,
        "kv_indices": kv_indices,
        "qo_offset": qo_offset,
    }
    heads_q, heads_kv = _check_tensors(arrays, fp4_format, scale_layout)
    _check_metadata(arrays)
    arrays["q_global_scale"] = _check_global("q_global_scale", q_global_scale, fp4_format, heads_q, "Hq")
    arrays["k_global_scale"] = _check_global("k_global_scale", k_global_scale, fp4_format, heads_kv, "Hkv")
    must.one_place(OP, arrays)

    forced = implementation in ("decode", "prefill")
    path = implementation if forced else choose_path(sizes["max_seqlen_q"], heads_q // heads_kv)
    static = Static(
        path,
        fp4_format,
        scale_layout,
        0 if not causal else 1 if qo_offset is None else 2,
        sizes["max_seqlen_q"],
        -(-sizes["max_seqlen_k"] // PAGE),
        min(sizes["max_scratch_bytes"], must.INT32_MAX),
    )  # more was never tried
    return static, arrays


def operands(static: Static, arrays: Mapping[str, Any]) -> tuple[jax.Array, ...]:
    """The operands of the op's spec from checked arrays: bytes are reinterpreted, never copied or converted."""
    q, k = fp4.code_bytes(arrays["q_fp4"]), fp4.code_bytes(arrays["k_fp4"])
    num_seqs = arrays["cu_seqlens_q"].shape[0] - 1
    qo_offset = jnp.zeros(num_seqs, jnp.int32) if static.mask != 2 else jnp.asarray(arrays["qo_offset"])
    metadata = (jnp.asarray(arrays[name]) for name in ("kv_indices", "cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets"))
    return (
        q,
        k,
        fp4.scale_bytes(arrays["q_scale"]),
        fp4.scale_bytes(arrays["k_scale"]),
        *metadata,
        qo_offset,
        _head_scale(arrays["q_global_scale"], arrays["k_global_scale"], q.shape[1], k.shape[1]),
    )


def _head_scale(q_global: Any, k_global: Any, heads_q: int, heads_kv: int) -> jax.Array:
    product = jnp.ones(heads_q, jnp.float32)
    if q_global is not None:
        product = product * q_global
    if k_global is not None:
        product = product * (k_global if k_global.ndim == 0 else jnp.repeat(k_global, heads_q // heads_kv))
    return product


def _check_tensors(arrays: Mapping[str, Any], fp4_format: str, scale_layout: str) -> tuple[int, int]:
    """Checks codes and scales; returns (Hq, Hkv)."""
    tokens, heads_q = fp4.codes(OP, "q_fp4", arrays["q_fp4"], (None, None), "[Tq, Hq, 64]", HEAD_DIM, CODES_REMEDY)
    names = "[num_pages, Hkv, 128, 64]"
    num_pages, heads_kv, _ = fp4.codes(
        OP, "k_fp4", arrays["k_fp4"], (None, None, PAGE), names, HEAD_DIM, CODES_REMEDY, PAGES_REMEDY
    )
    if heads_kv == 0 or heads_q == 0 or heads_q % heads_kv:
        raise ValueError(
            message(
                OP,
                "q_fp4",
                f"Hq = {heads_q} with Hkv = {heads_kv}",
                "Hq a positive multiple of Hkv",
                "Axis 1 of q_fp4 and of k_fp4 are the heads; k_fp4 is [num_pages, Hkv, 128, 64], pages first.",
            )
        )
    groups, tiled = GROUPS[fp4_format], scale_layout == "preordered_mma"
    remedy = (
        'Reorder public scales with fp4_indexer_reorder_scales_for_mma, or pass scale_layout="public".'
        if tiled
        else f"{fp4_format} has one scale per {HEAD_DIM // groups} elements (G = {groups}); check fp4_format and scale_layout."
    )
    for name, shape, names, tiled_names in (
        (
            "q_scale",
            layouts.q_scale_shape(scale_layout, tokens, heads_q, groups),
            "[Tq, Hq, G]",
            "[Hq, ceil(Tq/128), ceil(G/4), 32, 4, 4]",
        ),
        (
            "k_scale",
            layouts.k_scale_shape(scale_layout, num_pages, heads_kv, groups, PAGE),
            "[num_pages, Hkv, 128, G]",
            "[num_pages*Hkv, 1, ceil(G/4), 32, 4, 4]",
        ),
    ):
        fp4.scales_of(OP, name, arrays[name], fp4_format, shape, tiled_names if tiled else names, remedy)
    return heads_q, heads_kv


def _check_metadata(arrays: Mapping[str, Any]) -> None:
    """Checks the vectors that say where sequences and pages lie, by dtype and length."""
    must.int32_vector(
        OP, "cu_seqlens_q", arrays["cu_seqlens_q"], None, "[B+1]", "Pass the exclusive prefix sum of the query lengths."
    )
    ends = arrays["cu_seqlens_q"].shape[0]
    if ends == 0:
        raise ValueError(
            message(
                OP,
                "cu_seqlens_q",
                arrays["cu_seqlens_q"],
                "shape [B+1] with B >= 0",
                "A prefix sum has one entry more than the batch: pass [0] for an empty batch.",
            )
        )
    same = "All prefix sums have one entry more than the batch; cu_seqlens_q sets B."
    for name, length, names, remedy in (
        ("cu_seqlens_k", ends, "[B+1]", same),
        ("cu_page_offsets", ends, "[B+1]", same),
        ("kv_indices", None, "[N]", "Pass one vector of page ids for the whole batch."),
        ("qo_offset", ends - 1, "[B]", "Pass one offset per sequence."),
    ):
        if arrays[name] is not None or name != "qo_offset":
            must.int32_vector(OP, name, arrays[name], length, names, remedy)


def _check_global(argument: str, x: Any, fp4_format: str, heads: int, heads_name: str) -> Any:
    """The scale as a float32 array or number, or None."""
    if x is None:
        return None
    if not scales.FORMATS[fp4_format].has_global_scale:
        raise ValueError(
            message(
                OP,
                argument,
                x,
                f"None with fp4_format={fp4_format!r}",
                "Only nvfp4 has a global scale: drop it, or multiply the scores yourself.",
            )
        )
    if must.is_number(x):
        return must.number(OP, argument, x)
    must.array(OP, argument, x, ("float32",), "Cast it with .astype(jnp.float32).")
    if tuple(x.shape) not in ((), (heads,)):
        raise ValueError(
            message(
                OP,
                argument,
                x,
                f"shape [] or [{heads_name}] = [{heads}]",
                "Pass one float32 for all heads, or one per head.",
            )
        )
    return x
