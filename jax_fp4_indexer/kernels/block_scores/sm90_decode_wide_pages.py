"""Pages of one warpgroup: the ring that brings them, and what a warp computes from one.

A page is 128 keys of one KV head: codes [128, 64], then scales, in one ring stage. Warp w of the warpgroup owns keys
16w .. 16w+15 and 64+16w .. 64+16w+15 (two m16 tiles, its *slice*). Lane (g, t) = (lane / 4, lane % 4) reads bytes 16t
.. 16t+15 of rows g and g + 8 of a tile.

Key operand: nvfp4 value * scale * 2^-14, a multiple of 2^-24 with at most 6 significant bits: exact in f16. mxfp4
value * 2^(byte - base + 1), base = the largest byte of the slice; exact where the smallest is at most 24 below it,
and within one f32 factor where base is in 47 .. 180. A slice outside that is not regular, and the warp takes its
maxima from the any-scale path (operands/any_scale.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from ..device import wgmma
from ..device.fixed import Fixed
from ..device.ptx_math import bits_f32, fmax_nan, fmul, imad, outside, pack64, select, unpack64
from ..device.ptx_memory import lds32, lds64, lds128, lds_u8, lds_u16, sts_f32
from ..device.ptx_warp import ballot_le, redux
from ..operands.any_scale import counted_maximum, key_operands, mxfp4_piece, nvfp4_piece, query_operands
from ..operands.f16 import nvfp4_scales
from ..operands.scale_addresses import Operators, tiled_offset
from .sm90_decode_start import KEY_BASES

K_WINDOW = 24  # binades below a slice's base that its operand holds exactly
SLICE_END = 80  # warp w's slice ends before key 80 + 16 w of the page


class Slice(Fixed):
    """A warp's slice of a page."""

    def __init__(self, config, w):
        c = self.c = config
        row = w.warp * 16 + w.g
        if c.scale_layout == "public":
            self.scale_offset = row * c.groups + w.t * (c.groups // 4)
            self.tile_step, self.half_step = 64 * c.groups, 8 * c.groups
        else:
            first = w.t * (c.groups // 4)
            self.scale_offset = tiled_offset(row, first, Operators)
            self.tile_step, self.half_step = 8, 128
        self.code_offset = w.warp * 1024 + w.lane * 16

    def scales(self, buffer):
        """mxfp4: scales [tile][half], each a pair of f16x2 (codes 0-15 and 16-31 of the lane), then [largest byte,
        the lane's least]."""
        c = self.c
        if c.format == "nvfp4":
            return None, None  # `operand` reads a tile's with its codes
        at = buffer + 8192 + self.scale_offset
        b = [[lds_u8(at, i * self.tile_step + x * self.half_step) for x in range(2)] for i in range(2)]
        base = redux("max", cutlass.max(cutlass.max(b[0][0], b[0][1]), cutlass.max(b[1][0], b[1][1])))
        least = cutlass.min(cutlass.min(b[0][0], b[0][1]), cutlass.min(b[1][0], b[1][1]))
        shift = imad(30 - base, 0x04000400, Int32(0))
        # acc * 2^(base - 134) * 2^(column base - 134) is the score: 268 = 2 * 127 + 13 + 1
        return [[[imad(b[i][x], 0x04000400, shift)] * 2 for x in range(2)] for i in range(2)], [base, least]

    def factor(self, window):
        """mxfp4: bits of the factor that `scales` leaves over for the maxima; 0: the slice is not regular."""
        if self.c.format == "nvfp4":
            return Int32(1)
        base, least = window
        irregular = ballot_le(least + (K_WINDOW + 1), base) | outside(
            base, Int32(KEY_BASES[0]), Int32(KEY_BASES[1] - KEY_BASES[0])
        )
        return select(irregular, Int32(0), (base - 7) << 23, Int32(0))

    def operand(self, buffer, tile, scales):
        """The 32 registers of a tile's keys: eight A fragments."""
        lo, hi = lds128(buffer + self.code_offset, tile * 4096), lds128(buffer + self.code_offset, tile * 4096 + 512)
        if self.c.format == "nvfp4":
            at = buffer + 8192 + self.scale_offset + tile * self.tile_step
            pairs = [nvfp4_scales(lds_u16(at, x * self.half_step)) for x in range(2)]
        else:
            pairs = scales[tile]
        return [r for f in key_operands(lo, hi, pairs) for r in f]

    def descriptors(self, w):
        """Descriptors of the B operand, one a k16 step."""
        first = wgmma.operand_descriptor(w.base + self.c.operand)
        steps = [first + s * (wgmma.step_bytes(self.c.columns) >> 4) for s in range(8)]
        if self.c.format == "nvfp4":
            return steps
        # A reduction's result stays in its uniform register; a sum ptxas computes anew between the matrix
        # instructions, about 20 clocks each
        return [pack64(redux("or", low), high) for low, high in map(unpack64, steps)]

    def issue(self, operand, descriptors, acc):
        """The matrix instructions of one tile, one commit group; asynchronous."""
        for s in range(8):
            acc = wgmma.mma(acc, operand[4 * s : 4 * s + 4], descriptors[s], self.c.columns, s > 0)
        wgmma.commit()
        return acc

    def maximum(self, best, acc):
        """Of rows g and g + 8: value 2 n + x belongs to column 8 n + 2 t + x."""
        m = [fmax_nan(acc[4 * (v // 2) + v % 2], acc[4 * (v // 2) + v % 2 + 2]) for v in range(self.c.columns // 4)]
        return m if best is None else [fmax_nan(a, b) for a, b in zip(best, m)]

    def rescale(self, w, best, k_factor):
        """mxfp4: maxima * the slice's factor * the column's factor."""
        out = []
        for n in range(self.c.columns // 8):
            q_factors = lds64(w.base + self.c.factors + w.t * 8, n * 32)
            out += [fmul(fmul(best[2 * n + x], k_factor), bits_f32(q_factors[x])) for x in range(2)]
        return out

    @cute.jit
    def general(self, w, stage, kb, irregular, chains: cutlass.Constexpr[int]):
        """Replace this warp's maxima (already stored) of the columns that the fast path does not serve on this page."""
        c = self.c
        part = Slice(c, w)
        buffer = w.base + stage * c.page_bytes
        maxima = w.base + c.maxima + stage * (c.columns * 128)
        key = kb * 128 + w.warp * 16 + w.g
        last = kb * 128 + SLICE_END - 1 + w.warp * 16
        at = buffer + 8192 + part.scale_offset
        for n in cutlass.range(c.columns // 8, unroll=1):
            visible0, fast0, visible1, fast1 = lds128(w.base + c.limits + n * 64 + w.t * 16)
            if const_expr(c.format == "nvfp4"):
                q = w.base + c.operand + n * wgmma.CORE_STRIDE_N + w.lane * 4
                b = [
                    lds32(q, (x // 2) * wgmma.step_bytes(c.columns) + (x % 2) * wgmma.CORE_STRIDE_K) for x in range(16)
                ]
            else:
                b = query_operands(lds128(w.base + c.raw_codes + n * 512 + w.g * 64 + w.t * 16))
                q_byte = lds_u8(w.base + c.raw_scales + n * 32 + w.g * 4 + w.t)
            best = [Float32(float("-inf"))] * 2
            for i in cutlass.range(2, unroll=1):
                codes = buffer + part.code_offset + i * 4096
                lo, hi = lds128(codes), lds128(codes, 512)
                scale = at + i * part.tile_step
                if const_expr(c.format == "nvfp4"):
                    scores = nvfp4_piece(
                        lo, hi, [nvfp4_scales(lds_u16(scale, x * part.half_step)) for x in range(2)], b
                    )
                else:
                    scores = mxfp4_piece(
                        lo, hi, lds_u8(scale), lds_u8(scale, part.half_step), b, q_byte, w.lane, chains
                    )
                best = counted_maximum(best, scores, key + i * 64, [visible0 - 1, visible1 - 1])
            out = maxima + (n // 2) * 2048 + w.warp * 512 + w.lane * 16 + (n % 2) * 8
            if (fast0 <= last) | (irregular != 0):
                sts_f32(out, 0, best[0])
            if (fast1 <= last) | (irregular != 0):
                sts_f32(out, 4, best[1])
