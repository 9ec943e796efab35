"""What the factory makes of a spec that is unlike block scores: no scratch, no cuts, shapes and dtype by choices."""

import dataclasses
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fp4_indexer.primitives import sharding
from jax_fp4_indexer.primitives.kernel_call import KernelCall
from jax_fp4_indexer.primitives.splits import Cut, may_split
from jax_fp4_indexer.specs.expr import sizes
from jax_fp4_indexer.specs.spec import Choice, Integer, OpSpec, buffer, cases

from support.meshes import collectives, mesh

batch, rows, cols = sizes("batch rows cols")
SPEC = OpSpec(
    name="toy",
    api="toy_product",
    version=3,
    operands=(
        buffer("a", "float32", [batch, rows, 8], align=16),
        buffer("b", "float32", [batch, cols, 8], align=16),
        buffer("factor", "float32", cases("factors", one=[1], each=[batch]), align=4),
    ),
    results=(buffer("y", cases("out", f32="float32", bf16="bfloat16"), [batch, rows, cols], align=16),),
    attributes=(Choice("factors", ("one", "each")), Choice("out", ("f32", "bf16")), Integer("power", 1, 3)),
    select=("factors",),
    split=("batch", "rows", "cols"),
)


@dataclasses.dataclass(frozen=True)
class Static:
    factors: str = "one"
    out: str = "f32"
    power: int = 1


def definition(static, a, b, factor):
    y = jnp.einsum("brk,bck->brc", a, b) * factor[:, None, None] ** static.power
    return y.astype({"f32": jnp.float32, "bf16": jnp.bfloat16}[static.out])


CALL = KernelCall(
    SPEC, lambda static, arrays: tuple(arrays.values()), definition, no_derivative="toy_product has no derivative."
)
# With its CUDA lowering on every platform
cuda_p = Primitive("toy_product_as_on_cuda")
cuda_p.def_abstract_eval(CALL.type_of_result)
mlir.register_lowering(cuda_p, CALL.lower_cuda)


def arguments(each=False, seed=0):
    rng = np.random.default_rng(seed)
    return [
        jnp.asarray(rng.integers(-3, 4, shape).astype(np.float32))
        for shape in ((4, 8, 8), (4, 2, 8), (4 if each else 1,))
    ]


def toy(*args, **changed):
    return CALL(args, static=Static(**changed))


@pytest.mark.parametrize("static", [Static(), Static("each"), Static("one", "bf16", 2)], ids=str)
def test_it_is_the_definition(static):
    args = arguments(static.factors == "each")
    a, b, factor = (np.asarray(x, np.float64) for x in args)
    want = np.einsum("brk,bck->brc", a, b) * factor[:, None, None] ** static.power
    got = jax.jit(lambda *args: CALL(args, static=static))(*args)
    assert got.dtype == {"f32": jnp.float32, "bf16": jnp.bfloat16}[static.out] and got.shape == (4, 8, 2)
    np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_vmap_shares_what_is_not_mapped():
    args, other = arguments(), arguments(seed=1)
    got = jax.vmap(toy, in_axes=(0, None, None))(jnp.stack([args[0], other[0]]), *args[1:])
    np.testing.assert_array_equal(got, jnp.stack([toy(*args), toy(other[0], *args[1:])]))


def test_an_op_may_have_a_batching_rule_of_its_own():
    made = []

    def fold(call, operands, axes, static, implementation):
        made.append(axes)
        if axes != (0, 0, None):
            return None
        a, b, factor = operands
        y = call.bind(
            (a.reshape(-1, *a.shape[2:]), b.reshape(-1, *b.shape[2:]), factor),
            static=static,
            implementation=implementation,
        )
        return y.reshape(*a.shape[:2], *y.shape[1:]), 0

    call = KernelCall(SPEC, lambda static, arrays: tuple(arrays.values()), definition, no_derivative="", batch=fold)
    sharding.declare(CALL)
    args = arguments()
    stacked = [jnp.stack([x, 2 * x]) for x in args]
    run = lambda *args: call(args, static=Static())
    jaxpr = str(jax.make_jaxpr(jax.vmap(run, in_axes=(0, 0, None)))(*stacked[:2], args[2]))
    assert "scan" not in jaxpr and "while" not in jaxpr
    np.testing.assert_array_equal(
        jax.vmap(run, in_axes=(0, 0, None))(*stacked[:2], args[2]), jnp.stack([toy(*args), 4 * toy(*args)])
    )
    np.testing.assert_array_equal(
        jax.vmap(run, in_axes=(0, None, None))(stacked[0], *args[1:]), jnp.stack([toy(*args), 2 * toy(*args)])
    )
    assert made[-1] == (0, None, None)


def test_differentiation_is_refused():
    with pytest.raises(NotImplementedError, match="toy_product has no derivative."):
        jax.grad(lambda a: toy(a, *arguments()[1:]).sum())(arguments()[0])


@pytest.mark.parametrize(
    "change, changed, error, told",
    [
        (lambda a, b, f: (a[0], b, f), {}, TypeError, r"toy_product: a: got float32\[8, 8\], expected rank 3\."),
        (
            lambda a, b, f: (a, b[:2], f),
            {},
            TypeError,
            r"toy_product: b: got float32\[2, 2, 8\], expected float32\[4, 2, 8\]\.",
        ),
        (
            lambda a, b, f: (a, b, f),
            dict(factors="each"),
            TypeError,
            r"toy_product: factor: got float32\[1\], expected float32\[4\]\.",
        ),
        (
            lambda a, b, f: (a, b, f.astype(jnp.int32)),
            {},
            TypeError,
            r"toy_product: factor: got int32\[1\], expected float32\[1\]\.",
        ),
        (
            lambda a, b, f: (a, b, f),
            dict(out="f64"),
            ValueError,
            r"toy_product: out: got 'f64', expected one of \('f32', 'bf16'\)\.",
        ),
        (
            lambda a, b, f: (a, b, f),
            dict(power=4),
            ValueError,
            r"toy_product: power: got 4, expected an int in \[1, 3\]\.",
        ),
    ],
)
def test_errors_name_what_is_wrong(change, changed, error, told):
    with pytest.raises(error, match=told):
        jax.eval_shape(functools.partial(toy, **changed), *change(*arguments()))


def cuda_text(f, *args):
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_the_custom_call():
    text = cuda_text(functools.partial(toy, out="bf16"), *arguments())
    (line,) = [line for line in text.splitlines() if "custom_call" in line]
    assert (
        "@jax_fp4_indexer.toy.v3(" in line
        and 'factors = "one", implementation = "auto"' in line
        and "power = 1 : i64" in line
    )
    assert line.endswith("(tensor<4x8x8xf32>, tensor<4x2x8xf32>, tensor<1xf32>) -> tensor<4x8x2xbf16>")


def test_symbolic_sizes():
    b, r = jax.export.symbolic_shape("b, r")
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((b, r, 8), (b, 2, 8), (1,))]
    check = jax.export.DisabledSafetyCheck.custom_call(SPEC.target)
    exported = jax.export.export(jax.jit(toy), platforms=("cpu", "cuda"), disabled_checks=[check])(*shapes)
    np.testing.assert_array_equal(exported.call(*arguments()), toy(*arguments()))


@pytest.fixture
def calls(monkeypatch):
    """Shapes of the operands that the devices' calls are made with."""
    sharding.register(SPEC.target, "cpu")
    made = []

    def ffi_call(target, types):
        def call(*given, **attributes):
            made.append([x.shape for x in given])
            y = definition(Static(attributes["factors"], attributes["out"], int(attributes["power"])), *given)
            (want,) = types
            assert (y.shape, y.dtype) == (want.shape, want.dtype)
            return [y]

        return call

    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    return made


@pytest.mark.parametrize(
    "specs, static, shapes, result",
    [
        ((P("x"), P("x"), P()), Static(out="bf16"), [(1, 8, 8), (1, 2, 8), (1,)], P("x")),
        ((P("x"), P("x"), P("x")), Static("each"), [(1, 8, 8), (1, 2, 8), (1,)], P("x")),
        ((P(None, "x"), P(), P()), Static(), [(4, 2, 8), (4, 2, 8), (1,)], P(None, "x")),
        ((P("y", "x"), P("y"), P()), Static(power=3), [(2, 2, 8), (2, 2, 8), (1,)], P("y", "x")),
        ((P("x"), P("x", "y"), P()), Static(), [(1, 8, 8), (1, 1, 8), (1,)], P("x", None, "y")),
    ],
    ids=["batch", "batch_each", "rows", "both", "batch_cols"],
)
def test_auto_mesh_splits_what_the_spec_says(calls, specs, static, shapes, result):
    devices = mesh(x=4, y=2)
    args = arguments(static.factors == "each")
    placed = [jax.device_put(x, NamedSharding(devices, spec)) for x, spec in zip(args, specs, strict=True)]
    compiled = jax.jit(lambda *args: cuda_p.bind(*args, static=static, implementation="auto")).lower(*placed).compile()
    assert collectives(compiled) == [] and calls[0] == shapes
    got = compiled(*placed)
    assert got.sharding.spec == result
    np.testing.assert_array_equal(got, definition(static, *args))


def test_auto_mesh_gathers_the_rest(calls):
    """The summed axis is whole on every device."""
    args = arguments()
    placed = [
        jax.device_put(x, NamedSharding(mesh(x=4), spec)) for x, spec in zip(args, (P(None, None, "x"), P(), P()))
    ]
    compiled = (
        jax.jit(lambda *args: cuda_p.bind(*args, static=Static(), implementation="auto")).lower(*placed).compile()
    )
    assert collectives(compiled) and calls[0][0] == (4, 8, 8)
    np.testing.assert_array_equal(compiled(*placed), definition(Static(), *args))


def test_explicit_mesh():
    devices = mesh(AxisType.Explicit, x=4, y=2)
    args = arguments()
    place = lambda *specs: [
        jax.device_put(x, NamedSharding(devices, spec)) for x, spec in zip(args, specs, strict=True)
    ]
    with jax.set_mesh(devices):
        got = jax.jit(toy)(*place(P("x", "y"), P("x"), P()))
        assert jax.typeof(got).sharding.spec == P("x", "y", None)
        np.testing.assert_array_equal(got, definition(Static(), *args))
        with pytest.raises(
            TypeError, match="toy_product: b: got sharding .* expected .*'x'.*, as the other.*jax.shard_map"
        ):
            jax.jit(toy)(*place(P("x"), P(), P()))


def test_a_size_in_another_expression_may_not_be_split_unless_a_cut_handles_it():
    spec = dataclasses.replace(
        SPEC, operands=(*SPEC.operands, buffer("tiles", "float32", [(rows + 3) // 4, batch], align=4))
    )
    assert may_split(SPEC, (), {"factors": "one"}) == ("batch", "rows", "cols")
    assert may_split(spec, (), {"factors": "one"}) == ("batch", "cols")
    assert may_split(spec, (Cut("rows", lambda *_: ({}, {}), ("tiles",)),), {"factors": "one"}) == (
        "batch",
        "rows",
        "cols",
    )
