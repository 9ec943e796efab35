"""`fp4_indexer_block_scores`: the public op. Checks and choice only; `reference/block_scores.py` defines what is
computed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from ..calls import fp4, must
from ..calls.block_scores import check
from ..configs.block_scores import DEFAULT_SCRATCH_LIMIT, GROUPS, PAGE
from ..errors import message
from ..formats import scales
from ..primitives.block_scores import CALL
from ._dispatch import run
from .formats import to_blocked

IMPLEMENTATIONS = (None, "reference", "decode", "prefill", "portable")


def fp4_indexer_block_scores(
    q_fp4: must.Array,
    k_fp4: must.Array,
    q_scale: must.Array,
    k_scale: must.Array,
    cu_seqlens_q: must.Array,
    cu_seqlens_k: must.Array,
    cu_page_offsets: must.Array,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    kv_indices: must.Array,
    fp4_format: str = "nvfp4",
    causal: bool = True,
    qo_offset: must.Array | None = None,
    scale_layout: str = "public",
    q_global_scale: float | must.Array | None = None,
    k_global_scale: float | must.Array | None = None,
    implementation: str | None = None,
    max_scratch_bytes: int = DEFAULT_SCRATCH_LIMIT,
) -> jax.Array:
    """Largest score of each 128-key block of a paged FP4 key cache, for each query and head.

        scores[h, kb, t] = max over the visible keys j of block kb of  q[t, h] . k[j, h // (Hq / Hkv)]

    with q and k the dequantised values: E2M1 code times the scale of its group, times the global scales. Products are
    exact and sums are fp32. The op of the M3 sparse-attention indexer, for padded and ragged batches.

    Args:
      q_fp4: [Tq, Hq, 64] uint8 or int8, two E2M1 codes a byte, low nibble first; or [Tq, Hq, 128] float4_e2m1fn.
        Queries of all sequences, one after another.
      k_fp4: [num_pages, Hkv, 128, 64] likewise: the page pool. Hq is a multiple of Hkv.
      q_scale: public [Tq, Hq, G]; preordered_mma [Hq, ceil(Tq/128), ceil(G/4), 32, 4, 4]. nvfp4: G = 8, float8_e4m3fn
        read without its sign bit, 0x7F NaN. mxfp4: G = 4, float8_e8m0fnu, 255 NaN. Or the same bytes as uint8.
      k_scale: public [num_pages, Hkv, 128, G]; preordered_mma [num_pages*Hkv, 1, ceil(G/4), 32, 4, 4].
      cu_seqlens_q, cu_seqlens_k: [B+1] int32, exclusive prefix sums of query and key lengths (any length >= 0, any
        B >= 0). One sequence of length n is [0, n]; a single entry, such as [n], is a batch of no sequence: all scores
        are -inf.
      cu_page_offsets: [B+1] int32, where each sequence's pages start in `kv_indices`.
      max_seqlen_q: int > 0, the longest query. It chooses the kernel and nothing else: longer queries are computed
        correctly too.
      max_seqlen_k: int >= 0. Ktiles = ceil(max_seqlen_k / 128) is the width of the result; keys past it are ignored.
      kv_indices: [N] int32, page ids; block kb of sequence b lies in page kv_indices[cu_page_offsets[b] + kb]. May be
        longer than the pages in use.
      fp4_format: "nvfp4" or "mxfp4".
      causal: key j is visible to query i of its sequence iff j <= i + offset, offset = qo_offset[b] or k_len - q_len.
        False: all keys.
      qo_offset: [B] int32 or None; any value, only with causal=True.
      scale_layout: "public" or "preordered_mma", see `fp4_indexer_reorder_scales_for_mma`. Same bits from both.
      q_global_scale, k_global_scale: float32 scalar, or one per head ([Hq], [Hkv]); nvfp4 only. They multiply the
        scores.
      implementation: None chooses the best for the platform: on a GPU the packed-query "decode" kernel where
        max_seqlen_q <= 8 and Hq/Hkv <= 16, else the staged "prefill" kernel; elsewhere the reference. "decode" and
        "prefill" force a path, "portable" forces the kernels that need nothing beyond sm_80, "reference" the plain-jnp
        definition. Platforms other than CUDA always run the reference.
      max_scratch_bytes: int >= 0, an upper bound on the temporary device memory of a prefill (decode needs none). A
        prefill keeps dequantised key pages there: 32 KB for each page and KV head, 48 KB in MXFP4. If the page list
        does not fit, it is processed in several passes, with the same bits. Two limits hold whatever you pass: one page
        for each KV head plus about 9 bytes a token is always allocated, and never more than 2 GiB for pages.

    Returns:
      float32 [Hq, Ktiles, Tq]. Every slot is written: -inf where a block has no key visible to the query (after the end
      of the sequence, hidden by the mask, rows after cu_seqlens_q[-1]); NaN where a visible key has a NaN scale, or
      where the block's page id is outside [0, num_pages); NaN everywhere if cu_seqlens_q or cu_page_offsets decreases
      anywhere. Bytes of padding and of masked keys never change a bit. Metadata that contradicts itself in other ways
      is cut to what exists (a prefix sum past its end, too few pages, a cu_seqlens_k that decreases: length 0).
      `ragged.validate` finds all such faults on the host.

    Raises:
      TypeError, ValueError: wrong shapes, dtypes or static arguments, while tracing.
      UnsupportedError: a named implementation has no kernel for this GPU. (None runs the reference then, and warns
        once.)
    """
    static, arrays = check(
        q_fp4,
        k_fp4,
        q_scale,
        k_scale,
        cu_seqlens_q,
        cu_seqlens_k,
        cu_page_offsets,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        kv_indices=kv_indices,
        fp4_format=fp4_format,
        causal=causal,
        qo_offset=qo_offset,
        scale_layout=scale_layout,
        q_global_scale=q_global_scale,
        k_global_scale=k_global_scale,
        implementation=implementation,
        implementations=IMPLEMENTATIONS,
        max_scratch_bytes=max_scratch_bytes,
    )
    return run(CALL, static, arrays, implementation)


def fp4_indexer_reorder_scales_for_mma(
    q_scale: must.Array, k_scale: must.Array, fp4_format: str = "nvfp4"
) -> tuple[jax.Array, jax.Array]:
    """Public scales in the order block-scaled tensor cores read them, for `scale_layout="preordered_mma"`.

    Args:
      q_scale: [Tq, Hq, G], k_scale: [num_pages, Hkv, 128, G]; dtypes as `fp4_indexer_block_scores` takes them.
      fp4_format: "nvfp4" (G = 8) or "mxfp4" (G = 4).

    Returns:
      (q, k): [Hq, ceil(Tq/128), ceil(G/4), 32, 4, 4] and [num_pages*Hkv, 1, ceil(G/4), 32, 4, 4], dtypes kept. The
      scale of (row r, group g) is at byte ((r//128)*ceil(G/4) + g//4)*512 + (r%32)*16 + ((r%128)//32)*4 + g%4 of its
      head; padding is zero.

    Raises TypeError or ValueError if dtypes or shapes are not those of `fp4_format`, or k_scale is split by heads over
    Explicit mesh axes.
    """
    op = "fp4_indexer_reorder_scales_for_mma"
    must.choice(op, "fp4_format", fp4_format, tuple(scales.FORMATS))
    groups = GROUPS[fp4_format]
    remedy = f"Pass public scales of {fp4_format} (G = {groups})."
    fp4.scales_of(op, "q_scale", q_scale, fp4_format, (None, None, groups), "[Tq, Hq, G]", remedy)
    fp4.scales_of(op, "k_scale", k_scale, fp4_format, (None, None, PAGE, groups), "[num_pages, Hkv, 128, G]", remedy)
    spec = jax.typeof(k_scale).sharding.spec if isinstance(k_scale, jax.Array) else ()
    if any(axis is not None for axis in spec[1:]):
        raise TypeError(
            message(
                op,
                "k_scale",
                f"sharding {spec} over explicit mesh axes",
                "pages split, or nothing",
                "Pages and heads become one axis, whose minor half no sharding names: use public scales, reorder inside jax.shard_map, "
                "or reshard k_scale (jax.sharding.reshard).",
            )
        )
    return _reorder(q_scale, k_scale)


@functools.partial(jax.jit, inline=True)
def _reorder(q_scale: jax.Array, k_scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    num_pages, heads_kv = k_scale.shape[:2]
    return to_blocked(jnp.swapaxes(q_scale, 0, 1)), to_blocked(
        k_scale.reshape(num_pages * heads_kv, *k_scale.shape[2:])
    )
