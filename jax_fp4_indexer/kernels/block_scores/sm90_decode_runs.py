"""Metadata of the sequences, laid out for a kernel whose start is most of its time: `Sequences` with fewer dependent
steps.

The prefix sums lie in shared memory twice: as quads (pages, queries, keys) one after the other, so that two reads
give all of a sequence, and the ends of the page ranges alone, 128 of which a warp compares at once.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..addressing.ragged import (
    KEYS,
    LARGEST,
    Sequences,
    falls_in_share,
    length_of,
    pages_of_keys,
    range_length,
    range_start,
)
from ..device.ptx import asm
from ..device.ptx_math import bits_f32, opaque, select, shr, udiv
from ..device.ptx_memory import ldg32, ldg32_if, lds32, lds128, sts32, sts_f32_if, sts_v4
from ..device.ptx_warp import redux

MOST = 511  # sequences whose prefix sums are held, 2^n - 1; more are read from global memory
ENDS_BYTES = (MOST + 1) * 4  # ends[i] of sequence i; LARGEST where there is none
# A word a warp: bit 0 if there is something for `fill_invisible` to write, bit 1 if a sum of queries or pages decreases
SHORT = ENDS_BYTES + (MOST + 1) * 16
MOST_WARPS = 16  # of a CTA, a power of two
TABLE_BYTES = SHORT + MOST_WARPS * 4


@cute.jit
def runs_from(args, table):
    """`Runs` over a kernel's arguments; `table` is the shared address of TABLE_BYTES bytes (filled by `load`)."""
    indices = cutlass.min(args.num_indices, 2**30)  # units in 32 bits: see table_from
    if args.heads_kv > 1:
        indices = cutlass.min(indices, udiv(Int32(2**30), args.heads_kv))
    return Runs(args, table, indices)


@dataclasses.dataclass(frozen=True)
class Run:
    """Consecutive units of one sequence and KV head: units unit .. end - 1, of which the first is block `block` of
    the sequence and entry `index` of the page list. The sequence has q_len queries from token `token` on, and k_len
    keys. unit = end where there is none."""

    unit: Int32
    end: Int32
    sequence: Int32
    kv_head: Int32
    block: Int32
    index: Int32
    token: Int32
    q_len: Int32
    k_len: Int32

    @classmethod
    def none(cls):
        """No run."""
        return cls(*[Int32(0)] * len(dataclasses.fields(cls)))


@dataclasses.dataclass(frozen=True)
class Entry:
    """The entries of the prefix sums at the beginning of a sequence, and of the next one."""

    sequence: Int32
    page: Int32
    query: Int32
    key: Int32
    next_page: Int32
    next_query: Int32
    next_key: Int32


class Runs(Sequences):
    """table: shared address of TABLE_BYTES bytes."""

    def ask(self, thread, threads):
        """This thread's part of the prefix sums, on its way: an Entry for each of its sequences."""
        asked = []
        for i in [thread + step * threads for step in range((MOST + threads) // threads)]:
            at, here, next_too = Int64(i) * 4, Int32(i <= self.count), Int32(i < self.count)
            asked.append(
                Entry(
                    i,
                    *[ldg32_if(here, x + at) for x in self.prefix],
                    *[ldg32_if(next_too, x + at + 4) for x in self.prefix],
                )
            )
        return asked

    @cute.jit
    def load(self, asked, thread, threads: cutlass.Constexpr[int]):
        """Fill the table with what `ask` has loaded. All threads of the CTA; a barrier must follow."""
        short = Int32(self.count > MOST)
        if self.count > MOST:
            short = 1 + 2 * falls_in_share(self.prefix[:KEYS], self.count, thread, threads)
        for x in cutlass.range_constexpr(len(asked)):
            e = asked[x]
            i = e.sequence
            if (self.count <= MOST) & (i <= MOST):
                end = Int32(LARGEST)
                if i <= self.count:
                    sts_v4(self.table + ENDS_BYTES + i * 16, [e.page, e.query, e.key, Int32(0)])
                    if i > 0:
                        end = e.page
                    if i == 0:  # tokens of no sequence: before the first, after the last
                        short = Int32((e.query > 0) | (self.count == 0))
                    if i == self.count:
                        short = short | Int32(e.query < self.tokens)
                    else:
                        if (
                            (e.next_page - e.page < self.k_tiles)
                            | (e.next_key < e.key)
                            | (shr(e.next_key - e.key + 127, 7) < self.k_tiles)
                            | (e.page < 0)
                            | (e.next_page > self.indices)
                        ):
                            short = short | 1
                        if (e.next_page < e.page) | (e.next_query < e.query):
                            short = Int32(3)
                sts32(self.table + ((i - 1) & MOST) * 4, 0, end)
        sts_f32_if(Int32((thread & 31) == 0), self.table + SHORT + shr(thread, 5) * 4, bits_f32(redux("or", short)))

    def state(self, lane):
        """0 where every sequence has all k_tiles blocks and there is no padding token: nothing is invisible. Above 1
        where a sum of queries or pages decreases: there are no units then. All lanes of a warp; after `load`'s barrier."""
        return redux("or", lds32(self.table + SHORT + (lane & (MOST_WARPS - 1)) * 4))

    def entry(self, which, i):
        """As Sequences.entry, from the quads."""
        return asm(
            "{ .reg .pred p; mov.b32 $0, 0; setp.le.s32 p, $3, "
            + str(MOST)
            + "; @p ld.shared.b32 $0, [$1+"
            + str(ENDS_BYTES + which * 4)
            + "]; "
            "@!p ld.global.nc.b32 $0, [$2]; }",
            [Int32],
            [self.table + i * 16, self.prefix[which] + Int64(i) * 4, self.count],
            "=&r,r,l,r",
            pure=False,
        )

    @cute.jit
    def search(self, x, lane):
        """As Sequences.search, by comparing all ends of the table where it holds the batch."""
        found = Int32(0)
        if self.count <= MOST:
            # once at least: LLVM would make a second copy of what follows for batches of no sequences, which have
            # nothing to search for. Rolled: ptxas would unroll it
            for step in cutlass.range(cutlass.max((self.count + 127) >> 7, 1), unroll=1):
                for end in lds128(self.table + step * 512 + lane * 16):
                    found = found + Int32(end <= x)
            found = redux("add", found)
        else:
            found = Sequences.search(self, x, lane)
        return found

    @cute.jit
    def sequence(self, b):
        """(first index into the page list, indices listed, blocks that exist, first token, q_len, k_len)"""
        low, high = [Int32(0)] * 4, [Int32(0)] * 4
        if self.count <= MOST:
            low, high = lds128(self.table + ENDS_BYTES + b * 16), lds128(self.table + ENDS_BYTES + b * 16, 16)
        else:
            low = [ldg32(x + Int64(b) * 4) for x in self.prefix] + [Int32(0)]
            high = [ldg32(x + Int64(b) * 4, 4) for x in self.prefix] + [Int32(0)]
        first = range_start(low[0], self.indices)
        listed = range_length(first, high[0], self.indices)
        token = range_start(low[1], self.tokens)
        q_len = range_length(token, high[1], self.tokens)
        k_len = length_of(low[2], high[2])
        blocks = cutlass.min(cutlass.min(listed, pages_of_keys(k_len)), self.k_tiles)
        return first, listed, blocks, token, q_len, k_len

    @cute.jit
    def run(self, u, stop, lane):
        """The first run of units that exist, from unit u on and before `stop`: consecutive blocks of one sequence and
        KV head. All lanes of a warp, same u.

        Sequence b owns units [first * heads_kv, (first + listed) * heads_kv), KV head by KV head.
        Returns a Run; unit = end = stop where nothing is left.
        """
        b, head, block, index, end = Int32(0), Int32(0), Int32(0), Int32(0), stop
        token, q_len, k_len = Int32(0), Int32(0), Int32(0)
        found = Int32(0)
        # Few branches: each is 20 clocks that the start of a short kernel feels, as divisions are
        while (u < stop) & (found == 0):
            x, several = u, opaque(self.heads_kv)
            if several > 1:
                x = udiv(u, several)
            b = self.search(x, lane)
            first, listed, blocks, token, q_len, k_len = self.sequence(cutlass.min(b, self.count - 1))
            q_len = select(Int32(b < self.count), Int32(0), Int32(0), q_len)
            blocks = select(q_len, Int32(0), Int32(0), blocks)
            begin = first * several
            head, block = Int32(0), u - begin
            if (several > 1) & (block >= listed) & (listed > 0):
                head = udiv(block, listed)
                block = block - head * listed
            found, index = Int32((block >= 0) & (block < blocks)), first + block
            end = select(found, Int32(0), stop, cutlass.min(u + (blocks - block), stop))
            # past what does not exist: before the first sequence, after the blocks of a list, after the last sequence
            skip = select(
                Int32(b < self.count),
                Int32(0),
                stop,
                select(Int32(block < 0), Int32(0), u + cutlass.max(listed - block, 1), begin),
            )
            u = select(found, Int32(0), skip, u)
        return Run(cutlass.min(u, stop), end, b, head, block, index, token, q_len, k_len)

    def find_run(self, u, stop, lane):
        """As Sequences.find_run."""
        run = self.run(u, stop, lane)
        return run.unit, run.end, run.sequence, run.kv_head, run.block, run.index
