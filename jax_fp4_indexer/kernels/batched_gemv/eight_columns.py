"""Up to eight columns of b: mma.sync m16n8k16, f32 accumulators.

A warp takes 16 rows x 128 codes of a segment, warp w codes 128w .. 128w + 127. Lane (g, t) = (lane / 4, lane % 4)
has codes 32t .. 32t + 31 of rows g and g + 8: one 16-byte load and two scales each. A is 16 rows of a, B eight
columns of b, zeros for those that are not there. Operands are exact in f16: value * scale * 2^-7 of a, * 2^4 of b.
(operands/f16.py gives value * 2^-14. Left like that, most products of operands with small scales would be subnormal
f16, whose exponent the tensor core takes for -14 when it aligns the products of an instruction, and bits of other
products would be lost.) Dequantised b in shared memory: [128 codes][word of the lane's 16 bytes][lane][16 bytes].

A sum: over the warp's slices in two accumulators of each matrix instruction's order, those two, then over warps,
neighbours first, then over pieces.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from ..device.fixed import Fixed
from ..device.mma import mma_m16n8k16
from ..device.ptx_barriers import bar_sync
from ..device.ptx_math import bcast_half, fmul, hmul2, shl, shr
from ..device.ptx_memory import lds64, lds128, lds_u8, lds_u16, sts_f32, sts_v4
from ..operands.f16 import codes_to_f16
from .common import Results, power_of_two, scale_pair, tree
from .config import SLICE, WARPS
from .feed import next_stage
from .instructions import arrive, fadd, lds_f32, less, sts2_f32, wait

THREADS = WARPS * 32
A_SHIFT, B_SHIFT = -7, 4
SCALE = 2.0 ** -(A_SHIFT + B_SHIFT)


class EightColumns(Fixed):
    def __init__(self, config, problem, args, shared, warp, lane):
        self.c, self.p, self.shared, self.warp, self.lane = config, problem, shared, warp, lane
        self.g, self.t = shr(lane, 2), lane & 3
        self.results = Results(problem, args)
        self.thread = warp * 32 + lane

    @cute.jit
    def work(self, first, stop):
        """The rows at positions [first, stop)."""
        c, p = self.c, self.p
        stage, phase, have, turn = Int32(0), Int32(0), Int32(-1), Int32(0)
        batch, q = first
        count = p.run(batch, q, stop)
        while count > 0:
            factors = self.results.factors(batch)
            piece = Int32(0)
            while piece < p.pieces:
                k0 = piece * c.piece
                codes = cutlass.min(p.k - k0, Int32(c.piece))
                if (have != batch) | (p.pieces > 1):
                    bar_sync(Int32(1), THREADS)  # the b before is used up
                    have = batch
                    s = Int32(0)
                    while s < codes:
                        wait(self.shared + c.full + stage * 8, phase, not c.bulk)
                        self.dequantise(batch, s, codes - s, stage)
                        stage, phase = self.release(stage, phase)
                        s = s + c.b_segment
                    bar_sync(Int32(1), THREADS)
                r = Int32(0)
                while r < count:
                    acc = [Float32(0.0)] * 8
                    s = Int32(0)
                    while s < codes:
                        wait(self.shared + c.full + stage * 8, phase, not c.bulk)
                        if s + self.warp * SLICE < codes:
                            acc = self.slice(batch, q + r, s, codes, stage, acc)
                        stage, phase = self.release(stage, phase)
                        s = s + c.segment
                    self.add(batch, q, r, cutlass.min(count - r, Int32(16)), piece, turn, acc, factors)
                    turn = (turn + 1) & 3
                    r = r + 16
                piece = piece + 1
            batch, q = p.after(batch, q, count)
            count = p.run(batch, q, stop)

    @cute.jit
    def release(self, stage, phase):
        """The warp is done with a stage. Returns the next one."""
        cute.arch.sync_warp()
        if self.lane == 0:
            arrive(self.shared + self.c.empty + stage * 8)
        return next_stage(self.c, stage, phase)

    @cute.jit
    def dequantise(self, batch, s, left, stage):
        """Codes s .. of a piece of b, `left` at most, from a stage to their place; zeros up to the end of 128 codes,
        and for columns that are not there.
        """
        c, p = self.c, self.p
        base = self.shared + c.ring + stage * c.stage_bytes
        each = c.segment // 16  # groups of a row
        for i in cutlass.range_constexpr(c.b_rows * each // THREADS):
            at = self.thread + i * THREADS
            row, g = shr(at, each.bit_length() - 1), at & (each - 1)
            column, of = row & 7, shr(row, 3) * each + g  # group of the stage's codes
            if of < (shr(left, 4) + 7 & ~7):
                words, raw = [Int32(0), Int32(0)], Int32(0)
                if (of < shr(left, 4)) & (column < p.cols):
                    line = batch * p.cols + column
                    words = lds64(base + row * c.code_pitch + p.code_skip(line) + g * 8)
                    raw = lds_u8(base + c.code_bytes + row * c.scale_pitch + p.scale_skip(line) + g)
                scale = bcast_half(scale_pair(raw, c.convert, 7), False)
                place = (
                    self.shared
                    + c.b
                    + (shr(s, 7) + shr(of, 3)) * 2048
                    + (g & 1) * 1024
                    + (column * 4 + (shr(g, 1) & 3)) * 16
                )
                for w in cutlass.range_constexpr(2):
                    sts_v4(
                        place,
                        [hmul2(hmul2(v, scale), Int32(power_of_two(B_SHIFT + 7))) for v in codes_to_f16(words[w])],
                        w * 512,
                    )

    def slice(self, batch, q, s, codes, stage, acc):
        """acc plus the products of the warp's slice of the segment from code s of the piece on, in a stage of rows
        from position q on.
        """
        c, p = self.c, self.p
        base = self.shared + c.ring + stage * c.stage_bytes
        scales = base + c.code_bytes
        group = self.warp * 8 + self.t * 2  # of the segment
        here = [Int32(1), Int32(1)]
        if const_expr(c.any_k):
            here = [less(group + i, shr(codes - s, 4)) for i in range(2)]
        code_at, second = here[0] * (group * 8), here[1] * 8
        words, factors = [], []
        for i in range(2):
            row = self.g + 8 * i
            at = base + row * c.code_pitch + code_at
            if const_expr(c.tiled):
                raw = lds_u16(scales + here[0] * (shr(group, 2) * 64 + (group & 2)) + shr(row, 2) * 16 + (row & 3) * 4)
            elif const_expr(not c.any_k):
                raw = lds_u16(scales + row * c.scale_pitch + group)
            if const_expr(c.any_k):
                line = batch * p.rows + p.row_of(q + row)
                at = at + p.code_skip(line)
                words.append(lds64(at) + lds64(at + second))
                if const_expr(not c.tiled):
                    sa = scales + row * c.scale_pitch + here[0] * group + p.scale_skip(line)
                    raw = lds_u8(sa) | shl(lds_u8(sa + here[1]), 8)
                raw = raw & (here[0] * 0xFF + here[1] * 0xFF00)
            else:
                words.append(lds128(at))
            pair = scale_pair(raw, c.convert, A_SHIFT + 14)
            factors.append([bcast_half(pair, False), bcast_half(pair, True)])
        b = self.shared + c.b + (shr(s, 7) + self.warp) * 2048 + self.lane * 16
        first, second_acc = acc[:4], acc[4:]
        for j in range(4):
            bb = lds128(b, j * 512)
            x, y = [[hmul2(v, factors[i][j >> 1]) for v in codes_to_f16(words[i][j])] for i in range(2)]
            first = mma_m16n8k16([x[0], y[0], x[1], y[1]], bb[0], bb[1], first)
            second_acc = mma_m16n8k16([x[2], y[2], x[3], y[3]], bb[2], bb[3], second_acc)
        return [*first, *second_acc]

    @cute.jit
    def add(self, batch, q, r, n, piece, turn, acc, factors):
        """The sums of a tile of n rows over the warps: to y after the last piece, to shared memory before it. Every
        tile other warps do it.
        """
        c, p = self.c, self.p
        v = [fadd(acc[i], acc[4 + i]) for i in range(4)]
        place = (
            self.shared + c.parts + (turn & 1) * (WARPS * 512)
        )  # the tile before last is done with it: its readers have met the others since
        for i in cutlass.range_constexpr(2):
            sts2_f32(place + self.warp * 512 + (self.g + 8 * i) * 32 + self.t * 8, v[2 * i], v[2 * i + 1])
        bar_sync(Int32(1), THREADS)
        if shr(self.thread, 7) == turn:
            at = self.thread & 127
            row, column = shr(at, 3), at & 7
            y = Float32(0.0)
            if piece > 0:
                y = lds_f32(self.shared + c.sums + (r * 8 + at) * 4)
            y = fadd(y, tree([lds_f32(place + at * 4, w * 512) for w in range(WARPS)]))
            if piece + 1 < p.pieces:
                sts_f32(self.shared + c.sums + (r * 8 + at) * 4, 0, y)
            elif (row < n) & (column < p.cols):
                if p.row_of(q + r + row) < p.rows:
                    self.results.store(
                        self.results.address(batch, q + r + row, column), fmul(y, Float32(SCALE)), factors
                    )
