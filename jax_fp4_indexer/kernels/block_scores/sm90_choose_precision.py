"""Second launch of the staged MXFP4 prefill: which steps run in int8, which in bf16. One CTA; it reads what
sm90_prepare.py wrote.

A step (a key page against an item of query rows) runs in int8 where int8 holds the page and every query row of the
item's tokens and KV head (query_flags, a few neighbouring tokens included); else in bf16. All items of one (entry of
the schedule, tile, KV head) have the same steps in either precision. For them `head_steps` says where in `lists` their
pages stand, and numbers the steps, so that each precision is cut evenly over its own CTAs.

    lists        pages of a KV head, ascending: 0 those in int8, 1 the others, 2 all. A word is page of the pass +
                 exponent byte << 24
    ranks        pages in int8 before a page, so that the pages of a range are a range of each list
    head_steps   of (entry, KV head), 32 bytes for either precision:
                 words 0, 1: first page of the first tile's items (index into `lists`), number of pages
                 words 2, 3: the same of the second tile
                 words 4-5: steps in this precision before this (entry, KV head), int64; words 6, 7: zero
    header       steps in either precision; what the fixup has to do

Pages in passes of more than 2^24 cannot be told apart by a word: no scratch is that large.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...configs.block_scores import QUERY_CHUNK, QUERY_FLAG_HEADS, Scratch
from ..device.ptx_math import popc
from ..device.ptx_memory import ld32, ldg32, ldg_v4, lds32, stg32, stg64, stg_v4, sts32
from ..device.ptx_warp import ballot_le, redux
from . import prefill_schedule
from .kernel import BlockScoresKernel

THREADS = 256
WARPS = THREADS // 32
RECORD_BYTES = 64
INT8, BF16 = 0, 1  # the order of their halves of a record, and of the lists
ALL = 2
TILE_CHUNKS = 256 // QUERY_CHUNK + 1  # words of query_flags that the tokens of a tile can touch


class ChoosePrecision(BlockScoresKernel):
    """Right for any number of CTAs: the others do nothing."""

    def __init__(self):
        self.name = "block_scores.forms.mxfp4"
        self.block = (THREADS, 1, 1)
        self.grid = {"fixed": [1, 1, 1]}
        self.sums = 8 * WARPS
        self.dynamic_shared_bytes = self.sums + 8 * WARPS

    @cute.kernel
    def kernel(self, args):
        """CTA 0 works; what a function reads another one may have written, before a barrier of the CTA."""
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(tid // 32)
        layout = prefill_schedule.scratch_layout(args)
        smem = cute.arch.get_dyn_smem(cutlass.Uint8, 16).toint()
        if cta == 0:
            self.write_lists(args, layout, warp, tid % 32)
            self.gather_flags(args, layout, tid, warp, smem + self.sums)
            self.write_steps(args, layout, tid, smem)
            cute.arch.sync_threads()
            if tid == 0:
                self.write_flags(args, smem + self.sums)

    # ---------------------------------------------------------------- pages
    @cute.jit
    def write_lists(self, args, layout, warp: Int32, lane: Int32):
        """A warp a KV head."""
        scratch = args.scratch.toint()
        room = args.pages_per_pass
        count = cutlass.min(room, args.num_indices - args.first_page)
        kv = warp
        while kv < args.heads_kv:
            ranks = scratch + layout.ranks + Int64(kv) * (Int64(room) + 1) * 4
            lists = [
                scratch + layout.lists + (Int64(x) * Int64(args.heads_kv) + Int64(kv)) * Int64(room) * 4
                for x in range(3)
            ]
            done = Int32(0)
            for first in cutlass.range((count + 255) // 256, unroll=1):
                pages = [first * 256 + i * 32 + lane for i in range(8)]
                exponents = [
                    ldg32(
                        scratch
                        + layout.exponents
                        + (Int64(cutlass.min(p, count - 1)) * Int64(args.heads_kv) + Int64(kv)) * 4
                    )
                    for p in pages
                ]
                for i in cutlass.range_constexpr(8):
                    p, e = pages[i], exponents[i]
                    if p >= count:
                        e = Int32(0)
                    narrow = ballot_le(Int32(1), e)
                    rank = done + popc(narrow & ((Int32(1) << lane) - 1))
                    if p < count:
                        stg32(ranks + Int64(p) * 4, rank)
                        stg32(lists[ALL] + Int64(p) * 4, p | (e << 24))
                        if e > 0:
                            stg32(lists[INT8] + Int64(rank) * 4, p | (e << 24))
                        else:
                            stg32(lists[BF16] + Int64(p - rank) * 4, p)
                    done = done + popc(narrow)
            if (lane == 0) & (count >= 0):
                stg32(ranks + Int64(count) * 4, done)
            kv = kv + WARPS

    # ---------------------------------------------------------------- the fixup
    @cute.jit
    def gather_flags(self, args, layout, tid: Int32, warp: Int32, smem: Int32):
        """A warp's part of the OR of all flags, into two words at smem + 8 * warp."""
        scratch = args.scratch.toint()
        pages = self.any_set(scratch + layout.page_flags, args.pages_per_pass * args.heads_kv, tid)
        rows = self.any_set(scratch + layout.query_flags, (args.tokens + QUERY_CHUNK - 1) // QUERY_CHUNK, tid)
        if tid % 32 == 0:
            sts32(smem + warp * 8, 0, pages)
            sts32(smem + warp * 8, 4, rows)

    @cute.jit
    def any_set(self, flags: Int64, count: Int32, tid: Int32):
        """OR over this warp's share of `count` words, four loads of a lane in flight (reading the last word again
        does no harm)."""
        found = Int32(0)
        for i in cutlass.range((count + 4 * THREADS - 1) // (4 * THREADS), unroll=1):
            words = [ldg32(flags + Int64(cutlass.min((i * 4 + j) * THREADS + tid, count - 1)) * 4) for j in range(4)]
            for j in cutlass.range_constexpr(4):
                found = found | words[j]
        return redux("or", found)

    @cute.jit
    def write_flags(self, args, smem: Int32):
        """Header word at byte 8: 1 if a page of this pass needs the fixup, + 2 if a query row does."""
        pages, rows = Int32(0), Int32(0)
        for i in cutlass.range_constexpr(WARPS):
            pages, rows = pages | lds32(smem, i * 8), rows | lds32(smem, i * 8 + 4)
        stg32(args.scratch.toint() + 8, cutlass.min(pages, 1) + (rows & 1) * 2)

    # ---------------------------------------------------------------- steps
    @cute.jit
    def write_steps(self, args, layout, tid: Int32, smem: Int32):
        """All threads of the CTA write `head_steps` and the numbers of steps in the header, a record a thread."""
        scratch = args.scratch.toint()
        records = ldg32(scratch + 12) * args.heads_kv
        done = [Int64(0), Int64(0)]
        first = Int32(0)
        while first < records:
            index = first + tid
            words, steps = [[Int32(0)] * 4, [Int32(0)] * 4], [Int64(0), Int64(0)]
            # What does not need the ranks goes before the barrier that they need. Past the end the last record is
            # read again.
            tiles = self.tiles(args, layout, cutlass.min(index, records - 1))
            cute.arch.sync_threads()
            if index < records:
                words, steps = self.record(args, layout, *tiles)
            for precision in cutlass.range_constexpr(2):
                before, more = prefill_schedule.block_scan(steps[precision], tid, smem, THREADS)
                if index < records:
                    at = scratch + layout.head_steps + Int64(index) * RECORD_BYTES + 32 * precision
                    stg_v4(at, words[precision])
                    stg64(at + 16, done[precision] + before)
                    stg64(at + 24, Int64(0))
                done[precision] = done[precision] + more
            first = first + THREADS
        if tid == 0:
            for precision in cutlass.range_constexpr(2):
                stg64(scratch + 16 + 8 * precision, done[precision])

    @cute.jit
    def tiles(self, args, layout, index: Int32):
        """Of (entry, KV head): KV head, head groups, first page in the pass, pages of either tile, and whether either
        has a query that is not for int8."""
        entry_index = index // args.heads_kv
        kv = index - entry_index * args.heads_kv
        entry = args.scratch.toint() + layout.entries + Int64(entry_index) * Scratch.ENTRY_BYTES
        _, _, token_a, token_b = ldg_v4(entry)
        token_end, page, pages_a, pages_b = ldg_v4(entry, 16)
        flat, _, _, _ = ldg_v4(entry, 32)
        log2, groups, _, _ = ldg_v4(entry, 48)
        page = flat + page - args.first_page  # of the pass
        odd = [
            self.tile_flags(args, layout, token, log2, token_end) >> (1 + kv % QUERY_FLAG_HEADS) & 1
            for token in (token_a, token_b)
        ]
        return kv, groups, page, [pages_a, pages_b], odd

    @cute.jit
    def record(self, args, layout, kv: Int32, groups: Int32, page: Int32, tile_pages, odd):
        """(words 0..3 of either precision, steps of either) of (entry, KV head)."""
        ranks = args.scratch.toint() + layout.ranks + Int64(kv) * (Int64(args.pages_per_pass) + 1) * 4
        rank = ld32(ranks + Int64(page) * 4)
        starts = [(Int32(x) * args.heads_kv + kv) * args.pages_per_pass for x in range(3)]
        words, steps = [[], []], [Int64(0), Int64(0)]
        for flag, pages in zip(odd, tile_pages):
            narrow = (ld32(ranks + Int64(page + pages) * 4) - rank) * (1 - flag)
            others = starts[BF16] + page - rank
            if flag != 0:
                others = starts[ALL] + page
            words[INT8] += [starts[INT8] + rank, narrow]
            words[BF16] += [others, pages - narrow]
            steps[INT8] = steps[INT8] + Int64(narrow) * Int64(groups)
            steps[BF16] = steps[BF16] + Int64(pages - narrow) * Int64(groups)
        return words, steps

    def tile_flags(self, args, layout, token, log2, token_end):
        """OR of query_flags over a tile (reading the last word again does no harm)."""
        first = token // QUERY_CHUNK
        last = (cutlass.min(token + (Int32(1) << log2), token_end) - 1) // QUERY_CHUNK
        found = Int32(0)
        for i in range(TILE_CHUNKS):
            found = found | ldg32(args.scratch.toint() + layout.query_flags + Int64(cutlass.min(first + i, last)) * 4)
        return found
