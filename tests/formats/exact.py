"""What the quantisers must return, by comparisons in float64 that are exact: a midpoint has 3 bits, a scale 4, a global
scale 24, their product fits 53 bits.

Needs NumPy and ml_dtypes alone, and shares nothing with the package, whose quantisers compare bits of float32 numbers.
"""

import ml_dtypes
import numpy as np

MAGNITUDES = np.arange(8, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
MIDPOINTS = (MAGNITUDES[:-1] + MAGNITUDES[1:]) / 2
E4M3 = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
LEAST_NORMAL = 2.0**-126
GROUP = {"nvfp4": 16, "mxfp4": 32}


def rounded(x, points, unit):
    """Index of the nearest to x >= 0 of ascending `points` times `unit`, ties to the even index.

    Exact while the products are.
    """
    middles = (points[:-1] + points[1:]) / 2
    return sum((x > middle * unit) | ((x == middle * unit) & (index % 2 == 1)) for index, middle in enumerate(middles))


def quantised(fmt, x, global_scale=1.0):
    """(packed codes uint8 [..., D/2], scale bytes uint8 [..., G]) of float values x [..., D], which float32 holds."""
    with np.errstate(all="ignore"):
        wide = np.asarray(x).astype(np.float64).reshape(*x.shape[:-1], -1, GROUP[fmt])
    unit = np.broadcast_to(np.asarray(global_scale, np.float64), wide.shape[:-1])
    magnitude = np.abs(wide)
    magnitude = np.where(magnitude < LEAST_NORMAL, 0, magnitude)
    nan = np.isnan(wide)
    amax = np.where(nan, 0, magnitude).max(-1)
    if fmt == "nvfp4":
        byte = np.maximum(rounded(amax, E4M3, 6 * unit), 1)
        byte = np.where(np.isinf(amax), 0x7E, np.where(amax == 0, 0x38, byte))
        step, nan_byte = E4M3[byte] * unit, 0x7F
    else:
        with np.errstate(all="ignore"):
            exponent = np.clip(np.frexp(amax)[1] - 1 - 2, -127, 125)
        exponent = np.where(amax == 0, 0, np.where(np.isinf(amax), 125, exponent))
        byte, step, nan_byte = exponent + 127, np.ldexp(1.0, exponent), 0xFF
    code = (
        np.where(nan, 8, rounded(magnitude, MAGNITUDES, step[..., None]) + 8 * np.signbit(wide))
        .astype(np.uint8)
        .reshape(*x.shape)
    )
    return code[..., 0::2] | code[..., 1::2] << 4, np.where(nan.any(-1), nan_byte, byte).astype(np.uint8)


def neighbours(x, dtype):
    """(next below, x, next above) in `dtype`, for positive values that it holds."""
    bits = np.asarray(x, np.float64).astype(dtype)
    word = np.dtype(f"uint{8 * bits.dtype.itemsize}")
    return tuple((bits.view(word) + np.array(step).astype(word)).view(dtype) for step in (-1, 0, 1))
