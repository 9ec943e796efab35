"""Codes and scale bytes as fp32, with integer bit operations only.

XLA:CPU treats subnormal fp32 inputs as zero and exp2/ldexp are not exact everywhere, so no value here is built by
arithmetic on a subnormal.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..formats import e2m1, scales


NAN_BITS = 0x7FC00000


def _bits_to_float(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits.astype(jnp.int32), jnp.float32)


def nan_where(condition: jax.Array, value: jax.Array) -> jax.Array:
    """float32 `value`, NaN where `condition` holds.

    Selected among bits: `jax_debug_nans` with `jax_disable_jit` would stop at a NaN constant, selected or not.
    """
    return _bits_to_float(jnp.where(condition, NAN_BITS, jax.lax.bitcast_convert_type(value, jnp.int32)))


def code_value(code: jax.Array) -> jax.Array:
    """int32 codes 0..15 -> fp32 values. Bits 1..2 are the exponent and bit 0 the mantissa: (m + 252) << 22 are the fp32
    bits of every m >= 2."""
    magnitude = code & 7
    value = jnp.where(magnitude < 2, magnitude.astype(jnp.float32) * 0.5, _bits_to_float((magnitude + 252) << 22))
    return jnp.where(code >= 8, -value, value)


def group_values(packed: jax.Array, group_size: int) -> jax.Array:
    """uint8 [..., D/2] -> fp32 [..., G, group_size]. Within a group the even elements come first: a dot product over
    the group is the same."""
    packed = packed.reshape(*packed.shape[:-1], -1, group_size // e2m1.CODES_PER_BYTE).astype(jnp.int32)
    return jnp.concatenate([code_value(packed & 15), code_value(packed >> 4)], axis=-1)


def ue4m3_value(byte: jax.Array) -> jax.Array:
    """uint8 -> fp32, bit 7 ignored, 0x7F NaN."""
    byte = byte.astype(jnp.int32) & scales.UE4M3_MASK
    normal = _bits_to_float((byte + (120 << 3)) << 20)  # exponent bias 7 -> 127
    value = jnp.where(byte < 8, byte.astype(jnp.float32) * scales.UE4M3_MIN, normal)
    return nan_where(byte == scales.UE4M3_NAN, value)


def power_of_two(exponent: jax.Array) -> jax.Array:
    """fp32 2**exponent for int32 exponents in [-126, 127]."""
    return _bits_to_float((exponent + 127) << 23)


def times_power_of_two(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """x * 2**exponent for |exponent| <= 254: exact where the result is a normal fp32 number, inf above, possibly zero
    below 2**-126.

    Two factors, each a normal number; the larger share goes first, so the first product leaves the normal range only
    where the result does.
    """
    first = jnp.clip(exponent, -126, 127)
    return x * power_of_two(first) * power_of_two(jnp.clip(exponent - first, -126, 127))
