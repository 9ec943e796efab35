"""The definition on the named cases whose answers are known: empty work, ends of the scales, masks, NaN, bad page ids, heads, layouts."""

import jax
import numpy as np
import pytest
from naive import GROUPS, base, naive, prefix, ramp

from jax_fp4_indexer.reference import fp4_indexer_block_scores as reference

INF, NAN = np.inf, np.nan
INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)


def check(batch, expected, **options):
    """Padded to shapes that other tests share; `check_as_is` where the shapes are the point."""
    np.testing.assert_array_equal(batch.run_padded(reference, **options), np.asarray(expected, np.float32))


def check_as_is(batch, expected):
    np.testing.assert_array_equal(batch.run(reference), np.asarray(expected, np.float32))


# Nothing to do.


@pytest.mark.parametrize("fmt", GROUPS)
@pytest.mark.parametrize("k_lens", [[0, 5], [0, 0, 300, 0]])
def test_an_empty_sequence_leaves_its_neighbours_right(fmt, k_lens):
    batch = base([1] * len(k_lens), k_lens, fmt=fmt)
    check(batch, [[[128 if n > 128 * kb else -INF for n in k_lens] for kb in range(-(-max(k_lens) // 128))]])


@pytest.mark.parametrize("count, dummy_pages", [(32, 0), (33, 1)])
def test_every_sequence_empty(count, dummy_pages):
    batch = base([1] * count, [0] * count, max_seqlen_k=200)
    batch = batch.replace(
        k=np.zeros((dummy_pages, 1, 128, 64), np.uint8), k_scale=np.full((dummy_pages, 1, 128, 4), 255, np.uint8)
    )
    check_as_is(batch, np.full((1, 2, count), -INF))


def test_no_sequences_at_all():
    batch = base([], [], max_seqlen_k=130)
    check_as_is(batch, np.zeros((1, 2, 0)))
    padded = batch.replace(q=np.full((3, 1, 64), 0x22, np.uint8), q_scale=np.full((3, 1, 4), 127, np.uint8))
    check_as_is(padded, np.full((1, 2, 3), -INF))


def test_no_queries_and_no_blocks():
    assert base([0, 0], [5, 9]).run(reference).shape == (1, 1, 0)
    assert base([2], [5], max_seqlen_k=0).run(reference).shape == (1, 0, 2)


def test_no_query_in_the_middle_and_rows_past_the_last():
    batch = base([2, 0, 2], [130, 300, 1])
    padded = batch.replace(q=np.full((6, 1, 64), 0x22, np.uint8), q_scale=np.full((6, 1, 4), 127, np.uint8))
    check_as_is(padded, [[[128, 128, -INF, 128, -INF, -INF], [128, 128, -INF, -INF, -INF, -INF], [-INF] * 6]])


def test_a_pool_without_pages_makes_visible_blocks_nan():
    batch = base([2], [129])
    check_as_is(batch.replace(k=batch.k[:0], k_scale=batch.k_scale[:0]), [[[NAN, NAN], [-INF, NAN]]])


# Ends of the E8M0 and E4M3 scales.


@pytest.mark.parametrize(
    "q_byte, k_byte, q_code, score",
    [
        (0, 254, 0x22, 128),
        (254, 0, 0x77, 768),
        (0, 127, 0x22, 2.0**-120),
        (134, 127, 0x22, 16384),
        (254, 254, 0x22, INF),
        (254, 254, 0xAA, -INF),
        (0, 0, 0x77, 0),
        (255, 127, 0x22, NAN),
        (127, 255, 0x00, NAN),
    ],
)
def test_e8m0_ends(q_byte, k_byte, q_code, score):
    batch = base([1], [1])
    batch.q[:], batch.q_scale[:], batch.k_scale[:] = q_code, q_byte, k_byte
    check(batch, [[[score]]])


@pytest.mark.parametrize(
    "byte, score",
    [
        (0x00, 0),
        (0x01, 0.25),
        (0x07, 1.75),
        (0x08, 2),
        (0x38, 128),
        (0x7E, 57344),
        (0x7F, NAN),
        (0x80, 0),
        (0xB8, 128),
        (0xFF, NAN),
    ],
)
def test_e4m3_scale_bytes(byte, score):
    batch = base([1], [1], fmt="nvfp4")
    batch.q_scale[:] = byte
    check(batch, [[[score]]])


def test_a_zero_scale_makes_every_code_zero():
    batch = base([1], [1], fmt="nvfp4")
    batch.q_scale[:], batch.k[:] = 0, 0x77
    check(batch, [[[0]]])


# What does not count, and NaN where it counts.


@pytest.mark.parametrize("fmt", GROUPS)
@pytest.mark.parametrize("scale", [0x7E, 0x7F, 0xFF])
def test_the_tail_of_the_last_page_never_counts(fmt, scale):
    batch = base([1], [129], fmt=fmt)
    batch.k[1, :, 1:], batch.k_scale[1, :, 1:] = 0x77, scale
    check(batch, [[[128], [128]]])
    check(batch.replace(causal=False), [[[128], [128]]])


@pytest.mark.parametrize("fmt", GROUPS)
def test_a_zero_tail_does_not_beat_negative_scores(fmt):
    batch = base([1], [129], fmt=fmt)
    batch.k[:] = 0xAA
    batch.k[1, :, 1:] = 0
    check(batch, [[[-128], [-128]]])


@pytest.mark.parametrize("fmt", GROUPS)
def test_one_nan_among_the_keys_wins(fmt):
    batch = base([2], [128], fmt=fmt)
    batch.k_scale[0, 0, 127, 1] = 0xFF  # one group of the last key, which only the last query sees
    check(batch, [[[128, NAN]]])
    batch.k_scale[0, 0, 3, 0] = 0xFF
    check(batch, [[[NAN, NAN]]])


def test_a_nan_query_scale_spoils_its_row_only():
    batch = base([3], [200])
    batch.q_scale[1, 0, 2] = 255
    check(batch, [[[128, NAN, 128], [128, NAN, 128]]])


@pytest.mark.parametrize("page_id", [-1, 2, INT32_MAX, INT32_MIN])
def test_a_page_id_outside_the_pool_is_nan_where_visible(page_id):
    batch = base([3], [130])
    batch.kv_indices[1] = page_id
    check(batch, [[[128, 128, 128], [-INF, NAN, NAN]]])


# Masks.


def last_group(*groups):
    return [128 * 2.0**g for g in groups]


def test_causal_default_offset():
    assert (ramp([3], [289]).run_padded(reference)[0, 2] == last_group(17, 17, 18)).all()


def test_causal_given_offset_crosses_a_page():
    batch = ramp([3], [289], qo_offset=np.array([126], np.int32))
    check(batch, [[last_group(7, 7, 7), [-INF, -INF, 128 * 2.0**8], [-INF] * 3]])


@pytest.mark.parametrize(
    "offset, block_0", [(-1, [-INF, 128, 128]), (-2, [-INF, -INF, 128]), (-3, [-INF] * 3), (INT32_MIN, [-INF] * 3)]
)
def test_negative_offsets(offset, block_0):
    check(ramp([3], [289], qo_offset=np.array([offset], np.int32)), [[block_0, [-INF] * 3, [-INF] * 3]])


@pytest.mark.parametrize("offset", [286, 10**6, INT32_MAX - 1, INT32_MAX])
def test_an_offset_past_the_keys_shows_them_all(offset):
    batch = ramp([3], [289], qo_offset=np.array([offset], np.int32))
    everything = ramp([3], [289], causal=False).run_padded(reference)
    if offset == 286:  # the smallest offset whose last query sees the last key
        assert (batch.run_padded(reference)[..., -1] == everything[..., -1]).all()
    else:
        check(batch, everything)


def test_each_sequence_has_its_own_offset():
    check(ramp([3, 3], [300, 17]), naive(ramp([3, 3], [300, 17]))[0])


def test_a_chunk_of_a_prefill_is_those_rows_of_the_whole():
    whole = ramp([128], [300]).run_padded(reference)
    chunk = ramp([64], [300], qo_offset=np.array([300 - 128 + 64], np.int32)).run_padded(reference)
    assert (chunk == whole[..., 64:]).all()


def test_more_queries_than_keys():
    check(base([4], [2]), [[[-INF, -INF, 128, 128]]])


@pytest.mark.parametrize("max_seqlen_k", [1, 127, 128, 129, 500])
def test_width_follows_max_seqlen_k_not_the_data(max_seqlen_k):
    tiles = -(-max_seqlen_k // 128)
    check_as_is(
        base([1, 1], [257, 1], max_seqlen_k=max_seqlen_k),
        [[[128 if kb < 3 else -INF, 128 if kb < 1 else -INF] for kb in range(tiles)]],
    )


def test_more_queries_than_max_seqlen_q():
    batch = ramp([40], [289])
    check(batch.replace(max_seqlen_q=1), batch.run(reference))


# Codes, groups, heads, pages.


@pytest.mark.parametrize("lane", [0, 1, 127])
@pytest.mark.parametrize(
    "code, value", list(enumerate([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]))
)
def test_one_hot_codes(lane, code, value):
    batch = base([1], [1], fmt="nvfp4")
    batch.q[:] = batch.k[:] = 0
    batch.q[..., lane // 2], batch.k[..., lane // 2] = code << 4 * (lane % 2), 2 << 4 * (lane % 2)
    check(batch, [[[value]]])


@pytest.mark.parametrize("fmt, size", [("nvfp4", 16), ("mxfp4", 32)])
def test_every_element_takes_the_scale_of_its_group(fmt, size):
    """One query per element, one-hot; group g has scale 2**g."""
    batch = base([128], [1], fmt=fmt, causal=False)
    batch.q[:] = 0
    for d in range(128):
        batch.q[d, 0, d // 2] = 2 << 4 * (d % 2)
    step = 8 if fmt == "nvfp4" else 1
    batch.q_scale[:] = batch.q_scale[0, 0, 0] + step * np.arange(128 // size)
    check(batch, [[2.0 ** (np.arange(128) // size)]])


@pytest.mark.parametrize("heads", [(48, 2), (17, 1), (34, 2), (6, 6), (6, 2)])
def test_query_heads_map_to_their_key_head(heads):
    batch = base([1], [1], *heads)
    batch.k_scale[:] = 127 + np.arange(heads[1])[:, None, None]
    check(batch, 128 * 2.0 ** (np.arange(heads[0]) // (heads[0] // heads[1])).reshape(-1, 1, 1))


def test_each_block_shows_its_own_page():
    batch = base([1], [300], kv_indices=np.array([2, 0, 1], np.int32))
    batch.k_scale[:] = 127 + np.arange(3)[:, None, None, None]
    check(batch, [[[512], [128], [256]]])
    check(batch.replace(kv_indices=np.array([1, 1, 1], np.int32)), [[[256]] * 3])


def test_ragged_pages_through_a_permuted_longer_list():
    k_lens, order = [1, 300, 1, 257], np.random.default_rng(0).permutation(8)
    batch = base([1] * 4, k_lens)
    batch.k_scale[:] = 127 + np.arange(8)[:, None, None, None]
    batch = batch.replace(
        kv_indices=np.append(order, [99, -5]).astype(np.int32)
    )  # entries past the pages in use are never looked at
    expected = np.full((1, 3, 4), -INF)
    for b, n in enumerate(k_lens):
        for kb in range(-(-n // 128)):
            expected[0, kb, b] = 128 * 2.0 ** order[batch.cu_p[b] + kb]
    check_as_is(batch, expected)


def test_bytes_that_do_not_count_never_change_a_bit():
    k_lens = [129, 40]
    batch = base([3, 2], k_lens, 2, 1, "nvfp4")
    batch = batch.replace(
        k=np.repeat(batch.k, 2, 0), k_scale=np.repeat(batch.k_scale, 2, 0), kv_indices=np.array([4, 1, 2], np.int32)
    )
    before = batch.run_padded(reference)
    rng = np.random.default_rng(3)
    for _ in range(2):
        for page in range(6):
            used = {4: 128, 1: 1, 2: 40}.get(page, 0)
            batch.k[page, :, used:] = rng.integers(0, 256, batch.k[page, :, used:].shape)
            batch.k_scale[page, :, used:] = rng.integers(0, 256, batch.k_scale[page, :, used:].shape)
        assert (batch.run_padded(reference).view(np.int32) == before.view(np.int32)).all()


# Metadata that contradicts itself.


@pytest.mark.parametrize(
    "field, values",
    [
        ("cu_q", [0, 5, 2, 4]),
        ("cu_q", [-7, 2, 99, 4]),
        ("cu_q", [INT32_MAX, INT32_MIN, 3, 4]),
        ("cu_k", [0, 400, 100, 500]),
        ("cu_k", [INT32_MAX, INT32_MIN, 0, INT32_MAX]),
        ("cu_k", [0, INT32_MAX, INT32_MAX, INT32_MAX]),
        ("cu_p", [0, 3, 1, 2]),
        ("cu_p", [-4, 90, INT32_MIN, INT32_MAX]),
        ("cu_p", [9, 9, 9, 9]),
    ],
)
def test_contradictory_metadata(field, values):
    batch = base([1, 1, 2], [300, 5, 128], causal=True).replace(**{field: np.array(values, np.int32)})
    for causal in (True, False):
        got = batch.replace(causal=causal).run(reference)
        assert got.shape == (1, 3, 4)
        if field != "cu_k" and sorted(values) != values:
            assert np.isnan(got).all()  # a sum that falls
        else:
            assert np.isin(got, [128, -INF]).all()
    if field == "cu_p" and values == [9, 9, 9, 9]:
        assert (got == -INF).all()  # no page of any sequence is listed


def test_a_sum_that_falls_gives_nan_everywhere_whatever_else_is_empty():
    for batch in (base([2, 2], [5, 5]), base([2, 2], [0, 0], max_seqlen_k=300)):
        assert np.isnan(batch.replace(cu_q=np.array([0, 4, 3], np.int32)).run(reference)).all()
        assert np.isnan(batch.replace(cu_p=np.array([0, -5, -5], np.int32)).run(reference)).all()
    batch = base([2, 2], [5, 5])
    sums = np.array([[0, 2, 4], [0, 4, 3]], np.int32)
    f = lambda cu_q: reference(
        batch.q, batch.k, batch.q_scale, batch.k_scale, cu_q, batch.cu_k, batch.cu_p, **batch.keywords()
    )
    right, wrong = np.asarray(jax.jit(jax.vmap(f))(sums))
    assert (right == batch.run(reference)).all() and np.isnan(wrong).all()


def test_huge_k_len_with_few_pages_listed():
    batch = base([1], [200]).replace(cu_k=np.array([0, INT32_MAX], np.int32), max_seqlen_k=400)
    for offset in (None, np.array([INT32_MAX], np.int32)):
        check(batch.replace(qo_offset=offset), [[[128], [128], [-INF], [-INF]]])


# Transformations.


def _in_q(batch):
    return lambda q: reference(
        q, batch.k, batch.q_scale, batch.k_scale, batch.cu_q, batch.cu_k, batch.cu_p, **batch.keywords()
    )


def test_vmap_and_nested_vmap_are_loops():
    batch = ramp([3, 2], [289, 17])
    codes = np.random.default_rng(0).integers(0, 256, (2, 3, *batch.q.shape), dtype=np.uint8)
    one = jax.jit(_in_q(batch))
    expected = np.stack([[one(q) for q in row] for row in codes])
    assert (np.asarray(jax.jit(jax.vmap(jax.vmap(_in_q(batch))))(codes)) == expected).all()
    both = jax.vmap(
        lambda q, k: reference(
            q, k, batch.q_scale, batch.k_scale, batch.cu_q, batch.cu_k, batch.cu_p, **batch.keywords()
        )
    )
    assert (np.asarray(both(codes[0], np.stack([batch.k] * 3))) == expected[0]).all()


def test_inside_shard_map_the_result_varies_like_its_inputs():
    batch = base([3], [200], 8, 4)
    batch.k_scale[:] = 127 + np.arange(4)[:, None, None]
    mesh, spec = jax.make_mesh((4,), ("h",), axis_types=(jax.sharding.AxisType.Auto,)), jax.sharding.PartitionSpec

    def scores(q, k, q_scale, k_scale):
        return reference(q, k, q_scale, k_scale, batch.cu_q, batch.cu_k, batch.cu_p, **batch.keywords())

    def carried(*args):
        return jax.lax.scan(lambda carry, _: (scores(*args), None), scores(*args), None, length=2)[0]

    heads = spec(None, "h")
    sharded = lambda out: jax.jit(
        jax.shard_map(carried, mesh=mesh, in_specs=(heads,) * 4, out_specs=out, check_vma=True)
    )
    args = (batch.q, batch.k, batch.q_scale, batch.k_scale)
    assert (np.asarray(sharded(spec("h"))(*args)) == np.asarray(scores(*args))).all()
    with pytest.raises(Exception, match="out_specs"):
        sharded(spec())(*args)


def test_x64_mode_changes_nothing():
    batch = ramp([3, 2], [289, 17], qo_offset=np.array([7, -1], np.int32))
    expected = batch.run(reference)
    with jax.enable_x64(True):
        got = batch.run(reference)
    assert got.dtype == np.float32 and (got == expected).all()


def test_lengths_are_data_one_program_serves_them_all():
    batch = base([4], [300])
    run = jax.jit(
        lambda cu_k: reference(
            batch.q, batch.k, batch.q_scale, batch.k_scale, batch.cu_q, cu_k, batch.cu_p, **batch.keywords()
        )
    )
    for n in (0, 1, 128, 300):
        assert (np.asarray(run(prefix([n]))) == naive(batch.replace(cu_k=prefix([n])))[0]).all()
    assert run._cache_size() == 1
