"""Quantise, dequantise, pack and reorder against ml_dtypes and NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_fp4_indexer as jfi
from jax_fp4_indexer.formats import e2m1, scale_layout

FP4 = ml_dtypes.float4_e2m1fn
ONES, ZEROS, TILED = np.ones((2, 16), np.float32), np.zeros((2, 8), np.uint8), np.zeros((1, 2, 32, 4, 4), np.uint8)
QUANTISE = {"nvfp4": (jfi.quantize_nvfp4, 16), "mxfp4": (jfi.quantize_mxfp4, 32)}


def ml_codes(x):
    """NumPy float32 -> packed codes by the ml_dtypes cast."""
    return e2m1.pack(x.astype(FP4).view(np.uint8) & 15)


def values(seed=0, shape=(64, 128)):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) * np.exp2(rng.integers(-20, 21, (*shape[:-1], 1)))
    return x.astype(np.float32)


def test_pack_has_the_bits_of_the_ml_dtypes_cast():
    edges = np.array([*e2m1.MIDPOINTS, *e2m1.VALUES[:8]], np.float32)
    x = np.concatenate(
        [edges, np.nextafter(edges, np.float32(9)), np.nextafter(edges, np.float32(-9)), [7, 1e9, np.inf, 1e-30, 0.0]]
    ).astype(np.float32)
    x = np.concatenate([x, -x, [np.nan, 0], values(1).ravel()]).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(jfi.pack_e2m1)(x), ml_codes(x))


def test_unpack_and_pack_are_inverse_on_every_byte_and_every_dtype():
    packed = np.arange(256, dtype=np.uint8).reshape(4, 64)
    wide = np.asarray(jax.jit(jfi.unpack_e2m1)(packed))
    assert wide.tobytes() == e2m1.VALUES[e2m1.unpack(packed)].tobytes()  # -0 included
    np.testing.assert_array_equal(jfi.pack_e2m1(wide), packed)
    np.testing.assert_array_equal(jfi.unpack_e2m1(packed.view(np.int8)), wide)
    float4 = jnp.asarray(wide).astype(jnp.float4_e2m1fn)
    np.testing.assert_array_equal(jfi.pack_e2m1(float4), packed)
    np.testing.assert_array_equal(jfi.unpack_e2m1(float4), wide)
    assert jfi.unpack_e2m1(np.zeros((0, 64), np.uint8)).shape == (0, 128)


@pytest.mark.parametrize("global_scale", [None, 0.25])
def test_quantize_nvfp4_is_two_ml_dtypes_casts(global_scale):
    x = values()
    x[3, 16:32] = 0
    g = np.float32(1 if global_scale is None else global_scale)
    codes, scale = jax.jit(lambda x: jfi.quantize_nvfp4(x, global_scale=global_scale))(x)
    groups = x.reshape(64, 8, 16)
    amax = np.abs(groups).max(-1)
    wanted = np.clip(amax / (np.float32(6) * g), np.float32(2**-9), np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
    wanted[3, 1] = 1
    assert np.asarray(scale).view(np.uint8).tolist() == wanted.view(np.uint8).tolist()
    np.testing.assert_array_equal(
        codes, ml_codes((groups / (wanted.astype(np.float32) * g)[..., None]).reshape(64, 128))
    )
    assert not np.asarray(codes)[3, 8:16].any() and np.asarray(scale).view(np.uint8)[3, 1] == 0x38


def test_quantize_mxfp4_is_the_ocp_rule():
    x = values()
    x[5, :32], x[6, :32] = 0, np.float32(2.0**-130)  # zeros, and subnormals that count as zero
    codes, scale = jax.jit(jfi.quantize_mxfp4)(x)
    groups = x.reshape(64, 4, 32).astype(np.float64)
    amax = np.abs(groups).max(-1)
    exponent = np.where(amax < 2.0**-126, 0, np.floor(np.log2(np.maximum(amax, 2.0**-126))) - 2).astype(int)
    assert np.asarray(scale).view(np.uint8).tolist() == (exponent + 127).tolist()
    np.testing.assert_array_equal(
        codes, ml_codes(np.ldexp(groups, -exponent[..., None]).astype(np.float32).reshape(64, 128))
    )


@pytest.mark.parametrize("fmt", QUANTISE)
def test_quantisers_at_the_ends(fmt):
    quantise, size = QUANTISE[fmt]
    x = np.zeros((5, size), np.float32)
    x[0, 3], x[1, 3], x[2, 3], x[3, 3] = np.nan, np.inf, np.finfo(np.float32).max, 2.0**-126
    codes, scale = quantise(x)
    wide = np.asarray(jfi.dequantize(codes, scale, fmt))
    assert np.isnan(wide[0]).all()
    assert wide[1, 3] == wide[2, 3] == (6 * 448 if fmt == "nvfp4" else 6 * 2.0**125)  # saturates
    assert np.isfinite(wide[1:]).all() and not wide[4].any() and not np.delete(wide[1:], 3, 1).any()


@pytest.mark.parametrize("fmt", QUANTISE)
def test_dequantize_inverts_what_is_representable(fmt):
    """Values that are codes times a power of two with a 4 or a 6 in each group come back exactly."""
    quantise, size = QUANTISE[fmt]
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (8, 128))
    codes[:, ::size] = 7
    x = e2m1.VALUES[codes] * np.exp2(rng.integers(-5, 6, (8, 1))).astype(np.float32)
    packed, scale = quantise(x)
    np.testing.assert_array_equal(jax.jit(jfi.dequantize, static_argnums=2)(packed, scale, fmt), x)
    np.testing.assert_array_equal(packed, e2m1.pack(codes))
    np.testing.assert_array_equal(jfi.dequantize(packed, scale.view(jnp.uint8), fmt, global_scale=2.0), 2 * x)


def test_dequantize_every_e8m0_byte():
    scale = np.arange(256, dtype=np.uint8).reshape(64, 4)
    got = np.asarray(
        jax.jit(jfi.dequantize, static_argnums=2)(np.full((64, 64), 0x77, np.uint8), scale, "mxfp4")
    ).reshape(256, 32)[:, 0]
    exact = np.ldexp(6.0, np.arange(256) - 127)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got[:255], exact[:255].astype(np.float32))
    assert np.isnan(got[255])


@pytest.mark.parametrize("rows, groups", [(1, 8), (33, 4), (128, 8), (130, 8), (257, 5)])
def test_to_blocked_is_the_index_formula_and_from_blocked_its_inverse(rows, groups):
    scale = np.random.default_rng(0).integers(1, 256, (3, rows, groups), dtype=np.uint8)
    for dtype in (jnp.uint8, jnp.float8_e4m3fn, jnp.float8_e8m0fnu):
        typed = jnp.asarray(scale).view(dtype)
        blocked = jfi.to_blocked(typed)
        assert blocked.dtype == dtype
        np.testing.assert_array_equal(blocked.view(jnp.uint8), scale_layout.to_tiled(scale))
        np.testing.assert_array_equal(jfi.from_blocked(blocked, rows, groups).view(jnp.uint8), scale)


@pytest.mark.parametrize("fmt, groups", [("nvfp4", 8), ("mxfp4", 4)])
def test_reorder_scales_for_mma(fmt, groups):
    rng = np.random.default_rng(1)
    q, k = (
        rng.integers(0, 256, (130, 3, groups), dtype=np.uint8),
        rng.integers(0, 256, (2, 3, 128, groups), dtype=np.uint8),
    )
    q_mma, k_mma = jfi.fp4_indexer_reorder_scales_for_mma(q, k, fmt)
    assert q_mma.shape == (3, 2, groups // 4, 32, 4, 4) and k_mma.shape == (6, 1, groups // 4, 32, 4, 4)
    for r, h, g in [(0, 0, 0), (33, 1, groups - 1), (129, 2, 1)]:
        assert np.asarray(q_mma)[h].reshape(-1)[scale_layout.tiled_offset(r, g, groups)] == q[r, h, g]
    for p, h, r, g in [(1, 2, 127, groups - 1), (0, 1, 64, 2)]:
        assert np.asarray(k_mma)[p * 3 + h].reshape(-1)[scale_layout.tiled_offset(r, g, groups)] == k[p, h, r, g]


@pytest.mark.parametrize(
    "call, error, parts",
    [
        (
            lambda: jfi.quantize_nvfp4(np.zeros((2, 24), np.float32)),
            ValueError,
            ("quantize_nvfp4: x:", "float32[2, 24]", "multiple of 16", "Pad"),
        ),
        (
            lambda: jfi.quantize_mxfp4(np.zeros((2, 32), np.int32)),
            TypeError,
            ("quantize_mxfp4: x:", "int32[2, 32]", "floating", "astype"),
        ),
        (lambda: jfi.pack_e2m1(np.zeros(3, np.float32)), ValueError, ("pack_e2m1", "float32[3]", "multiple of 2")),
        (lambda: jfi.unpack_e2m1(np.zeros(3, np.float32)), TypeError, ("unpack_e2m1", "float32[3]", "uint8")),
        (
            lambda: jfi.dequantize(np.zeros((2, 64), np.uint8), np.zeros((2, 8), np.uint8), "mxfp4"),
            ValueError,
            ("dequantize: scale:", "uint8[2, 8]", "[2, 4]", "32"),
        ),
        (
            lambda: jfi.dequantize(np.zeros((2, 64), np.uint8), np.zeros((2, 4), np.uint8), "fp4"),
            ValueError,
            ("fp4_format", "'fp4'", "'nvfp4', 'mxfp4'"),
        ),
        (
            lambda: jfi.dequantize(np.zeros((2, 8), np.uint8), np.zeros((2, 1), np.uint8), "mxfp4"),
            ValueError,
            ("codes", "multiple of 32"),
        ),
        (
            lambda: jfi.from_blocked(np.zeros((1, 2, 32, 4, 4), np.uint8), 130, 8),
            ValueError,
            ("from_blocked", "[2, 2, 32, 4, 4]", "Check rows"),
        ),
        (
            lambda: jfi.to_blocked(np.zeros((128, 8), np.float32)),
            TypeError,
            ("to_blocked", "float32[128, 8]", "one byte each"),
        ),
        (
            lambda: jfi.fp4_indexer_reorder_scales_for_mma(
                np.zeros((2, 1, 4), np.uint8), np.zeros((1, 1, 128, 8), np.uint8), "nvfp4"
            ),
            ValueError,
            ("fp4_indexer_reorder_scales_for_mma: q_scale:", "uint8[2, 1, 4]", "G = 8"),
        ),
        (
            lambda: jfi.fp4_indexer_reorder_scales_for_mma("a", None),
            TypeError,
            ("fp4_indexer_reorder_scales_for_mma: q_scale:", "got str", "float8_e4m3fn"),
        ),
        (
            lambda: jfi.fp4_indexer_reorder_scales_for_mma(ZEROS, ZEROS, ["nvfp4"]),
            ValueError,
            ("fp4_format", "['nvfp4']"),
        ),
        (
            lambda: jfi.quantize_nvfp4([1.0] * 10_000),
            TypeError,
            ("quantize_nvfp4: x: got list, expected an array of a floating dtype",),
        ),
        (lambda: jfi.quantize_mxfp4("a"), TypeError, ("quantize_mxfp4: x: got str",)),
        (lambda: jfi.quantize_nvfp4(ONES, global_scale="a"), TypeError, ("quantize_nvfp4: global_scale: got str",)),
        (
            lambda: jfi.quantize_nvfp4(ONES, global_scale=0),
            ValueError,
            ("global_scale: got int 0", "a positive number"),
        ),
        (lambda: jfi.quantize_nvfp4(ONES, global_scale=1j), TypeError, ("global_scale: got complex",)),
        (
            lambda: jfi.quantize_nvfp4(ONES, global_scale=np.ones(3, np.float32)),
            ValueError,
            ("global_scale: got float32[3]", "broadcasts", "[2, 1]"),
        ),
        (
            lambda: jfi.quantize_nvfp4(ONES, global_scale=np.ones((2, 2, 1), np.float32)),
            ValueError,
            ("global_scale: got float32[2, 2, 1]", "[2, 1]"),
        ),
        (lambda: jfi.pack_e2m1([1.0, 2.0]), TypeError, ("pack_e2m1: x: got list",)),
        (lambda: jfi.unpack_e2m1(np.uint8(3)), ValueError, ("unpack_e2m1: codes: got uint8[]", "[..., D/2]")),
        (
            lambda: jfi.unpack_e2m1(jnp.zeros((2, 3), jnp.float4_e2m1fn)),
            ValueError,
            ("unpack_e2m1: codes: got float4_e2m1fn[2, 3]", "D even"),
        ),
        (lambda: jfi.dequantize([1], ZEROS, "nvfp4"), TypeError, ("dequantize: codes: got list",)),
        (lambda: jfi.dequantize(ZEROS, ZEROS, ["nvfp4"]), ValueError, ("dequantize: fp4_format", "['nvfp4']")),
        (
            lambda: jfi.dequantize(ZEROS, ZEROS[:, :1], "nvfp4", global_scale=np.ones(3, np.float32)),
            ValueError,
            ("dequantize: global_scale", "[2, 1]"),
        ),
        (lambda: jfi.from_blocked(TILED, [130], 8), TypeError, ("from_blocked: rows: got list [130]", "a Python int")),
        (lambda: jfi.from_blocked(TILED, -1, 8), ValueError, ("from_blocked: rows: got -1", "to_blocked was given")),
        (
            lambda: jax.jit(lambda n: jfi.from_blocked(TILED, n, 8))(130),
            TypeError,
            ("from_blocked: rows: got a traced int32[]",),
        ),
        (
            lambda: jfi.from_blocked(TILED[0, 0], 128, 8),
            ValueError,
            ("from_blocked: blocked: got uint8[32, 4, 4]", "what to_blocked returns"),
        ),
    ],
)
def test_errors_name_the_parts(call, error, parts):
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_sizes_of_zero_and_numpy_sizes():
    assert [x.shape for x in jfi.quantize_nvfp4(np.zeros((0, 128), np.float32))] == [(0, 64), (0, 8)]
    assert jfi.dequantize(np.zeros((0, 64), np.uint8), np.zeros((0, 4), np.uint8), "mxfp4").shape == (0, 128)
    assert jfi.from_blocked(TILED, np.int64(128), np.array(8)).shape == (128, 8)


@pytest.mark.parametrize("global_scale", [np.float32(0), jnp.zeros((2, 1))])
def test_a_tensor_of_zeros_with_the_global_scale_of_its_amax(global_scale):
    codes, scale = jfi.quantize_nvfp4(np.zeros((2, 16), np.float32), global_scale=jnp.asarray(global_scale))
    assert (
        not np.asarray(codes).any()
        and np.isfinite(jfi.dequantize(codes, scale, "nvfp4", global_scale=jnp.asarray(global_scale))).all()
    )


def test_strict_promotion_rules():
    x = jnp.asarray(values(3, (4, 128)))
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for fmt, (quantise, _) in QUANTISE.items():
            assert jfi.dequantize(*quantise(x), fmt).shape == x.shape
        codes, scale = jfi.quantize_nvfp4(x, global_scale=jnp.bfloat16(0.5))
        assert jfi.dequantize(codes, scale, "nvfp4", global_scale=0.5).shape == x.shape
        np.testing.assert_array_equal(jfi.pack_e2m1(jfi.unpack_e2m1(codes)), codes)
