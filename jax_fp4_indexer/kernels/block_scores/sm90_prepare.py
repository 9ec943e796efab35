"""First launch of a staged prefill: the plan, and the key pages of the pass dequantised to bf16; MXFP4 also to int8.

    CTA 0         writes the table of the plan (kernels/block_scores/prefill_schedule.py), then helps with the tokens
    other CTAs    key pages (page of the pass, kv head) one after the other; after that, from the last CTA down, the
                  tokens: token_pages for the -inf fill and, for MXFP4, query_flags
    (a launch of one CTA does both)

A dequantised page is the exact image that the main kernel keeps in shared memory, 128-byte swizzle, K-major. bf16, 32
KB: 16-byte piece c of row r at `(c // 8) * 16384 + r * 128 + ((c % 8) ^ (r % 8)) * 16`; int8, 16 KB: at `r * 128 + (c
^ (r % 8)) * 16`. A piece holds four bytes of each quarter of the row, as the A operand meets them
(sm90_prefill_queries.py): bf16 piece 4 * j + i pair i (codes i, i + 4) of word j of each quarter, int8 piece 2 * j +
h its codes 4 * h .. 4 * h + 3. A thread dequantises one word, so what a warp makes of two rows passes through its
stretch of shared memory. A page id outside the pool gives a page of NaN. A page without a counted key is not written:
no item names it.

What MXFP4 notes in addition to them, from counted rows only, every word by exactly one CTA (configs Scratch says
where):
    page_flags    128 - the first row with an exponent that bf16 does not hold, so that the fixup touches only queries
                  that see one; 0: none
    exponents     the least exponent of the page where int8 holds all of it: all exponents within INT8_SPAN and
                  KEY_WINDOW, no NaN; else 0
    query_flags   the same two questions of the query rows, from scale bytes alone
Eight zero codes have any exponent: a word of them counts for neither question (unless its scale is NaN).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...configs.block_scores import (
    GROUPS,
    INT8_SPAN,
    KEY_WINDOW,
    NARROW_PAGE_BYTES,
    PAGE,
    QUERY_CHUNK,
    QUERY_FLAG_HEADS,
    QUERY_WINDOW,
    WIDE_PAGE_BYTES,
)
from ..device.integers import clamp_from_below
from ..device.ptx_math import outside, pack64, select
from ..device.ptx_memory import ldg32, ldg_u8, lds64, lds128, stg32, stg64, stg_v4, sts32, sts_v4
from ..device.ptx_warp import redux
from ..operands import s8
from ..operands.bf16 import NAN_PAIR, key_codes_to_bf16, key_scale
from ..operands.scale_addresses import SCALE_TILE, Operators, tile_bytes, tiled_offset
from . import prefill_schedule
from .kernel import BlockScoresKernel
from .sm90_prefill_config import ROWS_LOG2

THREADS = 256
WARPS = THREADS // 32
WORDS = PAGE * 16 // THREADS  # words of 8 codes that a thread dequantises of a page
BATCH = 16  # heads of a token whose exponents a lane has in flight
FLAG_BYTES = 2 * WARPS * 16  # shared memory of a page's exponents: four words a warp, for two pages alternately
ROWS_BYTES = 512  # shared memory of two dequantised rows


class Prepare(BlockScoresKernel):
    """format "nvfp4" | "mxfp4", scale_layout "public" | "preordered_mma". widen=False: the plan alone, for the main
    launch that widens pages itself (sm90_prefill_direct.py); page_flags and the header's flag are then cleared here
    and set by that launch."""

    def __init__(self, format, scale_layout, widen=True):
        self.format, self.scale_layout, self.widen = format, scale_layout, widen
        self.name = f"block_scores.{'prepare' if widen else 'plan'}.{format}.{scale_layout}"
        self.block = (THREADS, 1, 1)
        self.grid = {"per_sm": 2}
        self.dynamic_shared_bytes = (
            prefill_schedule.schedule_shared_bytes(THREADS) + FLAG_BYTES + (WARPS * WORDS * ROWS_BYTES if widen else 0)
        )
        self.flagged = format == "mxfp4"

    @cute.kernel
    def kernel(self, args):
        """One CTA: the table (CTA 0), pages (the others), then the tokens."""
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(tid // 32)
        layout = prefill_schedule.scratch_layout(args)
        smem = cute.arch.get_dyn_smem(cutlass.Uint8, 128).toint()
        if cta == 0:
            prefill_schedule.write_table(args, layout, tid, smem, ROWS_LOG2, THREADS)
        if const_expr(not self.widen):
            self.clear_flags(args, layout, Int64(cta * THREADS + tid), Int64(ctas * THREADS))
        elif (cta > 0) | (ctas == 1):
            workers = cutlass.max(ctas - 1, 1)
            self.pages(
                args,
                layout,
                cta - cutlass.min(ctas - 1, 1),
                workers,
                tid,
                warp,
                smem + prefill_schedule.schedule_shared_bytes(THREADS),
            )
        if args.first_page == 0:  # tokens are the same in every pass
            worker = (ctas - 1 - cta) * WARPS + warp
            prefill_schedule.write_token_pages(args, layout, worker, ctas * WARPS, tid % 32, ROWS_LOG2)
            if const_expr(self.flagged):
                self.query_flags(args, layout, worker, ctas * WARPS, tid % 32)

    # ---------------------------------------------------------------- key pages
    @cute.jit
    def pages(self, args, layout, worker: Int32, workers: Int32, tid: Int32, warp: Int32, smem: Int32):
        """A CTA's pages of the pass: every `workers`-th (page, KV head)."""
        units = Int64(args.pages_per_pass) * Int64(args.heads_kv)
        unit, turn = Int64(worker), Int32(0)
        while unit < units:
            page = unit // Int64(args.heads_kv)
            flat = page + Int64(args.first_page)
            counted, pid = Int32(0), Int32(0)
            if (flat < Int64(args.num_indices)) & (args.num_seqs > 0):
                pid = ldg32(args.kv_indices.toint() + flat * 4)
                counted = self.counted_keys(args, Int32(flat))
            if const_expr(self.flagged):
                if (counted == 0) & (tid == 0):
                    self.note_page(args, layout, unit, Int32(0), Int32(0))
            if counted > 0:
                kv = Int32(unit - page * Int64(args.heads_kv))
                if (pid >= 0) & (pid < args.num_pages):
                    self.widen_page(
                        args,
                        layout,
                        Int64(pid) * Int64(args.heads_kv) + Int64(kv),
                        unit,
                        counted,
                        tid,
                        warp,
                        smem + turn * (WARPS * 16),
                        smem + FLAG_BYTES + warp * (WORDS * ROWS_BYTES),
                    )
                    turn = turn ^ 1
                else:
                    self.nan_page(args.scratch.toint() + layout.wide + unit * WIDE_PAGE_BYTES, tid)
                    if const_expr(self.flagged):
                        if tid == 0:
                            self.note_page(args, layout, unit, Int32(0), Int32(0))
            unit = unit + Int64(workers)

    @cute.jit
    def counted_keys(self, args, flat: Int32):
        """Keys of list position `flat` that lie inside their sequence, 0 .. 128."""
        s = prefill_schedule.sequence(args, prefill_schedule.find(args.cu_page_offsets.toint(), args.num_seqs, flat))
        counted = Int32(0)
        if (flat >= s.first) & (flat - s.first < s.pages):
            counted = cutlass.min(s.k_len - (flat - s.first) * PAGE, PAGE)
        return counted

    def note_page(self, args, layout, unit: Int64, flag, exponent):
        """One thread writes what MXFP4 notes of a page."""
        stg32(args.scratch.toint() + layout.page_flags + unit * 4, flag)
        stg32(args.scratch.toint() + layout.exponents + unit * 4, exponent)

    @cute.jit
    def widen_page(
        self,
        args,
        layout,
        source: Int64,
        unit: Int64,
        counted: Int32,
        tid: Int32,
        warp: Int32,
        flags: Int32,
        stage: Int32,
    ):
        """Page `unit` of the pass, number `source` in the pool. flags: WARPS * 16 bytes that the page before did not
        use; stage: the warp's WORDS * ROWS_BYTES."""
        word = tid % 16
        codes = args.k.toint() + source * (PAGE * 64) + Int64(tid) * 4
        wide = args.scratch.toint() + layout.wide + unit * WIDE_PAGE_BYTES
        groups = GROUPS[self.format]
        w, s = cute.make_rmem_tensor(WORDS, Int32), cute.make_rmem_tensor(WORDS, Int32)
        for i in cutlass.range_constexpr(WORDS):  # all loads first
            w[i] = ldg32(codes, i * THREADS * 4)
            row, group = i * (THREADS // 16) + tid // 16, word * groups // 16
            if const_expr(self.scale_layout == "public"):
                s[i] = ldg_u8(args.k_scale.toint() + source * (PAGE * groups) + Int64(row * groups + group))
            else:
                s[i] = ldg_u8(
                    args.k_scale.toint() + source * tile_bytes(self.format) + Int64(tiled_offset(row, group, Operators))
                )
        # Slot 4 * p + j of a row's stretch holds piece p of words j, of the second row those of p ^ 1: lanes that
        # store together hit all banks.
        lane, far = tid % 32, tid // 16 % 2 * 4
        to = stage + lane // 16 * 256 + word % 4 * 16 + word // 4 * 4
        cute.arch.sync_warp()  # the page before has been read
        bad, least, most = Int32(0), Int32(255), Int32(0)
        for i in cutlass.range_constexpr(WORDS):
            row = i * (THREADS // 16) + tid // 16
            if const_expr(self.flagged):
                nothing = Int32(((w[i] & 0x77777777) == 0) & (s[i] != 255))
                if nothing != 0:
                    s[i] = Int32(127)
                if (row < counted) & (nothing == 0):
                    least, most = cutlass.min(least, s[i]), cutlass.max(most, s[i])
                    if s[i] != 255:
                        bad = cutlass.max(
                            bad,
                            outside(s[i], Int32(KEY_WINDOW[0]), Int32(KEY_WINDOW[1] - KEY_WINDOW[0])) * (PAGE - row),
                        )
            values = key_codes_to_bf16(w[i], key_scale(s[i], self.format), self.format)
            for p in cutlass.range_constexpr(4):
                sts32(to + ((4 * p) ^ far) * 16, i * ROWS_BYTES, values[p])
        cute.arch.sync_warp()
        for i in cutlass.range_constexpr(WORDS):
            row = i * (THREADS // 16) + tid // 16
            piece = (word % 4) * 4 + ((word ^ far) // 4)
            stg_v4(
                wide + Int64((piece // 8) * 16384 + row * 128 + ((piece % 8) ^ (row % 8)) * 16),
                lds128(stage + lane * 16, i * ROWS_BYTES),
            )
        if const_expr(self.flagged):
            bad, least, most = self.over_page(bad, least, most, flags, tid, warp)
            exponent = Int32(0)
            if (most - least <= INT8_SPAN) & (most < 255) & (bad == 0):
                exponent = select(most, Int32(0), Int32(127), least)  # a page of zeros
                narrow = args.scratch.toint() + layout.narrow + unit * NARROW_PAGE_BYTES
                for i in cutlass.range_constexpr(WORDS):
                    row = i * (THREADS // 16) + tid // 16
                    halves = s8.codes_to_s8(w[i], s8.tables(s[i] - exponent))
                    for h in cutlass.range_constexpr(2):
                        sts32(to + ((4 * h) ^ far) * 16, i * ROWS_BYTES, halves[h])
                cute.arch.sync_warp()
                for i in cutlass.range_constexpr(WORDS):
                    row = i * (THREADS // 16) + tid // 16
                    slot = word // 2 ^ far
                    piece = slot % 4 * 2 + slot // 4
                    low, high = lds64(stage + lane // 16 * 256 + word * 8, i * ROWS_BYTES)
                    stg64(narrow + Int64(row * 128 + (piece ^ (row % 8)) * 16 + word % 2 * 8), pack64(low, high))
            if tid == 0:
                self.note_page(args, layout, unit, bad, exponent)

    @cute.jit
    def over_page(self, bad: Int32, least: Int32, most: Int32, smem: Int32, tid: Int32, warp: Int32):
        """Maximum, minimum, maximum over the CTA. One barrier a page suffices: pages take turns with two rows of
        words."""
        bad, least, most = redux("max", bad), redux("min", least), redux("max", most)
        if tid % 32 == 0:
            sts_v4(smem + warp * 16, [bad, least, most, Int32(0)])
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr(WARPS):
            b, low, high, _ = lds128(smem, i * 16)
            bad, least, most = cutlass.max(bad, b), cutlass.min(least, low), cutlass.max(most, high)
        return bad, least, most

    @cute.jit
    def nan_page(self, dst: Int64, tid: Int32):
        """A page of NaN at address `dst`."""
        nan = Int32(NAN_PAIR)
        for i in cutlass.range(WIDE_PAGE_BYTES // (THREADS * 16), unroll=1):
            stg_v4(dst + Int64(i * THREADS + tid) * 16, [nan, nan, nan, nan])

    @cute.jit
    def clear_flags(self, args, layout, thread: Int64, threads: Int64):
        """page_flags and the header's flag word = 0."""
        if thread == 0:
            stg32(args.scratch.toint() + 8, Int32(0))
        i = thread
        while i < Int64(args.pages_per_pass) * Int64(args.heads_kv):
            stg32(args.scratch.toint() + layout.page_flags + i * 4, Int32(0))
            i = i + threads

    # ---------------------------------------------------------------- query exponents
    @cute.jit
    def query_flags(self, args, layout, worker: Int32, workers: Int32, lane: Int32):
        """A warp QUERY_CHUNK tokens at a time, those below the end of the last sequence: query_flags of configs
        Scratch."""
        end = Int32(0)
        if args.num_seqs > 0:
            end = clamp_from_below(ldg32(args.cu_seqlens_q.toint() + Int64(args.num_seqs) * 4), 0, args.tokens)
        tiles = (args.tokens + 127) // 128
        ratio = args.heads_q // args.heads_kv
        c = worker
        while c < (args.tokens + QUERY_CHUNK - 1) // QUERY_CHUNK:
            rows = clamp_from_below(end - c * QUERY_CHUNK, 0, QUERY_CHUNK)
            found = Int32(0)
            if rows > 0:
                # one word = the four exponents of a (token, head); a lane has a token and every fourth head, BATCH of
                # them in flight. Reading one twice does no harm.
                t = c * QUERY_CHUNK + cutlass.min(lane % QUERY_CHUNK, rows - 1)
                step = 32 // QUERY_CHUNK
                for first in cutlass.range(0, args.heads_q, BATCH * step, unroll=1):
                    heads = [
                        cutlass.min(first + i * step + lane // QUERY_CHUNK, args.heads_q - 1) for i in range(BATCH)
                    ]
                    if const_expr(self.scale_layout == "public"):
                        words = [
                            ldg32(args.q_scale.toint() + (Int64(t) * Int64(args.heads_q) + Int64(h)) * 4) for h in heads
                        ]
                    else:
                        at = (
                            args.q_scale.toint()
                            + Int64(t // 128) * SCALE_TILE
                            + Int64(tiled_offset(t % 128, 0, Operators))
                        )
                        words = [ldg32(at + Int64(h) * Int64(tiles) * SCALE_TILE) for h in heads]
                    for i in cutlass.range_constexpr(BATCH):
                        found = found | self.row_flags(words[i], heads[i] // ratio)
            found = redux("or", found)
            if lane == 0:
                stg32(args.scratch.toint() + layout.query_flags + Int64(c) * 4, found)
            c = c + workers

    def row_flags(self, word, kv):
        """What the four exponents of one row of KV head kv add to query_flags."""
        exponents = [(word >> (8 * i)) & 255 for i in range(4)]
        least, most, bad = exponents[0], exponents[0], Int32(0)
        for e in exponents:
            least, most = cutlass.min(least, e), cutlass.max(most, e)
            bad = bad | (
                outside(e, Int32(QUERY_WINDOW[0]), Int32(QUERY_WINDOW[1] - QUERY_WINDOW[0]))
                & outside(e, Int32(255), Int32(0))
            )
        span = outside(most - least, Int32(0), Int32(INT8_SPAN)) | bad | (1 - outside(most, Int32(255), Int32(0)))
        return bad | (span << (1 + kv % QUERY_FLAG_HEADS))
