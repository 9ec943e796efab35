"""The primitive on CPU: under every transformation it is the direct call; and what is lowered for CUDA on a machine without a GPU."""

import functools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_fp4_indexer
from jax_fp4_indexer.configs.block_scores import DEFAULT_SCRATCH_LIMIT, DIRECT_COLUMNS, pages_per_pass, scratch_bytes
from jax_fp4_indexer.primitives import runtime
from jax_fp4_indexer.primitives.block_scores import CALL
from jax_fp4_indexer.reference.block_scores import block_scores_core
from jax_fp4_indexer.specs.block_scores import SPEC

from support.operands import operands, static


def scores(*args, implementation="auto", **changed):
    return CALL(args, static=static(**changed), implementation=implementation)


def equal(a, b):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture
def args():
    return operands()


@pytest.fixture
def direct(args):
    out = block_scores_core(*args, k_tiles=3, fp4_format="nvfp4", scale_layout="public", mask=1)
    assert np.isfinite(out).sum() > 20 and np.isneginf(out).sum() > 10  # the comparison means something
    return out


# ---- transformations
def test_eager_jit_and_without_jit(args, direct):
    equal(scores(*args), direct)
    equal(jax.jit(scores)(*args), direct)
    with jax.disable_jit():
        equal(scores(*args), direct)


@pytest.mark.parametrize("implementation", ["auto", "portable", "reference"])
def test_every_implementation_is_the_reference_on_cpu(args, direct, implementation):
    equal(scores(*args, implementation=implementation), direct)


def test_type_of_result(args):
    out = jax.eval_shape(scores, *args)
    assert out.shape == (4, 3, 4) and out.dtype == jnp.float32 and not out.weak_type


def test_scan_carries_the_scores(args, direct):
    def body(carry, _):
        return jnp.maximum(carry, scores(*args)), None

    equal(jax.lax.scan(body, scores(*args), None, length=2)[0], direct)


@pytest.mark.parametrize(
    "axes", [{0: 0}, {0: 1, 2: 0}, {4: 0}, {i: 0 for i in range(10)}], ids=["q", "q_axis_1", "kv_indices", "all"]
)
def test_vmap_is_a_loop(axes):
    sets = [operands(seed=s) for s in range(3)]
    stacked = [jnp.stack([s[i] for s in sets], axes[i]) if i in axes else sets[0][i] for i in range(10)]
    want = [scores(*(sets[n][i] if i in axes else sets[0][i] for i in range(10))) for n in range(3)]
    assert not np.array_equal(want[0], want[1])
    equal(jax.vmap(scores, in_axes=tuple(axes.get(i) for i in range(10)))(*stacked), jnp.stack(want))


def test_nested_vmap(args):
    q = jnp.stack([operands(seed=s)[0] for s in range(6)])
    got = jax.vmap(jax.vmap(lambda q: scores(q, *args[1:])))(q.reshape(2, 3, *q.shape[1:]))
    equal(got.reshape(6, *got.shape[2:]), jnp.stack([scores(x, *args[1:]) for x in q]))


def test_vmap_shares_the_page_pool(args):
    """On CUDA: one call in a loop, whose pool is the argument itself."""
    f = jax.vmap(lambda q: scores(q, *args[1:]))
    text = jax.jit(f).trace(jnp.stack([args[0]] * 5)).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count(f"custom_call @{SPEC.target}") == 1
    assert "5x3x2x128x64" not in text


@pytest.mark.parametrize("path, jit", [("decode", False), ("prefill", True)])
def test_shard_map_with_scan(path, jit):
    """Each device its own tokens; the carry of a scan inside must keep the type of varying over the mesh."""
    sets = [operands(seed=s) for s in range(4)]
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    q, q_scale = (jnp.concatenate([s[i] for s in sets]) for i in (0, 2))

    def local(q, q_scale):
        def call():
            return scores(q, sets[0][1], q_scale, *sets[0][3:], path=path)

        return jax.lax.scan(lambda carry, _: (jnp.maximum(carry, call()), None), call(), None, length=2)[0]

    f = jax.shard_map(local, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P(None, None, "x"), check_vma=True)
    got = (jax.jit(f) if jit else f)(q, q_scale)
    equal(got, jnp.concatenate([scores(s[0], sets[0][1], s[2], *sets[0][3:]) for s in sets], axis=2))


def test_shard_map_refuses_a_result_called_replicated(args):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(
        lambda q, qs: scores(q, args[1], qs, *args[3:]), mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P()
    )
    with pytest.raises(ValueError, match="out_specs"):
        jax.jit(f)(jnp.concatenate([args[0]] * 2), jnp.concatenate([args[2]] * 2))


def test_derivative_is_an_error_with_advice(args):
    for differentiate in (
        jax.grad(lambda h: scores(*args[:9], h).sum()),
        lambda h: jax.jvp(lambda h: scores(*args[:9], h), (h,), (h,)),
    ):
        with pytest.raises(NotImplementedError, match="no derivative.*stop_gradient"):
            differentiate(args[9])
    assert jax.grad(lambda h: scores(*args[:9], jax.lax.stop_gradient(h))[0, 0].sum() * h[0])(args[9])[0] != 0


@pytest.mark.parametrize(
    "index, bad, named",
    [
        (0, lambda x: x.astype(jnp.int8), "q: got int8"),
        (1, lambda x: x[..., :63], "k: got uint8"),
        (2, lambda x: x[:, :3], "q_scale"),
        (3, lambda x: x[:2], "k_scale"),
        (4, lambda x: x.astype(jnp.float32), "kv_indices"),
        (5, lambda x: x[None], "cu_seqlens_q"),
        (6, lambda x: x[:2], "cu_seqlens_k"),
        (7, lambda x: x[:1], "cu_page_offsets"),
        (8, lambda x: x[:1], "qo_offset"),
        (9, lambda x: x[:3], "head_scale"),
        (1, lambda x: jnp.concatenate([x, x[:, :1]], 1), "k_scale|k: got 3 heads"),
    ],
)
def test_operand_errors_name_the_operand(args, index, bad, named):
    args[index] = bad(args[index])
    with pytest.raises(TypeError, match=f"fp4_indexer_block_scores: ({named}).*expected"):
        jax.eval_shape(scores, *args)


# ---- what is lowered for CUDA
def cuda_text(*args, **changed):
    return jax.jit(functools.partial(scores, **changed)).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def custom_calls(text):
    return re.findall(r"stablehlo\.custom_call @(\S+?)\(.*", text), [
        line for line in text.splitlines() if "stablehlo.custom_call" in line
    ]


GOLDEN = {
    "decode": '{format = "nvfp4", implementation = "auto", mask = 1 : i64, max_seqlen_q = 2 : i64, op = "block_scores", pages_per_pass = 0 : i64, path = "decode", scale_layout = "public"}',
    "prefill": '{format = "mxfp4", implementation = "portable", mask = 2 : i64, max_seqlen_q = 77 : i64, op = "block_scores", pages_per_pass = 6 : i64, path = "prefill", scale_layout = "preordered_mma"}',
}


@pytest.mark.parametrize("path", ["decode", "prefill"])
def test_cuda_program_is_one_custom_call(path):
    """The wire format of `block_scores.v1`: names, order and types, written out. A difference here is a v2."""
    static = (
        {}
        if path == "decode"
        else dict(fp4_format="mxfp4", scale_layout="preordered_mma", mask=2, max_seqlen_q=77, implementation="portable")
    )
    args = operands(fp4_format=static.get("fp4_format", "nvfp4"), scale_layout=static.get("scale_layout", "public"))
    text = cuda_text(*args, path=path, **static)
    names, (line,) = custom_calls(text)
    assert names == ["jax_fp4_indexer.block_scores.v1"]
    assert f"mhlo.backend_config = {GOLDEN[path]}" in line
    scales = (
        "tensor<4x4x8xui8>, tensor<3x2x128x8xui8>"
        if path == "decode"
        else "tensor<4x1x1x32x4x4xui8>, tensor<6x1x1x32x4x4xui8>"
    )
    size = 16 if path == "decode" else scratch_bytes("mxfp4", 2, 4, 2, None, 6)
    assert line.endswith(
        f": (tensor<4x4x64xui8>, tensor<3x2x128x64xui8>, {scales}, tensor<6xi32>, tensor<3xi32>, tensor<3xi32>, tensor<3xi32>, tensor<2xi32>, tensor<4xf32>) "
        f"-> (tensor<4x3x4xf32>, tensor<{size}xui8>)"
    )
    assert "operand_layouts = [dense<[2, 1, 0]>" in line
    assert len(re.findall(r"= stablehlo\.", text)) == 1  # nothing beside the call


def test_cuda_program_of_the_reference_has_no_custom_call(args):
    assert "custom_call" not in cuda_text(*args, implementation="reference")


def program_scratch(num_indices, **static):
    """(pages of a pass, bytes of scratch) as the program says, for 4 tokens, 4 heads over 2, 2 sequences."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands()]
    shapes[4] = jax.ShapeDtypeStruct((num_indices,), jnp.int32)
    _, (line,) = custom_calls(cuda_text(*shapes, path="prefill", **static))
    return int(re.search(r"pages_per_pass = (\d+) ", line)[1]), int(re.search(r"tensor<(\d+)xui8>\)$", line)[1])


@pytest.mark.parametrize("limit", [DEFAULT_SCRATCH_LIMIT, 40 * 2**20, 10**6, 1, 0])
def test_scratch_is_bounded(limit):
    """A page list too long for the scratch is worked in passes; one page a KV head has to fit."""
    for num_indices in (0, 1, 100, 4096, 1_000_000):
        pages, size = program_scratch(num_indices, max_seqlen_q=DIRECT_COLUMNS["nvfp4"], max_scratch_bytes=limit)
        assert pages == pages_per_pass("nvfp4", 2, 4, 2, num_indices, limit) and size == scratch_bytes(
            "nvfp4", 2, 4, 2, pages, num_indices
        )
        assert 1 <= pages <= max(num_indices, 1)
        more = scratch_bytes("nvfp4", 2, 4, 2, pages + 1, 0)
        assert pages == max(num_indices, 1) or more > limit - 2**16  # no page is left out that fits
        # flags of the whole list, for kernels that take it in one pass, and one page of each of 2 KV heads
        assert size <= max(limit, 2**13 + 8 * num_indices, 2**16 + 2**12)


def test_default_scratch_never_passes_256_mib():
    assert DEFAULT_SCRATCH_LIMIT == 256 * 2**20
    rng = np.random.default_rng(0)
    for fmt in ("nvfp4", "mxfp4") * 1000:
        num_seqs, tokens, heads_kv = int(rng.integers(0, 5000)), int(2 ** rng.uniform(0, 20)), int(rng.integers(1, 33))
        num_indices = int(2 ** rng.uniform(0, 24)) // heads_kv
        pages = pages_per_pass(fmt, num_seqs, tokens, heads_kv, num_indices)
        assert 1 <= pages <= max(num_indices, 1)
        assert scratch_bytes(fmt, num_seqs, tokens, heads_kv, pages, num_indices) <= 256 * 2**20, (
            fmt,
            num_seqs,
            tokens,
            heads_kv,
            num_indices,
        )


def test_a_call_of_few_query_rows_has_no_widened_pages():
    rows = DIRECT_COLUMNS["nvfp4"]  # 2 query heads a KV head
    few, many = program_scratch(1000, max_seqlen_q=rows // 2), program_scratch(1000, max_seqlen_q=rows // 2 + 1)
    assert few[1] < 2**14 and many[1] > 1000 * 2 * 2**15


@pytest.mark.parametrize("max_seqlen_q", [2, np.int32(2), np.int64(2)])
def test_attribute_types_do_not_follow_the_caller(args, max_seqlen_q):
    assert "max_seqlen_q = 2 : i64" in cuda_text(*args, max_seqlen_q=max_seqlen_q)


@pytest.mark.parametrize(
    "codes, scales", [("uint8", "uint8"), ("int8", "float8_e4m3fn"), ("float4_e2m1fn", "float8_e4m3fn")]
)
@pytest.mark.parametrize("path", ["decode", "prefill"])
def test_public_op_copies_no_keys(codes, scales, path):
    """Whatever dtype the keys come in, the call gets their own bytes: bitcasts only, never a convert, copy, transpose or pad of the pool."""
    last = 128 if codes == "float4_e2m1fn" else 64
    s = jax.ShapeDtypeStruct
    i32 = lambda n: s((n,), jnp.int32)
    f = lambda q, k, qs, ks, a, b, c, ids: jax_fp4_indexer.fp4_indexer_block_scores(
        q, k, qs, ks, a, b, c, max_seqlen_q=2, max_seqlen_k=384, kv_indices=ids, implementation=path
    )
    text = (
        jax.jit(f)
        .trace(
            s((4, 4, last), codes),
            s((3, 2, 128, last), codes),
            s((4, 4, 8), scales),
            s((3, 2, 128, 8), scales),
            i32(3),
            i32(3),
            i32(3),
            i32(6),
        )
        .lower(lowering_platforms=("cuda",))
        .as_text()
    )
    names, (line,) = custom_calls(text)
    assert names == [SPEC.target] and f'path = "{path}"' in line
    touching = [l for l in text.splitlines() if "3x2x128x" in l and "= stablehlo." in l and "custom_call" not in l]
    assert all(re.search(r"= stablehlo\.(bitcast_convert|reshape) ", l) for l in touching), touching


def test_other_accelerators_run_the_reference(args):
    text = jax.jit(scores).trace(*args).lower(lowering_platforms=("rocm",)).as_text()
    assert "custom_call" not in text and "dot_general" in text


# ---- export
@pytest.mark.parametrize("scale_layout", ["public", "preordered_mma"])
def test_export_of_the_public_op_with_unknown_sizes(scale_layout):
    """One artifact for CPU and CUDA serves batches of any size."""
    b, t, n, p = jax.export.symbolic_shape("b, t, n, p")
    u8, i32 = (lambda *shape, dtype=dtype: jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.uint8, jnp.int32))

    @jax.jit
    def op(q, k, q_scale, k_scale, cu_q, cu_k, cu_pages, kv_indices):
        if scale_layout == "preordered_mma":
            q_scale, k_scale = jax_fp4_indexer.fp4_indexer_reorder_scales_for_mma(q_scale, k_scale)
        return jax_fp4_indexer.fp4_indexer_block_scores(
            q,
            k,
            q_scale,
            k_scale,
            cu_q,
            cu_k,
            cu_pages,
            max_seqlen_q=2,
            max_seqlen_k=384,
            kv_indices=kv_indices,
            scale_layout=scale_layout,
        )

    shapes = [
        u8(t, 4, 64),
        u8(p, 2, 128, 64),
        u8(t, 4, 8),
        u8(p, 2, 128, 8),
        i32(b + 1),
        i32(b + 1),
        i32(b + 1),
        i32(n),
    ]
    exported = jax.export.export(op, platforms=("cpu", "cuda"), disabled_checks=runtime.export_disabled_checks())(
        *shapes
    )
    q, k, q_scale, k_scale, ids, cu_q, cu_k, cu_p = operands()[:8]
    for args in (
        (q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids),
        (q[:3], k, q_scale[:3], k_scale, cu_q[:2], cu_k[:2], cu_p[:2], ids[:4]),
    ):
        equal(exported.call(*args), op(*args))


@pytest.mark.parametrize("path", ["decode", "prefill"])
def test_export_for_cuda_with_unknown_sizes(path):
    """Sequences, tokens, pages and the length of the page list may be left open; a prefill then takes the whole scratch."""
    b, t, n, p = jax.export.symbolic_shape("b, t, n, p")
    u8, i32 = (lambda *shape, dtype=dtype: jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.uint8, jnp.int32))
    shapes = [
        u8(t, 4, 64),
        u8(p, 2, 128, 64),
        u8(t, 4, 8),
        u8(p, 2, 128, 8),
        i32(n),
        i32(b + 1),
        i32(b + 1),
        i32(b + 1),
        i32(b),
        jax.ShapeDtypeStruct((4,), jnp.float32),
    ]
    exported = jax.export.export(
        jax.jit(functools.partial(scores, path=path)),
        platforms=("cuda",),
        disabled_checks=runtime.export_disabled_checks(),
    )(*shapes)
    names, lines = custom_calls(exported.mlir_module())  # besides ours, JAX's own checks of the sizes
    (line,) = (line for name, line in zip(names, lines) if name == SPEC.target)
    assert set(names) <= {SPEC.target, "shape_assertion"} and str(exported.out_avals[0].shape) == "(4, 3, t)"
    pages = int(re.search(r"pages_per_pass = (\d+) ", line)[1])
    assert pages == (0 if path == "decode" else pages_per_pass("nvfp4", 2**12, 2**21, 2, 2**31 - 1)) and (
        path == "decode" or 3500 < pages < 4096
    )  # of 64 KB
