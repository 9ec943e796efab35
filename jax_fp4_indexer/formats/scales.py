"""Scale bytes of the two formats.

E8M0 (mxfp4, a scale for 32 elements): byte b is 2^(b - 127) for b in 0..254, so byte 0 is 2^-127, not zero; 255 is NaN.
UE4M3 (nvfp4, a scale for 16 elements): an E4M3 byte whose bit 7 plays no part, as the tensor cores read it:

    b = 0 e e e e m m m    e = 0: m * 2^-9    e > 0: (8 + m) * 2^(e - 10)    b = 0x7F: NaN    largest 0x7E = 448

A sign bit in an NVFP4 scale is therefore ignored: 0xB8 is 1.0 and 0xFF is NaN.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

E8M0_BIAS = 127
E8M0_NAN = 255
UE4M3_MASK = 0x7F
UE4M3_NAN = 0x7F
UE4M3_MAX = 448.0
UE4M3_MIN = 2.0**-9  # the smallest scale above zero (a subnormal, and it counts)


def e8m0_value(byte: npt.ArrayLike) -> np.ndarray:
    """E8M0 byte(s) -> float64 value(s), NaN for 255."""
    byte = np.asarray(byte, np.uint8)
    return np.where(byte == E8M0_NAN, np.nan, np.ldexp(1.0, byte.astype(np.int32) - E8M0_BIAS))


def ue4m3_value(byte: npt.ArrayLike) -> np.ndarray:
    """UE4M3 byte(s), bit 7 ignored -> float64 value(s), NaN for 0x7F."""
    byte = np.asarray(byte, np.uint8).astype(np.int32) & UE4M3_MASK
    exponent, mantissa = byte >> 3, byte & 7
    value = np.where(exponent == 0, np.ldexp(mantissa.astype(np.float64), -9), np.ldexp(8.0 + mantissa, exponent - 10))
    return np.where(byte == UE4M3_NAN, np.nan, value)


@dataclasses.dataclass(frozen=True)
class Format:
    """One FP4 format: E2M1 elements with a scale for each `group_size` of them along the head dimension."""

    name: str
    group_size: int
    scale_dtype: str  # name of the float8 dtype whose bytes the scales are
    one: int  # the scale byte that means 1.0
    value: Callable[[npt.ArrayLike], np.ndarray]  # scale byte(s) -> float64
    has_global_scale: bool

    def groups(self, elements: Any) -> Any:
        return elements // self.group_size


NVFP4 = Format("nvfp4", 16, "float8_e4m3fn", 0x38, ue4m3_value, True)
MXFP4 = Format("mxfp4", 32, "float8_e8m0fnu", 127, e8m0_value, False)
FORMATS = {f.name: f for f in (NVFP4, MXFP4)}
