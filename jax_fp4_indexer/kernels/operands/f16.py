"""E2M1 codes and their scales as f16 operands, exactly.

A code s e e m put at bits 15 and 11..9 of an f16 reads as value * 2^-14 (e = 0 lands on f16 subnormals, which HMUL2,
HMMA and HGMMA keep). Word j of a row's 16 bytes held by a lane (codes n0 .. n7, n0 in the low nibble) becomes four
f16x2, the operands of two k16 steps:

    step 2j    : k = 2t, 2t+1 -> (n3, n7)    k = 2t+8, 2t+9 -> (n1, n5)
    step 2j+1  : k = 2t, 2t+1 -> (n2, n6)    k = 2t+8, 2t+9 -> (n0, n4)

The order of d is permuted, the same way for queries and keys, so the dot product does not see it.
"""

from cutlass import Int32

from ..device.ptx_math import and_, bcast_half, e4m3x2_to_f16x2, imad, mad, mux, shl, shr

SIGN_AND_CODE = 0x8E008E00
CODE_EXPONENT = -14  # an operand is value * 2^CODE_EXPONENT


def codes_to_f16(w, two=None):
    """8 codes -> 4 f16x2 of value * 2^-14: (n3,n7) (n1,n5) (n2,n6) (n0,n4). 7 logic operations and 4 left shifts.

    two: a register that holds 2 (ptx_math.unseen). With it a multiplication does what two of the shifts did: added to
    0111000, a nibble s e e m in front of a 0 carries its s into bit 7 of the byte."""
    odd = mux(w, shr(w, 3), 0x80808080)
    even = mux(shl(w, 4), shl(w, 1), 0x80808080) if two is None else mad(and_(w, 0x0F0F0F0F), two, 0x70707070)
    return (
        and_(odd, SIGN_AND_CODE),
        and_(shl(odd, 8), SIGN_AND_CODE),
        and_(even, SIGN_AND_CODE),
        and_(shl(even, 8), SIGN_AND_CODE),
    )


def nvfp4_scales(raw):
    """Two scale bytes, of a lane's first and last 16 codes -> each as f16, twice in a word (sm_89 and later)."""
    pair = e4m3x2_to_f16x2(raw)
    return [bcast_half(pair, False), bcast_half(pair, True)]


def power_of_two(exponent):
    """2^exponent as f16, twice in a word, exponent -14 .. 15."""
    return imad(exponent + 15, 0x04000400, Int32(0))
