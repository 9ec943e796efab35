"""E2M1 codes times a power of two as int8, exactly: 2 * value << d, for d in 0 .. 3 (configs INT8_SPAN); at most 96
in magnitude.

A row, or a page, whose exponents lie within INT8_SPAN of the least one, e, is held with d = exponent - e; what is
held is value * 2^(exponent - 127) in units of 2^(e - 128). Products and sums of 128 of them stay below 2^21, so int32
and fp32 sums are exact in any order, and a score is its integer times 2^(q + k - 256): the same bits as in the bf16
products wherever those are right. Other d give wrong bytes, but code 0 is always 0.
"""

from cutlass import Int32

from ..device.integers import signed
from ..device.ptx_math import and_, mux_bits, prmt, shl_by, shr


def tables(d):
    """Bytes of 2 * |value| << d of the 8 magnitudes, then of their negatives: two words each."""
    kept = shl_by(Int32(0xFF), d) & 0xFF
    kept = kept * 0x01010101
    return [
        shl_by(Int32(0x03020100), d),
        shl_by(Int32(0x0C080604), d),
        shl_by(Int32(signed(0xFDFEFF00)), d) & kept,
        shl_by(Int32(signed(0xF4F8FAFC)), d) & kept,
    ]


def codes_to_s8(w, t):
    """8 codes -> two words of int8, elements in order."""
    magnitude, sign = and_(w, 0x77777777), and_(shr(w, 3), 0x11111111)
    out = []
    for m, s in ((magnitude, sign), (shr(magnitude, 16), shr(sign, 16))):
        negative = prmt(Int32(0xFF00), Int32(0), s)
        out.append(mux_bits(prmt(t[2], t[3], m), prmt(t[0], t[1], m), negative))
    return out


def unit_bits(exponent):
    """Bits of the float 2^(exponent - 128), exponent 2 .. 255: the factor of one side."""
    return (exponent - 1) << 23
