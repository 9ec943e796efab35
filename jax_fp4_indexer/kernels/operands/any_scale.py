"""The any-scale path of one 16 x 8 piece of scores: any scales, any key limit a column. Rare, so compact rather than
fast.

A piece is 16 keys (rows) by 8 packed queries (columns) on one warp. Lane (g, t) = (lane / 4, lane % 4) holds
bytes 16t .. 16t+15 of key rows g and g + 8 (`lo`, `hi`: four words each) and of query column g, and gets the scores
[row g: columns 2t, 2t+1; row g + 8: columns 2t, 2t+1].

| format | a lane's 32 codes are | score of a key |
|---|---|---|
| nvfp4 | groups 2t and 2t + 1 | operands are value * scale, exact in f16; one accumulation |
| mxfp4 | group t | per group: the exact dot, times 2^(q byte + k byte - 254) as two factors; the groups are added in order |

The mxfp4 arithmetic is right for every pair of bytes: exponents are added as integers before anything can overflow or
flush, and byte 255 makes the score NaN. Results below 2^-126 are flushed or rounded once; above the range they are
infinite.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..device.mma import mma_m16n8k16
from ..device.ptx_math import fmax_nan, fmul, hmul2, pow2_f32, select_f32
from ..device.ptx_warp import shfl_idx
from .f16 import codes_to_f16

TWO_POW_14 = 0x74007400  # f16x2


def query_operands(words):
    """The 16 registers of a column's codes as values (no scale): b[2s], b[2s+1] belong to k16 step s."""
    return [hmul2(x, Int32(TWO_POW_14)) for w in words for x in codes_to_f16(w)]


def key_operands(lo, hi, scales=None):
    """Eight A fragments (value * 2^-14, times the scale if given). scales: for rows g and g + 8, two f16x2: of words
    0-1 and of words 2-3."""
    fragments = []
    for j in range(4):
        a, b = codes_to_f16(lo[j]), codes_to_f16(hi[j])
        if scales is not None:
            a, b = [hmul2(x, scales[0][j // 2]) for x in a], [hmul2(x, scales[1][j // 2]) for x in b]
        fragments += [(a[0], b[0], a[1], b[1]), (a[2], b[2], a[3], b[3])]
    return fragments


def multiply(fragments, b, chains=1):
    """fragments * b. Several independent chains of instructions are faster, for sums that are exact in any order."""
    acc = [[Float32(0.0)] * 4 for _ in range(chains)]
    for s in range(8):
        acc[s % chains] = mma_m16n8k16(fragments[s], b[2 * s], b[2 * s + 1], acc[s % chains])
    while len(acc) > 1:
        acc = [[x + y for x, y in zip(*pair)] for pair in zip(acc[::2], acc[1::2])]
    return acc[0]


def nvfp4_piece(lo, hi, scales, b):
    """Scores * 2^-14 of a piece. scales: as in key_operands; b: value * scale of the column, in the order of
    query_operands."""
    return multiply(key_operands(lo, hi, scales), b)


def times_two_factors(x, exponent):
    """x * 2^exponent, -252 <= exponent <= 252, as two factors so that neither leaves the range by itself."""
    half = exponent >> 1
    return fmul(fmul(x, pow2_f32(half)), pow2_f32(exponent - half))


def times_pow2(x, k_byte, q_byte):
    """x * 2^(q + k - 254), NaN where either byte is 255. |x| < 2^11 and a multiple of 1/4: below -252 nothing is left
    of it."""
    y = times_two_factors(x, cutlass.max(k_byte + q_byte - 254, Int32(-252)))
    not_finite = Int32(cutlass.max(k_byte, q_byte) == 255)
    return select_f32(Float32(float("nan")), y, not_finite)


@cute.jit
def mxfp4_piece(lo, hi, k_lo, k_hi, b, q_byte, lane, chains: cutlass.Constexpr[int] = 1):
    """Scores of a piece. k_lo, k_hi: scale bytes of group t of rows g and g + 8; b: query_operands; q_byte: of group
    t of column g. chains: see multiply (registers for time)."""
    t = lane % 4
    total = [Float32(0.0)] * 4
    for x in cutlass.range(4, unroll=1):
        mine = Int32(0) - Int32(t == x)  # only the lanes that hold group x feed the product
        dot = multiply(key_operands([r & mine for r in lo], [r & mine for r in hi]), b, chains)
        k = [shfl_idx(k_lo, lane - t + x), shfl_idx(k_hi, lane - t + x)]
        q = [shfl_idx(q_byte, 8 * t + x), shfl_idx(q_byte, 8 * t + 4 + x)]
        total = [total[i] + times_pow2(fmul(dot[i], Float32(16384.0)), k[i // 2], q[i % 2]) for i in range(4)]
    return total


def counted_maximum(best, scores, key, limit):
    """best (2: columns 2t, 2t+1) joined with a piece's scores of the keys that count. key: number of row g; limit:
    last key of each column."""
    out = []
    for c in range(2):
        m = best[c]
        for r in range(2):
            counted = Int32(key + 8 * r <= limit[c])
            m = fmax_nan(m, select_f32(scores[2 * r + c], Float32(float("-inf")), counted))
        out.append(m)
    return out
