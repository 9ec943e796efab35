"""The definition against float64: every code, every scale byte, random batches."""

import jax
import numpy as np
import pytest
from naive import GROUPS, assert_within_bar, base, naive, random

from jax_fp4_indexer.formats import e2m1, scale_layout
from jax_fp4_indexer.reference import fp4_indexer_block_scores as reference

FLT_MAX, FLT_MIN = np.finfo(np.float32).max, 2.0**-126


def all_byte_pairs(fmt, q_code):
    """Query t has scale byte t, block p has scale byte p: scores[0, p, t] is one pair of bytes."""
    batch = base([256], [256 * 128], fmt=fmt, causal=False)
    batch.q[:] = q_code
    batch.q_scale[:] = np.arange(256)[:, None, None]
    batch.k_scale[:] = np.arange(256)[:, None, None, None]
    return batch


@pytest.mark.parametrize("q_code, each", [(0x22, 1.0), (0x77, 6.0), (0x99, -0.5)])
def test_every_pair_of_e8m0_bytes(q_code, each):
    got = all_byte_pairs("mxfp4", q_code).run(reference)[0]
    byte = np.arange(256)
    exact = np.ldexp(128 * each, byte[:, None] + byte - 254)
    nan = (byte[:, None] == 255) | (byte == 255)
    np.testing.assert_array_equal(np.isnan(got), nan)
    over = np.abs(exact) > FLT_MAX
    np.testing.assert_array_equal(got[over & ~nan], np.copysign(np.inf, each))
    may_flush = np.abs(exact) / 4 < FLT_MIN  # each of the four group sums may
    inside = ~(nan | over | may_flush)
    np.testing.assert_array_equal(got[inside], exact[inside])
    flushed = got[may_flush & ~nan]
    assert ((flushed == 0) | (flushed == exact[may_flush & ~nan])).all()
    assert inside.sum() > 30000 and over.sum() > 5000 and may_flush.sum() > 5000


@pytest.mark.parametrize("q_code, each", [(0x22, 1.0), (0x77, 6.0), (0x99, -0.5)])
def test_every_pair_of_ue4m3_bytes(q_code, each):
    import ml_dtypes

    got = all_byte_pairs("nvfp4", q_code).run(reference)[0]
    value = (np.arange(256, dtype=np.uint8) & 0x7F).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(got, value[:, None] * value * 128 * each)  # equal NaN too; 0xFF is NaN, 0xB8 is 1


@pytest.mark.parametrize("fmt", GROUPS)
@pytest.mark.parametrize("lane", [0, 1, 15, 16, 31, 32, 127])
def test_every_pair_of_codes(fmt, lane):
    batch = base([16], [16 * 128], fmt=fmt, causal=False)
    byte, shift = lane // 2, 4 * (lane % 2)
    for rows in (batch.q, batch.k):
        rows[:] = 0
        rows[..., byte] = (np.arange(16) << shift).reshape(-1, *[1] * (rows.ndim - 2))
    np.testing.assert_array_equal(batch.run(reference)[0], e2m1.VALUES[:, None].astype(np.float64) * e2m1.VALUES)


RAGGED = dict(q_lens=[3, 0, 1, 9, 2], k_lens=[300, 5, 128, 129, 0])


@pytest.mark.parametrize("fmt", GROUPS)
@pytest.mark.parametrize("causal, offset", [(True, None), (False, None), (True, [250, 0, -1, 10**6, 3])])
def test_random_ragged_batches(fmt, causal, offset):
    offset = None if offset is None else np.array(offset, np.int32)
    for seed in range(2):
        batch = random(seed, **RAGGED, heads_q=6, heads_kv=2, fmt=fmt, causal=causal, qo_offset=offset, spare_tokens=4)
        assert_within_bar(batch.run(reference), batch)


@pytest.mark.parametrize("fmt", GROUPS)
def test_exact_inputs_give_exact_bits_through_several_chunks(fmt):
    batch = random(5, [150, 1, 40], [400, 257, 17], 2, 1, fmt, exact=True)
    got = batch.run(reference)
    np.testing.assert_array_equal(got, naive(batch)[0].astype(np.float32))
    # A chunk of 64 heads is shorter; the rows do not notice.
    wide = batch.replace(q=np.repeat(batch.q, 32, 1), q_scale=np.repeat(batch.q_scale, 32, 1))
    assert (wide.run(reference)[::32] == got).all()


def test_a_row_has_the_same_bits_alone_and_in_a_batch():
    batch = random(6, [7, 20, 64], [500, 130, 300], 4, 2, "nvfp4")
    together = batch.run(reference)
    for b in range(3):
        rows, pages = slice(batch.cu_q[b], batch.cu_q[b + 1]), slice(batch.cu_p[b], batch.cu_p[b + 1])
        q_len, k_len = np.diff(batch.cu_q)[b], np.diff(batch.cu_k)[b]
        alone = base([q_len], [k_len], 4, 2, "nvfp4").replace(
            q=batch.q[rows],
            q_scale=batch.q_scale[rows],
            k=batch.k,
            k_scale=batch.k_scale,
            kv_indices=batch.kv_indices[pages],
            max_seqlen_k=batch.max_seqlen_k,
        )
        assert (alone.run(reference).view(np.int32) == together[..., rows].view(np.int32)).all()


@pytest.mark.parametrize("fmt, tokens", [("nvfp4", 1), ("nvfp4", 33), ("nvfp4", 128), ("mxfp4", 127), ("mxfp4", 129)])
def test_preordered_scales_give_the_same_bits_and_padding_plays_no_part(fmt, tokens):
    batch = random(tokens, [tokens], [260], 2, 2, fmt)
    public = batch.run(reference)
    for fill in (0, 0xFF):
        q_scale = scale_layout.to_tiled(batch.q_scale.swapaxes(0, 1), fill=fill)
        k_scale = scale_layout.to_tiled(batch.k_scale.reshape(-1, 128, GROUPS[fmt]), fill=fill)
        got = batch.replace(q_scale=q_scale, k_scale=k_scale).run(reference, scale_layout="preordered_mma")
        assert (got.view(np.int32) == public.view(np.int32)).all()


@pytest.mark.parametrize("heads, shape", [("scalar", None), ("per head", True)])
def test_global_scales_multiply_the_scores(heads, shape):
    batch = random(9, [3], [200], 4, 2, "nvfp4", exact=True)
    q_global, k_global = (
        (np.float32(0.5), 3.0)
        if shape is None
        else (np.array([1, 2, -1, 0], np.float32), np.array([1, 0.25], np.float32))
    )
    got = batch.replace(q_global_scale=q_global, k_global_scale=k_global).run(reference)
    scale = np.broadcast_to(q_global, 4) * np.repeat(np.broadcast_to(k_global, 2), 2)
    np.testing.assert_array_equal(got, batch.run(reference) * np.float32(scale)[:, None, None])


def test_global_scale_leaves_invisible_blocks_alone():
    batch = base([2], [1], fmt="nvfp4", q_global_scale=np.float32(np.nan), max_seqlen_k=256)
    np.testing.assert_array_equal(batch.run(reference)[0], [[-np.inf, np.nan], [-np.inf, -np.inf]])
    np.testing.assert_array_equal(
        batch.replace(q_global_scale=0.0).run(reference)[0], [[-np.inf, 0], [-np.inf, -np.inf]]
    )


def test_memory_is_a_page_and_a_chunk_not_the_pool():
    """A 16k-token prefill over a 64k-key pool compiles to less temporary memory than one query row of every key, widened."""
    tokens, pages = 16384, 512
    shapes = base([0], [0], 4, 1, "nvfp4")
    args = [
        jax.ShapeDtypeStruct((tokens, 4, 64), np.uint8),
        jax.ShapeDtypeStruct((pages, 1, 128, 64), np.uint8),
        jax.ShapeDtypeStruct((tokens, 4, 8), np.uint8),
        jax.ShapeDtypeStruct((pages, 1, 128, 8), np.uint8),
        shapes.cu_q,
        shapes.cu_k,
        shapes.cu_p,
    ]
    call = jax.jit(
        lambda *a: reference(*a, max_seqlen_q=tokens, max_seqlen_k=pages * 128, kv_indices=np.zeros(pages, np.int32))
    )
    memory = call.lower(*args).compile().memory_analysis()
    assert memory.temp_size_in_bytes - memory.output_size_in_bytes < 24 * 2**20 < pages * 128 * 128 * 4
