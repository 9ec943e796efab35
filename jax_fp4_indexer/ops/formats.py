"""FP4 tensors: quantise, dequantise, pack, and the tiled order of scales. Plain jnp, jit-able, the bits of the ml_dtypes casts."""
import functools

import jax
import jax.numpy as jnp

from ..errors import message
from ..formats import e2m1, scale_layout, scales
from ..reference import decode
from ..reference import static_args as must
from ..reference.block_scores_call import code_bytes, scale_bytes

_compiled = functools.partial(jax.jit, inline=True)


@_compiled
def quantize_nvfp4(x, *, global_scale=None):
    """NVFP4: E2M1 codes with an E4M3 scale for each 16 elements of the last axis. x ~ dequantize(codes, scales, "nvfp4", global_scale=global_scale).

    scale = amax / (6 * global_scale) rounded to E4M3 (nearest even, at most 448, at least 2^-9); codes = x / (scale * global_scale), nearest even,
    saturating at 6. A group of zeros has scale 1 (byte 0x38), so its values are exactly 0; a NaN makes the scale of its group NaN.

    Args:
      x: floating [..., D], D a multiple of 16. Rounded once from float32.
      global_scale: positive float32 scalar (or broadcastable to [..., D/16]), None for 1. amax of the tensor / (448 * 6) uses the whole E4M3 range.

    Returns:
      (codes uint8 [..., D/2], scales float8_e4m3fn [..., D/16]).
    """
    groups, amax, is_nan = _groups("quantize_nvfp4", x, scales.NVFP4.group_size)
    unit = jnp.float32(1) if global_scale is None else jnp.asarray(global_scale, jnp.float32)
    wanted = jnp.clip(amax / (e2m1.MAX * unit), scales.UE4M3_MIN, scales.UE4M3_MAX)
    scale = jnp.where(amax == 0, jnp.float32(1), wanted).astype(jnp.float8_e4m3fn)
    step = scale.astype(jnp.float32) * unit
    codes = _encode(groups / step[..., None])
    return _pack(codes, x.shape), jnp.where(is_nan, jnp.float32(jnp.nan), scale.astype(jnp.float32)).astype(jnp.float8_e4m3fn)


@_compiled
def quantize_mxfp4(x):
    """MXFP4: E2M1 codes with an E8M0 scale for each 32 elements of the last axis, by the rule of the OCP MX specification 1.0.

    scale = 2^(floor(log2(amax)) - 2), byte 0 at least; codes = x / scale, nearest even, saturating at 6 (an amax in (6, 8) * scale is cut to 6 * scale).
    A group of zeros has scale 1 (byte 127), so its values are exactly 0; float32 subnormals count as zero; a NaN makes the scale of its group NaN (255).

    Args:
      x: floating [..., D], D a multiple of 32. Rounded once from float32.

    Returns:
      (codes uint8 [..., D/2], scales float8_e8m0fnu [..., D/32]).
    """
    groups, amax, is_nan = _groups("quantize_mxfp4", x, scales.MXFP4.group_size)
    exponent = jax.lax.bitcast_convert_type(amax, jnp.int32) >> 23                        # biased as E8M0 is
    byte = jnp.where(exponent == 0, scales.E8M0_BIAS, jnp.clip(exponent - 2, 0, 252))      # 252: the scale of the largest finite float32, for inf too
    codes = _encode(groups * decode.power_of_two(scales.E8M0_BIAS - byte)[..., None])
    byte = jnp.where(is_nan, scales.E8M0_NAN, byte).astype(jnp.uint8)
    return _pack(codes, x.shape), jax.lax.bitcast_convert_type(byte, jnp.float8_e8m0fnu)


@functools.partial(jax.jit, static_argnames=('fp4_format',), inline=True)
def dequantize(codes, scale, fp4_format, *, global_scale=None):
    """float32 [..., D] from codes (uint8 or int8 [..., D/2], or float4_e2m1fn [..., D]) and scales [..., G] (float8 or bytes) of `fp4_format`.

    Exact, except that an MXFP4 product above the float32 range is inf and one below 2^-126 may be 0. `global_scale` broadcasts to [..., G].
    """
    op = "dequantize"
    must.choice(op, "fp4_format", fp4_format, tuple(scales.FORMATS))
    fmt = scales.FORMATS[fp4_format]
    must.array(op, "scale", scale, (fmt.scale_dtype, "uint8"), f"Scales of {fp4_format} are {fmt.scale_dtype}, or the same bytes as uint8.")
    values = unpack_e2m1(codes)
    if values.shape[-1] % fmt.group_size:
        raise ValueError(message(op, "codes", codes, f"D a multiple of {fmt.group_size}", f"{fp4_format} scales groups of {fmt.group_size} elements."))
    must.shape(op, "scale", scale, (*values.shape[:-1], fmt.groups(values.shape[-1])), "[..., G]", f"{fp4_format} has one scale per {fmt.group_size} elements.")
    values = values.reshape(*scale.shape, fmt.group_size)
    byte = scale_bytes(scale)[..., None]
    if fp4_format == "nvfp4":
        values = values * decode.ue4m3_value(byte)
    else:
        scaled = decode.times_power_of_two(values, byte.astype(jnp.int32) - scales.E8M0_BIAS)
        values = jnp.where(byte == scales.E8M0_NAN, jnp.nan, scaled)
    if global_scale is not None:
        values = values * jnp.broadcast_to(jnp.asarray(global_scale, jnp.float32), scale.shape)[..., None]
    return values.reshape(*scale.shape[:-1], -1)


@_compiled
def pack_e2m1(x):
    """Values to codes: floating [..., D], D even -> uint8 [..., D/2], two codes a byte, element 2i in the low nibble of byte i.

    Nearest even, saturating at 6; NaN becomes -0 whatever its sign. A float4_e2m1fn array is packed as it is. Inverse of `unpack_e2m1`.
    """
    x = _floating("pack_e2m1", x, e2m1.CODES_PER_BYTE)
    return code_bytes(x) if x.dtype == jnp.float4_e2m1fn else _pack(_encode(x.astype(jnp.float32)), x.shape)


@_compiled
def unpack_e2m1(codes):
    """Codes to values: uint8 or int8 [..., D/2] (or float4_e2m1fn [..., D]) -> float32 [..., D]. Exact."""
    must.array("unpack_e2m1", "codes", codes, ("uint8", "int8", "float4_e2m1fn"), "Pass packed E2M1 codes, two a byte.")
    packed = code_bytes(codes).astype(jnp.int32)
    values = jnp.stack([decode.code_value(packed & 15), decode.code_value(packed >> 4)], axis=-1)
    return values.reshape(*packed.shape[:-1], -1) if packed.size else jnp.zeros((*packed.shape[:-1], 2 * packed.shape[-1]), jnp.float32)


@_compiled
def to_blocked(scale):
    """[..., rows, G] of a one-byte dtype -> [..., ceil(rows/128), ceil(G/4), 32, 4, 4], the tiled order of `formats/scale_layout.py`; padding is zero bytes."""
    scale = _scale_matrix("to_blocked", scale, 2)
    rows, groups = scale.shape[-2:]
    row_tiles, group_tiles, *_ = scale_layout.tiled_shape(rows, groups)
    byte = scale_bytes(scale)
    pad = [(0, 0)] * (byte.ndim - 2) + [(0, row_tiles * scale_layout.TILE_ROWS - rows), (0, group_tiles * scale_layout.TILE_GROUPS - groups)]
    byte = jnp.pad(byte, pad).reshape(*scale.shape[:-2], row_tiles, 4, 32, group_tiles, 4)
    lead = tuple(range(scale.ndim - 2))
    tiled = byte.transpose(*lead, *(len(lead) + axis for axis in (0, 3, 2, 1, 4)))
    return jax.lax.bitcast_convert_type(tiled, scale.dtype)


@functools.partial(jax.jit, static_argnames=('rows', 'groups'), inline=True)
def from_blocked(blocked, rows, groups):
    """The inverse of `to_blocked`: [..., ceil(rows/128), ceil(groups/4), 32, 4, 4] -> [..., rows, groups]."""
    op = "from_blocked"
    blocked = _scale_matrix(op, blocked, 5)
    rows, groups = must.static_int(op, "rows", rows, 0), must.static_int(op, "groups", groups, 0)
    expected = scale_layout.tiled_shape(rows, groups)
    must.shape(op, "blocked", blocked, (*blocked.shape[:-5], *expected), "[..., ceil(rows/128), ceil(groups/4), 32, 4, 4]", "Check rows and groups.")
    byte = scale_bytes(blocked)
    lead = tuple(range(blocked.ndim - 5))
    byte = byte.transpose(*lead, *(len(lead) + axis for axis in (0, 3, 2, 1, 4)))
    byte = byte.reshape(*blocked.shape[:-5], expected[0] * scale_layout.TILE_ROWS, expected[1] * scale_layout.TILE_GROUPS)
    return jax.lax.bitcast_convert_type(byte[..., :rows, :groups], blocked.dtype)


def _scale_matrix(op, x, rank):
    must.array(op, "scale" if rank == 2 else "blocked", x, ("uint8", "int8", "float8_e4m3fn", "float8_e8m0fnu"), "Pass scales, one byte each.")
    if len(x.shape) < rank:
        raise ValueError(message(op, "scale" if rank == 2 else "blocked", x, f"rank {rank} or more", "Pass the matrix of scales, not a vector."))
    return jnp.asarray(x)


def _floating(op, x, multiple):
    if getattr(x, "dtype", None) is None or getattr(x, "shape", None) is None or not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(message(op, "x", x, "an array of a floating dtype", "Cast it with .astype(jnp.float32)."))
    if not x.shape or x.shape[-1] % multiple:
        raise ValueError(message(op, "x", x, f"a last axis that is a multiple of {multiple}", "Pad the last axis with zeros; they quantise to zeros."))
    return jnp.asarray(x)


def _groups(op, x, group_size):
    """fp32 [..., G, group_size], the largest finite-or-inf magnitude of each group, and whether a group holds a NaN."""
    x = _floating(op, x, group_size).astype(jnp.float32)
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // group_size, group_size)
    nan = jnp.isnan(groups)
    return groups, jnp.max(jnp.where(nan, 0, jnp.abs(groups)), axis=-1), nan.any(-1)


def _encode(x):
    """fp32 -> codes 0..15 (int32): nearest even, saturating; NaN is 8 (-0) as in ml_dtypes. Counts the midpoints below |x|."""
    magnitude = jnp.abs(x)
    code = sum((magnitude >= middle if up else magnitude > middle).astype(jnp.int32) for middle, up in zip(e2m1.MIDPOINTS, e2m1.TIE_GOES_UP))
    return jnp.where(jnp.isnan(x), 8, code + 8 * jnp.signbit(x))


def _pack(codes, shape):
    codes = codes.reshape(*shape[:-1], shape[-1] // e2m1.CODES_PER_BYTE, e2m1.CODES_PER_BYTE)
    return (codes[..., 0] | codes[..., 1] << 4).astype(jnp.uint8)
