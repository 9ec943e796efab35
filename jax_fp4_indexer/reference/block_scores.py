"""Block scores, the definition.

    scores[h, kb, t] = head_scale[h] * max over the visible keys j of block kb of
                       sum over groups g of (q_scale[t,h,g] * k_scale[j,g]) * dot(q[t,h,g], k[j,g])

The walk is sequence -> chunk of its queries -> page of its keys that the chunk sees. A step holds one page and one
chunk: never [Tq, k_len], never the keys of the whole pool, and no work for pages or queries that are not in use.

A group dot is exact (its terms are multiples of 1/4 below 2^11). The two scales are combined before they meet the dot,
so 2^-127 * 2^127 is 1. Scale product times dot is exact too, for both formats, which leaves one rounding a group: the
sum over groups, taken in order, in fp32. The bits of a row depend on that row and its keys alone.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax import lax

from ..calls import must
from ..calls.block_scores import NO_DERIVATIVE, Static, check, operands
from ..calls.ragged import decreases
from ..calls.varying import on_one_mesh, same_varying_axes
from ..configs.block_scores import DEFAULT_SCRATCH_LIMIT, GROUPS, HEAD_DIM, PAGE
from ..formats import scale_layout as layouts
from ..formats import scales
from . import values

INT32_MAX = 2**31 - 1
CU_Q, CU_PAGES = 5, 7  # operands of block_scores_core
MAX_CHUNK = 128  # query tokens of a step
MAX_CHUNK_ROWS = 2048  # query rows (token, head) of a step: bounds the [rows, groups, 128] dots to 8 MiB


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
    """The definition of `jax_fp4_indexer.fp4_indexer_block_scores`: same arguments, same result, plain jnp on any
    platform.

    `implementation` and `max_scratch_bytes` are accepted so that the signatures agree; the first must be None or
    "reference". Raises as the op does, but for UnsupportedError.
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
        implementations=(None, "reference"),
        max_scratch_bytes=max_scratch_bytes,
    )
    return _scores(arrays, static=static)


@functools.partial(jax.jit, static_argnames="static", inline=True)
def _scores(arrays: dict[str, Any], *, static: Static) -> jax.Array:
    core = jax.custom_jvp(functools.partial(definition, static))
    core.defjvp(_no_derivative)
    return core(*operands(static, arrays))


def _no_derivative(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(NO_DERIVATIVE)


def definition(static: Static, *operands: jax.Array) -> jax.Array:
    """The scores of normalised operands, see `block_scores_core`."""
    return block_scores_core(
        *operands, k_tiles=static.k_tiles, fp4_format=static.format, scale_layout=static.scale_layout, mask=static.mask
    )


def block_scores_core(
    q: jax.Array,
    k: jax.Array,
    q_scale: jax.Array,
    k_scale: jax.Array,
    kv_indices: jax.Array,
    cu_seqlens_q: jax.Array,
    cu_seqlens_k: jax.Array,
    cu_page_offsets: jax.Array,
    qo_offset: jax.Array,
    head_scale: jax.Array,
    *,
    k_tiles: int,
    fp4_format: str,
    scale_layout: str,
    mask: int,
) -> jax.Array:
    """Scores fp32 [Hq, k_tiles, Tq] from normalised operands, the operands of the custom call in its order:

    q u8 [Tq, Hq, 64], k u8 [num_pages, Hkv, 128, 64], scales u8 in `scale_layout`, kv_indices s32 [N], prefix sums s32
    [B+1], qo_offset s32 [B] (read if mask is 2), head_scale f32 [Hq]. mask: 0 none, 1 causal with offset k_len - q_len,
    2 causal with qo_offset.
    """
    args = same_varying_axes(
        q, k, q_scale, k_scale, kv_indices, cu_seqlens_q, cu_seqlens_k, cu_page_offsets, qo_offset, head_scale
    )
    tokens, heads_q, _ = q.shape
    num_seqs = cu_seqlens_q.shape[0] - 1
    # A prefix sum that decreases gives every slot NaN, and no sequence anything to write over it.
    wrong = decreases(args[CU_Q]) | decreases(args[CU_PAGES])
    scores = jnp.broadcast_to(values.nan_where(wrong, jnp.float32(-jnp.inf)), (heads_q, k_tiles, tokens))
    scores, *args = on_one_mesh(scores, *args)
    args = (*args[:CU_Q], jnp.where(wrong, 0, args[CU_Q]), *args[CU_Q + 1 :])
    if 0 in (scores.size, num_seqs, kv_indices.shape[0]):
        return scores
    # One walk after another under vmap: batched loops would copy all of `scores` at each step.
    walk = jax.custom_batching.sequential_vmap(
        lambda scores, *args: _walk(scores, *args, fp4_format=fp4_format, scale_layout=scale_layout, mask=mask)
    )
    return walk(scores, *args)


def _walk(
    scores: jax.Array,
    q: jax.Array,
    k: jax.Array,
    q_scale: jax.Array,
    k_scale: jax.Array,
    kv_indices: jax.Array,
    cu_seqlens_q: jax.Array,
    cu_seqlens_k: jax.Array,
    cu_page_offsets: jax.Array,
    qo_offset: jax.Array,
    head_scale: jax.Array,
    *,
    fp4_format: str,
    scale_layout: str,
    mask: int,
) -> jax.Array:
    heads_q, k_tiles, tokens = scores.shape
    heads_kv = k.shape[1]
    groups = GROUPS[fp4_format]
    num_seqs = cu_seqlens_q.shape[0] - 1
    chunk = _chunk_tokens(tokens, num_seqs, heads_q)
    token_end = jnp.clip(cu_seqlens_q[-1], 0, tokens)

    def sequence(b: jax.Array, scores: jax.Array) -> jax.Array:
        q0, q_len, k_len, p0, pages = sequence_extent(
            b, cu_seqlens_q, cu_seqlens_k, cu_page_offsets, tokens, kv_indices.shape[0], k_tiles
        )
        offset = qo_offset[b] if mask == 2 else k_len - q_len

        def last_key(i: jax.Array) -> jax.Array:
            return k_len - 1 if mask == 0 else causal_last_key(i, offset, k_len)

        def chunk_of_queries(c: jax.Array, scores: jax.Array) -> jax.Array:
            # A chunk that would end past the tokens starts earlier; it repeats rows of the chunk before, to the same
            # bits.
            start = jnp.minimum(q0 + c * chunk, tokens - chunk)
            token = start + jnp.arange(chunk, dtype=jnp.int32)
            i = token - q0
            mine = (i >= 0) & (i < q_len) & (token < token_end)
            last = jnp.broadcast_to(last_key(i), (chunk,))
            q_rows = _query_rows(lax.dynamic_slice_in_dim(q, start, chunk, 0), heads_kv, fp4_format)
            q_row_scale = _query_scales(q_scale, token, heads_kv, groups, scale_layout)
            seen = jnp.clip((last_key(jnp.minimum((c + 1) * chunk, q_len) - 1) >> 7) + 1, 0, pages)

            def page(kb: jax.Array, scores: jax.Array) -> jax.Array:
                page_id = kv_indices[p0 + kb]
                maxima = _page_maxima(
                    q_rows,
                    q_row_scale,
                    *_key_page(k, k_scale, page_id, groups, scale_layout),
                    last - kb * PAGE,
                    fp4_format,
                )
                maxima = maxima.reshape(heads_q, chunk) * head_scale[:, None]
                inside = (page_id >= 0) & (page_id < k.shape[0])
                maxima = values.nan_where(~inside, maxima)
                at = (jnp.int32(0), kb, start)
                old = lax.dynamic_slice(scores, at, (heads_q, 1, chunk))
                new = jnp.where((mine & (last >= kb * PAGE))[None], maxima, old[:, 0])
                return lax.dynamic_update_slice(scores, new[:, None], at)

            return lax.fori_loop(0, seen, page, scores)

        return lax.fori_loop(0, ceil_div(q_len, chunk), chunk_of_queries, scores)

    return lax.fori_loop(0, num_seqs, sequence, scores)


def ceil_div(x: jax.Array, y: int) -> jax.Array:
    """ceil(x / y) for x >= 0, without the overflow of x + y - 1."""
    return x // y + (x % y != 0).astype(x.dtype)


def sequence_extent(
    b: jax.Array,
    cu_seqlens_q: jax.Array,
    cu_seqlens_k: jax.Array,
    cu_page_offsets: jax.Array,
    tokens: int,
    num_indices: int,
    k_tiles: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """(q0, q_len, k_len, p0, pages) of sequence b, in bounds whatever the metadata says."""
    q0 = jnp.clip(cu_seqlens_q[b], 0, tokens)
    q_len = jnp.clip(cu_seqlens_q[b + 1], q0, tokens) - q0
    k_start, k_end = cu_seqlens_k[b], cu_seqlens_k[b + 1]
    k_len = jnp.where(k_end > k_start, k_end - k_start, 0)
    k_len = jnp.where(k_len < 0, INT32_MAX, k_len)  # a difference that left int32
    p0 = jnp.clip(cu_page_offsets[b], 0, num_indices)
    listed = jnp.clip(cu_page_offsets[b + 1], p0, num_indices) - p0
    return q0, q_len, k_len, p0, jnp.minimum(jnp.minimum(listed, ceil_div(k_len, PAGE)), k_tiles)


def causal_last_key(i: jax.Array, offset: jax.Array, k_len: jax.Array) -> jax.Array:
    """min(k_len - 1, i + offset) for i >= 0, right for every int32 offset: i + offset is used only where it cannot
    overflow."""
    return jnp.where(offset >= k_len - 1 - i, k_len - 1, i + offset)


def _chunk_tokens(tokens: Any, num_seqs: Any, heads_q: int) -> int:
    """Query tokens a step works on: a power of two near the mean length, so that short queries do not pay for long
    chunks."""
    if jax.export.is_symbolic_dim(tokens) or jax.export.is_symbolic_dim(num_seqs):
        return 1  # exported for any size: no other chunk is known to fit
    mean = -(-tokens // num_seqs)
    return max(1, min(1 << (mean - 1).bit_length(), MAX_CHUNK, MAX_CHUNK_ROWS // heads_q, tokens))


def _query_rows(q: jax.Array, heads_kv: int, fp4_format: str) -> jax.Array:
    """u8 [chunk, Hq, 64] -> fp32 [Hkv, R * chunk, G, group_size]; row r * chunk + c is head r of the KV head, token
    c."""
    rows = q.transpose(1, 0, 2).reshape(heads_kv, -1, HEAD_DIM // 2)
    return values.group_values(rows, scales.FORMATS[fp4_format].group_size)


def _query_scales(q_scale: jax.Array, token: jax.Array, heads_kv: int, groups: int, scale_layout: str) -> jax.Array:
    """Scale bytes of the chunk, u8 [Hkv, R * chunk, G]."""
    if scale_layout == "public":
        rows = lax.dynamic_slice_in_dim(q_scale, token[0], token.shape[0], 0).transpose(1, 0, 2)
    else:
        rows = q_scale[(slice(None), *layouts.tiled_index(token[:, None], jnp.arange(groups, dtype=jnp.int32)[None]))]
    return rows.reshape(heads_kv, -1, groups)


def _key_page(
    k: jax.Array, k_scale: jax.Array, page_id: jax.Array, groups: int, scale_layout: str
) -> tuple[jax.Array, jax.Array]:
    """Codes u8 [Hkv, 128, 64] and scale bytes u8 [Hkv, 128, G] of a page; an id outside the pool reads page 0 or the
    last (its scores become NaN)."""
    num_pages, heads_kv = k.shape[:2]
    if num_pages == 0:
        return jnp.zeros((heads_kv, PAGE, HEAD_DIM // 2), jnp.uint8), jnp.zeros((heads_kv, PAGE, groups), jnp.uint8)
    page_id = jnp.clip(page_id, 0, num_pages - 1)
    codes = lax.dynamic_index_in_dim(k, page_id, 0, keepdims=False)
    if scale_layout == "public":
        return codes, lax.dynamic_index_in_dim(k_scale, page_id, 0, keepdims=False)
    # One tile row a page and head: [group tile, r % 32, r // 32, g % 4] -> [r // 32, r % 32, group tile, g % 4].
    tiles = lax.dynamic_index_in_dim(
        k_scale.reshape(num_pages, heads_kv, -1, *layouts.TILE_SHAPE), page_id, 0, keepdims=False
    )
    return codes, tiles.transpose(0, 3, 2, 1, 4).reshape(heads_kv, PAGE, -1)[..., :groups]


def _page_maxima(
    q_rows: jax.Array, q_scale: jax.Array, k_codes: jax.Array, k_scale: jax.Array, last: jax.Array, fp4_format: str
) -> jax.Array:
    """fp32 [Hkv, R * chunk]: maximum over the keys r <= last (position in the page, per token) of a page; NaN wins,
    -inf if there is none."""
    k_rows = values.group_values(k_codes, scales.FORMATS[fp4_format].group_size)
    dots = lax.dot_general(
        q_rows,
        k_rows,
        (((3,), (3,)), ((0, 2), (0, 2))),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    score = sum_groups(dots, q_scale, k_scale, fp4_format)  # [Hkv, rows, keys]
    visible = (jnp.arange(PAGE, dtype=jnp.int32)[None] <= last[:, None])[None, None]  # [1, 1, chunk, keys]
    score = score.reshape(score.shape[0], -1, *visible.shape[2:])
    score = jnp.where(visible, score, -jnp.inf)
    # NaN is selected apart: XLA:CPU (seen in jaxlib 0.10.2) drops it from a maximum that it fuses and vectorises.
    return values.nan_where(jnp.isnan(score).any(-1), jnp.max(score, axis=-1)).reshape(score.shape[0], -1)


def sum_groups(dots: jax.Array, q_scale: jax.Array, k_scale: jax.Array, fp4_format: str) -> jax.Array:
    """Sum over g of (q_scale * k_scale) * dots: dots fp32 [H, G, M, N], scale bytes u8 [H, M, G] and [H, N, G] -> fp32
    [H, M, N].

    The combined E8M0 scale qa + ka - 254 is an integer exponent; the NVFP4 one is a product of two 4-bit significands,
    exact in fp32.
    """
    if fp4_format == "nvfp4":
        q_value, k_value = values.ue4m3_value(q_scale), values.ue4m3_value(k_scale)
        terms = [dots[:, g] * (q_value[:, :, None, g] * k_value[:, None, :, g]) for g in range(dots.shape[1])]
        return _in_order(terms)
    q_exp, k_exp = q_scale.astype(jnp.int32), k_scale.astype(jnp.int32)
    terms = [
        values.times_power_of_two(dots[:, g], q_exp[:, :, None, g] + k_exp[:, None, :, g] - 2 * scales.E8M0_BIAS)
        for g in range(dots.shape[1])
    ]
    q_nan, k_nan = ((e == scales.E8M0_NAN).any(-1) for e in (q_exp, k_exp))
    return values.nan_where(q_nan[:, :, None] | k_nan[:, None, :], _in_order(terms))


def _in_order(terms: list[jax.Array]) -> jax.Array:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
