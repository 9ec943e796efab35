"""First launch of a staged prefill: the plan, and the key pages of the pass widened to bf16.

    CTA 0         writes the table of the plan (kernels/common/plan.py), then helps with the tokens
    other CTAs    key pages (page of the pass, kv head) one after the other; after that, from the last CTA down, the tokens:
                  token_pages for the -inf fill and, for MXFP4, query_flags
    (a launch of one CTA does both)

A widened page is 32 KB, the exact image that the main kernel keeps in shared memory: two halves of 64 elements, rows of 128 bytes,
16-byte piece c of row r at `(c // 8) * 16384 + r * 128 + ((c % 8) ^ (r % 8)) * 16` (128-byte swizzle, K-major), elements in the order of
kernels/common/widen.py. A page id outside the pool gives a page of NaN. A page without a counted key is not written: no item names it.

Flags (MXFP4): where a counted row has an exponent that bf16 does not hold. page_flags[page, kv head] is 128 - the first such key of the page, so that
the fixup touches only queries that see one; query_flags[16 tokens] is nonzero. 0: none. Every word is written by exactly one CTA, the main kernel
reduces them into the header.
"""
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...configs.block_scores import KEY_WINDOW, PAGE, QUERY_WINDOW, WIDE_PAGE_BYTES
from ..common import plan
from ..common.asm import ldg32, ldg_u8, lds32, outside, redux, stg32, stg_v4, sts32
from ..common.kernel import BlockScoresKernel
from ..common.widen import NAN_PAIR, groups_of, key_scale, tile_bytes, tiled_offset, widen_key_word

THREADS = 256
WARPS = THREADS // 32
ROWS_LOG2 = 8                   # 256 query rows an item
WORDS = PAGE * 16 // THREADS    # words of 8 codes a thread widens of a page
FLAG_WORDS = 2 * WARPS * 4      # shared memory of the page flag: one word a warp, two pages in turn


class Prepare(BlockScoresKernel):
    """fmt "nvfp4" | "mxfp4", scale_layout "public" | "preordered_mma"."""

    def __init__(self, fmt, scale_layout):
        self.fmt, self.scale_layout = fmt, scale_layout
        self.name = f"block_scores.prepare.{fmt}.{scale_layout}"
        self.block = (THREADS, 1, 1)
        self.grid = {"per_sm": 2}
        self.dynamic_shared_bytes = plan.plan_shared_bytes(THREADS) + FLAG_WORDS
        self.flagged = fmt == "mxfp4"

    @cute.kernel
    def kernel(self, args):
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(tid // 32)
        layout = plan.scratch_layout(args)
        smem = cute.arch.get_dyn_smem(cutlass.Uint8, 128).toint()
        if cta == 0:
            plan.write_table(args, layout, tid, smem, ROWS_LOG2, THREADS)
        if (cta > 0) | (ctas == 1):
            workers = cutlass.max(ctas - 1, 1)
            self.pages(args, layout, cta - cutlass.min(ctas - 1, 1), workers, tid, warp, smem + plan.plan_shared_bytes(THREADS))
        if args.first_page == 0:            # tokens are the same in every pass
            worker = (ctas - 1 - cta) * WARPS + warp
            plan.write_token_pages(args, layout, worker, ctas * WARPS, tid % 32, ROWS_LOG2)
            if const_expr(self.flagged):
                self.query_flags(args, layout, worker, ctas * WARPS, tid % 32)

    # ---------------------------------------------------------------- key pages
    @cute.jit
    def pages(self, args, layout, worker: Int32, workers: Int32, tid: Int32, warp: Int32, smem: Int32):
        units = Int64(args.pages_per_pass) * Int64(args.heads_kv)
        unit, turn = Int64(worker), Int32(0)
        while unit < units:
            page = unit // Int64(args.heads_kv)
            flat = page + Int64(args.first_page)
            counted = Int32(0)
            if (flat < Int64(args.num_indices)) & (args.num_seqs > 0):
                counted = self.counted_keys(args, Int32(flat))
            bad = Int32(0)
            if counted > 0:
                kv = Int32(unit - page * Int64(args.heads_kv))
                dst = args.scratch.toint() + layout.wide + unit * WIDE_PAGE_BYTES
                pid = ldg32(args.kv_indices.toint() + flat * 4)
                if (pid >= 0) & (pid < args.num_pages):
                    bad = self.widen_page(args, Int64(pid) * Int64(args.heads_kv) + Int64(kv), dst, counted, tid)
                else:
                    self.nan_page(dst, tid)
            if const_expr(self.flagged):
                self.write_page_flag(args.scratch.toint() + layout.page_flags + unit * 4, bad, smem + turn * (WARPS * 4), tid, warp)
                turn = turn ^ 1
            unit = unit + Int64(workers)

    @cute.jit
    def counted_keys(self, args, flat: Int32):
        """Keys of list position `flat` that lie inside their sequence, 0 .. 128."""
        q0, q_len, k_len, p0, n, offset = plan.sequence(args, plan.find(args.cu_page_offsets.toint(), args.num_seqs, flat))
        counted = Int32(0)
        if (flat >= p0) & (flat - p0 < n):
            counted = cutlass.min(k_len - (flat - p0) * PAGE, PAGE)
        return counted

    @cute.jit
    def widen_page(self, args, source: Int64, dst: Int64, counted: Int32, tid: Int32):
        """One page of one KV head, number `source` in the pool. Returns 128 - the first row of this thread with a counted exponent outside the window, or 0."""
        word = tid % 16
        codes = args.k.toint() + source * (PAGE * 64) + Int64(tid) * 4
        groups = groups_of(self.fmt)
        w, s = cute.make_rmem_tensor(WORDS, Int32), cute.make_rmem_tensor(WORDS, Int32)
        for i in cutlass.range_constexpr(WORDS):                # all loads first
            w[i] = ldg32(codes, i * THREADS * 4)
            row, group = i * (THREADS // 16) + tid // 16, word * groups // 16
            if const_expr(self.scale_layout == "public"):
                s[i] = ldg_u8(args.k_scale.toint() + source * (PAGE * groups) + Int64(row * groups + group))
            else:
                s[i] = ldg_u8(args.k_scale.toint() + source * tile_bytes(self.fmt) + Int64(tiled_offset(row, group)))
        bad = Int32(0)
        for i in cutlass.range_constexpr(WORDS):
            row = i * (THREADS // 16) + tid // 16
            values = widen_key_word(w[i], key_scale(s[i], self.fmt), self.fmt)
            stg_v4(dst + Int64((word // 8) * 16384 + row * 128 + ((word % 8) ^ (row % 8)) * 16), values)
            if const_expr(self.flagged):
                if (row < counted) & (s[i] != 255):
                    bad = cutlass.max(bad, outside(s[i], Int32(KEY_WINDOW[0]), Int32(KEY_WINDOW[1] - KEY_WINDOW[0])) * (PAGE - row))
        return bad

    @cute.jit
    def nan_page(self, dst: Int64, tid: Int32):
        nan = Int32(NAN_PAIR)
        for i in cutlass.range(WIDE_PAGE_BYTES // (THREADS * 16), unroll=1):
            stg_v4(dst + Int64(i * THREADS + tid) * 16, [nan, nan, nan, nan])

    @cute.jit
    def write_page_flag(self, addr: Int64, bad: Int32, smem: Int32, tid: Int32, warp: Int32):
        """Maximum over the CTA. One barrier a page suffices: pages take turns with two rows of words."""
        worst = redux("max", bad)
        if tid % 32 == 0:
            sts32(smem + warp * 4, 0, worst)
        cute.arch.sync_threads()
        if tid == 0:
            word = lds32(smem)
            for i in cutlass.range_constexpr(WARPS - 1):
                word = cutlass.max(word, lds32(smem, (i + 1) * 4))
            stg32(addr, word)

    # ---------------------------------------------------------------- query exponents
    @cute.jit
    def query_flags(self, args, layout, worker: Int32, workers: Int32, lane: Int32):
        """A warp 16 tokens at a time: is an exponent of a token below the end of the last sequence outside the window?"""
        end = Int32(0)
        if args.num_seqs > 0:
            end = plan.clamp(ldg32(args.cu_seqlens_q.toint() + Int64(args.num_seqs) * 4), 0, args.tokens)
        tiles = (args.tokens + 127) // 128
        c = worker
        while c < (args.tokens + 15) // 16:
            t0 = c * 16
            rows = plan.clamp(end - t0, 0, 16)
            bad = Int32(0)
            if rows > 0:
                # one word = the four exponents of a (token, head); reading one twice does no harm
                for i in cutlass.range((args.heads_q + 1) // 2, unroll=8):
                    e = i * 32 + lane
                    if const_expr(self.scale_layout == "public"):
                        at = Int64(t0) * Int64(args.heads_q) + Int64(cutlass.min(e, rows * args.heads_q - 1))
                        word = ldg32(args.q_scale.toint() + at * 4)
                    else:
                        t = t0 + cutlass.min(e & 15, rows - 1)
                        tile = Int64(cutlass.min(e >> 4, args.heads_q - 1)) * Int64(tiles) + Int64(t // 128)
                        word = ldg32(args.q_scale.toint() + tile * 512 + Int64(tiled_offset(t % 128, 0)))
                    bad = bad | self.outside_word(word)
            bad = redux("or", bad)
            if lane == 0:
                stg32(args.scratch.toint() + layout.query_flags + Int64(c) * 4, bad)
            c = c + workers

    def outside_word(self, word):
        """1 if one of the four bytes is outside QUERY_WINDOW and not NaN."""
        bad = Int32(0)
        for i in range(4):
            byte = (word >> (8 * i)) & 255
            bad = bad | (outside(byte, Int32(QUERY_WINDOW[0]), Int32(QUERY_WINDOW[1] - QUERY_WINDOW[0]))
                         & outside(byte, Int32(255), Int32(0)))
        return bad
