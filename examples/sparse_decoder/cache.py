"""The paged cache of all layers: K, V and the FP4 index keys, written inside the jitted step.

One pool serves every layer. Layer l keeps its copy of page p at row l * num_pages + p, so a layer passes the whole pool and page ids that
are `l * num_pages` higher: nothing is sliced, and a donated cache is updated in place, also in a scan over layers.

A sequence's pages are a row of a fixed-width table [B, max_pages]. The op takes the flattened table with page offsets b * max_pages; how many pages
count follows from the length, so lengths grow on the device and no page list is rebuilt between steps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_fp4_indexer as jfi

PAGE = 128  # keys of a page, and of a score block
HEAD_DIM = 128
QUANTIZE = {"nvfp4": jfi.quantize_nvfp4, "mxfp4": jfi.quantize_mxfp4}
GROUP_SIZE = {"nvfp4": 16, "mxfp4": 32}


class Cache(NamedTuple):
    """k, v: [L * num_pages, Hkv, 128, 128]; index_codes: uint8 [L * num_pages, 1, 128, 64]; index_scales: uint8 [L * num_pages, 1, 128, G]."""

    k: jax.Array
    v: jax.Array
    index_codes: jax.Array
    index_scales: jax.Array


class Batch(NamedTuple):
    """Where the tokens of one step belong. T is a capacity: tokens past sum(q_lens) are padding, with last_key -1 and a slot outside the pool."""

    cu_q: jax.Array  # int32 [B+1]
    cu_k: jax.Array  # int32 [B+1], keys after the step
    cu_pages: jax.Array  # int32 [B+1], a fixed stride
    table: jax.Array  # int32 [B, max_pages]
    sequence: jax.Array  # int32 [T]
    position: jax.Array  # int32 [T], in the sequence
    last_key: jax.Array  # int32 [T], the last key a token sees: itself
    slot: jax.Array  # int32 [T], page * 128 + row of layer 0


def page_table(batch, max_len, seed=0):
    """int32 [B, max_pages], every page its own, in shuffled order: what an allocator hands out after some traffic."""
    max_pages = -(-max_len // PAGE)
    return np.random.default_rng(seed).permutation(batch * max_pages).astype(np.int32).reshape(batch, max_pages)


def empty_cache(config, num_pages, dtype):
    rows, groups = config.layers * num_pages, HEAD_DIM // GROUP_SIZE[config.fp4_format]
    pool = lambda heads, width, dtype: jnp.zeros((rows, heads, PAGE, width), dtype)
    return Cache(
        pool(config.heads_kv, HEAD_DIM, dtype),
        pool(config.heads_kv, HEAD_DIM, dtype),
        pool(1, HEAD_DIM // 2, jnp.uint8),
        pool(1, groups, jnp.uint8),
    )


def place(table, q_lens, past, capacity):
    """The Batch of a step that adds q_lens[b] tokens to sequences of past[b] keys; any jit-able lengths, T = `capacity`."""
    zero = jnp.zeros(1, jnp.int32)
    cu_q, cu_k = (jnp.concatenate([zero, jnp.cumsum(x, dtype=jnp.int32)]) for x in (q_lens, past + q_lens))
    token = jnp.arange(capacity, dtype=jnp.int32)
    sequence = jnp.clip(jnp.searchsorted(cu_q, token, side="right").astype(jnp.int32) - 1, 0, table.shape[0] - 1)
    real = token < cu_q[-1]
    position = jnp.where(real, token - cu_q[sequence] + past[sequence], 0)
    page = table[sequence, jnp.minimum(position // PAGE, table.shape[1] - 1)]
    # padding: a slot of its own in pages about 2^24, past those of any pool, which the scatter drops
    slot = jnp.where(real, page * PAGE + position % PAGE, jnp.iinfo(jnp.int32).max - token)
    cu_pages = jnp.arange(table.shape[0] + 1, dtype=jnp.int32) * table.shape[1]
    return Batch(cu_q, cu_k, cu_pages, table, sequence, position, jnp.where(real, position, -1), slot)


def append(cache, batch, first_page, k, v, index_k, fp4_format):
    """The cache with this layer's new rows: k, v [T, Hkv, 128]; index_k [T, 1, 128], quantised here. A row's bytes depend on that row alone."""
    codes, scales = QUANTIZE[fp4_format](index_k)
    page, row = batch.slot // PAGE + first_page, batch.slot % PAGE
    put = lambda pool, x: pool.at[page, :, row].set(x, mode="drop", unique_indices=True)
    return Cache(
        put(cache.k, k),
        put(cache.v, v),
        put(cache.index_codes, codes),
        put(cache.index_scales, jax.lax.bitcast_convert_type(scales, jnp.uint8)),
    )


def index_bytes(cache):
    return cache.index_codes.size + cache.index_scales.size


def kv_bytes(cache):
    return cache.k.nbytes + cache.v.nbytes
