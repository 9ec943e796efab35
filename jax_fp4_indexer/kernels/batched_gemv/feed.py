"""The warps that copy: rows of `b`, then rows of `a`, with their scales, into the ring, stage after stage.

Where the rows of a stage are one block of memory (one column, public scales, K of at most one piece and a multiple
of 256) it is copied as that: two copies a stage. Otherwise every row is copied by itself, each copying warp taking
its share of the rows. Data that does not start on 16 bytes is copied from the 16 bytes before it on, up to the next
16 bytes, but nothing past the end of the array: the last bytes of the array are then stored by lanes.

Tiled scales come in pieces of 16 bytes (of `a`: four groups of four rows) or 4 (of `b`: four groups of one) by
cp.async.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ..device.fixed import Fixed
from ..device.ptx_barriers import fence_async_shared
from ..device.ptx_copies import copies_arrive, copy4, copy16
from ..device.ptx_math import shr
from ..device.ptx_memory import ld_u8
from .instructions import bulk_copy_elected, copy16_part, expect_tx_elected, sts8, wait

EVICT_FIRST = 0x12F0000000000000  # the value that createpolicy.fractional.L2::evict_first 1.0 makes
EVICT_NORMAL = 0x1000000000000000  # likewise evict_normal


def arrivals(config):
    """Arrivals that complete a stage's full barrier, from every copying warp: one for the copy engine's bytes, one a
    lane for cp.async.
    """
    return config.feeders * (int(config.bulk) + 32 * int(config.tiled or not config.bulk))


class Rows(Fixed):
    """`a` or `b`: where its rows are, and how long L2 is to keep them."""

    def __init__(self, problem, codes, scales, rows, policy):
        self.codes, self.scales, self.policy = codes.toint(), scales.toint(), policy
        lines = Int64(problem.batch) * Int64(rows)
        self.codes_end, self.scales_end = (
            self.codes + lines * Int64(problem.half),
            self.scales + lines * Int64(problem.groups),
        )


class Feed(Fixed):
    """A copying warp, number `index` of them."""

    def __init__(self, config, problem, args, shared, index, lane):
        self.c, self.p, self.shared, self.index, self.lane = config, problem, shared, index, lane
        self.thread = index * 32 + lane
        self.a = Rows(problem, args.a, args.a_scale, problem.rows, EVICT_FIRST)
        self.b = Rows(problem, args.b, args.b_scale, problem.cols, EVICT_NORMAL)

    @cute.jit
    def work(self, first, stop):
        """All stages of positions [first, stop)."""
        c, p = self.c, self.p
        stage, phase, have = Int32(0), Int32(1), Int32(-1)
        batch, q = first
        count = p.run(batch, q, stop)
        while count > 0:
            piece = Int32(0)
            while piece < p.pieces:
                k0 = piece * c.piece
                codes = cutlass.min(p.k - k0, Int32(c.piece))
                if (have != batch) | (p.pieces > 1):
                    have = batch
                    s = Int32(0)
                    while s < codes:
                        wait(self.shared + c.empty + stage * 8, phase, not c.bulk)
                        self.fill_b(batch, k0 + s, codes - s, stage)
                        stage, phase = next_stage(c, stage, phase)
                        s = s + c.b_segment
                rows = p.stage_rows(codes)
                r = Int32(0)
                while r < count:
                    n = cutlass.min(rows, count - r)
                    s = Int32(0)
                    while s < codes:
                        wait(self.shared + c.empty + stage * 8, phase, not c.bulk)
                        self.fill(batch, q + r, n, k0 + s, cutlass.min(codes - s, Int32(c.segment)), stage)
                        stage, phase = next_stage(c, stage, phase)
                        s = s + c.segment
                    r = r + rows
                piece = piece + 1
            batch, q = p.after(batch, q, count)
            count = p.run(batch, q, stop)

    @cute.jit
    def fill(self, batch, q, n, k, codes, stage):
        """A stage of a: n positions from q on, `codes` codes of each from code k on."""
        c, p = self.c, self.p
        bar = self.shared + c.full + stage * 8
        to = self.shared + c.ring + stage * c.stage_bytes
        to_scales = to + c.code_bytes
        block = Int32(0)
        if const_expr(c.columns == 1 and not c.any_k and not c.tiled):
            block = Int32(p.pieces == 1)
        if block != 0:
            line = p.line(batch, q)
            if const_expr(c.bulk):
                expect_tx_elected(bar, n * (p.half + p.groups))
                bulk_copy_elected(to, self.a.codes + line * Int64(p.half), n * p.half, bar, Int64(EVICT_FIRST))
                bulk_copy_elected(
                    to_scales, self.a.scales + line * Int64(p.groups), n * p.groups, bar, Int64(EVICT_FIRST)
                )
            else:
                self.copy_all(to, self.a.codes + line * Int64(p.half), n * p.half, self.thread, c.feeders)
                self.copy_all(to_scales, self.a.scales + line * Int64(p.groups), n * p.groups, self.thread, c.feeders)
        else:
            code_pitch, scale_pitch = p.code_pitch(codes), p.scale_pitch(codes)
            nbytes, i = Int32(0), self.index
            if const_expr(c.tiled):
                while i < n:
                    row = p.row_of(q + i)
                    if row < p.rows:
                        nbytes = nbytes + self.copy_row(
                            self.a, p.line(batch, row), k, codes, to + i * code_pitch, to_scales, bar
                        )
                    i = i + c.feeders
            else:
                line = p.line(batch, q + i)
                src, src_scales = (
                    self.a.codes + line * Int64(p.half) + Int64(shr(k, 1)),
                    self.a.scales + line * Int64(p.groups) + Int64(shr(k, 4)),
                )
                at, at_scales = to + i * code_pitch, to_scales + i * scale_pitch
                step, step_scales = Int64(p.half) * c.feeders, Int64(p.groups) * c.feeders
                while i < n:
                    nbytes = nbytes + self.copy(at, src, shr(codes, 1), self.a.codes_end, bar, EVICT_FIRST)
                    nbytes = nbytes + self.copy(
                        at_scales, src_scales, shr(codes, 4), self.a.scales_end, bar, EVICT_FIRST
                    )
                    src, src_scales, at, at_scales = (
                        src + step,
                        src_scales + step_scales,
                        at + c.feeders * code_pitch,
                        at_scales + c.feeders * scale_pitch,
                    )
                    i = i + c.feeders
            self.announce(bar, nbytes)
        if const_expr(c.tiled):
            self.copy_tiled(to_scales, batch, q, n, k, codes)
        if const_expr(c.tiled or not c.bulk):
            copies_arrive(bar)
            cute.arch.sync_warp()  # before the next wait, in which lanes ahead would keep the others from running

    @cute.jit
    def fill_b(self, batch, k, left, stage):
        """A stage of b: `left` codes of its columns from code k on, or as many as a stage takes."""
        c, p = self.c, self.p
        bar = self.shared + c.full + stage * 8
        to = self.shared + c.ring + stage * c.stage_bytes
        to_scales = to + c.code_bytes
        nbytes, i = Int32(0), self.index
        while i < c.b_rows:
            column, part = (i & (c.columns - 1)), shr(i, c.columns.bit_length() - 1) * c.segment
            if (column < p.cols) & (part < left):
                codes = cutlass.min(left - part, Int32(c.segment))
                at = to_scales + i * c.scale_pitch
                nbytes = nbytes + self.copy_row(
                    self.b, p.column(batch, column), k + part, codes, to + i * c.code_pitch, at, bar
                )
                if const_expr(c.tiled):
                    src = (
                        self.b.scales
                        + (Int64(batch) * Int64(p.quads) + Int64(shr(k + part, 6))) * 512
                        + Int64(column * 16)
                    )
                    word, quads = self.lane, shr(codes + 63, 6)
                    while word < quads:
                        copy4(at + word * 4, src + Int64(word) * 512)
                        word = word + 32
            i = i + c.feeders
        self.announce(bar, nbytes)
        if const_expr(c.tiled or not c.bulk):
            copies_arrive(bar)
            cute.arch.sync_warp()  # before the next wait, in which lanes ahead would keep the others from running

    def announce(self, bar, nbytes):
        """The arrival that goes with the warp's bytes."""
        if self.c.bulk:
            if self.c.any_k:
                cute.arch.sync_warp()  # what lanes have stored is before the arrival
            expect_tx_elected(bar, nbytes)

    def copy_row(self, rows, line, k, codes, to, to_scales, bar):
        """Codes of a row and, in the public layout, their scales. Returns the bytes that bar has to wait for."""
        p = self.p
        nbytes = self.copy(
            to, rows.codes + line * Int64(p.half) + Int64(shr(k, 1)), shr(codes, 1), rows.codes_end, bar, rows.policy
        )
        if not self.c.tiled:
            nbytes = nbytes + self.copy(
                to_scales,
                rows.scales + line * Int64(p.groups) + Int64(shr(k, 4)),
                shr(codes, 4),
                rows.scales_end,
                bar,
                rows.policy,
            )
        return nbytes

    @cute.jit
    def copy(self, to, src, nbytes, end, bar, policy: cutlass.Constexpr):
        """nbytes from src on; the 16 bytes of memory that hold src go to `to`. Returns the bytes that bar has to wait
        for.
        """
        c = self.c
        counted = Int32(0)
        if const_expr(not c.any_k):
            if const_expr(c.bulk):
                bulk_copy_elected(to, src, nbytes, bar, Int64(policy))
                counted = nbytes
            else:
                self.copy_all(to, src, nbytes, self.lane, 1)
        else:
            start = src & ~15
            stop = (src + Int64(nbytes + 15)) & ~15
            if const_expr(c.bulk):
                if stop > end:
                    stop = end & ~15
                    left = Int32(end) & 15
                    if self.lane < left:
                        sts8(to + Int32(stop - start) + self.lane, ld_u8(stop + Int64(self.lane)))
                        fence_async_shared()  # before the copy that overwrites it
                counted = Int32(stop - start)
                if counted > 0:
                    bulk_copy_elected(to, start, counted, bar, Int64(policy))
            else:
                b = self.lane * 16
                while start + Int64(b) < stop:
                    copy16_part(to + b, start + Int64(b), Int32(cutlass.min(end - start - Int64(b), Int64(16))))
                    b = b + 512
        return counted

    @cute.jit
    def copy_all(self, to, src, nbytes, thread, warps: cutlass.Constexpr):
        """nbytes, a multiple of 16, by cp.async of 32 * warps threads."""
        b = thread * 16
        while b < nbytes:
            copy16(to + b, src + Int64(b))
            b = b + 512 * warps

    @cute.jit
    def copy_tiled(self, to, batch, q, n, k, codes):
        """The scales of a's positions q .. q + n - 1, four at a time: [quad of groups][four of positions][16 bytes]."""
        c, p = self.c, self.p
        fours = shr(n + 3, 2)
        pitch = shr(p.stage_rows(codes), 2) * 16
        quads = shr(shr(codes, 4) + 3, 2)
        first = (Int64(batch) * Int64(p.tiles) + Int64(shr(q, 7))) * Int64(p.quads) + Int64(shr(k, 6))
        i = self.thread
        while i < quads:
            f = Int32(0)
            while f < fours:
                four = shr(q & 127, 2) + f  # a stage may go on in the next tile
                beyond = shr(four, 5)
                src = self.a.scales + (first + Int64(beyond * p.quads) + Int64(i)) * 512 + Int64((four & 31) * 16)
                copy16(to + i * pitch + f * 16, src)
                f = f + 1
            i = i + 32 * c.feeders


@cute.jit
def next_stage(config: cutlass.Constexpr, stage, phase):
    """The slot after `stage` and the parity of its barriers' phase."""
    stage = stage + 1
    if stage == config.stages:
        stage = Int32(0)
        phase = phase ^ 1
    return stage, phase
