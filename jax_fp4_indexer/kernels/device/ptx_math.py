"""Single PTX instructions of arithmetic and logic as functions: bits, integers, packed halves, floats.

All 32-bit registers are Int32; shifts are spelled in PTX, so signedness never matters. The compiler may move and
merge all of these but `opaque`.
"""

from cutlass import Float32, Int32, Int64

from .ptx import asm


# ---- bits
def shl(a, n):
    """a << n, n a constant."""
    return asm(f"shl.b32 $0, $1, {n};", [Int32], [a], "=r,r")


def shr(a, n):
    """a >> n, a unsigned, n a constant."""
    return asm(f"shr.u32 $0, $1, {n};", [Int32], [a], "=r,r")


def and_(a, mask):
    """a & mask, mask a constant."""
    return asm(f"and.b32 $0, $1, {mask:#x};", [Int32], [a], "=r,r")


def mux(a, b, mask):
    """Bits of a where the mask is 1, of b where it is 0."""
    return asm(f"lop3.b32 $0, $1, $2, {mask:#x}, 0xE4;", [Int32], [a, b], "=r,r,r")


def mux_bits(a, b, mask):
    """mux with the mask in a register."""
    return asm("lop3.b32 $0, $1, $2, $3, 0xE4;", [Int32], [a, b, mask], "=r,r,r,r")


def prmt(a, b, selector):
    """Four bytes of the eight in (a, b), a's first, chosen by the low four nibbles of `selector` (0 .. 7)."""
    return asm("prmt.b32 $0, $1, $2, $3;", [Int32], [a, b, selector], "=r,r,r,r")


def shl_by(a, n):
    """a << n, 0 for n above 31 (n unsigned)."""
    return asm("shl.b32 $0, $1, $2;", [Int32], [a, n], "=r,r,r")


def shr_by(a, n):
    """a >> n, 0 for n above 31 (both unsigned)."""
    return asm("shr.u32 $0, $1, $2;", [Int32], [a, n], "=r,r,r")


def popc(a):
    """Number of bits that are set."""
    return asm("popc.b32 $0, $1;", [Int32], [a], "=r,r")


def clz(a):
    """Leading zeros, 32 for 0."""
    return asm("clz.b32 $0, $1;", [Int32], [a], "=r,r")


def lowest_bit(a):
    """Index of the lowest bit that is set (a != 0)."""
    return asm("{ .reg .b32 x; brev.b32 x, $1; clz.b32 $0, x; }", [Int32], [a], "=r,r")


# ---- integers
def imad(a, factor, c):
    """a * factor + c, low 32 bits."""
    return asm(f"mad.lo.u32 $0, $1, {factor:#x}, $2;", [Int32], [a, c], "=r,r,r")


def mad(a, b, c):
    """a * b + c, low 32 bits. c: a constant."""
    return asm(f"mad.lo.u32 $0, $1, $2, {c:#x};", [Int32], [a, b], "=r,r,r")


def udiv(a, b):
    """a / b, both unsigned: no correction for signs, half the instructions."""
    return asm("div.u32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def mad_wide(a, factor, c):
    """a * factor + c in 64 bits; a and factor are unsigned 32-bit, c is an Int64."""
    return asm("mad.wide.u32 $0, $1, $2, $3;", [Int64], [a, factor, c], "=l,r,r,l")


def add_sat(a, b):
    """a + b, clamped to the range of int32."""
    return asm("add.sat.s32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def sub_sat(a, b):
    """a - b, clamped to the range of int32."""
    return asm("sub.sat.s32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def xor(a, mask):
    """a ^ mask, mask a constant."""
    return asm(f"xor.b32 $0, $1, {mask:#x};", [Int32], [a], "=r,r")


def max_s32(a, b):
    """Maximum, signed."""
    return asm("max.s32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def select(a, b, x, y):
    """a == b ? x : y"""
    return asm("{ .reg .pred p; setp.eq.b32 p, $1, $2; selp.b32 $0, $3, $4, p; }", [Int32], [a, b, x, y], "=r,r,r,r,r")


def if_negative(a, x, y):
    """a < 0 ? x : y"""
    return asm("{ .reg .pred p; setp.lt.s32 p, $1, 0; selp.b32 $0, $2, $3, p; }", [Int32], [a, x, y], "=r,r,r,r")


def outside(x, low, span):
    """1 where the unsigned x - low is above span, else 0."""
    return asm(
        "{ .reg .pred p; .reg .b32 d; sub.s32 d, $1, $2; setp.gt.u32 p, d, $3; selp.b32 $0, 1, 0, p; }",
        [Int32],
        [x, low, span],
        "=r,r,r,r",
    )


def opaque(a):
    """The same value, but nothing computed from it is moved out of a loop (which would hold registers all through
    it)."""
    return asm("mov.b32 $0, $1;", [Int32], [a], "=r,r", pure=False)


def unseen(value, count):
    """`value` as the compilers cannot know it: of a multiplication by a constant power of two they make shifts and
    additions, in the pipe that has more to do. count: a kernel argument that is never negative."""
    return shr(count, 31) + value


# ---- packed halves
def hmul2(a, b):
    """Products of two f16x2."""
    return asm("mul.rn.f16x2 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def bcast_half(a, high):
    """One half of an f16x2 in both places."""
    h = "h" if high else "l"
    return asm("{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {" + f"{h}, {h}" + "}; }", [Int32], [a], "=r,r")


def e4m3x2_to_f16x2(a):
    """Two E4M3 bytes in the low half -> f16x2 of their magnitudes; NaN (0x7F, 0xFF) stays NaN, bit 7 plays no part
    (sm_89 and later)."""
    return asm(
        "{ .reg .b16 l, h; .reg .b32 x; mov.b32 {l, h}, $1; cvt.rn.f16x2.e4m3x2 x, l; abs.f16x2 $0, x; }",
        [Int32],
        [a],
        "=r,r",
    )


def bmul2(a, b):
    """Products of two bf16x2."""
    return asm("mul.rn.bf16x2 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


# ---- floats
def fmax_nan(a, b):
    """Maximum in which a NaN wins."""
    return asm("max.NaN.f32 $0, $1, $2;", [Float32], [a, b], "=f,f,f")


def select_f32(a, b, flag):
    """flag (Int32) != 0 ? a : b"""
    return asm("{ .reg .pred q; setp.ne.b32 q, $3, 0; selp.f32 $0, $1, $2, q; }", [Float32], [a, b, flag], "=f,f,f,r")


def pack64(low, high):
    """One 64-bit number of two words."""
    return asm("mov.b64 $0, {$1, $2};", [Int64], [low, high], "=l,r,r")


def unpack64(a):
    """(low, high) words."""
    return asm("mov.b64 {$0, $1}, $2;", [Int32] * 2, [a], "=r,=r,l")


def bits_f32(a):
    """The float with these bits."""
    return asm("mov.b32 $0, $1;", [Float32], [a], "=f,r")


def pow2_f32(e):
    """2^e for e in -126 .. 127."""
    return asm("{ .reg .b32 x; add.s32 x, $1, 127; shl.b32 x, x, 23; mov.b32 $0, x; }", [Float32], [e], "=f,r")


def fmul(a, b):
    """a * b, rounded by itself (never fused with an addition that follows)."""
    return asm("mul.rn.f32 $0, $1, $2;", [Float32], [a, b], "=f,f,f")


def s32_to_f32(a):
    """The nearest float."""
    return asm("cvt.rn.f32.s32 $0, $1;", [Float32], [a], "=f,r")
