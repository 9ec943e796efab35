"""The public op on CPU: what it accepts, what it refuses and how, which path it takes, and that eager calls compile once."""

import functools
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fp4_indexer as jfi
from jax_fp4_indexer.configs.block_scores import choose_path
from jax_fp4_indexer.ops import _dispatch
from jax_fp4_indexer.primitives import runtime

i32 = lambda *x: np.array(x, np.int32)
TOKENS, HEADS_Q, HEADS_KV, PAGES = 3, 4, 2, 3


@functools.cache
def arrays(fmt="nvfp4"):
    rng = np.random.default_rng(0)
    groups, one = (8, 0x38) if fmt == "nvfp4" else (4, 127)
    byte = lambda low, high, *shape: rng.integers(low, high, shape).astype(np.uint8)
    return dict(
        q_fp4=byte(0, 256, TOKENS, HEADS_Q, 64),
        k_fp4=byte(0, 256, PAGES, HEADS_KV, 128, 64),
        q_scale=byte(one - 2, one + 2, TOKENS, HEADS_Q, groups),
        k_scale=byte(one - 2, one + 2, PAGES, HEADS_KV, 128, groups),
        cu_seqlens_q=i32(0, 1, 3),
        cu_seqlens_k=i32(0, 130, 190),
        cu_page_offsets=i32(0, 2, 3),
        kv_indices=i32(2, 0, 1),
        max_seqlen_q=2,
        max_seqlen_k=130,
        fp4_format=fmt,
    )


def call(fmt="nvfp4", **changes):
    return jfi.fp4_indexer_block_scores(**{**arrays(fmt), **changes})


@functools.cache
def plain(fmt="nvfp4"):
    scores = np.asarray(call(fmt))
    assert (
        scores.shape == (HEADS_Q, 2, TOKENS) and np.isfinite(scores[:, 0]).all() and np.isneginf(scores[:, 1, 1:]).all()
    )
    return scores


def same(scores, fmt="nvfp4"):
    assert scores.dtype == jnp.float32
    assert np.asarray(scores).tobytes() == plain(fmt).tobytes()


# Accepted.


@pytest.mark.parametrize("fmt, dtype", [("nvfp4", jnp.float8_e4m3fn), ("mxfp4", jnp.float8_e8m0fnu)])
def test_scale_dtypes_and_signed_codes_are_the_same_bytes(fmt, dtype):
    a = arrays(fmt)
    same(
        call(
            fmt,
            q_scale=jnp.asarray(a["q_scale"]).view(dtype),
            k_scale=jnp.asarray(a["k_scale"]).view(dtype),
            q_fp4=a["q_fp4"].view(np.int8),
            k_fp4=a["k_fp4"].view(np.int8),
        ),
        fmt,
    )


def test_float4_arrays_are_their_packed_form():
    wide = {name: jfi.unpack_e2m1(arrays()[name]).astype(jnp.float4_e2m1fn) for name in ("q_fp4", "k_fp4")}
    same(call(**wide))
    same(call(**{name: np.asarray(x) for name, x in wide.items()}))  # NumPy holds one byte per value


@pytest.mark.parametrize("number", [int, np.int32, np.int64, np.array, lambda n: jnp.asarray(n)])
def test_static_numbers_of_any_integer_kind(number):
    same(call(max_seqlen_q=number(2), max_seqlen_k=number(130), causal=np.bool_(True)))


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_preordered_scales_give_the_same_bits(fmt):
    q_scale, k_scale = jfi.fp4_indexer_reorder_scales_for_mma(arrays(fmt)["q_scale"], arrays(fmt)["k_scale"], fmt)
    same(call(fmt, q_scale=q_scale, k_scale=k_scale, scale_layout="preordered_mma"), fmt)


@pytest.mark.parametrize("implementation", [None, "reference", "decode", "prefill", "portable"])
def test_every_implementation_runs_here_and_agrees_with_the_public_reference(implementation):
    same(call(implementation=implementation))
    same(jfi.reference.fp4_indexer_block_scores(**arrays()))


def test_global_scales():
    scores = call(q_global_scale=2.0, k_global_scale=np.array([0.5, 4], np.float32))
    assert (np.asarray(scores) == plain() * np.float32([1, 1, 8, 8])[:, None, None]).all()
    same(call(q_global_scale=jnp.float32(1)))


def test_inside_jit_and_vmap():
    queries = np.stack([arrays()["q_fp4"], arrays()["q_fp4"][::-1]])
    batched = jax.jit(jax.vmap(lambda q: call(q_fp4=q)))(queries)
    same(batched[0])
    assert (np.asarray(batched[1]) == np.asarray(call(q_fp4=queries[1]))).all()


def test_eager_calls_compile_once():
    calls = [dict(kv_indices=i32(*order)) for order in ((0, 1, 2), (2, 1, 0), (1, 1, 1))]
    call(**calls[0])
    before = _dispatch._called._cache_size()
    with jax.log_compiles(True):
        import logging

        records = []
        handler = logging.Handler()
        handler.emit = records.append
        logging.getLogger("jax").addHandler(handler)
        try:
            for changes in calls:
                call(**changes).block_until_ready()
        finally:
            logging.getLogger("jax").removeHandler(handler)
    assert _dispatch._called._cache_size() == before
    assert not [r.getMessage() for r in records if "ompil" in r.getMessage()]


# Path and implementation.


@pytest.mark.parametrize(
    "q, r, path", [(8, 16, "decode"), (9, 16, "prefill"), (8, 17, "prefill"), (1, 1, "decode"), (9, 17, "prefill")]
)
def test_dispatch_edges(q, r, path):
    assert choose_path(q, r) == path


def equations(jaxpr):
    """Those of the programs inside too: whether a call is inlined differs from one JAX to the next."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def primitive_params(**changes):
    """Parameters of the one primitive in the call's program."""
    a = {**arrays(), **changes}
    names = [n for n, x in a.items() if isinstance(x, np.ndarray)]
    jaxpr = jax.make_jaxpr(lambda *xs: jfi.fp4_indexer_block_scores(**{**a, **dict(zip(names, xs))}))(
        *(a[n] for n in names)
    )
    found = [e for e in equations(jaxpr.jaxpr) if e.primitive.name == "fp4_indexer_block_scores"]
    assert len(found) == 1, jaxpr
    return found[0].params


@pytest.mark.parametrize(
    "changes, path, implementation",
    [
        (dict(), "decode", "auto"),
        (dict(max_seqlen_q=9), "prefill", "auto"),
        (dict(implementation="prefill"), "prefill", "auto"),
        (dict(implementation="decode", max_seqlen_q=9), "decode", "auto"),
        (dict(implementation="portable", max_seqlen_q=9), "prefill", "portable"),
        (dict(implementation="reference"), "decode", "reference"),
    ],
)
def test_what_reaches_the_primitive(changes, path, implementation):
    params = primitive_params(**changes)
    assert (params["static"].path, params["implementation"]) == (path, implementation)
    assert (params["static"].mask, params["static"].k_tiles) == (1, 2)
    assert primitive_params(**changes, causal=False)["static"].mask == 0
    assert primitive_params(**changes, qo_offset=i32(1, 2))["static"].mask == 2


def test_a_gpu_without_kernels_runs_the_reference_and_warns_once(monkeypatch):
    reason = "The GPU has compute capability 7.0, kernels are shipped for sm_80."
    monkeypatch.setattr(runtime, "unsupported_reason", lambda op: reason)
    monkeypatch.setattr(_dispatch, "_warned", set())
    with pytest.warns(UserWarning, match="compute capability 7.0.*reference") as caught:
        same(call())
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(call())
        same(call(implementation="reference"))
    for implementation in ("decode", "prefill", "portable"):
        with pytest.raises(
            jfi.UnsupportedError, match=f"implementation: got '{implementation}'.*7.0.*implementation=None"
        ):
            call(implementation=implementation)


# Refused.

u8 = lambda *shape: np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    "changes, error, parts",
    [
        (dict(fp4_format="fp4"), ValueError, ("fp4_format", "'fp4'", "'nvfp4', 'mxfp4'")),
        (dict(fp4_format=["nvfp4"]), ValueError, ("fp4_format", "['nvfp4']")),
        (dict(scale_layout="tiled"), ValueError, ("scale_layout", "'tiled'", "'public', 'preordered_mma'")),
        (
            dict(implementation="cuda"),
            ValueError,
            ("implementation", "'cuda'", "'reference', 'decode', 'prefill', 'portable'"),
        ),
        (dict(max_seqlen_q=0), ValueError, ("max_seqlen_q", "got 0", "[1, 2**31 - 1]")),
        (dict(max_seqlen_k=-1), ValueError, ("max_seqlen_k", "got -1", "[0, 2**31 - 1]")),
        (dict(max_seqlen_k=2**31), ValueError, ("max_seqlen_k", "2147483648")),
        (dict(max_seqlen_q=2.0), TypeError, ("max_seqlen_q", "float 2.0", "a Python int", "static_argnames")),
        (dict(max_seqlen_q=True), TypeError, ("max_seqlen_q", "bool True")),
        (dict(max_seqlen_k=i32(1, 2)), TypeError, ("max_seqlen_k", "int32[2]")),
        (dict(causal=1), TypeError, ("causal", "int 1", "a Python bool")),
        (dict(causal=False, qo_offset=i32(0, 0)), ValueError, ("qo_offset", "int32[2]", "None with causal=False")),
        (dict(q_fp4=u8(3, 4, 32)), ValueError, ("q_fp4", "uint8[3, 4, 32]", "[Tq, Hq, 64]", "head dimension is 128")),
        (dict(q_fp4=u8(12, 64)), ValueError, ("q_fp4", "uint8[12, 64]", "[Tq, Hq, 64]")),
        (
            dict(q_fp4=np.zeros((3, 4, 64), np.float32)),
            TypeError,
            ("q_fp4", "float32[3, 4, 64]", "uint8 or int8 or float4_e2m1fn", "quantize_nvfp4"),
        ),
        (dict(q_fp4=[[0] * 64]), TypeError, ("q_fp4", "list", "an array")),
        (
            dict(k_fp4=u8(3, 2, 64, 64)),
            ValueError,
            ("k_fp4", "uint8[3, 2, 64, 64]", "[any, any, 128, 64]", "A page holds 128 keys"),
        ),
        (dict(k_fp4=u8(3, 2, 128, 32)), ValueError, ("k_fp4", "uint8[3, 2, 128, 32]", "The head dimension is 128")),
        (
            dict(k_fp4=u8(3, 3, 128, 64)),
            ValueError,
            ("Hq = 4 with Hkv = 3", "multiple of Hkv", "[num_pages, Hkv, 128, 64], pages first"),
        ),
        (dict(k_fp4=u8(3, 0, 128, 64)), ValueError, ("Hq = 4 with Hkv = 0",)),
        (dict(q_scale=u8(3, 4, 4)), ValueError, ("q_scale", "uint8[3, 4, 4]", "[3, 4, 8]", "check fp4_format")),
        (dict(k_scale=u8(2, 2, 128, 8)), ValueError, ("k_scale", "uint8[2, 2, 128, 8]", "[3, 2, 128, 8]")),
        (
            dict(scale_layout="preordered_mma"),
            ValueError,
            ("q_scale", "uint8[3, 4, 8]", "[4, 1, 2, 32, 4, 4]", "fp4_indexer_reorder_scales_for_mma"),
        ),
        (dict(q_scale=np.zeros((3, 4, 8), np.float32)), TypeError, ("q_scale", "float32", "float8_e4m3fn or uint8")),
        (
            dict(q_scale=jnp.zeros((3, 4, 8), jnp.float8_e8m0fnu)),
            TypeError,
            ("q_scale", "float8_e8m0fnu[3, 4, 8]", "float8_e4m3fn or uint8", "check fp4_format"),
        ),
        (dict(cu_seqlens_q=i32()), ValueError, ("cu_seqlens_q", "int32[0]", "[B+1] with B >= 0")),
        (dict(cu_seqlens_k=i32(0, 1)), ValueError, ("cu_seqlens_k", "int32[2]", "[B+1] = [3]")),
        (dict(cu_page_offsets=i32(0, 1, 2, 3)), ValueError, ("cu_page_offsets", "int32[4]", "[3]")),
        (dict(kv_indices=np.zeros((1, 3), np.int32)), ValueError, ("kv_indices", "int32[1, 3]", "[N]")),
        (dict(kv_indices=np.arange(3)), TypeError, ("kv_indices", "int64[3]", "dtype int32", "not truncated")),
        (dict(cu_seqlens_q=np.array([0, 1, 3], np.uint32)), TypeError, ("cu_seqlens_q", "uint32[3]", "int32")),
        (dict(qo_offset=i32(0)), ValueError, ("qo_offset", "int32[1]", "[B] = [2]")),
        (dict(q_global_scale=np.ones(3, np.float32)), ValueError, ("q_global_scale", "float32[3]", "[Hq] = [4]")),
        (dict(k_global_scale=np.ones(2, np.float16)), TypeError, ("k_global_scale", "float16[2]", "float32")),
        (
            dict(q_global_scale=jnp.ones(4, jnp.bfloat16)),
            TypeError,
            ("q_global_scale", "bfloat16[4]", "float32", "astype"),
        ),
        (
            dict(k_global_scale=jnp.ones((), jnp.bfloat16)),
            TypeError,
            ("k_global_scale", "bfloat16[]", "float32", "astype"),
        ),
        (dict(q_global_scale="1"), TypeError, ("q_global_scale", "str")),
        (dict(q_global_scale=1e39), ValueError, ("q_global_scale", "float 1e+39", "3.40282e+38")),
        (dict(k_global_scale=10**400), ValueError, ("k_global_scale", "int 10000", "...", "3.40282e+38")),
        (dict(q_global_scale=np.float64(1e39)), ValueError, ("q_global_scale", "3.40282e+38")),
        (dict(q_global_scale=np.ones(4)), TypeError, ("q_global_scale", "float64[4]", "float32")),
        (dict(kv_indices=None), TypeError, ("kv_indices", "NoneType", "an array of int32")),
        (dict(kv_indices=list(range(10_000))), TypeError, ("kv_indices", "got list", "jnp.asarray")),
        (
            dict(cu_seqlens_k=np.array([0, 130, 190], ">i4")),
            TypeError,
            ("cu_seqlens_k", ">i4[3]", "int32"),
        ),  # JAX would take its bytes in the wrong order
        (dict(kv_indices=np.array([2, 0, 1], object)), TypeError, ("kv_indices", "object[3]", "int32")),
        (
            dict(kv_indices=jax.ShapeDtypeStruct((3,), np.int32)),
            TypeError,
            ("kv_indices", "ShapeDtypeStruct", "an array of int32"),
        ),
        (
            dict(kv_indices=types.SimpleNamespace(shape=(3,), dtype="torch.int32")),
            TypeError,
            ("kv_indices", "SimpleNamespace", "jax.dlpack"),
        ),
        (dict(kv_indices=jax.random.split(jax.random.key(0), 3)), TypeError, ("kv_indices", "key<", "int32")),
        (dict(causal=list(range(10_000))), TypeError, ("causal", "list [0, 1, 2", "...", "a Python bool")),
    ],
)
def test_errors_name_op_argument_got_expected_remedy(changes, error, parts):
    with pytest.raises(error) as caught:
        call(**changes)
    text = str(caught.value)
    assert (
        text.startswith("fp4_indexer_block_scores: ")
        and ": got " in text
        and ", expected " in text
        and text.endswith(".")
    )
    assert len(text) < 400
    for part in parts:
        assert part in text, text


def test_global_scale_with_mxfp4():
    with pytest.raises(
        ValueError, match=r"q_global_scale: got float 1.0, expected None with fp4_format='mxfp4'. Only nvfp4"
    ):
        call("mxfp4", q_global_scale=1.0)


def test_reference_has_the_same_signature_and_refuses_kernels():
    import inspect

    assert inspect.signature(jfi.reference.fp4_indexer_block_scores) == inspect.signature(jfi.fp4_indexer_block_scores)
    with pytest.raises(ValueError, match="implementation: got 'decode', expected one of None, 'reference'"):
        jfi.reference.fp4_indexer_block_scores(**arrays(), implementation="decode")


@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets", "kv_indices"])
def test_int64_metadata_under_x64_is_refused_not_truncated(name):
    with jax.enable_x64(True):
        wide = jnp.asarray(arrays()[name].astype(np.int64))
        assert wide.dtype == jnp.int64
        with pytest.raises(TypeError, match=rf"{name}: got int64\[3\], expected dtype int32"):
            call(**{name: wide})
        same(call())


def test_traced_static_arguments_are_refused():
    with pytest.raises(
        TypeError, match=r"max_seqlen_k: got a traced int32\[\], expected a Python int.*static_argnames"
    ):
        jax.jit(lambda n: call(max_seqlen_k=n))(130)
    with pytest.raises(TypeError, match=r"causal: got a traced bool\[\], expected a Python bool"):
        jax.jit(lambda c: call(causal=c))(True)


def test_zero_sizes():
    a = arrays()
    empty = dict(q_fp4=a["q_fp4"][:0], q_scale=a["q_scale"][:0])
    assert call(**empty).shape == (HEADS_Q, 2, 0)
    assert call(max_seqlen_k=0).shape == (HEADS_Q, 0, TOKENS)
    no_batch = dict(cu_seqlens_q=i32(0), cu_seqlens_k=i32(0), cu_page_offsets=i32(0))
    assert (np.asarray(call(**no_batch)) == -np.inf).all()
    assert (np.asarray(call(kv_indices=i32())) == -np.inf).all()
    assert np.isnan(np.asarray(call(k_fp4=a["k_fp4"][:0], k_scale=a["k_scale"][:0]))[:, 0]).all()


@pytest.mark.parametrize(
    "function", [jfi.fp4_indexer_block_scores, jfi.reference.fp4_indexer_block_scores], ids=["op", "reference"]
)
def test_grad_says_what_to_do_and_that_works(function):
    with pytest.raises(NotImplementedError, match="Wrap its arguments.*stop_gradient"):
        jax.grad(lambda g: function(**arrays(), q_global_scale=g)[0, 0].sum())(jnp.float32(1))
    stopped = jax.grad(lambda g: function(**arrays(), q_global_scale=jax.lax.stop_gradient(g))[0, 0].sum() * g)(
        jnp.float32(1)
    )
    assert stopped == plain()[0, 0].sum()


def test_scores_inside_a_differentiated_function():
    """Codes are integers, so quantised queries carry no derivative: training code needs no stop_gradient around them."""

    def loss(q):
        codes, scale = jfi.quantize_nvfp4(q)
        return call(q_fp4=codes, q_scale=scale)[:, 0].sum() + q.sum()

    q = jnp.ones((TOKENS, HEADS_Q, 128))
    assert (jax.grad(loss)(q) == 1).all()


@pytest.mark.parametrize("fmt, layout", [("nvfp4", "public"), ("mxfp4", "preordered_mma")])
def test_strict_promotion_rules(fmt, layout):
    """Users may run with JAX's strictest settings; every number and rank is explicit."""
    changes = {"scale_layout": layout}
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"), jax.debug_nans(True):
        if layout != "public":
            changes.update(
                zip(
                    ("q_scale", "k_scale"),
                    jfi.fp4_indexer_reorder_scales_for_mma(arrays(fmt)["q_scale"], arrays(fmt)["k_scale"], fmt),
                )
            )
        same(call(fmt, **changes), fmt)
        same(jfi.reference.fp4_indexer_block_scores(**{**arrays(fmt), **changes}), fmt)
