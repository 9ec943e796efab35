"""Inputs of a benchmark case: normal vectors quantised by our own quantiser, pages shuffled over a pool that holds several copies."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import jax_fp4_indexer as jfi
from jax_fp4_indexer.bench.shapes import WIDE_SPAN

COLD_BYTES = 160 * 2**20        # rotating over this much keeps a 60 MB L2 cold
MAX_SETS = 24
ROWS = 2**18


@dataclasses.dataclass(frozen=True)
class Data:
    """Operands shared by all calls, and one page list a call. Call i reads the pages of set i % sets, in an order of its own: L2 stays cold,
    and no two calls of a program are the same computation, which XLA would do once."""
    q: jax.Array
    k: jax.Array
    q_scale: jax.Array
    k_scale: jax.Array
    cu_seqlens_q: jax.Array
    cu_seqlens_k: jax.Array
    cu_page_offsets: jax.Array
    kv_indices: tuple


def prefix_sum(lengths):
    """int32 [B+1]: where each of `lengths` starts, and the end."""
    return jnp.asarray(np.concatenate([[0], np.cumsum(lengths)]), jnp.int32)


@functools.cache
def _normal_rows(fmt, seed):
    """ROWS vectors of 128 normal values, quantised: codes [ROWS, 64], scales [ROWS, G]."""
    quantise = jfi.quantize_nvfp4 if fmt == "nvfp4" else jfi.quantize_mxfp4
    return tuple(jax.jit(lambda key: tuple(quantise(jax.random.normal(key, (ROWS, 128), jnp.float32))[:2]))(jax.random.key(seed)))


@functools.partial(jax.jit, static_argnames=("rows",))
def _drawn(pool, key, rows):
    """`rows` of the pool's rows, drawn with repetition: quantising as many anew takes longer than timing them."""
    index = jax.random.randint(key, (rows,), 0, ROWS)
    return tuple(x[index] for x in pool)


def _with_wide_pages(k_scale, pages, key):
    """E8M0 bytes [pages, Hkv, 128, G]: those of `pages` moved, each by its own number of binades."""
    by = jax.random.randint(key, (len(pages), *k_scale.shape[1:]), -WIDE_SPAN, WIDE_SPAN + 1)
    moved = k_scale[pages].view(jnp.uint8).astype(jnp.int32) + by
    return k_scale.at[pages].set(moved.astype(jnp.uint8).view(k_scale.dtype))


def make(case, fmt, scale_layout, calls, seed=0):
    """Data for programs of up to `calls` calls."""
    per_set = case.logical_bytes(fmt)
    sets = int(min(MAX_SETS, max(2, -(-COLD_BYTES // per_set))))
    pool = case.pages * sets
    kq, kk = jax.random.split(jax.random.key(seed))
    normal = _normal_rows(fmt, seed)
    q, q_scale = _drawn(normal, kq, case.tokens * case.heads_q)
    k, k_scale = _drawn(normal, kk, pool * case.heads_kv * 128)
    groups = q_scale.shape[-1]
    q, q_scale = q.reshape(case.tokens, case.heads_q, 64), q_scale.reshape(case.tokens, case.heads_q, groups)
    k, k_scale = k.reshape(pool, case.heads_kv, 128, 64), k_scale.reshape(pool, case.heads_kv, 128, groups)
    rng = np.random.default_rng(seed)
    pages_of = rng.permutation(pool).astype(np.int32).reshape(sets, case.pages)
    wide = round(case.wide_pages * case.pages)
    if wide:            # as many in every set
        k_scale = _with_wide_pages(k_scale, pages_of[:, :wide].ravel(), jax.random.fold_in(kk, 1))
    if scale_layout == "preordered_mma":
        q_scale, k_scale = jfi.fp4_indexer_reorder_scales_for_mma(q_scale, k_scale, fmt)
    lists = tuple(jax.device_put([rng.permutation(pages_of[i % sets]) for i in range(calls)]))
    pages = [-(-n // 128) for n in case.k_lens]
    return jax.block_until_ready(Data(q, k, q_scale, k_scale, prefix_sum(case.q_lens), prefix_sum(case.k_lens), prefix_sum(pages), lists))


jax.tree_util.register_dataclass(Data, [f.name for f in dataclasses.fields(Data)], [])


def op(case, fmt, scale_layout, implementation):
    """The case as a function of (data, number of the call in its program)."""
    def call(data, i):
        return jfi.fp4_indexer_block_scores(
            data.q, data.k, data.q_scale, data.k_scale, data.cu_seqlens_q, data.cu_seqlens_k, data.cu_page_offsets,
            max_seqlen_q=max(case.q_lens), max_seqlen_k=max(case.k_lens), kv_indices=data.kv_indices[i], fp4_format=fmt, causal=case.causal,
            scale_layout=scale_layout, implementation=implementation)
    return call


def plain_xla(case, fmt):
    """What a JAX user writes without a kernel: dequantise to bf16, einsum, mask, maximum. Uniform lengths in whole pages, public scales; else None."""
    if len(set(case.q_lens)) > 1 or len(set(case.k_lens)) > 1 or case.k_lens[0] % 128:
        return None
    batch, q_len, k_len, heads_kv = len(case.q_lens), case.q_lens[0], case.k_lens[0], case.heads_kv
    if 4 * case.heads_q * q_len * k_len * batch > 40e9:      # the scores of all pairs, materialised
        return None
    pages = k_len // 128

    def call(data, i):
        kv_indices = data.kv_indices[i]
        dequantise = lambda c, s: jfi.dequantize(c, s, fmt).astype(jnp.bfloat16)
        q = dequantise(data.q, data.q_scale).reshape(batch, q_len, heads_kv, case.heads_q // heads_kv, 128)
        k = dequantise(data.k[kv_indices], data.k_scale[kv_indices]).reshape(batch, pages, heads_kv, 128, 128)
        scores = jnp.einsum("bqhrd,bphkd->hrpbqk", q, k, preferred_element_type=jnp.float32)
        if case.causal:
            key = jnp.arange(k_len).reshape(pages, 1, 128)
            visible = key <= jnp.arange(q_len)[:, None] + (k_len - q_len)
            scores = jnp.where(visible[None, None, :, None], scores, -jnp.inf)
        return scores.max(-1).reshape(case.heads_q, pages, batch * q_len)
    return call
