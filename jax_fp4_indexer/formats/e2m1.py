"""E2M1: four bits, sign, two exponent bits (bias 1), one mantissa bit.

    code   0    1    2    3    4    5    6    7        8 .. 15
    value  0   0.5   1   1.5   2    3    4    6        the same, negative (8 is -0)

Two codes share a byte: element 2*i of a row is the low nibble of byte i, element 2*i + 1 the high nibble.
There is no NaN and no infinity; every code counts.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

MAX = 6.0
CODES_PER_BYTE = 2
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

# Between neighbouring magnitudes c and c + 1 lies MIDPOINTS[c]. Round to nearest even sends a tie to the even code: up
# where c is odd.
MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
TIE_GOES_UP = (False, True, False, True, False, True, False)


def position(d: Any) -> tuple[Any, Any]:
    """Where element `d` of a row is: (byte, shift of its nibble in bits)."""
    return d // CODES_PER_BYTE, 4 * (d % CODES_PER_BYTE)


def unpack(packed: npt.ArrayLike) -> np.ndarray:
    """uint8 [..., n] -> codes 0..15, uint8 [..., 2n]."""
    packed = np.asarray(packed, np.uint8)
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], packed.shape[-1] * CODES_PER_BYTE)


def pack(codes: npt.ArrayLike) -> np.ndarray:
    """Codes 0..15, [..., 2n] -> uint8 [..., n]."""
    codes = np.asarray(codes, np.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4
