"""Which rows a CTA works on, in which order, and where their bytes are.

Rows are numbered by *position*. With public scales position p of a batch is row p. In the tiled layout 16 bytes
hold four groups of rows r, r + 32, r + 64, r + 96, so four consecutive positions are those: position p is row (p /
128) * 128 + (p % 128) / 4 + (p % 4) * 32, and a batch has a multiple of 128 positions, of which some are no rows.

A CTA's share is what lies between two marks, (batch, position) pairs; mark i of n is at i / n of all batches,
computed without a division. A CTA works through its share in passes: consecutive positions of one batch, as many as
it has room for sums of. A pass is worked piece by piece of K, a piece in stages of `stage_rows` positions (one
segment of K each). A sum's additions depend on K alone: neither the share nor the pass nor the stage of a row
changes their order.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ..device.fixed import Fixed
from ..device.ptx_math import clz, shr, shr_by
from ..device.ptx_warp import shfl_idx
from .config import CHUNK
from .instructions import fraction, mul_high, mul_wide


class Problem(Fixed):
    """Sizes of the call, and what follows from them."""

    def __init__(self, config, args):
        self.c = config
        self.batch, self.rows, self.cols, self.half = args.batch, args.rows, args.cols, args.half
        self.k = args.half * 2
        self.groups = shr(args.half, 3)
        self.quads = shr(self.groups + 3, 2)  # of groups, in the tiled layout
        self.tiles = shr(self.rows + 127, 7)  # of rows, in the tiled layout
        self.positions = self.tiles * 128 if config.tiled else self.rows
        # What b of another batch costs, in positions: a batch counts as having so many more at its start. 64 K codes
        self.start = shr_by(Int32(65536), 32 - clz(self.k - 1)) & ~3
        self.pieces = shr(self.k + (config.piece - 1), config.piece.bit_length() - 1)

    def share(self, cta, ctas, lane):
        """The marks between which a CTA's share lies. Even lanes compute the first one, odd lanes the second."""
        batch, position = self.mark(cta + (lane & 1), ctas)
        return [(shfl_idx(batch, Int32(i)), shfl_idx(position, Int32(i))) for i in range(2)]

    @cute.jit
    def mark(self, i, n):
        """(batch, position) where share i of n begins; (batches, 0) for i = n. As even as 24 bits make it. A multiple
        of two, so that where M is even no two CTAs write halves of one word; in the tiled layout of four.
        """
        unit = 2 if self.c.tiled else 1
        batch, part = mul_wide(self.batch, fraction(i, n))
        position = cutlass.max((mul_high(shr(self.positions + self.start, unit), part) << unit) - self.start, 0)
        if i == n:
            batch, position = self.batch, Int32(0)
        return batch, position

    @cute.jit
    def run(self, batch, q, stop):
        """How many positions from q of a batch on are one pass, 0 at the end of the share."""
        last, end = stop
        if batch < last:
            end = self.positions
        count = Int32(0)
        if batch <= last:
            count = cutlass.max(cutlass.min(end - q, self.most()), 0)
        return count

    @cute.jit
    def after(self, batch, q, count):
        """The (batch, position) that follows `count` positions."""
        q = q + count
        if q == self.positions:
            batch, q = batch + 1, Int32(0)
        return batch, q

    def most(self):
        """Positions of a pass, at most."""
        c = self.c
        if const_expr(c.columns == 8):
            return Int32(c.pass_rows)
        stride = self.chunks(cutlass.min(self.k, Int32(c.piece))) | 1
        return cutlass.min(
            shr_by(Int32(c.part_words), 32 - clz(stride)), Int32(c.pass_rows)
        )  # by the next power of two: it is one at the start of every CTA

    def chunks(self, codes):
        """Chunks of so many codes (one column)."""
        return shr(codes + (CHUNK - 1), CHUNK.bit_length() - 1)

    def stage_rows(self, codes):
        """Positions of a stage in a piece of so many codes."""
        c = self.c
        if const_expr(c.columns == 8):
            return Int32(16)
        # WARPS // chunks - 1 in the chunks' nibble: 15 7 4 3 2 1 1 1, then 0
        return ((shr_by(Int32(0x1112347F), (self.chunks(codes) - 1) * 4) & 15) + 1) * c.unit

    def row_of(self, position):
        if const_expr(self.c.tiled):
            return (position & ~127) + shr(position & 127, 2) + (position & 3) * 32
        return position

    def line(self, batch, row):
        """Index of a row among those of all batches."""
        return Int64(batch) * Int64(self.rows) + Int64(row)

    def column(self, batch, column):
        """Index of a column of b among those of all batches."""
        return Int64(batch) * Int64(self.cols) + Int64(column)

    # ---- bytes from the start of a stage's row to its first code or scale: copies start on 16 bytes
    def code_skip(self, line):
        return (line * self.half) & 15 if self.c.any_k else Int32(0)

    def scale_skip(self, line):
        return (line * self.groups) & 15 if self.c.any_k and not self.c.tiled else Int32(0)

    def code_pitch(self, codes):
        """Bytes from a row of a stage to the next, in a segment of so many codes."""
        c = self.c
        if const_expr(c.columns == 8):
            return Int32(c.code_pitch)
        if const_expr(c.any_k):
            return (shr(codes, 1) + 30) & ~15
        return shr(codes, 1)

    def scale_pitch(self, codes):
        c = self.c
        if const_expr(c.columns == 8):
            return Int32(c.scale_pitch)
        if const_expr(c.any_k):
            return (shr(codes, 4) + 30) & ~15
        return shr(codes, 4)
