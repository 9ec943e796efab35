"""A decoder with MiniMax-M3's attention in plain JAX: grouped queries, an indexer of one query head per KV head and one key head, a paged cache.

A layer:  x += Wo . attention(rms_norm(x));  x += W_down . (silu(W_gate . y) * (W_up . y)), y = rms_norm(x)
Its attention: rotary q, k and index q, k -> new rows into the cache -> block scores from FP4 (the library's op) -> 16 blocks a token and KV head ->
softmax attention over those blocks. mode="dense" reads every key instead; it writes the same cache.

`make_step` gives one jitted function over a mesh axis "heads": KV heads with their query and index heads are split, so are the columns of the MLP; the index
key head and its cache, small as they are, are on every device. The same function is the prefill step (T a chunk of every prompt) and the decode step (T = B).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .attention import block_mass, block_scores, choose_blocks, dense_attention, sparse_attention
from .cache import HEAD_DIM, Cache, append, place

ROTARY_DIM = 64  # of the 128 of a head, as in MiniMax-M2; the rest carry no position
ROTARY_BASE = 10000.0
EPSILON = 1e-6
MASS_THAT_COUNTS = 0.01  # a block with this share of a head's dense attention should be among the chosen


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int = 3
    d_model: int = 512
    heads_q: int = 8
    heads_kv: int = 2
    d_ff: int = 1024
    vocab: int = 4096
    top_k: int = 16  # blocks of 128 keys; the first and the last visible one among them
    fp4_format: str = "nvfp4"
    dtype: str = "float32"


# Parameters: a dict of arrays, layers stacked on axis 0, each with the axis that is split over "heads".
SPECS = {
    "embed": P(),
    "unembed": P(),
    "wq": P(None, None, "heads"),
    "wk": P(None, None, "heads"),
    "wv": P(None, None, "heads"),
    "wo": P(None, "heads"),  # [L, d, H, 128], wo [L, H, 128, d]
    "w_index_q": P(None, None, "heads"),
    "w_index_k": P(),  # [L, d, Hkv, 128], [L, d, 1, 128]
    "w_gate": P(None, None, "heads"),
    "w_up": P(None, None, "heads"),
    "w_down": P(None, "heads"),  # [L, d, f], [L, f, d]
}
CACHE_SPEC = Cache(k=P(None, "heads"), v=P(None, "heads"), index_codes=P(), index_scales=P())


def rms_norm(x):
    y = x.astype(jnp.float32)
    return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + EPSILON)).astype(x.dtype)


def rotary(x, position):
    """x [T, H, 128] turned by position [T]: element i with element i + 32, for i < 32. Angles are fp32, whatever x is."""
    half = ROTARY_DIM // 2
    angle = position.astype(jnp.float32)[:, None, None] * ROTARY_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    a, b, rest = x[..., :half].astype(jnp.float32), x[..., half:ROTARY_DIM].astype(jnp.float32), x[..., ROTARY_DIM:]
    turned = (a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle))
    return jnp.concatenate([*(half.astype(x.dtype) for half in turned), rest], -1)


def _heads(y, w):
    """[T, d] x [d, H, 128] -> [T, H, 128]."""
    return (
        jnp.dot(y, w.reshape(w.shape[0], -1), preferred_element_type=jnp.float32)
        .astype(y.dtype)
        .reshape(y.shape[0], -1, HEAD_DIM)
    )


def _attention(config, w, x, cache, batch, first_page, max_q, mode, probe):
    y = rms_norm(x)
    q, k, index_q, index_k = (
        rotary(_heads(y, w[name]), batch.position) for name in ("wq", "wk", "w_index_q", "w_index_k")
    )
    cache = append(cache, batch, first_page, k, _heads(y, w["wv"]), index_k, config.fp4_format)
    seen = None
    if mode == "sparse" or probe:
        scores = block_scores(index_q, cache, batch, first_page, max_q=max_q, fp4_format=config.fp4_format)
        chosen = choose_blocks(scores, batch.last_key, top_k=config.top_k)
    if probe:
        seen = _coverage(block_mass(q, cache, batch, first_page), chosen)
    if mode == "sparse":
        out = sparse_attention(q, chosen, cache, batch, first_page)
    else:
        out = dense_attention(q, cache, batch, first_page, max_q=max_q)
    wo = w["wo"].reshape(-1, w["wo"].shape[-1])
    return jnp.dot(out.reshape(out.shape[0], -1), wo, preferred_element_type=jnp.float32), cache, seen


def _coverage(mass, chosen):
    """How much of dense attention the chosen blocks hold, each [B, Hkv]: (share of the mass; of the mass in the best blocks of the same number, were it known;
    blocks that count and are chosen; blocks that count). Shares are means over the query heads of a KV head, which share their blocks."""
    is_chosen = (chosen[..., None] == jnp.arange(mass.shape[-1])).any(2)[:, :, None]  # [B, Hkv, 1, blocks]
    best = lax.top_k(mass.mean(2), chosen.shape[-1])[0].sum(-1)
    counts = mass >= MASS_THAT_COUNTS
    return (mass * is_chosen).sum(-1).mean(-1), best, (counts & is_chosen).sum((-2, -1)), counts.sum((-2, -1))


def _mlp(w, x):
    y = rms_norm(x)
    dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
    return dot((jax.nn.silu(dot(y, w["w_gate"])) * dot(y, w["w_up"])).astype(x.dtype), w["w_down"])


def forward(config, params, cache, table, tokens, q_lens, past, *, max_q, mode, probe=False):
    """The step of one device, inside shard_map. tokens int32 [T], packed; q_lens, past int32 [B].

    -> (logits fp32 [B, vocab] after each sequence's last token, cache, coverage of every layer [L, B, Hkv] or None)."""
    batch = place(table, q_lens, past, tokens.shape[0])
    num_pages = table.size
    layers = {name: params[name] for name in params if name not in ("embed", "unembed")}

    def layer(carry, w):
        x, cache, first_page = carry
        out, cache, seen = _attention(config, w, x, cache, batch, first_page, max_q, mode, probe)
        x = x + lax.psum(out, "heads").astype(x.dtype)
        x = x + lax.psum(_mlp(w, x), "heads").astype(x.dtype)
        return (x, cache, first_page + num_pages), seen

    (x, cache, _), seen = lax.scan(layer, (params["embed"][tokens], cache, jnp.int32(0)), layers)
    last = rms_norm(x[jnp.maximum(batch.cu_q[1:] - 1, 0)])
    return jnp.dot(last, params["unembed"], preferred_element_type=jnp.float32), cache, seen


def make_step(config, mesh, *, max_q, mode, probe=False):
    """The jitted step (params, cache, table, tokens, q_lens, past) -> (logits, cache, coverage); the cache is donated.

    max_q: the most tokens a sequence gets in a step. mode: "sparse" or "dense". probe: also compare the choice with dense attention (max_q = 1 only)."""
    if probe and max_q != 1:
        raise ValueError(
            f"make_step: probe: got max_q = {max_q}, expected 1. Dense weights of every key are kept for one token a sequence."
        )
    seen = P(None, None, "heads") if probe else P()
    step = functools.partial(forward, config, max_q=max_q, mode=mode, probe=probe)
    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=(SPECS, CACHE_SPEC, P(), P(), P(), P()), out_specs=(P(), CACHE_SPEC, seen)
    )
    return jax.jit(sharded, donate_argnums=1)


def shard(mesh, tree, specs):
    return jax.tree.map(
        lambda spec, x: jax.device_put(x, NamedSharding(mesh, spec)), specs, tree, is_leaf=lambda x: isinstance(x, P)
    )
