"""Which blocks a query reads, attention over those pages alone, and dense attention to compare with. Plain jnp.

`first_page` is the row of the layer's page 0 in the pool (cache.py). Softmax and sums are fp32.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

import jax_fp4_indexer as jfi

from .cache import HEAD_DIM, PAGE, QUANTIZE

GATHER_BYTES = (
    128 * 2**20
)  # of keys gathered at once by sparse attention on a GPU: bounds its memory, and keeps the products large
DENSE_QUERIES, DENSE_PAGES = 256, 16  # a step of dense prefill: queries and pages
SCALE = 1 / math.sqrt(HEAD_DIM)


def block_scores(index_q, cache, batch, first_page, *, max_q, fp4_format):
    """Best key of every visible 128-key block, float32 [Hi, max_pages, T], from index queries [T, Hi, 128] and the FP4 index cache: the library's op."""
    codes, scales = QUANTIZE[fp4_format](index_q)
    return jfi.fp4_indexer_block_scores(
        codes,
        cache.index_codes,
        scales,
        cache.index_scales,
        batch.cu_q,
        batch.cu_k,
        batch.cu_pages,
        max_seqlen_q=max_q,
        max_seqlen_k=batch.table.shape[1] * PAGE,
        kv_indices=(batch.table + first_page).reshape(-1),
        fp4_format=fp4_format,
        causal=True,
    )


def choose_blocks(scores, last_key, *, top_k, first=1, local=1):
    """Block numbers int32 [T, Hi, top_k], -1 where a token sees fewer: the `first` and the `local` last visible blocks always, then the best scores."""
    scores = jnp.moveaxis(scores, -1, 0)  # [T, Hi, blocks]
    block = jnp.arange(scores.shape[-1], dtype=jnp.int32)
    last = (last_key // PAGE)[:, None, None]  # -1 for padding
    forced = ((block < first) | (block > last - local)) & (block <= last)
    scores = jnp.where(forced, jnp.inf, jnp.where(jnp.isnan(scores), -jnp.inf, scores))
    best, ids = lax.top_k(scores, min(top_k, scores.shape[-1]))
    return jnp.where(best == -jnp.inf, -1, ids).astype(jnp.int32)


def sparse_attention(q, chosen, cache, batch, first_page):
    """Attention of q [T, Hq, 128] over the chosen blocks [T, Hkv, n] alone -> [T, Hq, 128]. The query heads of a KV head share its blocks."""
    tokens, heads_q, _ = q.shape
    heads_kv, n = chosen.shape[1:]
    pages = jnp.where(
        chosen >= 0,
        jnp.take_along_axis(batch.table[batch.sequence], jnp.maximum(chosen, 0).reshape(tokens, -1), 1).reshape(
            chosen.shape
        )
        + first_page,
        0,
    )
    head = jnp.arange(heads_kv)[:, None]

    def token(x):
        q, chosen, pages, last_key = x
        k, v = (pool[pages, head].reshape(heads_kv, n * PAGE, HEAD_DIM) for pool in (cache.k, cache.v))
        key = (chosen[:, :, None] * PAGE + jnp.arange(PAGE)).reshape(heads_kv, n * PAGE)
        visible = jnp.repeat(chosen >= 0, PAGE, axis=1) & (key <= last_key)
        logits = (
            jnp.einsum("hrd,hkd->hrk", q.reshape(heads_kv, -1, HEAD_DIM), k, preferred_element_type=jnp.float32) * SCALE
        )
        weights = _softmax(logits, visible[:, None])
        return jnp.einsum("hrk,hkd->hrd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32).reshape(
            heads_q, HEAD_DIM
        )

    # A CPU does best with one token's keys in its caches.
    at_once = (
        1
        if jax.default_backend() == "cpu"
        else GATHER_BYTES // (heads_kv * n * PAGE * HEAD_DIM * cache.k.dtype.itemsize)
    )
    return _by_tiles(jax.vmap(token), (q, chosen, pages, batch.last_key), max(1, min(at_once, tokens)))


def _by_tiles(function, xs, tile):
    """function over tiles of `tile` tokens, one tile after another; tiles of padding alone (they come last) are zeros at no cost. xs[0] is q, xs[-1] last_key."""
    tokens, pad = xs[0].shape[0], -xs[0].shape[0] % tile
    if tile == tokens:
        return function(xs).astype(xs[0].dtype)
    fill = (0,) * (len(xs) - 1) + (-1,)
    tiles = tuple(
        jnp.pad(x, ((0, pad), *((0, 0),) * (x.ndim - 1)), constant_values=v).reshape(-1, tile, *x.shape[1:])
        for x, v in zip(xs, fill)
    )
    one = lambda x: lax.cond((x[-1] >= 0).any(), lambda x: function(x).astype(x[0].dtype), lambda x: 0 * x[0], x)
    return lax.map(one, tiles).reshape(-1, *xs[0].shape[1:])[:tokens]


def _softmax(logits, visible):
    """Softmax over the visible keys; zeros where there are none (padding)."""
    logits = jnp.where(visible, logits, -jnp.inf)
    top = logits.max(-1, keepdims=True)
    weights = jnp.exp(logits - jnp.where(jnp.isfinite(top), top, 0))
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)


def dense_weights(q, cache, batch, first_page):
    """Attention weights of every key, fp32 [B, Hkv, R, keys], one token a sequence: q [B, Hq, 128]."""
    k = _in_order(cache.k, batch.table + first_page)
    q = q.reshape(q.shape[0], k.shape[1], -1, HEAD_DIM)
    logits = jnp.einsum("bhrd,bhkd->bhrk", q, k, preferred_element_type=jnp.float32) * SCALE
    return _softmax(logits, jnp.arange(k.shape[2]) <= batch.last_key[:, None, None, None])


def block_mass(q, cache, batch, first_page):
    """The share of each block in dense attention, fp32 [B, Hkv, R, max_pages], one token a sequence."""
    weights = dense_weights(q, cache, batch, first_page)
    return weights.reshape(*weights.shape[:-1], -1, PAGE).sum(-1)


def dense_attention(q, cache, batch, first_page, *, max_q):
    """Attention of q [T, Hq, 128] over every visible key of the cache -> [T, Hq, 128]. One token a sequence where max_q is 1."""
    if max_q > 1:
        return _dense_prefill(q, cache, batch, first_page, max_q)
    v = _in_order(cache.v, batch.table + first_page)
    weights = dense_weights(q, cache, batch, first_page).astype(v.dtype)
    return (
        jnp.einsum("bhrk,bhkd->bhrd", weights, v, preferred_element_type=jnp.float32).reshape(q.shape).astype(q.dtype)
    )


def _in_order(pool, pages):
    """Whole sequences, [B, Hkv, max_pages * 128, 128], from pages int32 [B, max_pages]."""
    rows = pool[pages[:, None], jnp.arange(pool.shape[1])[:, None]]
    return rows.reshape(*rows.shape[:2], -1, HEAD_DIM)


def _dense_prefill(q, cache, batch, first_page, max_q):
    """Tile after tile of one sequence's queries, each over the pages that it sees, with a running maximum and sum (online softmax)."""
    heads_kv, ratio = cache.k.shape[1], q.shape[1] // cache.k.shape[1]
    tile, span = min(DENSE_QUERIES, max_q), min(DENSE_PAGES, batch.table.shape[1])
    tiles = -(-max_q // tile)
    table = jnp.pad(batch.table + first_page, ((0, 0), (0, -batch.table.shape[1] % span)))

    def one(x):
        b, t = x
        i = t * tile + jnp.arange(tile)
        token = jnp.minimum(batch.cu_q[b] + i, q.shape[0] - 1)
        last_key = jnp.where(batch.cu_q[b] + i < batch.cu_q[b + 1], batch.last_key[token], -1)
        rows = q[token].reshape(tile, heads_kv, ratio, HEAD_DIM).transpose(1, 2, 0, 3)  # [Hkv, R, tile, D]
        zero = jnp.zeros((), jnp.float32) * rows[..., 0].astype(jnp.float32)  # varies over the mesh as q does

        def step(c, carry):
            top, total, out = carry
            pages = lax.dynamic_slice_in_dim(table[b], c * span, span)
            k, v = (pool[pages].swapaxes(0, 1).reshape(heads_kv, span * PAGE, HEAD_DIM) for pool in (cache.k, cache.v))
            logits = jnp.einsum("hrtd,hkd->hrtk", rows, k, preferred_element_type=jnp.float32) * SCALE
            logits = jnp.where(c * span * PAGE + jnp.arange(span * PAGE) <= last_key[:, None], logits, -jnp.inf)
            new = jnp.maximum(top, logits.max(-1))
            base = jnp.where(jnp.isfinite(new), new, 0)
            weights, shrink = jnp.exp(logits - base[..., None]), jnp.exp(top - base)
            mixed = jnp.einsum("hrtk,hkd->hrtd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
            return new, total * shrink + weights.sum(-1), out * shrink[..., None] + mixed

        seen = (last_key.max() + span * PAGE) // (span * PAGE)
        _, total, out = lax.fori_loop(0, seen, step, (zero - jnp.inf, zero, zero[..., None] * jnp.ones(HEAD_DIM)))
        return (
            (out / jnp.maximum(total, 1e-30)[..., None])
            .astype(q.dtype)
            .transpose(2, 0, 1, 3)
            .reshape(tile, -1, HEAD_DIM)
        )

    b, t = (x.reshape(-1) for x in jnp.meshgrid(jnp.arange(batch.table.shape[0]), jnp.arange(tiles), indexing="ij"))
    out = lax.map(one, (b, t)).reshape(batch.table.shape[0], tiles * tile, *q.shape[1:])
    return out[batch.sequence, jnp.arange(q.shape[0]) - batch.cu_q[batch.sequence]]
