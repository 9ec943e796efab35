"""Arrays that are whole on every device of a mesh: nothing is split, yet an array placed on a mesh with Explicit axes
has another type than one made inside a function.

No `jax.set_mesh` anywhere: the mesh is in the arrays' types alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import inputs
from support.meshes import mesh

import jax_fp4_indexer as jfi

MESHES = {
    "explicit": lambda: mesh(AxisType.Explicit, x=8),
    "explicit of one device": lambda: mesh(AxisType.Explicit, x=1),
    "auto": lambda: mesh(x=8),
    "mixed": lambda: jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto)),
}
PLACED = {
    "all": None,
    "pool": ("k_fp4", "k_scale"),
    "queries": ("q_fp4", "q_scale"),
    "metadata": ("cu_seqlens_q", "kv_indices"),
    "global scales": ("q_global_scale",),
}
FUNCTIONS = {"op": jfi.fp4_indexer_block_scores, "definition": jfi.reference.fp4_indexer_block_scores}
BATCH = inputs.batch("nvfp4", [2, 0, 1], [130, 5, 3], 2, 1, spare_pages=1, q_global=np.float32([0.5, 2]))


def placed(where, which, layout="public"):
    """The arrays of the call, those named by `which` replicated over the mesh `where`."""
    arrays = BATCH.arrays(layout)
    names = arrays if PLACED[which] is None else PLACED[which]
    sharding = NamedSharding(MESHES[where](), P())
    return {name: jax.device_put(x, sharding) if name in names else jnp.asarray(x) for name, x in arrays.items()}


def scores(function, layout, arrays):
    return FUNCTIONS[function](**arrays, **BATCH.statics(layout))


def mapped(function, layout, arrays):
    """Two sets of queries under vmap, the rest shared; returns the scores of the second, the given one."""
    rest = {name: x for name, x in arrays.items() if name != "q_fp4"}
    return jax.vmap(lambda q: scores(function, layout, {**rest, "q_fp4": q}))(
        jnp.stack([arrays["q_fp4"] ^ jnp.uint8(1), arrays["q_fp4"]])
    )[1]


def looped(function, layout, arrays):
    """The carry of a scan starts as scores."""
    step = lambda carry, _: (jnp.maximum(carry, scores(function, layout, arrays)), None)
    return jax.lax.scan(step, scores(function, layout, arrays), length=2)[0]


WAYS = {
    "jit": lambda *args: jax.jit(functools.partial(scores, *args[:2]))(args[2]),
    "vmap": lambda *args: jax.jit(functools.partial(mapped, *args[:2]))(args[2]),
    "scan": lambda *args: jax.jit(functools.partial(looped, *args[:2]))(args[2]),
}


@functools.cache
def expected(layout):
    return np.asarray(scores("op", layout, BATCH.arrays(layout)))


@pytest.mark.parametrize(
    "where, which, layout",
    [
        ("explicit", "all", "public"),
        ("explicit", "pool", "public"),
        ("explicit", "queries", "public"),
        ("explicit", "metadata", "public"),
        ("explicit", "global scales", "public"),
        ("explicit", "all", "preordered_mma"),
        ("explicit of one device", "all", "public"),
        ("explicit of one device", "pool", "preordered_mma"),
        ("auto", "all", "public"),
        ("auto", "pool", "public"),
        ("mixed", "all", "public"),
        ("mixed", "queries", "preordered_mma"),
    ],
)
def test_scores(where, which, layout):
    """The op by its bits; the definition, which the op is on a CPU, by its trace. Both lowered for CUDA as well."""
    arrays = placed(where, which, layout)
    np.testing.assert_array_equal(scores("op", layout, arrays), expected(layout))
    for function in FUNCTIONS:
        lowered = (
            jax.jit(functools.partial(scores, function, layout))
            .trace(arrays)
            .lower(lowering_platforms=("cuda",))
            .as_text()
        )
        assert ("jax_fp4_indexer.block_scores" in lowered) == (function == "op")


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_transformations(way, function):
    np.testing.assert_array_equal(WAYS[way](function, "public", placed("explicit", "all")), expected("public"))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_calls_without_a_block_or_a_sequence(function):
    sharding = NamedSharding(MESHES["explicit"](), P())
    for batch, shape in ((inputs.base([2], [0]), (1, 0, 2)), (inputs.base([], []), (1, 0, 0))):
        arrays = {name: jax.device_put(x, sharding) for name, x in batch.arrays().items()}
        assert FUNCTIONS[function](**arrays, **batch.statics()).shape == shape


X = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
BYTES = np.random.default_rng(1).integers(0, 120, (130, 8), dtype=np.uint8)
CU_Q, CU_K, CU_P = BATCH.cu_q, BATCH.cu_k, BATCH.cu_p
# Every helper, with the array arguments that it takes
HELPERS = {
    "quantize_nvfp4": (lambda x, g: jfi.quantize_nvfp4(x, global_scale=g), (X, np.float32(0.25))),
    "quantize_mxfp4": (jfi.quantize_mxfp4, (X,)),
    "dequantize": (
        lambda codes, scale, g: jfi.dequantize(codes, scale, "nvfp4", global_scale=g),
        (BYTES[:, :8], BYTES[:, :1], np.float32(3)),
    ),
    "pack_e2m1": (jfi.pack_e2m1, (X,)),
    "unpack_e2m1": (jfi.unpack_e2m1, (BYTES,)),
    "to_blocked": (jfi.to_blocked, (BYTES,)),
    "from_blocked": (lambda x: jfi.from_blocked(x, 130, 8), (np.arange(2048, dtype=np.uint8).reshape(2, 2, 32, 4, 4),)),
    "fp4_indexer_reorder_scales_for_mma": (jfi.fp4_indexer_reorder_scales_for_mma, (BATCH.q_scale, BATCH.k_scale)),
    "ragged.token_range": (lambda q, k: jfi.ragged.token_range(q, k, 1, 2), (CU_Q, CU_K)),
    "ragged.block_range": (lambda q, k, p: jfi.ragged.block_range(q, k, p, 1, 1), (CU_Q, CU_K, CU_P)),
}


@pytest.mark.parametrize("where", ["explicit", "mixed"])
@pytest.mark.parametrize("name", HELPERS)
def test_helpers(name, where):
    """With all arguments placed, and with each of them alone."""
    function, arguments = HELPERS[name]
    want = jax.tree.leaves(function(*arguments))
    sharding = NamedSharding(MESHES[where](), P())
    for alone in (None, *range(len(arguments)))[: 1 + len(arguments) * (len(arguments) > 1)]:
        given = [jax.device_put(x, sharding) if alone in (None, i) else jnp.asarray(x) for i, x in enumerate(arguments)]
        batched = [jnp.stack([x, x]) for x in given]
        for got in (
            function(*given),
            jax.tree.map(lambda x: x[1], jax.jit(jax.vmap(function))(*batched)) if alone is None else want,
        ):
            for a, b in zip(jax.tree.leaves(got), want, strict=True):
                assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        jax.jit(function).trace(*given).lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("where", MESHES)
def test_checks_of_metadata(where):
    given = placed(where, "all")
    names = ("cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets", "kv_indices", "q_scale", "k_scale")
    sizes = dict(
        tokens=BATCH.q.shape[0], num_pages=BATCH.k.shape[0], max_seqlen_q=2, max_seqlen_k=130, fp4_format="mxfp4"
    )
    assert jfi.ragged.validate(**{name: given[name] for name in names[:4]}, **sizes) is None
    check = checkify.checkify(jax.jit(lambda arrays: jfi.ragged.check(**arrays, **sizes)))
    arrays = {name: given[name] for name in names[:4]}
    assert check(arrays)[0].get() is None
    assert "kv_indices[0]: got 10" in check({**arrays, "kv_indices": arrays["kv_indices"] + 100})[0].get()
