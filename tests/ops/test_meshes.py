"""Every transformation over every kind of mesh, on fake CPU devices: the result of the plain call, split as asked, nothing gathered. docs/sharding.md has the table."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fp4_indexer as jfi

from support import inputs
from support.meshes import collectives, mesh

NAMES = ("q_fp4", "k_fp4", "q_scale", "k_scale", "cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets", "kv_indices")
BATCH = inputs.batch("nvfp4", [3, 0, 5], [300, 5, 200], 8, 4, spare_pages=2)
BY_HEADS = (P(None, "x"),) * 4 + (P(),) * 4


def op(*operands, scale=None, **more):
    return jfi.fp4_indexer_block_scores(
        **dict(zip(NAMES, operands, strict=True)), **BATCH.statics(), q_global_scale=scale, **more
    )


def check(q, k, cu_q, cu_k, cu_p, ids):
    jfi.ragged.check(
        cu_q,
        cu_k,
        cu_p,
        ids,
        tokens=q.shape[0],
        num_pages=k.shape[0],
        max_seqlen_q=BATCH.max_seqlen_q,
        max_seqlen_k=BATCH.max_seqlen_k,
    )


# Each takes the eight operands and returns something whose leading axes are [..., Hq, Ktiles, Tq].


def plain(*operands):
    return op(*operands)


def vmapped(q, *rest):
    """Two sets of queries, twice: nested; everything else shared."""
    sets = jnp.stack([q, q ^ jnp.uint8(1)])
    return jax.vmap(jax.vmap(lambda q: op(q, *rest)))(jnp.stack([sets, sets ^ jnp.uint8(2)]))


def scanned(q, *rest):
    """The carry starts as scores, and every step has queries of its own."""

    def step(carry, flip):
        scores = op(q ^ flip, *rest)
        return jnp.maximum(carry, scores), scores

    return jax.lax.scan(step, op(q, *rest), jnp.arange(3, dtype=jnp.uint8))[1]


def looped(q, *rest):
    def step(state):
        i, q, _ = state
        return i + 1, q ^ i.astype(jnp.uint8), op(q, *rest)

    return jax.lax.while_loop(lambda state: state[0] < 3, step, (jnp.int32(1), q, jnp.zeros_like(op(q, *rest))))[2]


TRANSFORMATIONS = {"plain": plain, "vmap": vmapped, "scan": scanned, "while": looped}


@functools.cache
def expected(name):
    with jax.default_device(jax.devices()[0]):
        return np.asarray(TRANSFORMATIONS[name](*map(jnp.asarray, operands())))


def operands():
    arrays = BATCH.arrays()
    return [arrays[name] for name in NAMES]


def over(kind, function, out_lead=0):
    """(the function over four devices with heads split, its operands placed, their mesh, how the result is split)."""
    out = P(*(None,) * out_lead, "x")
    if kind in ("auto", "explicit"):
        devices = mesh(AxisType.Auto if kind == "auto" else AxisType.Explicit, x=4)
        return (
            function,
            [jax.device_put(x, NamedSharding(devices, s)) for x, s in zip(operands(), BY_HEADS)],
            devices,
            out,
        )
    devices = mesh(x=4) if kind == "shard_map" else mesh(x=4, y=2)
    f = jax.shard_map(
        function,
        mesh=devices,
        in_specs=BY_HEADS,
        out_specs=out,
        axis_names={"x"} if kind == "partial" else set(),
        check_vma=True,
    )
    return f, [jax.device_put(x, NamedSharding(devices, s)) for x, s in zip(operands(), BY_HEADS)], devices, out


@pytest.mark.parametrize("kind", ["auto", "explicit", "shard_map", "partial"])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_heads(name, kind):
    want = expected(name)
    f, placed, devices, out = over(kind, TRANSFORMATIONS[name], want.ndim - 3)
    with jax.set_mesh(devices):
        compiled = jax.jit(f).lower(*placed).compile()
        got = compiled(*placed)
    assert collectives(compiled) == []
    assert got.sharding.is_equivalent_to(NamedSharding(devices, out), got.ndim), got.sharding
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["tokens", "tokens_over_two_axes", "tokens_and_heads", "heads_in_mma_order"])
def test_explicit_tokens(name):
    """Other splits of Explicit axes; the type of the result says how it came out."""
    devices, layout = mesh(AxisType.Explicit, x=2, y=4), "preordered_mma" if "mma" in name else "public"
    rows = ("x", "y") if "two_axes" in name else "y" if "tokens" in name else None
    x = P(rows, "x" if "heads" in name else None)
    arrays, keys = BATCH.arrays(layout), P(None, "x" if "heads" in name else None)
    specs = [x, keys, x if layout == "public" else P("x"), keys if layout == "public" else P(), *[P()] * 4]
    with jax.set_mesh(devices):
        placed = [jax.device_put(arrays[n], NamedSharding(devices, s)) for n, s in zip(NAMES, specs)]
        f = jax.jit(
            lambda *operands: jfi.fp4_indexer_block_scores(**dict(zip(NAMES, operands)), **BATCH.statics(layout))
        )
        got = f(*placed)
        assert collectives(f.lower(*placed).compile()) == []
    assert tuple(jax.typeof(got).sharding.spec) == ("x" if "heads" in name else None, None, rows)
    np.testing.assert_array_equal(got, expected("plain"))


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_pmap(name):
    """By sequences, one a device; the pool is passed once. pmap is `jit(shard_map)` today."""
    m = jfi.ragged.shard(*operands()[4:], num_shards=3)
    arrays = BATCH.arrays()
    each = [
        arrays["q_fp4"][m.rows],
        arrays["k_fp4"],
        arrays["q_scale"][m.rows],
        arrays["k_scale"],
        m.cu_seqlens_q,
        m.cu_seqlens_k,
        m.cu_page_offsets,
        m.kv_indices,
    ]
    axes = (0, None, 0, None, 0, 0, 0, 0)
    got = jax.pmap(TRANSFORMATIONS[name], in_axes=axes, devices=jax.devices()[:3])(
        *(x if axis is None else x.reshape(3, -1, *x.shape[1:]) for x, axis in zip(each, axes))
    )
    np.testing.assert_array_equal(np.concatenate(np.asarray(got), axis=-1)[..., m.columns], expected(name))


@pytest.mark.parametrize("kind", ["auto", "explicit", "shard_map", "partial"])
def test_checkify(kind):
    """Bad metadata is found; good metadata changes nothing. JAX's checkify takes no program with Explicit axes or a partial shard_map: there the checks are one of their own."""

    def checked(*operands):
        check(operands[0], operands[1], *operands[4:])
        return op(*operands)

    apart = kind in ("explicit", "partial")
    f, placed, devices, _ = over(kind, op if apart else checked)
    run = jax.jit(checkify.checkify((lambda *operands: check(operands[0], operands[1], *operands[4:])) if apart else f))
    whole = operands() if apart else placed
    error, got = run(*whole)
    error.throw()
    if apart:
        with jax.set_mesh(devices):
            got = jax.jit(f)(*placed)
    np.testing.assert_array_equal(got, expected("plain"))
    error, _ = run(*whole[:-1], whole[-1] + 100)
    with pytest.raises(checkify.JaxRuntimeError, match=r"kv_indices\[0\]: got 10\d, expected an id in"):
        error.throw()


@pytest.mark.parametrize("kind", ["auto", "explicit", "shard_map", "partial"])
def test_donation(kind):
    """Donated queries are changed in place and scored: the result is that of the queries before."""
    f, placed, devices, _ = over(kind, op)
    with jax.set_mesh(devices):
        changed, got = jax.jit(lambda q, *rest: (q ^ jnp.uint8(255), f(q, *rest)), donate_argnums=0)(*placed)
    assert placed[0].is_deleted()
    np.testing.assert_array_equal(got, expected("plain"))
    np.testing.assert_array_equal(changed, operands()[0] ^ np.uint8(255))


@pytest.mark.parametrize("kind", ["auto", "explicit", "shard_map", "partial"])
def test_grad_is_refused(kind):
    f, placed, devices, _ = over(kind, lambda *operands: op(*operands, scale=SCALE[0]))
    SCALE = [None]

    def loss(scale):
        SCALE[0] = scale
        return jnp.where(jnp.isfinite(scores := f(*placed)), scores, 0).sum()

    with jax.set_mesh(devices), pytest.raises(NotImplementedError, match="no derivative.*stop_gradient"):
        jax.grad(loss)(jnp.float32(1))


@pytest.mark.parametrize("kind", ["auto", "explicit", "shard_map", "partial"])
def test_eager_calls_compile_once(kind):
    f, placed, devices, _ = over(kind, op)
    with jax.set_mesh(devices):
        f = jax.jit(f) if kind in ("shard_map", "partial") else f  # shard_map by itself runs op by op
        f(*placed)
        with jax.log_compiles(True), Logged() as records:
            for flip in (1, 2):
                got = f(jax.device_put(operands()[0] ^ np.uint8(flip), placed[0].sharding), *placed[1:])
    np.testing.assert_array_equal(got, expected("scan")[2])
    assert not [r for r in records if "ompil" in r]


class Logged:
    """Messages of JAX's logger while the block runs."""

    def __enter__(self):
        import logging

        self.messages, self.handler = [], logging.Handler()
        self.handler.emit = lambda record: self.messages.append(record.getMessage())
        logging.getLogger("jax").addHandler(self.handler)
        return self.messages

    def __exit__(self, *_):
        import logging

        logging.getLogger("jax").removeHandler(self.handler)


# ---- what Explicit axes refuse


@pytest.mark.parametrize(
    "placement, parts",
    [
        (
            {0: P("x")},
            ("q_scale: got sharding", "expected PartitionSpec('x',), as the other operands are split", "reshard"),
        ),
        (
            {0: P(None, "x"), 2: P(None, "x")},
            ("k: got 4 heads_kv split over (), heads_q split over ('x',)", "split over the same mesh axes", "reshard"),
        ),
        ({1: P("x"), 3: P("x")}, ("k: got sharding", "docs/sharding.md")),
        ({7: P("x")}, ("kv_indices: got sharding", "expected PartitionSpec()")),
    ],
)
def test_explicit_axes_that_cannot_stay_split_are_refused_with_advice(placement, parts):
    devices = mesh(AxisType.Explicit, x=2)
    with jax.set_mesh(devices):
        placed = [jax.device_put(x, NamedSharding(devices, placement.get(i, P()))) for i, x in enumerate(operands())]
        with pytest.raises(TypeError) as caught:
            op(*placed)
    text = str(caught.value)
    assert text.startswith("fp4_indexer_block_scores: ") and text.endswith(".")
    for part in parts:
        assert part.replace("PartitionSpec", "") in text.replace("PartitionSpec", "").replace("P(", "("), text


FORMATS_OVER_AXES = {
    "quantize_nvfp4 rows": (lambda x: jfi.quantize_nvfp4(x), np.float32, (4, 64), ("x",)),
    "quantize_nvfp4 groups": (lambda x: jfi.quantize_nvfp4(x), np.float32, (4, 64), (None, "x")),
    "quantize_nvfp4 pool": (lambda x: jfi.quantize_nvfp4(x, global_scale=2.0), np.float32, (3, 2, 5, 64), (None, "x")),
    "quantize_mxfp4 rows": (lambda x: jfi.quantize_mxfp4(x), np.float32, (4, 64), ("x",)),
    "quantize_mxfp4 groups": (lambda x: jfi.quantize_mxfp4(x), np.float32, (4, 64), (None, "x")),
    "pack_e2m1": (lambda x: jfi.pack_e2m1(x), np.float32, (4, 64), (None, "x")),
    "unpack_e2m1": (lambda x: jfi.unpack_e2m1(x), np.uint8, (4, 64), (None, "x")),
    "dequantize": (lambda x: jfi.dequantize(x[:, :8], x[:, 8:], "nvfp4"), np.uint8, (4, 9), ("x",)),
    "to_blocked rows": (lambda x: jfi.to_blocked(x), np.uint8, (256, 8), ("x",)),
    "to_blocked heads": (lambda x: jfi.to_blocked(x), np.uint8, (2, 33, 5), ("x",)),
    "from_blocked": (lambda x: jfi.from_blocked(x, 256, 8), np.uint8, (2, 2, 32, 4, 4), ("x",)),
    "reorder pages": (
        lambda x: jfi.fp4_indexer_reorder_scales_for_mma(np.ones((1, 3, 8), np.uint8), x)[1],
        np.uint8,
        (2, 3, 128, 8),
        ("x",),
    ),
}


@pytest.mark.parametrize("name", FORMATS_OVER_AXES)
def test_formats_take_arrays_over_explicit_axes(name):
    function, dtype, shape, split = FORMATS_OVER_AXES[name]
    x = np.random.default_rng(0).integers(0, 120, shape).astype(dtype)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
    got = function(jax.device_put(x, NamedSharding(mesh, P(*split))))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(function(x)), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_reordering_scales_split_by_heads_over_explicit_axes_is_refused():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:2])
    k_scale = jax.device_put(np.zeros((3, 2, 128, 8), np.uint8), NamedSharding(mesh, P(None, "x")))
    with pytest.raises(
        TypeError,
        match="fp4_indexer_reorder_scales_for_mma: k_scale: got sharding .* over explicit mesh axes, expected pages split.*jax.shard_map",
    ):
        jfi.fp4_indexer_reorder_scales_for_mma(np.zeros((1, 2, 8), np.uint8), k_scale)
