"""Metadata of a shard: what a device needs to score its sequences, its tokens or its blocks with the unchanged op.
Recipes: docs/sharding.md."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..calls import must
from ..calls import ragged as split
from ..errors import message


class ShardedMetadata(NamedTuple):
    """Metadata of `num_shards` shards, int32 NumPy arrays that hold one shard's part after another: under
    `in_specs=P(axis)` each device gets its own.

    cu_seqlens_q, cu_seqlens_k, cu_page_offsets: [num_shards * (Bs+1)], Bs = ceil(B / num_shards).
    kv_indices: [num_shards * Ns]. qo_offset: [num_shards * Bs], or None.
    rows: [num_shards * Ts], the row of q_fp4 (and of public q_scale) that each row of a shard is. Padding rows repeat
    row 0; their scores are not used.
    columns: [cu_seqlens_q[-1]], where in the last axis of the shards' scores, joined along it, each token's scores are.
    """

    cu_seqlens_q: np.ndarray
    cu_seqlens_k: np.ndarray
    cu_page_offsets: np.ndarray
    kv_indices: np.ndarray
    qo_offset: np.ndarray | None
    rows: np.ndarray
    columns: np.ndarray


def shard(
    cu_seqlens_q: must.Array,
    cu_seqlens_k: must.Array,
    cu_page_offsets: must.Array,
    kv_indices: must.Array,
    *,
    num_shards: int,
    qo_offset: must.Array | None = None,
    num_pages: int | None = None,
    tokens: int | None = None,
    indices: int | None = None,
) -> ShardedMetadata:
    """Splits a batch over `num_shards` devices by sequences: shard s scores sequences s*Bs .. (s+1)*Bs - 1, where
    Bs = ceil(B / num_shards).

    Runs on the host, on NumPy arrays (JAX arrays are copied to it): it belongs where the batch is put together. Last
    shards may have fewer sequences; they are filled up with empty ones. All shards have the same sizes, as one program
    for all devices needs.

        m = ragged.shard(cu_q, cu_k, cu_pages, ids, num_shards=8, num_pages=P)
        step = jax.shard_map(step, mesh=mesh, in_specs=P("x"), out_specs=P(None, None, "x"))
        scores = step(q[m.rows], k, q_scale[m.rows], k_scale, m.cu_seqlens_q, ...)
        scores[..., m.columns]              # in the order of the tokens of q

    Args:
      cu_seqlens_q, cu_seqlens_k, cu_page_offsets: [B+1] int32; kv_indices: [N] int32; qo_offset: [B] int32 or None. As
        for `fp4_indexer_block_scores`.
      num_shards: int > 0.
      num_pages: pages of the whole pool where it is split too: shard s holds pages s*num_pages/num_shards and so on,
        and its ids come out relative to its part. None: every shard has the whole pool, and ids stay as they are.
      tokens, indices: sizes Ts and Ns of a shard, to keep one compiled program for batches of different lengths. None:
        the largest shard's.

    Returns a `ShardedMetadata`.

    Raises:
      TypeError: an argument is traced, or no int32 vector, or a size is no Python int.
      ValueError: lengths of vectors differ, prefix sums that decrease or pass the end, tokens before the first
        sequence, a size too small for a shard, num_pages not divisible by num_shards, a page outside the part of the
        pool that its sequence's shard holds.
    """
    op = "ragged.shard"
    num_shards = must.static_int(op, "num_shards", num_shards, 1, "Pass the number of devices along the mesh axis.")
    sums = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "cu_page_offsets": cu_page_offsets}
    sums = {name: _host(op, name, x) for name, x in sums.items()}
    ids = _host(op, "kv_indices", kv_indices)
    ends = sums["cu_seqlens_q"].shape[0]
    if ends == 0:
        raise ValueError(
            message(
                op,
                "cu_seqlens_q",
                "int32[0]",
                "shape [B+1] with B >= 0",
                "A prefix sum has one entry more than the batch: pass [0] for an empty batch.",
            )
        )
    offset = None if qo_offset is None else _host(op, "qo_offset", qo_offset)
    for name, x, size in (*((name, x, ends) for name, x in sums.items()), ("qo_offset", offset, ends - 1)):
        if x is not None and x.shape[0] != size:
            raise ValueError(
                message(
                    op,
                    name,
                    f"{x.shape[0]} entries",
                    f"{size} (cu_seqlens_q has {ends})",
                    "Pass the metadata of one batch.",
                )
            )
    for name, x in sums.items():
        if x[0] < 0 or (np.diff(x) < 0).any():
            raise ValueError(
                message(
                    op,
                    name,
                    "a prefix sum that decreases" if x[0] >= 0 else f"{x[0]} first",
                    "a non-decreasing prefix sum",
                    "Rebuild it from the lengths of the batch.",
                )
            )
    if sums["cu_seqlens_q"][0] != 0:
        raise ValueError(
            message(
                op,
                "cu_seqlens_q",
                f"{sums['cu_seqlens_q'][0]} first",
                "0",
                "Tokens before the first sequence have no shard: cut them off q, and subtract their number.",
            )
        )
    if sums["cu_page_offsets"][-1] > ids.size:
        raise ValueError(
            message(
                op,
                "cu_page_offsets",
                f"{sums['cu_page_offsets'][-1]} at its end",
                f"at most the {ids.size} entries of kv_indices",
                "Rebuild it from the page lists.",
            )
        )

    per = -(-(ends - 1) // num_shards)
    bounds = np.minimum(np.arange(num_shards + 1) * per, ends - 1)
    cut = {name: [x[low : high + 1] for low, high in itertools.pairwise(bounds)] for name, x in sums.items()}
    rows = [np.arange(x[0], x[-1]) for x in cut["cu_seqlens_q"]]
    lists = [ids[x[0] : x[-1]] for x in cut["cu_page_offsets"]]
    if num_pages is not None:
        lists = _local_pages(
            op,
            lists,
            num_shards,
            must.static_int(op, "num_pages", num_pages, 0, "Pass the pages of the whole pool."),
            bounds,
            cut["cu_page_offsets"],
        )
    tokens, indices = _size(op, "tokens", tokens, rows), _size(op, "indices", indices, lists)
    local = {
        name: np.concatenate([_filled(x - x[0], per + 1, x[-1] - x[0]) for x in parts]) for name, parts in cut.items()
    }
    if offset is not None:
        offset = np.concatenate([_filled(offset[low:high], per, 0) for low, high in itertools.pairwise(bounds)])
    columns = np.concatenate([s * tokens + np.arange(r.size) for s, r in enumerate(rows)])
    return ShardedMetadata(
        **local,
        kv_indices=np.concatenate([_filled(x, indices, 0) for x in lists]),
        qo_offset=offset,
        rows=np.concatenate([_filled(x, tokens, 0) for x in rows]).astype(np.int32),
        columns=columns.astype(np.int32),
    )


def token_range(
    cu_seqlens_q: must.Array,
    cu_seqlens_k: must.Array,
    first: int | must.Array,
    tokens: int,
    *,
    qo_offset: must.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Metadata with which a device scores only rows first .. first + tokens - 1 of q_fp4, wherever these cut the
    sequences. Runs inside jit.

        first = jax.lax.axis_index("x") * q.shape[0]                # inside shard_map, q split along its first axis
        cu_q, offset = ragged.token_range(cu_q, cu_k, first, q.shape[0])
        fp4_indexer_block_scores(q, k, q_scale, k_scale, cu_q, cu_k, cu_pages, qo_offset=offset, causal=True, ...)

    The device needs every page of the sequences that it has tokens of; all other arguments stay those of the whole
    batch. Same bits as the whole call, for metadata without faults.

    Args:
      cu_seqlens_q, cu_seqlens_k: [B+1] int32, of the whole batch. qo_offset: [B] int32 or None, as for the whole call.
      first: int or int32 scalar, may be traced; tokens: int, rows of the device.

    Returns:
      (cu_seqlens_q, qo_offset): int32 [B+1] and [B] of the device. Without causal masking leave the offset out.

    Raises TypeError or ValueError if shapes or dtypes are wrong.
    """
    op = "ragged.token_range"
    cu_q, _, offset = _batch(op, cu_seqlens_q, cu_seqlens_k, qo_offset)
    tokens = must.static_int(op, "tokens", tokens, 0, "Pass the rows of the device's part of q_fp4.")
    return split.token_range(cu_q, offset, _scalar(op, "first", first), tokens)


def block_range(
    cu_seqlens_q: must.Array,
    cu_seqlens_k: must.Array,
    cu_page_offsets: must.Array,
    first: int | must.Array,
    blocks: int,
    *,
    qo_offset: must.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Metadata with which a device scores only blocks first .. first + blocks - 1 (128 keys each) of every sequence.
    Runs inside jit.

        first = jax.lax.axis_index("x") * blocks        # inside shard_map, the context split over the devices
        cu_k, cu_pages, offset = ragged.block_range(cu_q, cu_k, cu_pages, first, blocks)
        fp4_indexer_block_scores(q, k, q_scale, k_scale, cu_q, cu_k, cu_pages, max_seqlen_k=blocks * 128,
                                 kv_indices=ids, qo_offset=offset, causal=True, ...)

    The scores [Hq, blocks, Tq] are the device's slots of the whole result: `out_specs=P(None, "x", None)` puts them
    together without any communication. kv_indices stays that of the whole batch; the device reads the entries of its
    blocks only. Where it holds only a part of the pool, subtract the first page of the part: `kv_indices - first_page`.
    Same bits as the whole call, for metadata without faults.

    Args:
      cu_seqlens_q, cu_seqlens_k, cu_page_offsets: [B+1] int32, of the whole batch. qo_offset: [B] int32 or None, as for
        the whole call.
      first: int or int32 scalar >= 0, may be traced; blocks: int, of the device.

    Returns:
      (cu_seqlens_k, cu_page_offsets, qo_offset): int32 [B+1], [B+1] and [B] of the device. Without causal masking leave
      the offset out.

    Raises TypeError or ValueError if shapes or dtypes are wrong.
    """
    op = "ragged.block_range"
    _, cu_k, offset = _batch(op, cu_seqlens_q, cu_seqlens_k, qo_offset)
    cu_pages = _vector(op, "cu_page_offsets", cu_page_offsets, cu_k.shape[0])
    blocks = must.static_int(op, "blocks", blocks, 0, "Pass the blocks that a device scores.")
    return split.block_range(cu_k, cu_pages, offset, _scalar(op, "first", first), blocks)


def _batch(op: str, cu_seqlens_q: Any, cu_seqlens_k: Any, qo_offset: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Checked prefix sums, and the causal offset of every sequence."""
    cu_q = _vector(op, "cu_seqlens_q", cu_seqlens_q, None)
    if cu_q.shape[0] == 0:
        raise ValueError(
            message(
                op,
                "cu_seqlens_q",
                cu_q,
                "shape [B+1] with B >= 0",
                "A prefix sum has one entry more than the batch: pass [0] for an empty batch.",
            )
        )
    cu_k = _vector(op, "cu_seqlens_k", cu_seqlens_k, cu_q.shape[0])
    if qo_offset is None:
        return cu_q, cu_k, split.causal_offset(cu_q, cu_k)
    return cu_q, cu_k, _vector(op, "qo_offset", qo_offset, cu_q.shape[0] - 1)


def _vector(op: str, name: str, x: Any, size: int | None) -> jax.Array:
    must.int32_vector(
        op,
        name,
        x,
        size,
        "[B]" if name == "qo_offset" else "[B+1]",
        "Pass the metadata of the whole batch, as the op takes it.",
    )
    return jnp.asarray(x)


def _scalar(op: str, name: str, x: Any) -> jax.Array:
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        return jnp.int32(must.static_int(op, name, x, 0, "Pass where the device's range starts."))
    must.array(op, name, x, ("int32",), "Pass an int, or an int32 scalar such as jax.lax.axis_index gives.")
    must.shape(op, name, x, (), "[]", "Pass one number.")
    return jnp.asarray(x)


def _host(op: str, name: str, x: Any) -> np.ndarray:
    """An int32 vector as NumPy."""
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            message(
                op,
                name,
                f"a traced {x.dtype}[{', '.join(map(str, x.shape))}]",
                "an array with values",
                "Call it outside of jit, where the batch is put together; inside, use ragged.token_range or ragged.block_range.",
            )
        )
    must.int32_vector(op, name, x, None, "[n]", "Pass the metadata of the batch, as the op takes it.")
    return np.asarray(x)


def _size(op: str, name: str, size: Any, parts: list[np.ndarray]) -> int:
    longest = max(p.size for p in parts)
    if size is None:
        return longest
    size = must.static_int(op, name, size, 0, "Pass a size that holds every shard.")
    if size < longest:
        shard = int(np.argmax([p.size for p in parts]))
        raise ValueError(
            message(
                op,
                name,
                str(size),
                f"at least {longest}, which shard {shard} needs",
                "Pass a larger size, or None for the smallest that fits.",
            )
        )
    return size


def _filled(x: np.ndarray, size: int, value: int) -> np.ndarray:
    return np.concatenate([x, np.full(size - x.size, value, np.int32)]).astype(np.int32)


def _local_pages(
    op: str, lists: list[np.ndarray], num_shards: int, num_pages: int, bounds: np.ndarray, offsets: list[np.ndarray]
) -> list[np.ndarray]:
    if num_pages % num_shards:
        raise ValueError(
            message(
                op,
                "num_pages",
                str(num_pages),
                f"a multiple of num_shards = {num_shards}",
                "Pad the pool: every device holds the same number of pages.",
            )
        )
    part = num_pages // num_shards
    for shard, ids in enumerate(lists):
        wrong = (ids < shard * part) | (ids >= (shard + 1) * part)
        if wrong.any():
            at = int(np.argmax(wrong))
            b = int(bounds[shard] + np.searchsorted(offsets[shard] - offsets[shard][0], at, side="right") - 1)
            raise ValueError(
                message(
                    op,
                    "kv_indices",
                    f"page {ids[at]} of sequence {b}, which shard {shard} scores",
                    f"an id in [{shard * part}, {(shard + 1) * part}), the shard's part of the pool",
                    "Allocate a sequence's pages on the device that scores it, or pass num_pages=None with the whole pool on every device.",
                )
            )
    return [ids - np.int32(shard * part) for shard, ids in enumerate(lists)]
