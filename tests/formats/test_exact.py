"""The quantisers against exact fractions where rounding decides, and against exact comparisons on a million values.

Their programs have no floating-point arithmetic.
"""

import functools
import itertools
import re
from fractions import Fraction

import exact
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import on_gpu
import pytest

import jax_fp4_indexer as jfi

DTYPES = on_gpu.DTYPES
BYTES = range(1, 0x7F)
E4M3 = {byte: Fraction(float(exact.E4M3[byte])) for byte in BYTES}
MAGNITUDES = [Fraction(float(x)) for x in exact.MAGNITUDES]
# Float32 numbers with one bit, with a few, with all 24, and at the ends of the range
GLOBAL_SCALES = [
    None,
    0.25,
    0.0123,
    float(np.float32(1) + np.float32(2.0**-23)),
    float(np.float32(2) - np.float32(2.0**-23)),
    1.2e-38,
    1e35,
]


def nearest(x, points):
    """Index of the nearest of the ascending fractions, ties to the even index."""
    index = min(range(len(points)), key=lambda i: (abs(points[i] - x), i % 2))
    return index


def scale_byte(amax, unit):
    """The rule of `quantize_nvfp4` in fractions."""
    values = [Fraction(0), *E4M3.values()]
    return max(1, nearest(amax / (6 * unit), values))


@functools.cache
def run(fmt, has_scale):
    quantise = {"nvfp4": jfi.quantize_nvfp4, "mxfp4": jfi.quantize_mxfp4}[fmt]
    return jax.jit((lambda x, g: quantise(x, global_scale=g)) if has_scale else quantise)


def quantised(fmt, x, global_scale=None):
    """(codes 0..15 [rows, D], scale bytes [rows, G]) of the package, equal to those of the float64 oracle."""
    arguments = (x,) if global_scale is None else (x, np.float32(global_scale))
    packed, scale = (np.asarray(y).view(np.uint8) for y in run(fmt, global_scale is not None)(*arguments))
    want = exact.quantised(fmt, x, 1.0 if global_scale is None else np.float32(global_scale))
    np.testing.assert_array_equal(scale, want[1])
    np.testing.assert_array_equal(packed, want[0])
    return np.stack([packed & 15, packed >> 4], -1).reshape(x.shape), scale


def held(fraction, dtype):
    """The value of `dtype` nearest to a positive fraction and its two neighbours, without subnormals and infinities."""
    with np.errstate(over="ignore"):
        near = np.float64(fraction).astype(dtype)
    if not np.isfinite(near.astype(np.float64)) or near <= ml_dtypes.finfo(dtype).tiny:
        return []
    below, at, above = exact.neighbours(near.astype(np.float64), dtype)
    return [x for x in (below, at, above) if np.isfinite(x.astype(np.float64)) and x > ml_dtypes.finfo(dtype).tiny]


@pytest.mark.parametrize("global_scale", GLOBAL_SCALES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_midpoint_of_every_nvfp4_scale(dtype, global_scale):
    """In a group with an element that fixes its scale byte: values at and next to midpoint * scale * global scale."""
    dtype = DTYPES[dtype]
    unit = Fraction(1 if global_scale is None else float(np.float32(global_scale)))
    rows = []
    for byte in BYTES:
        largest = held(6 * E4M3[byte] * unit, dtype)[1:2]
        middles = [(low + high) / 2 * E4M3[byte] * unit for low, high in itertools.pairwise(MAGNITUDES)]
        values = [x for middle in middles for x in held(middle, dtype)] if largest else []
        for start in range(0, len(values), 15):
            part = values[start : start + 15]
            rows.append((byte, np.array([*largest, *part, *[dtype(0)] * (15 - len(part))], dtype)))
    if not rows:  # no float16 is the largest of a group with these
        assert dtype is DTYPES["float16"] and global_scale in (1.2e-38, 1e35)
        return
    x = np.stack([row for _, row in rows])
    x[1::2] = -x[1::2]
    codes, scales = quantised("nvfp4", x, global_scale)
    for (byte, row), got, scale in zip(rows, codes, scales[:, 0], strict=True):
        exactly = [Fraction(float(v)) for v in row]
        assert scale == byte == scale_byte(max(exactly), unit)
        assert [c & 7 for c in got] == [nearest(v / (E4M3[byte] * unit), MAGNITUDES) for v in exactly]
    assert (codes[1::2, 0] == 15).all() and (codes[0::2, 0] == 7).all()
    assert global_scale is not None or {byte for byte, _ in rows} == set(BYTES)


@pytest.mark.parametrize("global_scale", GLOBAL_SCALES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tie_between_nvfp4_scales(dtype, global_scale):
    """amax at and next to 6 * global scale * (the middle of two neighbouring scales).

    Also below the smallest scale and above the largest.
    """
    dtype = DTYPES[dtype]
    unit = Fraction(1 if global_scale is None else float(np.float32(global_scale)))
    middles = [
        Fraction(1, 2**10),
        *((E4M3[b] + E4M3[b + 1]) / 2 for b in BYTES[:-1]),
        Fraction(448),
        Fraction(464),
        Fraction(10**6),
    ]
    amax = [x for middle in middles for x in held(6 * middle * unit, dtype)]
    if not amax:
        assert dtype is DTYPES["float16"] and global_scale in (1.2e-38, 1e35)
        return
    x = np.zeros((len(amax), 16), dtype)
    x[:, 5] = amax
    scales = quantised("nvfp4", x, global_scale)[1][:, 0]
    assert scales.tolist() == [scale_byte(Fraction(float(v)), unit) for v in amax]
    assert global_scale is not None or set(scales.tolist()) == set(BYTES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_midpoint_of_every_mxfp4_scale(dtype):
    dtype = DTYPES[dtype]
    info = ml_dtypes.finfo(dtype)
    checked = 0
    for exponent in range(max(-127, info.minexp - 2), info.maxexp - 2):
        scale = Fraction(2) ** exponent
        values = [x for low, high in itertools.pairwise(MAGNITUDES) for x in held((low + high) / 2 * scale, dtype)]
        top = [x for factor in (4, 6, 7) for x in held(factor * scale, dtype)][-1:]  # an amax up to 8 * scale
        row = np.array([*top, *values, *[dtype(0)] * (31 - len(values))], dtype)[None]
        codes, byte = quantised("mxfp4", row)
        assert byte[0, 0] == exponent + 127
        assert codes[0].tolist() == [nearest(min(Fraction(float(v)) / scale, Fraction(6)), MAGNITUDES) for v in row[0]]
        checked += len(values)
    assert checked > 20 * (info.maxexp - info.minexp - 4)


def test_the_tie_that_a_division_rounds_past():
    x = np.zeros((1, 16), ml_dtypes.bfloat16)
    x[0, :2] = 1.40625, 0.5859375  # 6 * 0.234375 and 2.5 * 0.234375
    codes, scale = quantised("nvfp4", x)
    assert exact.E4M3[scale[0, 0]] == 0.234375 and codes[0, :2].tolist() == [7, 4]


@pytest.mark.parametrize(
    "x, scale, code",
    [
        (np.inf, 0x7E, 7),
        (-np.inf, 0x7E, 15),
        (np.finfo(np.float32).max, 0x7E, 7),
        (0.0, 0x38, 0),
        (-0.0, 0x38, 8),
        (1e-40, 0x38, 0),
        (-1e-40, 0x38, 8),
    ],
)
def test_ends_of_nvfp4(x, scale, code):
    row = np.full((1, 16), np.float32(x))
    for global_scale in (None, 1.5):
        codes, byte = quantised("nvfp4", row, global_scale)
        assert byte[0, 0] == scale and (codes == code).all()
    codes, byte = quantised("nvfp4", np.concatenate([row[:, 1:], [[np.float32(np.nan)]]], 1))
    assert byte[0, 0] == 0x7F and (codes[0, :15] == code).all() and codes[0, 15] == 8


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, -np.inf])
def test_a_global_scale_that_is_not_positive_and_finite_makes_scales_nan(scale):
    for dtype in DTYPES.values():
        _, scales = jfi.quantize_nvfp4(np.ones((2, 32), np.float32), global_scale=np.array([[1, scale]], dtype))
        assert np.asarray(scales).view(np.uint8).tolist() == [[0x23, 0x7F]] * 2


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-40])
def test_codes_are_zero_where_the_global_scale_is(scale):
    codes, scales = jfi.quantize_nvfp4(
        np.float32([[3] * 16, [0] * 16, [np.inf] * 16]),
        global_scale=np.float32([scale])[0:1] if scale else jnp.float32(scale),
    )
    assert not np.asarray(codes).any() and np.asarray(scales).view(np.uint8).ravel().tolist() == [0x7E, 0x38, 0x7E]


def test_a_million_values_eager_and_in_jit_and_in_a_larger_program():
    """Of each dtype and format, with and without global scales; among them the edges. On a GPU: test_on_gpu.py."""
    number, size, found = on_gpu.differences(2**20)
    assert found == [] and number == 81 and size > 40e6


NARROW = [jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e8m0fnu, jnp.float8_e4m3b11fnuz, jnp.float4_e2m1fn]


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.__name__)
def test_every_value_of_narrow_types(dtype):
    """Also where the program rounds to them: the bytes are those of the rounded value."""
    count = 16 if dtype is jnp.float4_e2m1fn else 256
    every = np.arange(count, dtype=np.uint8).view(dtype)
    x = np.resize(every, (8, 32) if count == 256 else (2, 32))
    for fmt in ("nvfp4", "mxfp4"):
        want = exact.quantised(fmt, x.astype(np.float32))
        for got in (
            run(fmt, False)(jnp.asarray(x)),
            jax.jit(lambda x, fmt=fmt: run(fmt, False)(x.astype(dtype)))(x.astype(np.float32)),
        ):
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(np.asarray(a).view(np.uint8), b)


def test_every_float16_and_bfloat16():
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(-1, 64)
        for fmt in ("nvfp4", "mxfp4"):
            quantised(fmt, x)
        packed = np.asarray(jfi.pack_e2m1(x))
        wide = x.astype(np.float32)
        nan = np.isnan(wide)
        code = np.where(nan, 8, np.where(nan, 0, wide).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15)
        np.testing.assert_array_equal(packed, code[:, 0::2] | code[:, 1::2] << 4)


# ---- the programs

FLOAT_OPERATION = re.compile(r"stablehlo\.(\w+)\"?[^\n]*(?:tensor<(?:[\dx]*x)?(?:f\d+\w*|bf16)>)")


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_programs_have_no_floating_point_arithmetic(fmt, dtype, platform):
    """Floats are only read and written by their bits.

    So there is no conversion to an 8-bit float and back that XLA could drop, nor a division that it could rewrite.
    """
    x, scale = jax.ShapeDtypeStruct((4, 64), DTYPES[dtype]), jax.ShapeDtypeStruct((), np.float32)
    arguments = (x, scale) if fmt == "nvfp4" else (x,)
    text = run(fmt, fmt == "nvfp4").trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    found = [(name, line) for line in text.splitlines() for name in FLOAT_OPERATION.findall(line)]
    assert {name for name, _ in found} <= {"bitcast_convert", "convert"}
    for name, line in found:  # the conversion is one of small integers to float32: the fraction of a subnormal float16
        assert (
            name == "bitcast_convert"
            or dtype == "float16"
            and re.search(r"\(tensor<4x64xi32>\) -> tensor<4x64xf32>", line)
        ), line
    assert any("f8E" in line for _, line in found)


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_compiled_programs_have_no_conversion_of_8_bit_floats(fmt):
    text = run(fmt, False).lower(jax.ShapeDtypeStruct((4, 64), np.float32)).compile().as_text()
    lines = [line for line in text.splitlines() if re.search(r"= f8e\w+\[", line)]
    assert lines and all(
        re.search(r" (bitcast-convert|bitcast|fusion|parameter|copy|get-tuple-element|call)\(", line) for line in lines
    ), lines
    assert not re.search(r"= f32\[[\d,]*\]\S* (divide|multiply|convert)\(", text)
