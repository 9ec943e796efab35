"""Which pages a CTA works: every (sequence, KV head, head group, query tile, page) that counts, in one list, cut
evenly over the CTAs.

A block maximum stands alone, so a share may end in the middle of a tile's pages. A tile weighs its visible pages, but
at least 1: tiles that see nothing, and the tokens of no sequence (after the last: sequence number `count`, before the
first: `count + 1`, both without keys), are in the list too, and the CTA that has a tile's last place writes its -inf
blocks. So every slot is written once, whatever the skew.

    tokens of a tile        128, or 128 // heads of a tile where rows are (token, head) pairs
    blocks seen by tile x   v(x) = clamp(x + c, 0, n), c = ((offset + 127) >> 7) + 1 (packed: n; the mask of the rows
                            does the rest)
    places before tile x    T(x + c) - T(c), T(m) = sum over y < m of max(1, min(y, n)), closed

The warp that loads pages finds the segments of the CTA and hands them to the other roles through a ring of records;
it is a ring of pages ahead of them.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..addressing.ragged import QUERIES
from ..device.fixed import Fixed
from ..device.integers import clamp, saturate
from ..device.ptx_math import lowest_bit, pack64, unpack64
from ..device.ptx_warp import ballot_le, scan_add_s64, shfl_idx
from .sm100_config import ROWS


@cute.jit
def shfl64(x, source):
    """The Int64 of lane `source` of the warp."""
    low, high = unpack64(x)
    return pack64(shfl_idx(low, source), shfl_idx(high, source))


class Shape(Fixed):
    """How query rows make tiles: `heads` consecutive heads of one KV head, `groups` times, `tokens` tokens each."""

    def __init__(self, config, args):
        self.packed = config.packed
        self.ratio = args.heads_q // args.heads_kv
        if config.packed:
            self.heads = cutlass.min(self.ratio, Int32(ROWS))
            self.tokens = ROWS // self.heads
        else:
            self.heads = Int32(config.heads)
            self.tokens = Int32(ROWS)
        self.groups = (self.ratio + self.heads - 1) // self.heads
        self.rows = Int64(args.heads_kv) * Int64(self.groups)  # tiles that share tokens


@dataclasses.dataclass(frozen=True)
class TileRange:
    """A sequence, or the tokens of no sequence: q_len tokens from `token` on, k_len keys, `blocks` pages from entry
    `first` of the page list on, and `tiles` query tiles, of which tile x sees clamp(x + c, 0, blocks) blocks. offset:
    token i sees the keys up to i + offset."""

    token: Int32
    q_len: Int32
    k_len: Int32
    first: Int32
    blocks: Int32
    tiles: Int32
    c: Int64
    offset: Int32


@dataclasses.dataclass(frozen=True)
class Cursor:
    """Where the warp that schedules is.

    place  next place of the share
    stop   end of the share
    base   sequence of lane 0; lane i has sequence base + i
    done   places before that sequence
    each   places of one (KV head, head group) of this lane's sequence
    sums   places up to the end of this lane's sequence, from `done` on
    """

    place: Int64
    stop: Int64
    base: Int32
    done: Int64
    each: Int64
    sums: Int64


class Schedule(Fixed):
    def __init__(self, config, args, seqs):
        self.seqs, self.shape = seqs, Shape(config, args)
        self.k_tiles, self.packed = args.k_tiles, config.packed
        self.last = seqs.count + 1

    # ---- one sequence
    @cute.jit
    def sequence(self, b):
        """TileRange of sequence b; count and count + 1: the tokens of no sequence"""
        q0 = self.seqs.token_end()
        q_len, k_len, first, blocks, offset = self.seqs.tokens - q0, Int32(0), Int32(0), Int32(0), Int32(0)
        if b < self.seqs.count:
            q0, q_len = self.seqs.queries(b)
            first, _, blocks = self.seqs.pages(b)
            k_len = self.seqs.key_count(b)
            offset = self.seqs.offset(b, k_len, q_len)
        if b > self.seqs.count:  # none where the sums start at 0
            q0, q_len = Int32(0), Int32(0)
            if self.seqs.count > 0:
                q_len = clamp(self.seqs.entry(QUERIES, 0), 0, self.seqs.tokens)
        tiles = (q_len + self.shape.tokens - 1) // self.shape.tokens
        c = ((Int64(offset) + 127) >> 7) + 1
        return TileRange(q0, q_len, k_len, first, blocks, tiles, c, offset)

    def series(self, m, n):
        """T(m) for n >= 1."""
        z = clamp(m - 1, Int64(0), n)
        return cutlass.min(m, Int64(1)) + ((z * (z + 1)) >> 1) + cutlass.max(m - 1 - n, Int64(0)) * n

    def places(self, x, c, blocks):
        """Places before tile x."""
        n = Int64(cutlass.max(blocks, 1))
        if self.packed:
            return Int64(x) * n
        return self.series(Int64(x) + c, n) - self.series(c, n)

    def seen(self, x, c, blocks):
        """Blocks that tile x sees."""
        if self.packed:
            return blocks
        return Int32(clamp(Int64(x) + c, Int64(0), Int64(blocks)))

    @cute.jit
    def weights(self, base, lane):
        """Lane i: places of one (KV head, head group) of sequence base + i, and the inclusive sum of all places up to
        it."""
        each = Int64(0)
        b = base + lane
        if b <= self.last:
            s = self.sequence(b)
            if s.tiles > 0:
                each = self.places(s.tiles, s.c, s.blocks)
        return each, scan_add_s64(each * self.shape.rows, lane)

    @cute.jit
    def total(self, lane):
        """Places of the whole call. All lanes of a warp."""
        total, base = Int64(0), Int32(0)
        while base <= self.last:
            _, sums = self.weights(base, lane)
            total = total + shfl64(sums, Int32(31))
            base = base + 32
        return total

    # ---- walking the share
    @cute.jit
    def start(self, cta, ctas, lane):
        """The cursor at the beginning of a CTA's share."""
        total = self.total(lane)
        each, sums = self.weights(Int32(0), lane)
        return Cursor(
            total * Int64(cta) // Int64(ctas), total * Int64(cta + 1) // Int64(ctas), Int32(0), Int64(0), each, sums
        )

    @cute.jit
    def step(self, cursor, lane):
        """(cursor past the segment, the words of its Segment: pages -1 where the share has ended)"""
        w, stop, base, done, each, sums = cursor.place, cursor.stop, cursor.base, cursor.done, cursor.each, cursor.sums
        zero = Int32(0)
        words = [Int32(-1)] + [zero] * 11
        if w < stop:
            chunk = shfl64(sums, Int32(31))
            while (done + chunk <= w) & (base <= self.last):
                done = done + chunk
                base = base + 32
                each, sums = self.weights(base, lane)
                chunk = shfl64(sums, Int32(31))
            # The first sequence whose places end beyond w
            over = Int32(0)
            if done + sums <= w:
                over = Int32(1)
            leader = lowest_bit(ballot_le(over, zero) | Int32(-(2**31)))
            own = cutlass.max(shfl64(each, leader), Int64(1))
            before = done + shfl64(sums, leader) - own * self.shape.rows
            taken, words = self.segment(cutlass.min(base + leader, self.last), w - before, own, stop - w)
            w = w + taken
        return Cursor(w, stop, base, done, each, sums), words

    @cute.jit
    def segment(self, b, at, each, left):
        """(places taken, record) of place `at` of sequence b, which has `each` of them a (KV head, head group);
        `left` remain in the share"""
        s = self.sequence(b)
        q0, q_len, k_len, first, blocks, tiles, c, offset = (
            s.token,
            s.q_len,
            s.k_len,
            s.first,
            s.blocks,
            s.tiles,
            s.c,
            s.offset,
        )
        unit = clamp(at // each, Int64(0), self.shape.rows - 1)
        place = clamp(at - unit * each, Int64(0), each - 1)
        low, high = Int32(0), cutlass.max(tiles - 1, 0)
        while low < high:
            mid = (low + high + 1) >> 1
            if self.places(mid, c, blocks) <= place:
                low = mid
            else:
                high = mid - 1
        block = Int32(clamp(place - self.places(low, c, blocks), Int64(0), Int64(2**31 - 1)))
        seen = self.seen(low, c, blocks)
        block = cutlass.min(block, cutlass.max(seen - 1, 0))
        taken = Int32(cutlass.min(Int64(cutlass.max(seen, 1) - block), left))
        pages = clamp(seen - block, 0, taken)
        kv = Int32(unit // Int64(self.shape.groups))
        head = (Int32(unit) - kv * self.shape.groups) * self.shape.heads
        heads = cutlass.min(self.shape.ratio - head, self.shape.heads)
        token = low * self.shape.tokens
        tokens = cutlass.min(q_len - token, self.shape.tokens)
        # blocks of this share that the tile's first token, hence every row, sees whole
        visible = clamp(Int64(token) + Int64(offset) + 1, Int64(0), Int64(k_len))
        plain = clamp(Int32(visible >> 7) - block, 0, pages)
        fill = self.k_tiles
        if block + taken >= cutlass.max(seen, 1):
            fill = seen
        return Int64(taken), [
            pages,
            plain,
            block,
            first + block,
            kv,
            kv * self.shape.ratio + head,
            heads,
            q0 + token,
            tokens,
            k_len,
            saturate(Int64(token) + Int64(offset)),
            fill,
        ]
