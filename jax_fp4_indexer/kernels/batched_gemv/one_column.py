"""One column of b: integer dot products of groups, scaled in f32.

    acc += (sum of 2a * 2b over a group, exact in 32 bits) * (scale of a * scale of b / 4, exact in f32)

A warp takes `unit` rows x 1024 codes: lane n has codes 32n .. 32n + 31, two groups, of each row, which is one
16-byte load of 512 contiguous bytes a row. Two table lookups (PRMT) turn four codes into bytes: the magnitudes
where the code is positive, and those where it is negative, 0 elsewhere. The first meet 2b in dp4a, the others -2b.
The products of a group are added to a word that reads as the f32 1.5 * 2^23 + sum, so that one subtraction makes an
f32 of it.

Dequantised b in shared memory: [chunk][word of the lane's 16 bytes][lane][2b of codes 0..3, of 4..7, and their
negatives], and [chunk][lane][2] scales / 4.

A row's sum: over a lane's groups, then over lanes by halves (lanes 16 apart, 8, 4, 2, 1), then over the chunks of a
piece, neighbours first (chunks that are not there count as 0), then over pieces.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, const_expr

from ..device.fixed import Fixed
from ..device.ptx_barriers import bar_sync
from ..device.ptx_math import bits_f32, fmul, select_f32, shl, shr, udiv, xor
from ..device.ptx_memory import lds64, lds128, lds_u8, lds_u16, sts_f32, sts_f32_if, sts_v4
from ..device.ptx_warp import lane_here, shfl_xor_f32
from .common import Results, scale_pair, tree
from .config import WARPS
from .feed import next_stage
from .instructions import arrive, dp4a, fadd, fma, halves, lds_f32, lds_f32_if, less, lookup, wait

TABLE = (0x03020100, 0x0C080604)  # 2 * magnitude of codes 0 .. 7
MAGIC = 0x4B400000  # 1.5 * 2^23
HIGH = -0x7F7F7F80  # 0x80808080
THREADS = WARPS * 32


def table():
    """TABLE in registers. Not as constants: ptxas would move the second one from a uniform register before every
    lookup.
    """
    return TABLE[0] + shr(lane_here(), 5), Int32(TABLE[1])


def magnitudes(word, entries):
    """[of positive codes 0..3, of positive 4..7, of negative 0..3, of negative 4..7], four bytes each."""
    other = xor(word, 0x88888888)
    return [lookup(*entries, w) for w in (word, shr(word, 16), other, shr(other, 16))]


def signed(positive, negative):
    """Bytes positive - negative, of which one is 0."""
    return ((positive | Int32(HIGH)) - negative) ^ Int32(HIGH)


class OneColumn(Fixed):
    def __init__(self, config, problem, args, shared, warp, lane):
        self.c, self.p, self.shared, self.warp, self.lane = config, problem, shared, warp, lane
        self.results = Results(problem, args)
        self.thread = warp * 32 + lane
        self.table = table()

    @cute.jit
    def work(self, first, stop):
        """The rows at positions [first, stop), a piece of a pass in every turn. A turn begins with the sums of the one
        before: so that code, which is needed in a hurry after the last turn, has been fetched in the first one.
        """
        c, p = self.c, self.p
        stage, phase, have, piece = Int32(0), Int32(0), Int32(-1), Int32(0)
        batch, q = first
        chunks, this, count, summed = Int32(1), Int32(0), Int32(0), Int32(0)
        factors = (Float32(1.0), Float32(1.0))
        more = Int32(1)
        while more != 0:
            address, row = self.results.address(batch, q + self.thread, 0), p.row_of(q + self.thread)
            bar_sync(Int32(1), THREADS)  # the parts of all warps are there
            self.add(address, row, summed, chunks, this, factors)
            if piece == 0:
                batch, q = p.after(batch, q, count)
                count = p.run(batch, q, stop)
            more = count
            summed = count
            if more != 0:
                factors = self.results.factors(batch)
                this = piece
                codes = cutlass.min(p.k - this * c.piece, Int32(c.piece))
                chunks, rows = p.chunks(codes), p.stage_rows(codes)
                share = udiv(self.warp, chunks)  # of a stage's rows: unit `share`, chunk `chunk`
                chunk = self.warp - share * chunks
                mine = share * c.unit  # a warp that is left over starts past the stage's rows
                place = self.place(codes, chunk)
                if (have != batch) | (p.pieces > 1):
                    wait(self.shared + c.full + stage * 8, phase, not c.bulk)
                    self.dequantise(batch, codes, chunks, stage)
                    stage, phase = self.release(stage, phase)
                    have = batch
                bar_sync(Int32(1), THREADS)  # b is there, the parts before are read
                r = Int32(0)
                while r < count:
                    n = cutlass.min(rows, count - r)
                    wait(self.shared + c.full + stage * 8, phase, not c.bulk)
                    if mine < n:
                        total = self.unit(batch, q + r, mine, codes, stage, place, chunk)
                        lanes = 32 // c.unit
                        row = mine + shr(self.lane, lanes.bit_length() - 1)
                        first_lane = Int32((self.lane & (lanes - 1)) == 0)
                        sts_f32_if(
                            first_lane & less(row, n),
                            self.shared + c.parts + ((r + row) * (chunks | 1) + chunk) * 4,
                            total,
                        )
                    stage, phase = self.release(stage, phase)
                    r = r + rows
                piece = piece + 1
                if piece == p.pieces:
                    piece = Int32(0)

    @cute.jit
    def release(self, stage, phase):
        """The warp is done with a stage. Returns the next one."""
        cute.arch.sync_warp()
        if self.lane == 0:
            arrive(self.shared + self.c.empty + stage * 8)
        return next_stage(self.c, stage, phase)

    @cute.jit
    def dequantise(self, batch, codes, chunks, stage):
        """b of a piece, from a stage to its place; zeros after it up to the last chunk's end."""
        c, p = self.c, self.p
        base = self.shared + c.ring + stage * c.stage_bytes
        base, scales = base + p.code_skip(batch), base + c.code_bytes + p.scale_skip(batch)
        for i in cutlass.range_constexpr(-(-c.piece // 16 // THREADS)):
            g = self.thread + i * THREADS
            if g < chunks * 64:
                words, raw = [Int32(0), Int32(0)], Int32(0)
                if g < shr(codes, 4):
                    words, raw = lds64(base + g * 8), lds_u8(scales + g)
                chunk, lane, odd = shr(g, 6), shr(g & 63, 1), g & 1
                for w in cutlass.range_constexpr(2):
                    m = magnitudes(words[w], self.table)
                    b = [signed(m[0], m[2]), signed(m[1], m[3]), signed(m[2], m[0]), signed(m[3], m[1])]
                    sts_v4(self.shared + c.b + chunk * 2048 + odd * 1024 + lane * 16, b, w * 512)
                sts_f32(
                    self.shared + c.b_scales + chunk * 256 + lane * 8 + odd * 4,
                    0,
                    fmul(halves(scale_pair(raw, c.convert))[0], Float32(0.25)),
                )

    def place(self, codes, chunk):
        """This lane's place in a stage's rows: (bytes to its codes, from there to its second group's, bytes to its
        scales, mask of the scales that there are). A lane past K has that of the first lane, with no scales.
        """
        c = self.c
        group = chunk * 64 + self.lane * 2
        here = [less(group + i, shr(codes, 4)) for i in range(2)]
        if const_expr(c.tiled):
            pitch = shr(self.p.stage_rows(codes), 2) * 16
            scale = shr(group, 2) * pitch + (group & 2)
        else:
            scale = group
        mask = here[0] * 0xFF + here[1] * 0xFF00
        return here[0] * (group * 8), here[1] * 8, here[0] * scale, mask

    def unit(self, batch, q, mine, codes, stage, place, chunk):
        """Of a chunk of rows mine .. mine + unit - 1 of a stage that starts at position q: the sum of the row that
        this lane has in the end.
        """
        c, p = self.c, self.p
        code_at, second, scale_at, mask = place
        base = self.shared + c.ring + stage * c.stage_bytes
        scales = base + c.code_bytes
        b = self.shared + c.b + chunk * 2048
        code_pitch, scale_pitch = p.code_pitch(codes), p.scale_pitch(codes)
        words, raws = [], []
        for i in range(c.unit):
            at = base + (mine + i) * code_pitch + code_at
            if const_expr(c.tiled):
                s = scales + shr(mine, 2) * 16 + i * 4 + scale_at
            else:
                s = scales + (mine + i) * scale_pitch + scale_at
            if const_expr(c.any_k):
                line = batch * p.rows + p.row_of(q + mine + i)
                at = at + p.code_skip(line)
                words.append(lds64(at) + lds64(at + second))
                if const_expr(c.tiled):
                    raws.append(lds_u16(s) & mask)
                else:
                    s = s + p.scale_skip(line)
                    raws.append((lds_u8(s) | shl(lds_u8(s + shr(second, 3)), 8)) & mask)
            else:
                words.append(lds128(at))
                raws.append(lds_u16(s) & mask)
        b_scales = [bits_f32(x) for x in lds64(self.shared + c.b_scales + chunk * 256 + self.lane * 8)]
        acc = [Float32(0.0)] * c.unit
        pairs = [halves(scale_pair(raw, c.convert)) for raw in raws]
        for half in range(2):
            dots = [Int32(MAGIC)] * c.unit
            for j in (2 * half, 2 * half + 1):
                bb = lds128(b + self.lane * 16, j * 512)
                for i in range(c.unit):
                    for m, x in zip(magnitudes(words[i][j], self.table), bb):
                        dots[i] = dp4a(m, x, dots[i])
            for i in range(c.unit):
                dot = fadd(bits_f32(dots[i]), Float32(-12582912.0))
                scale = fmul(pairs[i][half], b_scales[half])
                acc[i] = fma(dot, scale, acc[i])
        return self.over_lanes(acc)

    def over_lanes(self, acc):
        """Sums over lanes: with n rows, of row i in lanes 32 / n * i and on."""
        step = 16
        while len(acc) > 1:
            upper, half = self.lane & step, len(acc) // 2
            acc = [
                fadd(
                    select_f32(acc[i + half], acc[i], upper),
                    shfl_xor_f32(select_f32(acc[i], acc[i + half], upper), step),
                )
                for i in range(half)
            ]
            step //= 2
        while step:
            acc = [fadd(acc[0], shfl_xor_f32(acc[0], step))]
            step //= 2
        return acc[0]

    @cute.jit
    def add(self, address, row, count, chunks, piece, factors):
        """The sums of a pass over the chunks of a piece, a thread a row: to y after the last piece, to shared memory
        before it.
        """
        c, p = self.c, self.p
        if self.thread < count:
            y = Float32(0.0)
            if piece > 0:
                y = lds_f32(self.shared + c.sums + self.thread * 4)
            at = self.shared + c.parts + self.thread * (chunks | 1) * 4
            y = fadd(y, tree([lds_f32_if(less(Int32(i), chunks), at, i * 4) for i in range(WARPS)]))
            if piece + 1 < p.pieces:
                sts_f32(self.shared + c.sums + self.thread * 4, 0, y)
            elif row < p.rows:
                self.results.store(address, y, factors)
