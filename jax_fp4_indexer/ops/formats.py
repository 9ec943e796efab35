"""FP4 tensors: quantise, dequantise, pack, and the tiled order of scales.

Plain jnp, jit-able, the same bytes on every platform.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ..calls import must
from ..calls.fp4 import FLOAT4, code_bytes, scale_bytes
from ..calls.must import Array
from ..errors import message
from ..formats import e2m1, scale_layout, scales
from ..reference import encode
from ..reference.values import code_value, nan_where, times_power_of_two, ue4m3_value

_compiled = functools.partial(jax.jit, inline=True)


def quantize_nvfp4(x: Array, *, global_scale: Array | float | None = None) -> tuple[jax.Array, jax.Array]:
    """NVFP4: E2M1 codes with an E4M3 scale for each 16 elements of the last axis.

    x is about dequantize(codes, scales, "nvfp4", global_scale=global_scale):

        scale = amax / (6 * global_scale), rounded to E4M3 (nearest, ties to even), at least 2^-9 and at most 448
        code = x / (scale * global_scale), rounded to E2M1 (nearest, ties to even), at most 6 in magnitude

    Both are the results of exact arithmetic, so the bytes are the same on every platform, in any program. A group of
    zeros has scale 1 (byte 0x38); float32 subnormals count as zero; a NaN makes the scale of its group NaN.

    Codes are integers, so `jax.grad` through this function is zero, without an error; docs/formats.md has a
    straight-through estimator.

    Args:
      x: floating [..., D], D a multiple of 16. float64 is rounded to float32 first; every other dtype is taken exactly.
      global_scale: positive number (a normal float32), or float32, bfloat16 or float16 scalar or array that broadcasts
        to [..., D/16]; None for 1. amax of the tensor / (448 * 6) uses the whole E4M3 range. Where an array holds zero
        (the amax of a tensor of zeros), codes are 0; where it holds a negative number, an infinity or NaN, scales are
        NaN.

    Returns:
      (codes uint8 [..., D/2], scales float8_e4m3fn [..., D/16]).

    Raises:
      TypeError: x is not floating, or global_scale is neither a number nor an array of these dtypes (a float64 array is
        refused: cast it).
      ValueError: D is not a multiple of 16, or global_scale does not broadcast or is not a positive number.
    """
    op = "quantize_nvfp4"
    x = _values(op, x, scales.NVFP4.group_size)
    return _quantize_nvfp4(x, _global_scale(op, global_scale, (*x.shape[:-1], scales.NVFP4.groups(x.shape[-1]))))


@_compiled
def _quantize_nvfp4(x: Array, global_scale: Array | None) -> tuple[jax.Array, jax.Array]:
    groups, amax, is_nan = _groups(x, scales.NVFP4.group_size)
    unit = encode.float32_bits(jnp.asarray(np.float32(1) if global_scale is None else global_scale))
    unit = jnp.broadcast_to(unit, amax.shape)
    byte = encode.nvfp4_scale_byte(amax, unit)
    codes = encode.codes(groups, [t[..., None] for t in encode.nvfp4_thresholds(byte, unit)])
    return _pack(codes, x.shape), _scale_array(jnp.where(is_nan, scales.UE4M3_NAN, byte), jnp.float8_e4m3fn)


def quantize_mxfp4(x: Array) -> tuple[jax.Array, jax.Array]:
    """MXFP4: E2M1 codes with an E8M0 scale for each 32 elements of the last axis.

    The rule is that of the OCP MX specification 1.0:

        scale = 2^(floor(log2(amax)) - 2), at least 2^-127
        code = x / scale, rounded to E2M1 (nearest, ties to even), at most 6 in magnitude

    An amax between 6 and 8 times its scale becomes 6 times the scale. Both are the results of exact arithmetic, so the
    bytes are the same on every platform, in any program. A group of zeros has scale 1 (byte 127); float32 subnormals
    count as zero; a NaN makes the scale of its group NaN (255).

    Codes are integers, so `jax.grad` through this function is zero, without an error; docs/formats.md has a
    straight-through estimator.

    Args:
      x: floating [..., D], D a multiple of 32. float64 is rounded to float32 first; every other dtype is taken exactly.

    Returns:
      (codes uint8 [..., D/2], scales float8_e8m0fnu [..., D/32]).

    Raises:
      TypeError: x is not floating.
      ValueError: D is not a multiple of 32.
    """
    return _quantize_mxfp4(_values("quantize_mxfp4", x, scales.MXFP4.group_size))


@_compiled
def _quantize_mxfp4(x: Array) -> tuple[jax.Array, jax.Array]:
    groups, amax, is_nan = _groups(x, scales.MXFP4.group_size)
    byte = encode.mxfp4_scale_byte(amax)
    codes = encode.codes(groups, [t[..., None] for t in encode.mxfp4_thresholds(byte)])
    return _pack(codes, x.shape), _scale_array(jnp.where(is_nan, scales.E8M0_NAN, byte), jnp.float8_e8m0fnu)


def dequantize(codes: Array, scale: Array, fp4_format: str, *, global_scale: Array | float | None = None) -> jax.Array:
    """Codes and scales to values, code * scale * global_scale.

    code * scale is exact, except that an MXFP4 product above the float32 range is inf and one below 2^-126 may be 0.
    The product with global_scale is rounded once.

    Args:
      codes: [..., D/2] uint8 or int8, two E2M1 codes a byte; or [..., D] float4_e2m1fn. D is a multiple of the group
        (nvfp4 16, mxfp4 32).
      scale: [..., D/16] float8_e4m3fn (nvfp4; its sign bit is ignored) or [..., D/32] float8_e8m0fnu (mxfp4), or the
        same bytes as uint8.
      fp4_format: "nvfp4" or "mxfp4".
      global_scale: positive number, or float32, bfloat16 or float16 scalar or array that broadcasts to the shape of
        `scale`.

    Returns:
      float32 [..., D]. Groups with a NaN scale are NaN.

    Raises TypeError or ValueError if dtypes, shapes or fp4_format do not fit together.
    """
    op = "dequantize"
    must.choice(op, "fp4_format", fp4_format, tuple(scales.FORMATS))
    fmt = scales.FORMATS[fp4_format]
    must.array(
        op,
        "scale",
        scale,
        (fmt.scale_dtype, "uint8"),
        f"Scales of {fp4_format} are {fmt.scale_dtype}, or the same bytes as uint8.",
    )
    *lead, elements = _check_codes(op, codes)
    if elements % fmt.group_size:
        raise ValueError(
            message(
                op,
                "codes",
                codes,
                f"D a multiple of {fmt.group_size}",
                f"{fp4_format} scales groups of {fmt.group_size} elements.",
            )
        )
    must.shape(
        op,
        "scale",
        scale,
        (*lead, fmt.groups(elements)),
        "[..., G]",
        f"{fp4_format} has one scale per {fmt.group_size} elements.",
    )
    return _dequantize(codes, scale, _global_scale(op, global_scale, scale.shape), fp4_format=fp4_format)


@functools.partial(jax.jit, static_argnames="fp4_format", inline=True)
def _dequantize(codes: Array, scale: Array, global_scale: Array | None, *, fp4_format: str) -> jax.Array:
    group_size = scales.FORMATS[fp4_format].group_size
    values = _unpack(codes).reshape(*scale.shape, group_size)
    byte = scale_bytes(scale)[..., None]
    if fp4_format == "nvfp4":
        values = values * ue4m3_value(byte)
    else:
        scaled = times_power_of_two(values, byte.astype(jnp.int32) - scales.E8M0_BIAS)
        values = nan_where(byte == scales.E8M0_NAN, scaled)
    if global_scale is not None:
        values = values * jnp.broadcast_to(jnp.asarray(global_scale, jnp.float32), scale.shape)[..., None]
    return values.reshape(*scale.shape[:-1], scale.shape[-1] * group_size)


def pack_e2m1(x: Array) -> jax.Array:
    """Values to codes: x floating [..., D], D even -> uint8 [..., D/2], two codes a byte, element 2i in the low nibble
    of byte i.

    Rounds to nearest, ties to even, at most 6 in magnitude; float64 is rounded to float32 first. NaN becomes -0,
    whatever its sign. A float4_e2m1fn array is packed as it is. `pack_e2m1(unpack_e2m1(codes))` is `codes`, for every
    byte. Raises TypeError or ValueError for anything else.
    """
    x = _values("pack_e2m1", x, e2m1.CODES_PER_BYTE)
    return code_bytes(x) if x.dtype == jnp.float4_e2m1fn else _pack_values(x)


@_compiled
def _pack_values(x: Array) -> jax.Array:
    return _pack(encode.codes(encode.float32_bits(x), encode.E2M1_THRESHOLDS), x.shape)


def unpack_e2m1(codes: Array) -> jax.Array:
    """Codes to values: codes uint8 or int8 [..., D/2] (or float4_e2m1fn [..., D], D even) -> float32 [..., D].

    Exact, signs of zeros included. Raises TypeError or ValueError for anything else.
    """
    _check_codes("unpack_e2m1", codes)
    return _unpack(codes)


@_compiled
def _unpack(codes: Array) -> jax.Array:
    packed = code_bytes(codes).astype(jnp.int32)
    values = jnp.stack([code_value(packed & 15), code_value(packed >> 4)], axis=-1)
    return values.reshape(*packed.shape[:-1], packed.shape[-1] * e2m1.CODES_PER_BYTE)


def to_blocked(scale: Array) -> jax.Array:
    """Scales in the tiled order of block-scaled tensor cores (128 rows x 4 groups a tile).

    scale [..., rows, G] of uint8, int8 or a float8 scale dtype -> [..., ceil(rows/128), ceil(G/4), 32, 4, 4], dtype and
    bytes kept; padding is zero bytes. (r, g) goes to [r // 128, g // 4, r % 32, r % 128 // 32, g % 4]. Raises TypeError
    or ValueError for another dtype or a vector.
    """
    _check_scale("to_blocked", "scale", scale, 2, "Pass a matrix of scales [..., rows, G].")
    return _to_blocked(scale)


@_compiled
def _to_blocked(scale: Array) -> jax.Array:
    rows, groups = scale.shape[-2:]
    row_tiles, group_tiles, *_ = scale_layout.tiled_shape(rows, groups)
    byte = scale_bytes(scale)
    pad = [(0, 0)] * (byte.ndim - 2) + [
        (0, row_tiles * scale_layout.TILE_ROWS - rows),
        (0, group_tiles * scale_layout.TILE_GROUPS - groups),
    ]
    byte = jnp.pad(byte, pad).reshape(*scale.shape[:-2], row_tiles, 4, 32, group_tiles * 4)
    byte = byte.reshape(*byte.shape[:-1], group_tiles, 4)  # one axis at a time, as in _pack
    lead = tuple(range(scale.ndim - 2))
    tiled = byte.transpose(*lead, *(len(lead) + axis for axis in (0, 3, 2, 1, 4)))
    return jax.lax.bitcast_convert_type(tiled, scale.dtype)


def from_blocked(blocked: Array, rows: int, groups: int) -> jax.Array:
    """The inverse of `to_blocked`: [..., ceil(rows/128), ceil(groups/4), 32, 4, 4] -> [..., rows, groups], dtype and
    bytes kept, padding dropped.

    rows, groups: Python ints. Raises TypeError or ValueError if they do not fit the shape of `blocked`.
    """
    op = "from_blocked"
    _check_scale(op, "blocked", blocked, 5, "Pass what to_blocked returns.")
    rows, groups = (
        must.static_int(op, name, n, 0, "Pass the size of the matrix that to_blocked was given.")
        for name, n in (("rows", rows), ("groups", groups))
    )
    expected = scale_layout.tiled_shape(rows, groups)
    must.shape(
        op,
        "blocked",
        blocked,
        (*blocked.shape[:-5], *expected),
        "[..., ceil(rows/128), ceil(groups/4), 32, 4, 4]",
        "Check rows and groups.",
    )
    return _from_blocked(blocked, rows=rows, groups=groups)


@functools.partial(jax.jit, static_argnames=("rows", "groups"), inline=True)
def _from_blocked(blocked: Array, *, rows: int, groups: int) -> jax.Array:
    expected = scale_layout.tiled_shape(rows, groups)
    byte = scale_bytes(blocked)
    lead = tuple(range(blocked.ndim - 5))
    byte = byte.transpose(*lead, *(len(lead) + axis for axis in (0, 3, 2, 1, 4)))
    byte = byte.reshape(*byte.shape[:-2], expected[1] * scale_layout.TILE_GROUPS)
    byte = byte.reshape(*blocked.shape[:-5], expected[0] * scale_layout.TILE_ROWS, byte.shape[-1])
    return jax.lax.bitcast_convert_type(byte[..., :rows, :groups], blocked.dtype)


def _check_scale(op: str, argument: str, x: Array, rank: int, remedy: str) -> None:
    must.array(op, argument, x, ("uint8", "int8", "float8_e4m3fn", "float8_e8m0fnu"), "Pass scales, one byte each.")
    if len(x.shape) < rank:
        raise ValueError(message(op, argument, x, f"rank {rank} or more", remedy))


def _values(op: str, x: Array, multiple: int) -> Array:
    """`x`, checked; NumPy float64 as float32."""
    must.is_array(op, "x", x, "an array of a floating dtype")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(message(op, "x", x, "an array of a floating dtype", "Cast it with .astype(jnp.float32)."))
    if (
        not getattr(x.dtype, "isnative", True) or x.dtype.itemsize > 8
    ):  # JAX would take its bytes in the wrong order, or has no such dtype
        raise TypeError(
            message(
                op,
                "x",
                f"{x.dtype.str}[{', '.join(map(str, x.shape))}]",
                "a floating dtype of JAX, in the byte order of this machine",
                "Cast it with .astype(np.float32).",
            )
        )
    if not x.shape or x.shape[-1] % multiple:
        raise ValueError(
            message(
                op,
                "x",
                x,
                f"a last axis that is a multiple of {multiple}",
                "Pad the last axis with zeros; they quantise to zeros.",
            )
        )
    if isinstance(x, np.ndarray) and x.dtype == np.float64:
        with np.errstate(
            all="ignore"
        ):  # infinities saturate, small numbers become zero; the caller may have NumPy raise
            return x.astype(np.float32)
    return x


def _check_codes(op: str, codes: Array) -> tuple[int, ...]:
    """Checks codes of any leading shape; returns the shape of their values."""
    must.array(op, "codes", codes, ("uint8", "int8", FLOAT4), "Pass packed E2M1 codes, two a byte.")
    packed = codes.dtype.name != FLOAT4
    if not codes.shape or not packed and codes.shape[-1] % e2m1.CODES_PER_BYTE:
        raise ValueError(
            message(
                op,
                "codes",
                codes,
                "[..., D/2] bytes, or [..., D] float4_e2m1fn with D even",
                "Two codes share a byte: pad the last axis.",
            )
        )
    return (*codes.shape[:-1], codes.shape[-1] * (e2m1.CODES_PER_BYTE if packed else 1))


def _global_scale(op: str, x: Array | float | None, shape: tuple[int, ...]) -> Array | np.float32 | None:
    """A global scale as it goes into the compiled part: None, or what broadcasts to `shape`."""
    if x is None:
        return None
    if must.is_number(x):
        return must.number(op, "global_scale", x, positive=True)
    must.array(
        op,
        "global_scale",
        x,
        ("float32", "bfloat16", "float16"),
        "Pass a positive number, or cast the array with .astype(jnp.float32).",
    )
    # Sizes may be symbolic, of a program that is exported for any
    if x.ndim > len(shape) or any(own != size and own != 1 for own, size in zip(reversed(x.shape), reversed(shape))):
        raise ValueError(
            message(
                op,
                "global_scale",
                x,
                f"a shape that broadcasts to that of the scales, {list(shape)}",
                "Pass one for the tensor: a scalar.",
            )
        )
    return x


def _groups(x: jax.Array, group_size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """int32 float32 bits in groups [..., G, group_size], those of each group's largest magnitude, whether it holds a NaN.

    The largest magnitude is one of numbers and infinities.
    """
    bits = encode.float32_bits(x)
    groups = bits.reshape(*x.shape[:-1], x.shape[-1] // group_size, group_size)
    nan = encode.is_nan(groups)
    return groups, jnp.max(jnp.where(nan, 0, groups & encode.MAGNITUDE), axis=-1), nan.any(-1)


def _scale_array(byte: jax.Array, dtype: object) -> jax.Array:
    return jax.lax.bitcast_convert_type(byte.astype(jnp.uint8), dtype)


def _pack(codes: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Codes of an array of `shape`, in groups or not, two a byte. One axis is split or merged at a time, which Explicit
    mesh axes pass.

    A sum over pairs, because XLA:CPU would compile two slices of the codes into code that is ten times slower and not
    vectorised.
    """
    pairs = codes.astype(jnp.uint8).reshape(
        *codes.shape[:-1], codes.shape[-1] // e2m1.CODES_PER_BYTE, e2m1.CODES_PER_BYTE
    )
    weights = np.array([1, 16], np.uint8).reshape((1,) * (pairs.ndim - 1) + (2,))
    packed = jnp.sum(pairs * weights, axis=-1, dtype=jnp.uint8)
    return packed.reshape(*shape[:-1], shape[-1] // e2m1.CODES_PER_BYTE)
