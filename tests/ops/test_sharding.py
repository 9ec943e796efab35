"""Batches split over devices by hand: the metadata of a part, and the recipes of docs/sharding.md, on fake CPU devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fp4_indexer as jfi

from support import inputs
from support.meshes import collectives, mesh

i32 = lambda *x: np.array(x, np.int32)
NAMES = ("q_fp4", "k_fp4", "q_scale", "k_scale", "cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets", "kv_indices")
OFFSETS = i32(-3, 500, 2**31 - 1, 130, -(2**31))


def batch(kind, **fields):
    """Five sequences, one empty, one longer in queries than in keys, two rows of padding."""
    inp = inputs.batch(
        "mxfp4" if kind == "mxfp4" else "nvfp4",
        [3, 0, 6, 2, 3],
        [300, 5, 2, 700, 129],
        4,
        2,
        pad_tokens=2,
        max_seqlen_k=768,
        **fields,
    )
    if kind == "all":
        inp.causal = False
    if kind == "offset":
        inp.qo_offset = OFFSETS
    return inp


@functools.cache
def expected(kind):
    inp = batch(kind)
    return np.asarray(jfi.fp4_indexer_block_scores(**inp.arrays(), **inp.statics()))


def call(inp, *operands, offset=None, **static):
    return jfi.fp4_indexer_block_scores(
        **dict(zip(NAMES, operands, strict=True)),
        **{**inp.statics(), **static},
        qo_offset=offset if inp.causal else None,
    )


def compiled_run(f, devices, specs, args):
    placed = [jax.device_put(x, NamedSharding(devices, s)) for x, s in zip(args, specs, strict=True)]
    compiled = jax.jit(f).lower(*placed).compile()
    assert collectives(compiled) == []
    return np.asarray(compiled(*placed))


KINDS = ("causal", "all", "offset", "mxfp4")


# ---- sequences


@pytest.mark.parametrize("kind, shards", [("causal", 2), ("all", 4), ("offset", 2), ("mxfp4", 8)])
def test_sequences_split_with_the_whole_pool_on_every_device(kind, shards):
    inp, x = batch(kind), P("x")
    a = inp.arrays()
    m = jfi.ragged.shard(*(a[name] for name in NAMES[4:]), num_shards=shards, qo_offset=inp.qo_offset)
    args = [
        inp.q[m.rows],
        inp.k,
        inp.q_scale[m.rows],
        inp.k_scale,
        m.cu_seqlens_q,
        m.cu_seqlens_k,
        m.cu_page_offsets,
        m.kv_indices,
    ]
    specs = [x, P(), x, P(), x, x, x, x]
    if kind == "offset":
        args, specs = [*args, m.qo_offset], [*specs, x]
    devices = mesh(x=shards)
    f = jax.shard_map(
        lambda *args: call(inp, *args[:8], offset=args[8] if args[8:] else None),
        mesh=devices,
        in_specs=tuple(specs),
        out_specs=P(None, None, "x"),
    )
    got = compiled_run(f, devices, specs, args)
    np.testing.assert_array_equal(got[..., m.columns], expected(kind)[..., : inp.cu_q[-1]])
    padding = np.setdiff1d(np.arange(got.shape[-1]), m.columns)
    assert np.isneginf(got[..., padding]).all()


def test_sequences_and_pool_split_together():
    """Each device owns the pages of its sequences, as data-parallel serving keeps them; one program serves batches of other lengths."""
    devices, x = mesh(x=2), P("x")
    f = jax.jit(
        jax.shard_map(
            functools.partial(call, batch("causal")), mesh=devices, in_specs=(x,) * 8, out_specs=P(None, None, "x")
        )
    )
    for lengths in ([300, 5, 2, 700], [128, 0, 600, 40]):
        inp = inputs.batch(
            "nvfp4", [3, 1, 6, 2], lengths, 4, 2, shuffle=False, spare_pages=0, max_seqlen_k=768, max_seqlen_q=8
        )
        want = np.asarray(call(inp, *(inp.arrays()[name] for name in NAMES), max_seqlen_q=8))
        cut, pages = int(inp.cu_p[2]), 8
        pool = (
            np.zeros((2 * pages, *inp.k.shape[1:]), np.uint8),
            np.zeros((2 * pages, *inp.k_scale.shape[1:]), np.uint8),
        )
        ids = np.concatenate([np.arange(cut), pages + np.arange(inp.cu_p[-1] - cut)]).astype(np.int32)
        for whole, part in zip(pool, (inp.k, inp.k_scale)):
            whole[ids] = part[inp.kv_indices]
        m = jfi.ragged.shard(
            inp.cu_q, inp.cu_k, inp.cu_p, ids, num_shards=2, num_pages=2 * pages, tokens=10, indices=12
        )
        got = f(
            inp.q[m.rows],
            pool[0],
            inp.q_scale[m.rows],
            pool[1],
            m.cu_seqlens_q,
            m.cu_seqlens_k,
            m.cu_page_offsets,
            m.kv_indices,
        )
        assert [s.data.shape for s in got.addressable_shards] == [(4, 6, 10)] * 2
        np.testing.assert_array_equal(np.asarray(got)[..., m.columns], want)
    assert f._cache_size() == 1


def test_shard_metadata_of_what_a_reader_can_follow():
    m = jfi.ragged.shard(i32(0, 2, 3, 6), i32(0, 128, 300, 301), i32(0, 1, 3, 4), i32(7, 1, 0, 5), num_shards=2)
    assert (
        m.cu_seqlens_q.tolist() == [0, 2, 3, 0, 3, 3]
        and m.cu_seqlens_k.tolist() == [0, 128, 300, 0, 1, 1]
        and m.cu_page_offsets.tolist() == [0, 1, 3, 0, 1, 1]
    )
    assert (
        m.kv_indices.tolist() == [7, 1, 0, 5, 0, 0]
        and m.rows.tolist() == [0, 1, 2, 3, 4, 5]
        and m.columns.tolist() == list(range(6))
        and m.qo_offset is None
    )
    assert all(x.dtype == np.int32 for x in m if x is not None)
    empty = jfi.ragged.shard(i32(0), i32(0), i32(0), i32(), num_shards=3)
    assert (
        empty.cu_seqlens_q.tolist() == [0, 0, 0] and empty.rows.size == empty.columns.size == empty.kv_indices.size == 0
    )
    whole = jfi.ragged.shard(
        *map(jnp.asarray, (i32(0, 2, 3), i32(0, 128, 300), i32(0, 1, 3), i32(1, 0, 2))),
        num_shards=1,
        qo_offset=i32(5, -1),
    )
    assert (
        whole.cu_seqlens_k.tolist() == [0, 128, 300]
        and whole.kv_indices.tolist() == [1, 0, 2]
        and whole.qo_offset.tolist() == [5, -1]
    )


GOOD = dict(
    cu_seqlens_q=i32(0, 2, 3),
    cu_seqlens_k=i32(0, 128, 300),
    cu_page_offsets=i32(0, 1, 3),
    kv_indices=i32(1, 2, 3),
    num_shards=2,
)


@pytest.mark.parametrize(
    "changes, error, parts",
    [
        (dict(num_shards=0), ValueError, ("num_shards: got 0", "[1, 2**31 - 1]")),
        (dict(num_shards="2"), TypeError, ("num_shards: got str '2'", "a Python int")),
        (dict(kv_indices=np.arange(3)), TypeError, ("kv_indices: got int64[3]", "int32")),
        (dict(cu_seqlens_q=i32(0, 2, 3)[None]), ValueError, ("cu_seqlens_q: got int32[1, 3]",)),
        (dict(cu_seqlens_q=i32()), ValueError, ("cu_seqlens_q: got int32[0]", "[B+1]")),
        (dict(cu_seqlens_k=i32(0, 300)), ValueError, ("cu_seqlens_k: got 2 entries", "expected 3")),
        (dict(qo_offset=i32(1)), ValueError, ("qo_offset: got 1 entries", "expected 2")),
        (
            dict(cu_seqlens_q=i32(0, 4, 3)),
            ValueError,
            ("cu_seqlens_q: got a prefix sum that decreases", "expected a non-decreasing prefix sum"),
        ),
        (dict(cu_page_offsets=i32(-1, 1, 3)), ValueError, ("cu_page_offsets: got -1 first",)),
        (dict(kv_indices=i32(1, 2)), ValueError, ("cu_page_offsets: got 3 at its end", "the 2 entries of kv_indices")),
        (dict(tokens=1), ValueError, ("tokens: got 1", "at least 2, which shard 0 needs")),
        (dict(indices=1), ValueError, ("indices: got 1", "at least 2, which shard 1 needs")),
        (dict(num_pages=5), ValueError, ("num_pages: got 5", "a multiple of num_shards = 2", "Pad the pool")),
        (
            dict(num_pages=6),
            ValueError,
            ("kv_indices: got page 2 of sequence 1, which shard 1 scores", "an id in [3, 6)", "num_pages=None"),
        ),
    ],
)
def test_shard_metadata_errors_say_what_to_do(changes, error, parts):
    with pytest.raises(error) as caught:
        jfi.ragged.shard(**{**GOOD, **changes})
    text = str(caught.value)
    assert text.startswith("ragged.shard: ") and ", expected " in text and text.endswith(".")
    for part in parts:
        assert part in text, text


def test_shard_metadata_is_for_the_host():
    with pytest.raises(
        TypeError, match=r"cu_seqlens_q: got a traced int32\[3\], expected an array with values.*ragged.token_range"
    ):
        jax.jit(lambda x: jfi.ragged.shard(**{**GOOD, "cu_seqlens_q": x}))(GOOD["cu_seqlens_q"])


# ---- tokens


@pytest.mark.parametrize("kind, shards", [("causal", 4), ("all", 2), ("offset", 8), ("mxfp4", 2)])
def test_tokens_split_anywhere(kind, shards):
    """16 rows over the devices: cuts fall inside sequences."""
    inp, devices = batch(kind), mesh(x=shards)
    given = () if inp.qo_offset is None else (inp.qo_offset,)

    def local(q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids, *offset):
        cu_q, offset = jfi.ragged.token_range(
            cu_q, cu_k, jax.lax.axis_index("x") * q.shape[0], q.shape[0], qo_offset=offset[0] if offset else None
        )
        return call(inp, q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids, offset=offset)

    specs = (P("x"), P(), P("x"), *[P()] * (5 + len(given)))
    f = jax.shard_map(local, mesh=devices, in_specs=specs, out_specs=P(None, None, "x"))
    np.testing.assert_array_equal(
        compiled_run(f, devices, specs, [*(inp.arrays()[name] for name in NAMES), *given]), expected(kind)
    )


# ---- context


@pytest.mark.parametrize("kind, shards", [("causal", 2), ("all", 3), ("offset", 6), ("mxfp4", 3)])
def test_blocks_split_with_the_whole_pool_on_every_device(kind, shards):
    """Six blocks over the devices; the scores are put together by where they lie."""
    inp, devices, blocks = batch(kind), mesh(x=shards), 6 // shards
    given = () if inp.qo_offset is None else (inp.qo_offset,)

    def local(q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids, *offset):
        cu_k, cu_p, offset = jfi.ragged.block_range(
            cu_q, cu_k, cu_p, jax.lax.axis_index("x") * blocks, blocks, qo_offset=offset[0] if offset else None
        )
        return call(inp, q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids, offset=offset, max_seqlen_k=blocks * 128)

    specs = (P(),) * (8 + len(given))
    f = jax.shard_map(local, mesh=devices, in_specs=specs, out_specs=P(None, "x"))
    np.testing.assert_array_equal(
        compiled_run(f, devices, specs, [*(inp.arrays()[name] for name in NAMES), *given]), expected(kind)
    )


def test_blocks_and_pool_split_together():
    """Each device owns the pages of its blocks of every sequence: nothing of the pool is anywhere else."""
    inp, shards, blocks, part = batch("causal"), 3, 2, 8
    devices = mesh(x=shards)
    block = np.concatenate([np.arange(n) for n in np.diff(inp.cu_p)])  # of each entry of the page list
    ids, used = np.zeros_like(inp.kv_indices), np.zeros(shards, np.int32)
    pool = (
        np.zeros((shards * part, *inp.k.shape[1:]), np.uint8),
        np.zeros((shards * part, *inp.k_scale.shape[1:]), np.uint8),
    )
    for i, shard in enumerate(block // blocks):
        ids[i] = shard * part + used[shard]
        used[shard] += 1
        pool[0][ids[i]], pool[1][ids[i]] = inp.k[inp.kv_indices[i]], inp.k_scale[inp.kv_indices[i]]

    def local(q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids):
        shard = jax.lax.axis_index("x")
        cu_k, cu_p, offset = jfi.ragged.block_range(cu_q, cu_k, cu_p, shard * blocks, blocks)
        return call(
            inp,
            q,
            k,
            q_scale,
            k_scale,
            cu_q,
            cu_k,
            cu_p,
            ids - shard * k.shape[0],
            offset=offset,
            max_seqlen_k=blocks * 128,
        )

    specs = (P(), P("x"), P(), P("x"), *[P()] * 4)
    f = jax.shard_map(local, mesh=devices, in_specs=specs, out_specs=P(None, "x"))
    got = compiled_run(f, devices, specs, [inp.q, pool[0], inp.q_scale, pool[1], inp.cu_q, inp.cu_k, inp.cu_p, ids])
    np.testing.assert_array_equal(got, expected("causal"))


# ---- the arithmetic at its ends


def test_offsets_at_the_ends_of_int32():
    end, low = 2**31 - 1, -(2**31)
    cu_q, offset = jfi.ragged.token_range(i32(0, 10, 20), i32(0, 5, 10), 15, 5, qo_offset=i32(end, end))
    assert cu_q.tolist() == [0, 0, 5] and offset.tolist() == [end, end]
    assert jfi.ragged.token_range(i32(0, 10, 20), i32(0, 5, 10), 15, 5, qo_offset=i32(low, low))[1].tolist() == [
        low + 10,
        low + 5,
    ]
    cu_k, pages, offset = jfi.ragged.block_range(
        i32(0, 1, 2), i32(0, end, end), i32(0, end, end), 2**24 - 2, 4, qo_offset=i32(low, end)
    )
    assert cu_k.tolist() == [0, 255, 255] and pages.tolist() == [2**24 - 2, end, end] and offset.tolist() == [low, 255]
    assert jfi.ragged.block_range(i32(0, 1), i32(0, 300), i32(0, 3), 100, 4)[0].tolist() == [0, 0]
    assert jfi.ragged.token_range(i32(0, 3), i32(0, 9), 0, 3)[1].tolist() == [6]


@pytest.mark.parametrize(
    "function, args, error, part",
    [
        (
            jfi.ragged.token_range,
            (np.arange(3), i32(0, 1, 2), 0, 1),
            TypeError,
            "ragged.token_range: cu_seqlens_q: got int64[3]",
        ),
        (
            jfi.ragged.token_range,
            (i32(0, 1, 2), i32(0, 1), 0, 1),
            ValueError,
            "ragged.token_range: cu_seqlens_k: got int32[2]",
        ),
        (jfi.ragged.token_range, (i32(0, 1), i32(0, 1), -1, 1), ValueError, "ragged.token_range: first: got -1"),
        (jfi.ragged.token_range, (i32(0, 1), i32(0, 1), 1.0, 1), TypeError, "ragged.token_range: first: got float"),
        (
            jfi.ragged.token_range,
            (i32(0, 1), i32(0, 1), 0, None),
            TypeError,
            "ragged.token_range: tokens: got NoneType",
        ),
        (
            jfi.ragged.block_range,
            (i32(0, 1), i32(0, 1), i32(0, 1, 2), 0, 1),
            ValueError,
            "ragged.block_range: cu_page_offsets: got int32[3]",
        ),
        (
            jfi.ragged.block_range,
            (i32(0, 1), i32(0, 1), i32(0, 1), i32(1), 1),
            ValueError,
            "ragged.block_range: first: got int32[1]",
        ),
        (
            jfi.ragged.block_range,
            (i32(0, 1), i32(0, 1), i32(0, 1), 0, -1),
            ValueError,
            "ragged.block_range: blocks: got -1",
        ),
    ],
)
def test_errors_of_ranges(function, args, error, part):
    with pytest.raises(error) as caught:
        function(*args)
    assert str(caught.value).startswith(part), str(caught.value)


@pytest.mark.parametrize(
    "name, sums",
    [
        ("cu_seqlens_q", (0, 3, 3, 9, 8, 14)),
        ("cu_seqlens_q", (0, 3, 30, 29, 30, 31)),
        ("cu_page_offsets", (0, 3, 4, 5, 11, 10)),
        ("cu_page_offsets", (-9, -9, 0, 2**31 - 1, 2**31 - 2, 2**31 - 1)),
    ],
)
def test_a_part_falls_where_the_whole_does(name, sums):
    """Clipped to a range, the sums of a part might not: every device has to give NaN, as the whole call does."""
    inp = batch("offset")
    a = {**inp.arrays(), name: i32(*sums)}
    if name == "cu_seqlens_q":
        parts = [
            jfi.ragged.token_range(a["cu_seqlens_q"], a["cu_seqlens_k"], first, 4, qo_offset=OFFSETS)[0]
            for first in (0, 4, 12)
        ]
    else:
        parts = [
            jfi.ragged.block_range(
                a["cu_seqlens_q"], a["cu_seqlens_k"], a["cu_page_offsets"], first, 2, qo_offset=OFFSETS
            )[1]
            for first in (0, 2, 2**24)
        ]
    for part in parts:
        assert np.isnan(np.asarray(jfi.fp4_indexer_block_scores(**{**a, name: part}, **inp.statics()))).all()
