"""Metadata of the sequences inside a kernel: one statement of the clamps that every kernel keeps
(docs/architecture.md).

`Sequences` reads the prefix sums from a shared-memory table where B fits it (one memory latency for all that
follows), else from global memory. Where a sum of queries or pages decreases there is nothing to compute: every slot is
NaN, and kernels go on without sequences (`falls`, `unless`). Whatever else the sums say, every result lies inside the
buffers and every loop goes forward.
"""

import copy

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..device.fixed import Fixed
from ..device.integers import clamp
from ..device.ptx import asm
from ..device.ptx_math import opaque, sub_sat
from ..device.ptx_memory import ldg32, lds32, sts32
from ..device.ptx_warp import count_le, redux

TABLE = 516  # entries of each prefix sum held in shared memory
FALLS = 3 * TABLE * 4  # a word a warp, 16 of them: does a sum decrease in the warp's part
TABLE_BYTES = FALLS + 64
PAGES, QUERIES, KEYS = 0, 1, 2  # which prefix sum
LARGEST = 2**31 - 1


# ---- the clamps: what two neighbouring entries of a prefix sum mean, whatever they hold. Stated again, in 64 bits,
# by prefill_schedule.py


def range_start(entry, bound, clamp=clamp):
    """First element of a range, inside 0 .. bound."""
    return clamp(entry, 0, bound)


def range_length(first, next_entry, bound, clamp=clamp):
    """Elements of the range from `first` up to the next entry; a range that runs backwards is empty."""
    return clamp(next_entry, first, bound) - first


def length_of(entry, next_entry):
    """Keys of a sequence: the difference, 0 where it is negative."""
    return cutlass.max(sub_sat(next_entry, entry), 0)


def pages_of_keys(keys):
    """ceil(keys / 128) of a length that is not negative, without overflow."""
    return (keys >> 7) + cutlass.min(keys & 127, 1)


@cute.jit
def falls_in_share(sums, count, thread, threads: cutlass.Constexpr[int]):
    """1 if one of the prefix sums (addresses of count + 1 entries) decreases at a place of this thread's share, else 0.
    Four places a thread in flight."""
    falls, first = Int32(0), thread
    while first < count:
        at = [Int64(cutlass.min(first + j * threads, count - 1)) * 4 for j in range(4)]
        lows, highs = [ldg32(x + a) for a in at for x in sums], [ldg32(x + a, 4) for a in at for x in sums]
        for low, high in zip(lows, highs):
            falls = falls | Int32(high < low)
        first = first + 4 * threads
    return falls


def table_from(args, table):
    """`Sequences` over a kernel's arguments; `table` is the shared address of TABLE_BYTES bytes (filled by `load`)."""
    # Units are (page of the list, KV head); 2^30 of them leave room for sums in 32 bits.
    indices = cutlass.min(args.num_indices, 2**30 // args.heads_kv)
    return Sequences(args, table, indices)


class Sequences(Fixed):
    """Read through `table_from`."""

    def __init__(self, args, table, indices):
        self.prefix = [args.cu_page_offsets.toint(), args.cu_seqlens_q.toint(), args.cu_seqlens_k.toint()]
        self.offsets = args.qo_offset.toint()
        self.table = table
        self.count, self.tokens, self.k_tiles = args.num_seqs, args.tokens, args.k_tiles
        self.heads_kv, self.mask = args.heads_kv, args.mask
        self.indices = indices

    @cute.jit
    def load(self, thread, threads: cutlass.Constexpr[int]):
        """Fill the table. All threads of the CTA; a barrier must follow."""
        falls = Int32(0)
        if self.count < TABLE:
            i = thread
            while i <= self.count:
                entries = [ldg32(x + Int64(i) * 4) for x in self.prefix]
                following = [ldg32(x + Int64(cutlass.min(i + 1, self.count)) * 4) for x in self.prefix[:KEYS]]
                for x in cutlass.range_constexpr(3):
                    sts32(self.table + i * 4, x * TABLE * 4, entries[x])
                for x in cutlass.range_constexpr(KEYS):
                    falls = falls | Int32(following[x] < entries[x])
                i = i + threads
        else:
            falls = falls_in_share(self.prefix[:KEYS], self.count, thread, threads)
        falls = redux("or", falls)
        if thread % 32 == 0:
            sts32(self.table + thread // 32 * 4, FALLS, falls)

    def falls(self, lane, threads):
        """1 if the sum of queries or of pages decreases somewhere, else 0. All lanes of a warp; `threads` as for `load`,
        after its barrier."""
        return redux("or", lds32(self.table + cutlass.min(lane, threads // 32 - 1) * 4, FALLS))

    def unless(self, falls):
        """The same, without any sequence where `falls` is 1: every token is then one of no sequence."""
        none = copy.copy(self)
        none.count = self.count * (1 - falls)
        return none

    def entry(self, which, i):
        """Element i of a prefix sum. One of two predicated loads: no branch, so a warp's loads overlap.

        The `mov` says that the register's old value is dead (ptxas would carry it, and spill it, through the loops
        around)."""
        return asm(
            "{ .reg .pred p; mov.b32 $0, 0; setp.lt.s32 p, $3, "
            + str(TABLE)
            + "; @p ld.shared.b32 $0, [$1+"
            + str(which * TABLE * 4)
            + "]; "
            "@!p ld.global.nc.b32 $0, [$2]; }",
            [Int32],
            [self.table + i * 4, self.prefix[which] + Int64(i) * 4, self.count],
            "=&r,r,l,r",
            pure=False,
        )

    @cute.jit
    def total_units(self):
        """(page of the list, KV head) units of the whole batch."""
        total = Int32(0)
        if self.count > 0:
            total = clamp(self.entry(PAGES, self.count), 0, self.indices) * self.heads_kv
        return total

    @cute.jit
    def token_end(self):
        """First padding token."""
        end = Int32(0)
        if self.count > 0:
            end = clamp(self.entry(QUERIES, self.count), 0, self.tokens)
        return end

    @cute.jit
    def queries(self, b):
        """(first token, q_len)"""
        first = range_start(self.entry(QUERIES, b), self.tokens)
        return first, range_length(first, self.entry(QUERIES, b + 1), self.tokens)

    @cute.jit
    def key_count(self, b):
        """k_len of sequence b."""
        following = self.entry(KEYS, b + 1)
        return length_of(self.entry(KEYS, b), following)

    @cute.jit
    def pages(self, b):
        """(first index into the page list, indices listed, blocks that exist)"""
        first = range_start(self.entry(PAGES, b), self.indices)
        listed = range_length(first, self.entry(PAGES, b + 1), self.indices)
        blocks = pages_of_keys(self.key_count(b))
        return first, listed, cutlass.min(cutlass.min(listed, blocks), self.k_tiles)

    @cute.jit
    def offset(self, b, k_len, q_len):
        """Query i sees key j where j <= i + offset (and j < k_len)."""
        off = Int32(LARGEST)
        if self.mask == 1:
            off = k_len - q_len
        if self.mask == 2:
            off = ldg32(self.offsets + Int64(b) * 4)
        return off

    @cute.jit
    def search(self, x, lane):
        """How many sequences end at or before list index x: the sequence that holds x (count if none). All lanes of a
        warp, same x."""
        low, span = Int32(0), self.count
        while span > 32:
            step = (span + 31) >> 5
            i = low + (lane + 1) * step - 1
            e = Int32(LARGEST)
            if i < low + span:
                e = self.entry(PAGES, i + 1)
            skipped = count_le(e, x) * step
            low = low + skipped
            span = cutlass.min(step, span - skipped)
        e = Int32(LARGEST)
        if lane < span:
            e = self.entry(PAGES, low + lane + 1)
        return low + count_le(e, x)

    @cute.jit
    def find_run(self, u, stop, lane):
        """The first run of units that exist, from unit u on and before `stop`: consecutive blocks of one sequence and
        KV head.

        Sequence b owns units [first * heads_kv, (first + listed) * heads_kv), KV head by KV head. All lanes of a
        warp, same u. Returns (unit, end of the run, sequence, KV head, block, list index); unit = end = stop where
        nothing is left.
        """
        b, head, block, index, end = Int32(0), Int32(0), Int32(0), Int32(0), stop
        found = Int32(0)
        while (u < stop) & (found == 0):
            x = u
            if opaque(self.heads_kv) > 1:  # divisions take time that the start of a short kernel feels
                x = u // self.heads_kv
            b = self.search(x, lane)
            if b >= self.count:
                u = stop
            else:
                first, listed, blocks = self.pages(b)
                _, q_len = self.queries(b)
                if q_len == 0:
                    blocks = Int32(0)
                rel = u - first * self.heads_kv
                if rel < 0:  # before the first sequence
                    u = first * self.heads_kv
                else:
                    head, block = Int32(0), rel
                    if rel >= listed:
                        head = rel // listed
                        block = rel - head * listed
                    if block < blocks:
                        found = Int32(1)
                        index = first + block
                        end = cutlass.min(u + (blocks - block), stop)
                    else:
                        u = u + (listed - block)
        return cutlass.min(u, stop), end, b, head, block, index
