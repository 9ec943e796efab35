"""Addresses past 2^31: pools and outputs built on the device, with answers known in closed form. Each check yields (what, problem or "")."""

import jax
import jax.numpy as jnp
import numpy as np

import runner
import jax_fp4_indexer as jfi
from support import inputs

PAGE, ONES = inputs.PAGE, 0x22


def run(implementations=runner.IMPLEMENTATIONS, fmt=None):
    for name in implementations:
        for f in (fmt,) if fmt else ("nvfp4", "mxfp4"):
            for what, function in (
                ("page offsets", page_offsets),
                ("page offsets reversed", lambda n, g: page_offsets(n, g, reverse=True)),
                ("page offsets past 2^32", lambda n, g: page_offsets(n, g, heads=8, layout="preordered_mma")),
                ("65536 K tiles", many_tiles),
                ("output past 2^31", large_output),
            ):
                try:
                    problem = function(name, f)
                except Exception as error:
                    problem = f"{type(error).__name__}: {str(error).strip()[:400]}"
                yield f"{what} {name} {f}", problem


def _static(name, fmt, max_q, max_k, ratio, causal=False, layout="public"):
    limit, implementation = runner.choice(name, max_q, ratio, fmt)
    return dict(
        max_seqlen_q=limit,
        max_seqlen_k=max_k,
        fp4_format=fmt,
        causal=causal,
        scale_layout=layout,
        implementation=implementation,
    )


def _vector(*x):
    return jnp.array(x, jnp.int32)


def page_offsets(name, fmt, heads=4, pages=65537, reverse=False, layout="public"):
    """One query over 65,537 pages: bytes of K pass 2^31 at page 65,536 of 4 KV heads, elements at 32,768. Four pages hold a scale of 2."""
    marked = np.array([pages // 2 - 1, pages // 2, pages - 2, pages - 1])
    G, one = inputs.GROUPS[fmt], inputs.ONE[fmt]
    two = int(inputs.power_of_two_byte(fmt, 1))
    k = jnp.full((pages, heads, PAGE, 64), ONES, jnp.uint8)
    k_scale = jnp.full((pages, heads, PAGE, G), one, jnp.uint8).at[marked].set(two)
    q_scale = jnp.full((1, heads, G), one, jnp.uint8)
    if layout != "public":  # equal scales within a page: its tiles hold the same byte everywhere
        k_scale = (
            jnp.full((pages * heads, 1, G // 4, 32, 4, 4), one, jnp.uint8)
            .at[(marked[:, None] * heads + np.arange(heads)).ravel()]
            .set(two)
        )
        q_scale = jnp.full((heads, 1, G // 4, 32, 4, 4), one, jnp.uint8)
    ids = jnp.arange(pages, dtype=jnp.int32)
    out = jfi.fp4_indexer_block_scores(
        jnp.full((1, heads, 64), ONES, jnp.uint8),
        k,
        q_scale,
        k_scale,
        _vector(0, 1),
        _vector(0, pages * PAGE),
        _vector(0, pages),
        kv_indices=ids[::-1] if reverse else ids,
        **_static(name, fmt, 1, pages * PAGE, 1, layout=layout),
    )
    want = np.full(pages, 128, np.float32)
    want[marked] = 256
    return _first_wrong(np.asarray(out)[:, :, 0], want[::-1] if reverse else want)


def _first_wrong(got, want):
    bad = np.argwhere(got != want)
    return f"{len(bad)} blocks wrong, first {bad[0].tolist()}: {got[tuple(bad[0])]}" if len(bad) else ""


def many_tiles(name, fmt, pages=65536):
    """65,536 K tiles of one KV head: past the limit of a grid's second and third dimension."""
    G, one = inputs.GROUPS[fmt], inputs.ONE[fmt]
    k_scale = jnp.full((pages, 1, PAGE, G), one, jnp.uint8).at[-1].set(int(inputs.power_of_two_byte(fmt, 1)))
    out = jfi.fp4_indexer_block_scores(
        jnp.full((2, 2, 64), ONES, jnp.uint8),
        jnp.full((pages, 1, PAGE, 64), ONES, jnp.uint8),
        jnp.full((2, 2, G), one, jnp.uint8),
        k_scale,
        _vector(0, 2),
        _vector(0, pages * PAGE),
        _vector(0, pages),
        kv_indices=jnp.arange(pages, dtype=jnp.int32),
        **_static(name, fmt, 2, pages * PAGE, 2, causal=True),
    )
    want = np.full(pages, 128, np.float32)
    want[-1] = 256
    return _first_wrong(np.asarray(out)[:, :, 1], want) or _first_wrong(np.asarray(out)[:, :, 0], want)


@jax.jit
def _tail_is(out, want):
    """Wrong slots in the first and last two K tiles, where a 32-bit offset would have wrapped."""
    ends = jnp.concatenate([out[:, :1], out[:, -2:]], 1)
    return jnp.sum(ends != want), jnp.sum(jnp.isneginf(out[-1])), jnp.sum(out[-1] == 128)


def large_output(name, fmt, tokens=32768, tiles=1025):
    """64 heads x 1,025 tiles x 32,768 tokens: 2^31 elements are passed in the last head. One page serves all blocks; sequences of 8 queries."""
    if jax.devices()[0].memory_stats() and jax.devices()[0].memory_stats()["bytes_limit"] < 24 * 2**30:
        return "needs 24 GiB of device memory"
    B, G, one = tokens // 8, inputs.GROUPS[fmt], inputs.ONE[fmt]
    # Only the last sequence is long; the others end after one key, so that the work stays small and all the rest is the -inf fill.
    k_len = np.ones(B, np.int64)
    k_len[-1] = tiles * PAGE
    pages = -(-k_len // PAGE)
    out = jfi.fp4_indexer_block_scores(
        jnp.full((tokens, 64, 64), ONES, jnp.uint8),
        jnp.full((1, 4, PAGE, 64), ONES, jnp.uint8),
        jnp.full((tokens, 64, G), one, jnp.uint8),
        jnp.full((1, 4, PAGE, G), one, jnp.uint8),
        jnp.arange(B + 1, dtype=jnp.int32) * 8,
        jnp.asarray(inputs.prefix(k_len)),
        jnp.asarray(inputs.prefix(pages)),
        kv_indices=jnp.zeros(int(pages.sum()), jnp.int32),
        **_static(name, fmt, 8, tiles * PAGE, 16),
    )
    want = np.full((3, tokens), -np.inf, np.float32)
    want[0] = 128
    want[:, -8:] = 128
    wrong, minus_inf, scored = (int(x) for x in _tail_is(out, want))
    expected = (tiles - 1) * (tokens - 8), tokens + 8 * (tiles - 1)
    if wrong or (minus_inf, scored) != expected:
        return f"{wrong} slots wrong in the end tiles; last head holds {minus_inf} -inf and {scored} scores, expected {expected[0]} and {expected[1]}"
    return ""
