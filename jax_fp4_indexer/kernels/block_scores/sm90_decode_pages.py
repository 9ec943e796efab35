"""What a warp computes from its page: 128 keys of one KV head, codes [128, 64] and scales, the B operand of mma.sync,
8 keys a tile, four tiles (a *slice*) side by side.

| format | operand of a key | exact where | factor left over |
|---|---|---|---|
| nvfp4 | f16 value * scale * 2^-14, a multiple of 2^-24 with at most 6 significant bits | always | 2^14 |
| mxfp4 | signed byte 4 * value * 2^(byte - base + 2), base = the largest byte of the slice; the sum is an exact integer | smallest byte at most 2 below base | 2^(base - 131) |
| mxfp4, wider | f16 value * 2^(byte - base + 1) | at most 24 below | 2^(base - 128) |

Both operands of mxfp4 give the same bits where both are exact. One f32 factor covers bases of 47 .. 180. A slice outside
all that is not regular: the any-scale path. Keys that a row does not see are left out of the maxima, not of the sums,
so a row has the same bits whatever the others see.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ..device.fixed import Fixed
from ..device.mma import mma_m16n8k16, mma_m16n8k32_s8
from ..device.ptx_math import (
    bits_f32,
    fmax_nan,
    fmul,
    hmul2,
    max_s32,
    outside,
    s32_to_f32,
    select,
    select_f32,
    shr,
    unseen,
)
from ..device.ptx_memory import ld_v4, ldg_u8, lds128, lds_u8, lds_u16
from ..device.ptx_warp import redux, shfl_idx
from ..operands import s8_tables
from ..operands.any_scale import times_pow2
from ..operands.f16 import codes_to_f16, nvfp4_scales
from ..operands.scale_addresses import SCALE_ROW, SCALE_TILE
from .sm90_decode_queries import WINDOW, power_scale
from .sm90_decode_start import KEY_BASES

NOTHING = -(2**31)  # no sum of bytes
TILES = 4  # of 8 keys, a slice of 32: mxfp4 chooses its operands a slice at a time


class Page(Fixed):
    """A warp's own page, in 16 tiles of 8 keys. Lane (g, t) reads bytes 16t .. 16t+15 of row g of a tile."""

    def __init__(self, config, w):
        c = self.c = config
        self.codes = w.own + w.lane * 16
        first = w.t * (c.groups // 4)
        if c.scale_layout == "public":
            # Bytes from a tile's to the next one's, from a slice's
            self.scales, self.step, self.slice = w.own + 8192 + w.g * c.groups + first, 8 * c.groups, 32 * c.groups
        else:
            self.scales, self.step, self.slice = (
                w.own + 8192 + (first // 4) * SCALE_TILE + w.g * SCALE_ROW + first % 4,
                8 * SCALE_ROW,
                4,
            )
        self.two = unseen(2, w.tokens)

    @cute.jit
    def slice_maxima(self, w, codes, scales, a, fits, limits: cutlass.Constexpr):
        """Maxima over a slice of 32 keys, rows g and g + 8, of this lane's keys (nvfp4: without their 2^14; mxfp4:
        without the rows' factors), and whether the slice is regular. limits: of rows g and g + 8, after which of the
        keys from this lane's first one on nothing is visible; or None."""
        c = self.c
        regular = Int32(1)
        if const_expr(c.format == "nvfp4"):
            tiles = self.f16_tiles(
                [lds128(codes, i * 512) for i in range(TILES)],
                [nvfp4_scales(lds_u16(scales, i * self.step)) for i in range(TILES)],
                a,
            )
            best = maximum(tiles, limits)
        else:
            best, factor = self.mxfp4(w, codes, scales, a, fits, limits)
            best = [fmul(b, bits_f32(factor)) for b in best]
            regular = Int32(factor != 0)
        return best[0], best[1], regular

    @cute.jit
    def mxfp4(self, w, codes, at, a, fits, limits: cutlass.Constexpr):
        """Maxima over a slice, and bits of the factor that its scales leave over (0: not regular)."""
        bytes_ = [lds_u8(at, i * self.step) for i in range(TILES)]
        best, factor = [Float32(float("-inf"))] * 2, Int32(1)
        base = redux("max", cutlass.max(cutlass.max(bytes_[0], bytes_[1]), cutlass.max(bytes_[2], bytes_[3])))
        least = redux("min", cutlass.min(cutlass.min(bytes_[0], bytes_[1]), cutlass.min(bytes_[2], bytes_[3])))
        outside_ = outside(base, Int32(KEY_BASES[0]), Int32(KEY_BASES[1] - KEY_BASES[0]))
        if (base - least < s8_tables.SHIFTS * fits) & (outside_ == 0):
            tables = w.tables + (s8_tables.SHIFTS - 1 - base) * 16
            most = [Int32(NOTHING)] * 2
            for i in cutlass.range_constexpr(TILES):
                words, t = lds128(codes, i * 512), lds128(tables + bytes_[i] * 16)
                acc = self.int8_tile(words, t, a)
                if const_expr(limits is not None):
                    acc = [
                        select(Int32(8 * i + y % 2 < limits[y // 2]), Int32(0), Int32(NOTHING), acc[y])
                        for y in range(4)
                    ]
                most = [max_s32(max_s32(most[r], acc[2 * r]), acc[2 * r + 1]) for r in range(2)]
            best, factor = [s32_to_f32(x) for x in most], (base - 1) << 23
            if const_expr(limits is not None):
                best = [select_f32(b, Float32(float("-inf")), Int32(x != NOTHING)) for b, x in zip(best, most)]
        else:
            factor = (base + 5) << 23
            if (base - least > WINDOW) | (outside_ != 0):
                factor = Int32(0)
            else:
                best = self.wide(w, codes, at, base, limits)
        return best, factor

    @cute.jit
    def wide(self, w, codes, at, base, limits: cutlass.Constexpr):
        """mxfp4 in f16: maxima over a slice, rows g and g + 8."""
        q = w.wide()
        best = [Float32(float("-inf"))] * 2
        for half in cutlass.range(2, unroll=1):  # rolled: registers
            words = [lds128(codes + half * 1024, i * 512) for i in range(2)]
            scales = [power_scale(lds_u8(at + half * 2 * self.step, i * self.step), base) for i in range(2)]
            acc = [[Float32(0.0)] * 4 for _ in range(2)]
            for j in cutlass.range_constexpr(4):
                steps = [lds128(q, (2 * j + x) * 512) for x in range(2)]
                for i in cutlass.range_constexpr(2):
                    b = [hmul2(x, scales[i]) for x in codes_to_f16(words[i][j])]
                    acc[i] = mma_m16n8k16(steps[1], b[2], b[3], mma_m16n8k16(steps[0], b[0], b[1], acc[i]))
            left = None
            if const_expr(limits is not None):
                left = [x - half * 16 for x in limits]
            best = join(best, maximum(acc, left))
        return best

    def f16_tiles(self, words, scales, a):
        """Tiles side by side, each with its words and scales: an accumulator a tile."""
        accs = [[Float32(0.0)] * 4 for _ in words]
        for j in range(4):
            b = [[hmul2(v, s[j // 2]) for v in codes_to_f16(x[j], self.two)] for x, s in zip(words, scales)]
            for h in range(2):
                accs = [
                    mma_m16n8k16(a[8 * j + 4 * h : 8 * j + 4 * h + 4], *b[i][2 * h : 2 * h + 2], acc)
                    for i, acc in enumerate(accs)
                ]
        return accs

    def int8_tile(self, words, t, a):
        """Products of 16 rows and 8 keys in int8: four int32 sums. t: a table of s8_tables.py for the keys."""
        acc = [Int32(0)] * 4
        for j in range(4):
            acc = mma_m16n8k32_s8(a[4 * j : 4 * j + 4], *s8_tables.codes_to_s8(words[j], t), acc)
        return acc

    @cute.jit
    def general(self, w, loaded, codes, scales, first_key, visible):
        """mxfp4: a page's maxima for any scales. loaded: the queries, as Queries.load has them; codes, scales: global
        addresses of the page's, whose place in shared memory belongs to the next page by now; first_key: the page's;
        visible: of the own row."""
        page = Page(self.c, w)
        quad = w.lane - w.t
        limits = [shfl_idx(visible, quad + r) for r in range(2)]
        best = [Float32(float("-inf"))] * 2
        unit = lds128(w.tables)
        a = s8_tables.fragments(loaded.codes[:4], loaded.codes[4:], unit, unit)
        scales = scales + Int64(page.scales - w.own - 8192)
        for i in cutlass.range(4 * TILES, unroll=1):
            words = ld_v4(codes + Int64(i * 512 + w.lane * 16))
            byte = ldg_u8(scales + Int64(shr(i, 2) * page.slice + (i & 3) * page.step))
            scores = page.mxfp4_tile(w, words, byte, a, *loaded.scales)
            key = first_key + i * 8 + 2 * w.t
            best = join(best, maximum([scores], [x - key for x in limits]))
        return best[0], best[1]

    @cute.jit
    def mxfp4_tile(self, w, words, k_byte, a, q_lo, q_hi):
        """Scores of 16 rows and 8 keys, right for every pair of bytes: the exact dot of each group times 2^(q byte +
        k byte - 254), groups added in order."""
        total = [Float32(0.0)] * 4
        for x in cutlass.range(4, unroll=1):
            mine = Int32(0) - Int32(w.t == x)  # only the lanes that hold group x feed the product
            unit = lds128(w.tables)
            acc = self.int8_tile([word & mine for word in words], unit, a)
            k = [shfl_idx(k_byte, 8 * w.t + 4 * y + x) for y in range(2)]
            q = [shfl_idx(q_byte, w.lane - w.t + x) for q_byte in (q_lo, q_hi)]
            total = [
                total[i] + times_pow2(fmul(s32_to_f32(acc[i]), Float32(0.0625)), k[i % 2], q[i // 2]) for i in range(4)
            ]
        return total


def join(x, y):
    """Maxima of two pairs, a NaN winning."""
    return [fmax_nan(a, b) for a, b in zip(x, y)]


def maximum(tiles, limits=None):
    """Of rows g and g + 8 over accumulators of n8 tiles. limits: see Page.slice_maxima."""
    if limits is not None:
        tiles = [
            [select_f32(acc[y], Float32(float("-inf")), Int32(8 * i + y % 2 < limits[y // 2])) for y in range(4)]
            for i, acc in enumerate(tiles)
        ]
    rows = [[fmax_nan(acc[2 * r], acc[2 * r + 1]) for r in range(2)] for acc in tiles]
    while len(rows) > 1:
        rows = [join(*pair) for pair in zip(rows[::2], rows[1::2])]
    return rows[0]
