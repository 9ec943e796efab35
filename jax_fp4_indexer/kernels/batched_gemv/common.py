"""What the warps that compute share, whatever the number of columns: scales, results."""

import cutlass.cute as cute
from cutlass import Int32, Int64

from ..device.fixed import Fixed
from ..device.ptx_math import and_, bits_f32, e4m3x2_to_f16x2, fmul, hmul2, imad, shr
from ..device.ptx_memory import ld32, stg_f32
from .instructions import fadd, regular, stg_bf16, stg_f16

F16, BF16, F32 = 0, 1, 2  # y_type


def scale_pair(raw, convert, shift=0):
    """Two UE4M3 bytes in the low half of raw -> f16x2 of their values * 2^shift (shift at most 7). Bit 7 plays no
    part, 0x7F is NaN.
    """
    if convert:
        pair = e4m3x2_to_f16x2(raw)
        return hmul2(pair, Int32(power_of_two(shift))) if shift else pair
    # 0 e e e e m m m at bits 14 .. 7 of a half reads as the value * 2^-8; 0x7F (0x3F80 there) becomes 0x7F80, a NaN
    v = and_(imad(and_(raw, 0x7F7F), 0x8080, Int32(0)), 0x3F803F80)
    v = v | and_(v + Int32(0x00800080), 0x40004000)
    return hmul2(v, Int32(power_of_two(8 + shift)))


def power_of_two(exponent):
    """2^exponent as f16, twice in a word."""
    return (exponent + 15 << 10) * 0x10001


def tree(values):
    """The sum of a power of two of values, neighbours first."""
    while len(values) > 1:
        values = [fadd(a, b) for a, b in zip(values[::2], values[1::2])]
    return values[0]


class Results(Fixed):
    """Sums -> elements of y."""

    def __init__(self, problem, args):
        self.p, self.y, self.y_type = problem, args.y.toint(), args.out_dtype
        self.ga, self.gb = args.a_global_scale.toint(), args.b_global_scale.toint()
        self.ga_stride, self.gb_stride = args.a_global, args.b_global

    def factors(self, batch):
        """(global scale of a, of b) of a batch. Ordinary loads: read-only ones would be waited for at the end."""
        return tuple(
            bits_f32(ld32(at + Int64(batch * stride) * 4))
            for at, stride in ((self.ga, self.ga_stride), (self.gb, self.gb_stride))
        )

    def address(self, batch, position, column):
        """Where the element of a position and column is."""
        at = self.p.line(batch, self.p.row_of(position)) * Int64(self.p.cols) + Int64(column)
        return self.y + at * Int64(shr(self.y_type, 1) * 2 + 2)

    @cute.jit
    def store(self, address, value, factors):
        """`value` times the global scales, rounded once."""
        ga, gb = factors
        both = fmul(ga, gb)
        y = fmul(value, both)
        if regular(both) == 0:  # the product of the factors alone would lose bits, or be infinite
            y = fmul(fmul(value, ga), gb)
        if self.y_type == F16:
            stg_f16(address, y)
        elif self.y_type == BF16:
            stg_bf16(address, y)
        else:
            stg_f32(address, y)
