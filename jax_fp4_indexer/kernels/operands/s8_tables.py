"""E2M1 codes as signed bytes, exactly: 4 * value * 2^d for a shift d of 0 .. 2.

The eight magnitudes are a table of eight bytes, which PRMT looks up four at a time with the codes themselves as
selectors: a nibble's low three bits choose the byte. A selector with its highest bit set (a negative code) gives
copies of the byte's bit 7 instead. Two look-ups therefore, in tables whose bytes have bit 7 clear: `positive` yields
x for positive codes and 0 for negative ones; `negative`, asked with the signs turned over, yields (-x / 2) mod 128
for negative codes and 0 for positive ones. Their sum, the second doubled, carries nowhere: every x is even.
"""

import cutlass.cute as cute
from cutlass import Int32

from ..device.integers import signed
from ..device.ptx_math import imad, prmt, shr, xor
from ..device.ptx_memory import sts_v4

SHIFTS = 3  # 4 * 6 * 2^2 = 96 is the last that fits a byte
TABLE_BYTES = SHIFTS * 16
_LOW, _HIGH = 0x03020100, 0x0C080604  # 2 * value of codes 0 .. 7


@cute.jit
def store_tables(tables, thread):
    """The tables into shared memory, 16 bytes a shift: positive low, high, negative low, high. Threads 0 .. SHIFTS -
    1 write."""
    if thread < SHIFTS:
        low, high = Int32(_LOW) << thread, Int32(_HIGH) << thread
        sts_v4(
            tables + thread * 16,
            [low << 1, high << 1, Int32(signed(0x80808000)) - low, Int32(signed(0x80808080)) - high],
        )


def codes_to_s8(w, t):
    """8 codes -> codes 0-3 and 4-7 as bytes. t: a table's four words."""
    flipped = xor(w, 0x88888888)
    one = lambda a, b: imad(prmt(t[2], t[3], b), 2, prmt(t[0], t[1], a))
    return [one(w, flipped), one(shr(w, 16), shr(flipped, 16))]


def fragments(lo, hi, t_lo, t_hi):
    """A fragments of rows g and g + 8: four k32 steps of four registers."""
    pairs = [(codes_to_s8(x, t_lo), codes_to_s8(y, t_hi)) for x, y in zip(lo, hi)]
    return [r for x, y in pairs for r in (x[0], y[0], x[1], y[1])]
