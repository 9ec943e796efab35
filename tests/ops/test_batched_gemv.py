"""The batched GEMV as its users meet it: the definition against an oracle, refusals, transformations, meshes, export."""

import contextlib
import dataclasses
import functools
import io
import pathlib
import re
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fp4_indexer as jfi
from jax_fp4_indexer.ops import _dispatch
from jax_fp4_indexer.primitives import runtime
from support.batched_gemv import CASES, build, case, oracle, problems, tiled

op = functools.partial(jfi.nvfp4_batched_gemv, implementation="reference")
LAYOUTS = ("public", "preordered_mma")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("c", CASES, ids=lambda c: c.name)
def test_the_definition_is_right(c, layout):
    p = build(c)
    y = jfi.reference.nvfp4_batched_gemv(**p.arrays(layout), scale_layout=layout, out_dtype=c.out_dtype)
    assert y.dtype == c.out_dtype and y.shape == ((c.batch, c.rows, c.columns) if c.columns else (c.batch, c.rows))
    assert problems(c, y, oracle(p)) == []


def test_the_op_is_the_definition_where_there_is_no_gpu():
    p = build(case("x", "", 2, 9, 96, 3, globals_=("batch", "one")))
    for layout in LAYOUTS:
        np.testing.assert_array_equal(
            op(**p.arrays(layout), scale_layout=layout),
            jfi.reference.nvfp4_batched_gemv(**p.arrays(layout), scale_layout=layout),
        )


def test_other_dtypes_of_the_same_bytes_and_the_shipped_reordering():
    p = build(case("x", "", 2, 130, 64))
    x = p.arrays()
    want = op(**x)
    others = {
        "a": x["a"].view(np.int8),
        "b": jnp.asarray(x["b"]).view(jnp.float4_e2m1fn),
        "a_scale": x["a_scale"].view(ml_dtypes.float8_e4m3fn),
    }
    np.testing.assert_array_equal(op(**{**x, **others}), want)
    a_scale, b_scale = jfi.to_blocked(jnp.asarray(x["a_scale"])), jfi.to_blocked(jnp.asarray(x["b_scale"])[:, None])
    np.testing.assert_array_equal(
        op(**{**x, "a_scale": a_scale, "b_scale": b_scale}, scale_layout="preordered_mma"), want
    )


@pytest.mark.parametrize("factors", [(1e30, 1e-30), (1e25, 1e25), (1e-30, 1e-12), (-2.0, 0.5), (0.0, 1e38)])
def test_global_scales_whose_product_is_no_normal_number(factors):
    a, b = np.full((1, 2, 128), 0x22, np.uint8), np.full((1, 128), 0x22, np.uint8)  # 256 * 1.0
    one, small = np.uint8(0x38), np.uint8(0x01)
    for scale in (one, small):
        y = op(
            a,
            b,
            np.full((1, 2, 16), scale),
            np.full((1, 16), scale),
            a_global_scale=np.float32(factors[0]),
            b_global_scale=np.float32(factors[1]),
            out_dtype="float32",
        )
        exact = (
            256
            * {56: 1.0, 1: 2.0**-18}[int(scale)]
            * np.float64(np.float32(factors[0]))
            * np.float64(np.float32(factors[1]))
        )
        if exact == 0 or 2e-38 < abs(exact) < 3e38:
            np.testing.assert_allclose(y, exact, rtol=3e-7)
        elif abs(exact) > 1:
            assert np.isinf(y).all()


def changed(**change):
    x = build(case("x", "", 2, 3, 96, 2)).arrays()
    static = {k: change.pop(k) for k in ("scale_layout", "out_dtype", "implementation") if k in change}
    return {**x, **change}, static


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(a=np.zeros((2, 3, 48), np.float32)), TypeError, "a: got float32[2, 3, 48]"),
        (dict(a=[1]), TypeError, "a: got list"),
        (dict(a=np.zeros((3, 48), np.uint8)), ValueError, "shape [L, M, K/2]"),
        (dict(a=np.zeros((2, 3, 44), np.uint8)), ValueError, "K a positive multiple of 16"),
        (dict(a=np.zeros((2, 3, 0), np.uint8)), ValueError, "K a positive multiple of 16"),
        (dict(b=np.zeros((1, 2, 48), np.uint8)), ValueError, "L = 2, as a has"),
        (dict(b=np.zeros((2, 2, 56), np.uint8)), ValueError, "K = 96 values a vector"),
        (dict(b=np.zeros((2, 9, 48), np.uint8)), ValueError, "N at most 8"),
        (dict(b=np.zeros((2, 1, 1, 48), np.uint8)), ValueError, "shape [L, K/2] or [L, N, K/2]"),
        (dict(a_scale=np.zeros((2, 3, 6), np.float32)), TypeError, "a_scale: got float32"),
        (dict(a_scale=np.zeros((2, 3, 3), np.uint8)), ValueError, "shape [L, M, K/16] = [2, 3, 6]"),
        (dict(b_scale=np.zeros((2, 6), np.uint8)), ValueError, "shape [L, N, K/16] = [2, 2, 6]"),
        (
            dict(scale_layout="preordered_mma"),
            ValueError,
            "shape [L, ceil(M/128), ceil(K/64), 32, 4, 4] = [2, 1, 2, 32, 4, 4]",
        ),
        (dict(scale_layout="tiled"), ValueError, "one of 'public', 'preordered_mma'"),
        (dict(out_dtype="float64"), ValueError, "one of float16, bfloat16, float32"),
        (dict(out_dtype="elephant"), ValueError, "out_dtype: got 'elephant'"),
        (dict(implementation="decode"), ValueError, "implementation: got 'decode'"),
        (dict(a_global_scale=np.ones(3, np.float32)), ValueError, "shape [] or [L] = [2]"),
        (dict(b_global_scale=np.ones(2, np.float64)), TypeError, "b_global_scale: got float64"),
        (dict(b_global_scale=1e300), ValueError, "Pass a factor that float32 can hold"),
    ],
)
def test_refusals_name_op_argument_got_expected_and_remedy(change, error, words):
    arrays, static = changed(**change)
    with pytest.raises(error) as refused:
        jfi.nvfp4_batched_gemv(**arrays, **static)
    assert words in str(refused.value) and str(refused.value).startswith("nvfp4_batched_gemv: ")


@pytest.mark.parametrize("batch, rows, columns", [(0, 3, 0), (2, 0, 0), (2, 3, None)])
def test_empty_results(batch, rows, columns):
    b, b_scale = (
        np.zeros((batch, 0, n), np.uint8) if columns is None else np.zeros((batch, n), np.uint8) for n in (16, 2)
    )
    y = op(np.zeros((batch, rows, 16), np.uint8), b, np.zeros((batch, rows, 2), np.uint8), b_scale)
    assert y.shape == ((batch, rows, 0) if columns is None else (batch, rows))


def test_no_derivative():
    x = build(case("x", "", 1, 2, 32)).arrays()
    for f in (op, jfi.reference.nvfp4_batched_gemv):
        with pytest.raises(NotImplementedError, match="has no derivative"):
            jax.grad(lambda g: f(**{**x, "a_global_scale": g}, out_dtype="float32").sum())(jnp.float32(2))


# ---- vmap
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "mapped",
    [
        ("a", "b", "a_scale", "b_scale"),
        ("b", "b_scale"),
        ("a", "a_scale"),
        ("a", "b", "a_scale", "b_scale", "a_global_scale"),
        ("b", "b_scale", "b_global_scale"),
    ],
)
@pytest.mark.parametrize("columns", [0, 2, 3])
def test_vmap_is_one_call_after_another(mapped, columns, layout):
    size = 3
    some = [
        build(case("x", "", 2, 5, 64, columns, globals_=("one", "batch")), seed).arrays(layout) for seed in range(size)
    ]
    call = functools.partial(op, scale_layout=layout)
    args = {name: jnp.stack([s[name] for s in some]) if name in mapped else some[0][name] for name in some[0]}
    each = [call(**{name: s[name] if name in mapped else some[0][name] for name in s}) for s in some]
    axes = {name: 0 if name in mapped else None for name in args}
    got = jax.vmap(lambda x: call(**x), in_axes=(axes,))(args)
    np.testing.assert_array_equal(got, jnp.stack(each))


def test_vmap_over_both_operands_is_one_call():
    x = build(case("x", "", 2, 5, 64, 2)).arrays()
    args = [jnp.stack([x[name]] * 3, 1) for name in ("a", "b", "a_scale", "b_scale")]
    text = str(jax.make_jaxpr(jax.vmap(op, in_axes=1))(*args))
    assert text.count("nvfp4_batched_gemv[") == 1 and "scan" not in text and "u8[6,5,32]" in text
    shared = str(jax.make_jaxpr(jax.vmap(op, in_axes=(None, 1, None, 1)))(x["a"], args[1], x["a_scale"], args[3]))
    assert shared.count("nvfp4_batched_gemv[") == 1 and "scan" not in shared and "u8[2,6,32]" in shared


# ---- meshes
def mesh(kind=AxisType.Auto):
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))


def placed(arrays, on, batch, rows):
    specs = {
        "a": P(batch, rows),
        "a_scale": P(batch, rows),
        "b": P(batch),
        "b_scale": P(batch),
        "a_global_scale": P(),
        "b_global_scale": P(batch),
    }
    return {name: jax.device_put(x, NamedSharding(on, specs[name])) for name, x in arrays.items() if x is not None}


PROBLEM = build(case("x", "", 8, 16, 64, 2, globals_=("one", "batch")))


@pytest.mark.parametrize("batch, rows", [("x", None), (None, "y"), ("x", "y"), (("x", "y"), None)])
def test_split_over_an_auto_mesh_without_gathers(batch, rows):
    want = op(**PROBLEM.arrays())
    on = mesh()
    args = placed(PROBLEM.arrays(), on, batch, rows)
    compiled = jax.jit(lambda x: op(**x), out_shardings=NamedSharding(on, P(batch, rows))).lower(args).compile()
    np.testing.assert_array_equal(compiled(args), want)
    assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize("batch, rows", [("x", None), (None, "y"), ("x", "y")])
def test_split_over_an_explicit_mesh(batch, rows):
    want = op(**PROBLEM.arrays())
    on = mesh(AxisType.Explicit)
    with jax.set_mesh(on):
        y = jax.jit(lambda x: op(**x))(placed(PROBLEM.arrays(), on, batch, rows))
    assert y.sharding.spec == P(batch, rows, None) and np.array_equal(y, want)


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(check_vma):
    on = mesh()
    arrays = {k: v for k, v in PROBLEM.arrays().items() if v is not None}
    specs = (
        {
            "a": P("x", "y"),
            "a_scale": P("x", "y"),
            "b": P("x"),
            "b_scale": P("x"),
            "a_global_scale": P(),
            "b_global_scale": P("x"),
        },
    )
    f = jax.shard_map(lambda x: op(**x), mesh=on, in_specs=specs, out_specs=P("x", "y"), check_vma=check_vma)
    np.testing.assert_array_equal(jax.jit(f)(arrays), op(**arrays))


# ---- lowering and export
def lowered_for_cuda(c, layout="public", **static):
    """StableHLO of the call for a GPU, made on a machine without one."""
    from jax_fp4_indexer.calls import batched_gemv as calls
    from jax_fp4_indexer.primitives.batched_gemv import CALL

    p = build(c)
    static, arrays = calls.check(
        **p.arrays(layout), scale_layout=layout, out_dtype=c.out_dtype, implementation=None, implementations=(None,)
    )
    return (
        jax.jit(lambda x: CALL(CALL.operands(static, x), static=static))
        .trace(arrays)
        .lower(lowering_platforms=("cuda",))
        .as_text()
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_cuda_lowering_is_one_custom_call_and_no_arithmetic(layout):
    text = lowered_for_cuda(case("x", "", 2, 5, 512, 3, globals_=("batch", "one"), out_dtype="bfloat16"), layout)
    assert text.count("stablehlo.custom_call @jax_fp4_indexer.batched_gemv.v1") == 1
    for attribute in (
        'columns = "8"',
        'k_multiple = "256"',
        f'scale_layout = "{layout}"',
        'out_dtype = "bfloat16"',
        'a_global = "batch"',
        'b_global = "one"',
    ):
        assert attribute in text
    assert "multiply" not in text and "broadcast" not in text and "tensor<2x5x3xbf16>" in text


def test_a_gpu_without_kernels_is_said_once_for_each_op(monkeypatch):
    monkeypatch.setattr(runtime, "unsupported_reason", lambda op: "No kernel for compute capability 7.5.")
    monkeypatch.setattr(_dispatch, "_warned", {("fp4_indexer_block_scores", "No kernel for compute capability 7.5.")})
    x = build(case("x", "", 1, 2, 64)).arrays()
    with pytest.warns(UserWarning, match=r"^nvfp4_batched_gemv: No kernel .* 7\.5.*plain-jnp reference"):
        got = jfi.nvfp4_batched_gemv(**x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(jfi.nvfp4_batched_gemv(**x), got)
    np.testing.assert_array_equal(op(**x), got)
    with pytest.raises(jfi.UnsupportedError, match=r"nvfp4_batched_gemv: implementation: got 'portable'.*7\.5"):
        jfi.nvfp4_batched_gemv(**x, implementation="portable")


def test_export_and_back():
    p = build(case("x", "", 2, 5, 64))
    x = {k: v for k, v in p.arrays().items() if v is not None}
    exported = jax.export.export(jax.jit(lambda x: op(**x)))(x)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(x), op(**x))


def test_the_example_of_the_page_prints_what_it_says():
    page = (pathlib.Path(jfi.__file__).parents[1] / "docs/ops/nvfp4_batched_gemv.md").read_text()
    ((code, said),) = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", page, flags=re.S)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code.replace("jfi.nvfp4_batched_gemv(", "jfi.reference.nvfp4_batched_gemv("), "page", "exec"), {})
    assert out.getvalue() == said


def test_a_case_is_a_value():
    assert (
        dataclasses.replace(CASES[0]) == CASES[0]
        and len({c.name for c in CASES}) == len(CASES)
        and all(c.reason for c in CASES)
    )
    assert np.array_equal(tiled(np.zeros((1, 1, 1), np.uint8)).ravel()[:2], [0, 0x7F])
