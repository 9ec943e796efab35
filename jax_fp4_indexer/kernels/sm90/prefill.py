"""Staged prefill for sm_90a, bf16 WGMMA: scores[hq, kb, tq] = head_scale[hq] * max over the visible keys of page kb of q[tq, hq] . k[key, hq // R].

Second launch of the variant; prepare.py has written the plan and the widened key pages. Persistent CTAs, any number of them: all steps (one page
against one item of 256 query rows) are numbered by the plan and cut evenly; a page's maximum stands alone, so a cut needs no reduction. Every
role walks the same numbering.

    warp 0        load    key pages of the steps into a ring of 3 x 32 KB, one bulk copy each
    warps 1..3    widen   queries of the items into a ring of 2 x 64 KB (prefill_q.py), an item ahead of the consumers; between items, and
                          to the end of the work, their share of the -inf fill (first pass only; kernels/common/fill.py)
    warps 4..11   score   two warpgroups, 128 rows each, two WGMMA tiles each (prefill_step.py)

    barrier        arrivals a phase                   completed when
    k_full[s]      1 + bytes of the page              page lies in stage s
    k_empty[s]     8, one a consumer warp             both products with it are done
    q_full[s]      3, one a widening warp             rows and description lie in slot s
    q_empty[s]     8, one a consumer warp             the last product of the item is done
A ring slot is first waited for with the parity of the phase before, so that fresh barriers pass. A share of no steps touches no barrier: all roles
agree on its length before the first wait.

A page is *full* for a warpgroup if all of its 128 rows see every key of it; else a second copy of the step masks: column c of a row counts iff
128 * page + c <= last_key of the row's token. That covers the diagonal, offsets and the tail of a sequence alike.
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, const_expr
from cutlass.cute.nvgpu import warpgroup

from ...configs.block_scores import HEAD_DIM, PAGE, WIDE_PAGE_BYTES
from ..common import fill, plan, walk
from ..common.asm import (bulk_load_shared_often, fence_async_shared, fence_mbarrier_init, ldg32, ldg_f32, lds128, mbarrier_expect_tx,
                          mbarrier_init, mbarrier_wait, redux, stg32, stg_f32)
from ..common.kernel import BlockScoresKernel
from ..common.widen import OUT_SCALE
from . import prefill_q as queries
from .prefill_step import TILE_ROWS, arrive_once, new_mma, quad_max, step

ROWS_LOG2 = 8
STAGES, SLOTS = 3, 2            # K ring, Q ring
CONSUMER_WARPS = 8
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 88, 208
TILES = queries.ROWS // TILE_ROWS

# shared memory
K_RING = SLOTS * queries.SLOT_BYTES
ITEMS = K_RING + STAGES * WIDE_PAGE_BYTES
K_FULL = ITEMS + SLOTS * 64
K_EMPTY, Q_FULL, Q_EMPTY = K_FULL + 8 * STAGES, K_FULL + 16 * STAGES, K_FULL + 16 * STAGES + 8 * SLOTS
SHARED_BYTES = K_FULL + 16 * (STAGES + SLOTS)


class Prefill(BlockScoresKernel):
    """fmt "nvfp4" | "mxfp4", scale_layout "public" | "preordered_mma"."""

    def __init__(self, fmt, scale_layout):
        self.fmt, self.scale_layout = fmt, scale_layout
        self.name = f"block_scores.prefill.{fmt}.{scale_layout}"
        self.block = (128 + 32 * CONSUMER_WARPS, 1, 1)
        self.dynamic_shared_bytes = SHARED_BYTES
        self.flagged = fmt == "mxfp4"

    @cute.kernel
    def kernel(self, args):
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        layout = plan.scratch_layout(args)
        memory = cute.arch.get_dyn_smem(cutlass.Uint8, 1024)
        smem = memory.toint()
        if (warp == 0) & (lane == 0):
            for s in cutlass.range_constexpr(STAGES):
                mbarrier_init(smem + (K_FULL + 8 * s), 1)
                mbarrier_init(smem + (K_EMPTY + 8 * s), CONSUMER_WARPS)
            for s in cutlass.range_constexpr(SLOTS):
                mbarrier_init(smem + (Q_FULL + 8 * s), queries.WIDENERS)
                mbarrier_init(smem + (Q_EMPTY + 8 * s), CONSUMER_WARPS)
            fence_mbarrier_init()
        cute.arch.sync_threads()
        if warp < 4:
            cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
            if warp == 0:
                self.load(args, layout, smem, cta, ctas)
            else:
                self.widen(args, layout, smem, cta, ctas, warp - 1, lane)
        else:
            cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
            self.score(args, memory, smem, cta, ctas, warp - 4, lane)

    # ---------------------------------------------------------------- key pages
    @cute.jit
    def load(self, args, layout, smem: Int32, cta: Int32, ctas: Int32):
        first, left = walk.share(args, cta, ctas)
        if left > 0:
            wide = args.scratch.toint() + layout.wide
            stage, parity = Int32(0), Int32(1)
            at, skip = walk.start(args, layout, first)
            while left > 0:
                item = walk.load_item(args, layout, at, skip, ROWS_LOG2)
                pages = cutlass.min(left, item.pages)
                slot = Int64(item.flat) + Int64(item.page) - Int64(args.first_page)
                source = wide + (slot * Int64(args.heads_kv) + Int64(item.kv)) * WIDE_PAGE_BYTES
                stride = Int64(args.heads_kv) * WIDE_PAGE_BYTES
                for _ in cutlass.range(pages, unroll=1):
                    full = smem + K_FULL + stage * 8
                    mbarrier_wait(smem + K_EMPTY + stage * 8, parity)
                    with cute.arch.elect_one():
                        mbarrier_expect_tx(full, WIDE_PAGE_BYTES)
                        bulk_load_shared_often(smem + K_RING + stage * WIDE_PAGE_BYTES, source, WIDE_PAGE_BYTES, full)
                    source = source + stride
                    stage = stage + 1
                    if stage == STAGES:
                        stage = Int32(0)
                        parity = parity ^ 1
                left = left - pages
                skip = Int32(0)
                at = walk.next_position(args, at, item)

    # ---------------------------------------------------------------- queries and -inf
    @cute.jit
    def widen(self, args, layout, smem: Int32, cta: Int32, ctas: Int32, w: Int32, lane: Int32):
        unit, units = Int64(cta * queries.WIDENERS + w), Int64(0)
        if args.first_page == 0:
            units = fill.fill_units(args)
        stride = Int64(ctas * queries.WIDENERS)
        first, left = walk.share(args, cta, ctas)
        if left > 0:
            slot, parity = Int32(0), Int32(1)
            at, skip = walk.start(args, layout, first)
            while left > 0:
                item = walk.load_item(args, layout, at, skip, ROWS_LOG2)
                pages = cutlass.min(left, item.pages)
                mbarrier_wait(smem + Q_EMPTY + slot * 8, parity)
                if (w == 0) & (lane == 0):
                    queries.describe(smem + ITEMS + slot * 64, item, pages)
                queries.widen_item(args, item, smem + slot * queries.SLOT_BYTES, w, lane, self.fmt, self.scale_layout)
                fence_async_shared()
                cute.arch.sync_warp()
                arrive_once(smem + Q_FULL + slot * 8)
                slot = slot + 1
                if slot == SLOTS:
                    slot = Int32(0)
                    parity = parity ^ 1
                left = left - pages
                skip = Int32(0)
                at = walk.next_position(args, at, item)
                if unit < units:
                    fill.fill_unit(args, layout, unit, lane)
                    unit = unit + stride
        while unit < units:
            fill.fill_unit(args, layout, unit, lane)
            unit = unit + stride
        if const_expr(self.flagged):
            if (cta == 0) & (w == 0):
                self.reduce_flags(args, layout, lane)

    @cute.jit
    def reduce_flags(self, args, layout, lane: Int32):
        """Header word at byte 8: 1 if a page of this pass is flagged, + 2 if a query row is. One warp; prepare wrote every flag."""
        scratch = args.scratch.toint()
        pages = self.any_set(scratch + layout.page_flags, args.pages_per_pass * args.heads_kv, lane)
        rows = self.any_set(scratch + layout.query_flags, (args.tokens + 15) // 16, lane)
        if lane == 0:
            stg32(scratch + 8, cutlass.min(pages, 1) + cutlass.min(rows, 1) * 2)

    @cute.jit
    def any_set(self, flags: Int64, count: Int32, lane: Int32):
        """OR of `count` words, eight loads of a lane in flight (reading the last word again does no harm)."""
        found = Int32(0)
        for i in cutlass.range((count + 255) // 256, unroll=1):
            words = [ldg32(flags + Int64(cutlass.min(i * 256 + j * 32 + lane, count - 1)) * 4) for j in range(8)]
            for j in cutlass.range_constexpr(8):
                found = found | words[j]
        return redux("or", found)

    # ---------------------------------------------------------------- scores
    @cute.jit
    def operands(self, memory):
        """(A fragments of the Q ring, B fragments of the K ring, shape of an accumulator)"""
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, BFloat16)
        q_layout = cute.tile_to_shape(atom, (TILE_ROWS, HEAD_DIM, SLOTS * TILES), order=(0, 1, 2))
        k_layout = cute.tile_to_shape(atom, (PAGE, HEAD_DIM, STAGES), order=(0, 1, 2))
        q = cute.make_tensor(cute.recast_ptr(memory, q_layout.inner, dtype=BFloat16), q_layout.outer)
        k = cute.make_tensor(cute.recast_ptr(memory + K_RING, k_layout.inner, dtype=BFloat16), k_layout.outer)
        mma = new_mma()
        thread = mma.get_slice(0)
        return mma.make_fragment_A(thread.partition_A(q)), mma.make_fragment_B(thread.partition_B(k)), mma.partition_shape_C((TILE_ROWS, PAGE))

    @cute.jit
    def score(self, args, memory, smem: Int32, cta: Int32, ctas: Int32, warp: Int32, lane: Int32):
        group = warp // 4
        a, b, shape = self.operands(memory)
        acc_a, acc_b = cute.make_rmem_tensor(shape, Float32), cute.make_rmem_tensor(shape, Float32)
        row = group * (2 * TILE_ROWS) + (warp % 4) * 16 + lane // 4            # of tile A, first half
        my_row = row + ((lane & 2) // 2) * TILE_ROWS + (lane & 1) * 8
        stride = Int64(args.tokens) * 4
        stage, k_parity, slot, q_parity = Int32(0), Int32(0), Int32(0), Int32(0)
        left, margin, mine, exists = Int32(0), Int32(0), Int32(0), Int32(0)
        limits = [Int32(0)] * 4
        addr, scale = Int64(0), Float32(0.0)
        _, steps = walk.share(args, cta, ctas)
        for _ in cutlass.range(steps, unroll=1):
            if left == 0:
                mbarrier_wait(smem + Q_FULL + slot * 8, q_parity)
                left, margin, limits, mine, exists, addr, scale = self.open_item(args, smem + ITEMS + slot * 64, group, row, my_row, lane)
            mbarrier_wait(smem + K_FULL + stage * 8, k_parity)
            tile = slot * TILES + group * 2
            k_empty = smem + K_EMPTY + stage * 8
            z = Float32(0.0)
            a0, a1, b0, b1 = z, z, z, z
            if margin >= PAGE - 1:
                a0, a1, b0, b1 = step(acc_a, acc_b, a, b, tile, stage, k_empty, limits, False)
            else:
                a0, a1, b0, b1 = step(acc_a, acc_b, a, b, tile, stage, k_empty, limits, True)
            left = left - 1
            if left == 0:
                arrive_once(smem + Q_EMPTY + slot * 8)
                slot = slot + 1
                if slot == SLOTS:
                    slot = Int32(0)
                    q_parity = q_parity ^ 1
            best = quad_max(a0, a1, b0, b1, lane)
            best = best * OUT_SCALE[self.fmt] * scale if const_expr(OUT_SCALE[self.fmt] != 1.0) else best * scale
            if mine < 0:
                best = Float32(-float("inf"))
            if exists != 0:
                stg_f32(addr, best)
            addr = addr + stride
            margin, mine = margin - PAGE, mine - PAGE
            limits = [x - PAGE for x in limits]
            stage = stage + 1
            if stage == STAGES:
                stage = Int32(0)
                k_parity = k_parity ^ 1

    @cute.jit
    def open_item(self, args, desc: Int32, group: Int32, row: Int32, my_row: Int32, lane: Int32):
        """Read an item's description. Returns pages; margin: last key, relative to the page, that all rows of the warpgroup see; limits of the thread's 4 rows,
        less its first column; last key and existence of the row it stores; address and head_scale of that row. Limits are relative to the first page."""
        page, pages, key, k_len = lds128(desc)
        token, token_end, head, head_end = lds128(desc, 16)
        log2, _, _, _ = lds128(desc, 32)
        pages, page, key, k_len, log2 = [cute.arch.make_warp_uniform(x) for x in (pages, page, key, k_len, log2)]
        mask = (Int32(1) << log2) - 1

        def last(r):
            """last key that row r sees, relative to the page; never below -1 before, so that it cannot overflow"""
            j = r & mask
            return cutlass.max(cutlass.min(k_len - 1 - j, key) + j, -1) - page * PAGE

        margin = last(group * (2 * TILE_ROWS))
        limits = [last(row + r) - (lane % 4) * 2 for r in (0, 8, TILE_ROWS, TILE_ROWS + 8)]
        mine = last(my_row)
        my_head, my_token = head + (my_row >> log2), token + (my_row & mask)
        exists = Int32(0)
        scale, addr = Float32(0.0), Int64(0)
        if (my_head < head_end) & (my_token < token_end):
            exists = Int32(1)
            scale = ldg_f32(args.head_scale.toint() + Int64(my_head) * 4)
            row_index = Int64(my_head) * Int64(args.k_tiles) + Int64(page)
            addr = args.scores.toint() + (row_index * Int64(args.tokens) + Int64(my_token)) * 4
        return pages, margin, limits, mine, exists, addr, scale
