"""Values to codes and scale bytes: the results of exact arithmetic, the same bytes on every platform.

All of it is integer arithmetic on the bits of float32 numbers, for three reasons: XLA compiles a division by a scale as
a multiplication by its reciprocal, which rounds once more; XLA:GPU drops the rounding to an 8-bit float that is
converted back; XLA:CPU reads subnormal numbers as zero.

Bits of non-negative float32 numbers are ordered as the numbers are. So the code of x is the number of thresholds that
the bits of |x| reach; the threshold of a midpoint has the bits of the least float32 that is rounded past midpoint *
scale. That product is one of small integers: a midpoint has 3 bits, an E4M3 scale 4 and a float32 global scale 24,
together at most 31, which int32 holds. Subnormal float32 numbers count as zero, so no threshold is below 2^-126.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..formats import e2m1, scales

FRACTION = 23  # bits of a float32 significand after the leading one
ONE = 1 << FRACTION  # the leading one; as bits of a float32, 2^-126
INFINITY = 255 << FRACTION
NEVER = INFINITY + 1  # a threshold that no number reaches
MAGNITUDE = 0x7FFFFFFF
CODE_OF_NAN = 8  # -0, as the cast of ml_dtypes gives
UE4M3_MAX_BYTE, UE4M3_EXPONENT = 0x7E, -10  # of byte b = 0eeeemmm the value is (8 + m) * 2^(e - 10)

# The midpoints between neighbouring codes as bits, as odd integer * 2^exponent, and by how many bits the threshold of a
# tie is above the midpoint
_MIDPOINT_BITS = tuple(np.float32(e2m1.MIDPOINTS).view(np.int32).tolist())
_MIDPOINTS = tuple(
    (numerator, 1 - denominator.bit_length())
    for numerator, denominator in (middle.as_integer_ratio() for middle in e2m1.MIDPOINTS)
)
_ABOVE = tuple(0 if up else 1 for up in e2m1.TIE_GOES_UP)
E2M1_THRESHOLDS = tuple(bits + above for bits, above in zip(_MIDPOINT_BITS, _ABOVE))


def float32_bits(x: jax.Array) -> jax.Array:
    """int32: the bits of floating `x` as float32. Exact, except that float64 is rounded.

    Narrow types are decoded from their own bits: of `x.astype(float32)` XLA may make the value that x was rounded from.
    """
    if x.dtype == jnp.bfloat16:
        return lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.int32) << 16
    if x.dtype == jnp.float16:
        return _bits_of_float16(lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.int32))
    if x.dtype.itemsize == 1 and jnp.finfo(x.dtype).bits in (4, 8):
        width = jnp.finfo(x.dtype).bits
        table = np.arange(2**width, dtype=np.uint8).view(x.dtype).astype(np.float32).view(np.int32)
        return jnp.asarray(table)[lax.bitcast_convert_type(x, jnp.uint8 if width == 8 else jnp.uint4).astype(jnp.int32)]
    return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)


def _bits_of_float16(half: jax.Array) -> jax.Array:
    fraction, magnitude = half & 0x3FF, half & 0x7FFF
    subnormal = lax.bitcast_convert_type(fraction.astype(jnp.float32), jnp.int32) - (
        24 << FRACTION
    )  # fraction * 2^-24, a normal float32
    bits = (magnitude << 13) + jnp.where(
        magnitude >= 0x7C00, 224, 112
    ) * ONE  # the exponent's bias from 15 to 127; from 31 to 255
    bits = jnp.where(magnitude >= 0x400, bits, jnp.where(fraction == 0, 0, subnormal))
    return bits | (half & 0x8000) << 16


def is_nan(bits: jax.Array) -> jax.Array:
    return (bits & MAGNITUDE) > INFINITY


def codes(bits: jax.Array, thresholds: Sequence[jax.Array | int]) -> jax.Array:
    """int32 E2M1 codes 0..15 of the numbers with these float32 bits: nearest, ties to even, saturating.

    thresholds: seven, each of which broadcasts to `bits`.
    """
    magnitude = bits & MAGNITUDE
    code = sum((magnitude >= threshold).astype(jnp.int32) for threshold in thresholds)
    return jnp.where(is_nan(bits), CODE_OF_NAN, code + jnp.where(bits < 0, 8, 0))


def nvfp4_scale_byte(amax: jax.Array, global_scale: jax.Array) -> jax.Array:
    """int32 E4M3 bytes of amax / (6 * global_scale), nearest, ties to even, from 2^-9 to 448; 1.0 where amax is zero,
    NaN where global_scale is not positive and finite.

    Both arguments are float32 bits, amax of non-negative numbers. A global scale of zero counts as the least that there
    is.
    """
    exponent = (amax >> FRACTION) - (global_scale >> FRACTION)
    # amax / (6 * global_scale) = (quotient + remainder / divisor) * 2^unit, 21 <= quotient < 86
    divisor = 3 * _significand(global_scale)
    dividend = _significand(amax) << 7
    quotient = lax.div(dividend, divisor)
    unit = exponent - 8
    # Rounded to a multiple of 2^last: four significant bits, or 2^-9 among subnormals
    last = jnp.maximum(unit + jnp.where(quotient >= 64, 3, jnp.where(quotient >= 32, 2, 1)), UE4M3_EXPONENT + 1)
    dropped = jnp.minimum(last - unit, 8)
    half = 1 << (dropped - 1)
    rounded = quotient >> dropped
    rest = quotient & (2 * half - 1)
    up = (rest > half) | (rest == half) & ((quotient * divisor != dividend) | (rounded & 1 == 1))
    byte = ((last - UE4M3_EXPONENT) << 3) + rounded - 8 + up.astype(jnp.int32)
    byte = jnp.where(amax >= INFINITY, UE4M3_MAX_BYTE, jnp.clip(byte, 1, UE4M3_MAX_BYTE))
    byte = jnp.where(_is_zero(global_scale), UE4M3_MAX_BYTE, byte)
    byte = jnp.where(_is_zero(amax), scales.NVFP4.one, byte)
    return jnp.where(_is_zero(global_scale) | (global_scale >= ONE) & (global_scale < INFINITY), byte, scales.UE4M3_NAN)


def nvfp4_thresholds(byte: jax.Array, global_scale: jax.Array) -> list[jax.Array]:
    """Seven thresholds for numbers with the scale of E4M3 `byte` (not NaN) times the global scale with these bits.

    Where the global scale is zero, no number reaches them.
    """
    exponent = jnp.maximum(byte >> 3, 1) + UE4M3_EXPONENT
    scale = jnp.where(byte < 8, byte, byte & 7 | 8) * _significand(global_scale)  # 28 bits
    exponent = exponent + ((global_scale & MAGNITUDE) >> FRACTION) - 127 - FRACTION
    found = [_least_float32(scale * odd, exponent + shift, above) for (odd, shift), above in zip(_MIDPOINTS, _ABOVE)]
    return [jnp.where(_is_zero(global_scale), NEVER, threshold) for threshold in found]


def mxfp4_scale_byte(amax: jax.Array) -> jax.Array:
    """int32 E8M0 bytes of 2^(floor(log2(amax)) - 2), amax given as float32 bits; 1.0 where amax is zero.

    Infinity has the scale of the largest finite float32.
    """
    exponent = amax >> FRACTION  # biased by 127 as E8M0 is
    return jnp.where(exponent == 0, scales.E8M0_BIAS, jnp.clip(exponent - 2, 0, 252))


def mxfp4_thresholds(byte: jax.Array) -> list[jax.Array]:
    """Seven thresholds for numbers with the scale of E8M0 `byte`, 0 .. 252."""
    return [jnp.maximum(threshold + ((byte - scales.E8M0_BIAS) << FRACTION), ONE) for threshold in E2M1_THRESHOLDS]


def _is_zero(bits: jax.Array) -> jax.Array:
    return (bits & MAGNITUDE) < ONE


def _significand(bits: jax.Array) -> jax.Array:
    return bits & (ONE - 1) | ONE


def _least_float32(significand: jax.Array, exponent: jax.Array, above: int) -> jax.Array:
    """Bits of the least float32, normal or inf, that is >= (above = 0) or > (above = 1) significand * 2^exponent.

    2^23 <= significand < 2^31.
    """
    drop = 31 - FRACTION - lax.clz(significand)  # 0 .. 7 bits
    kept = significand >> drop
    inexact = (kept << drop) != significand
    biased = exponent + drop + FRACTION + 127
    bits = (biased << FRACTION) + (kept - ONE) + (above if above else inexact.astype(jnp.int32))
    return jnp.where(biased <= 0, ONE, jnp.where(biased >= 255, INFINITY, bits))
