"""Staged prefill for sm_90a: scores[hq, kb, tq] = head_scale[hq] * max over the visible keys of page kb of q[tq, hq] . k[key, hq // R].

The launches before have written the plan and the widened key pages (sm90_prepare.py; MXFP4: also sm90_choose_precision.py). Persistent CTAs, any number of them: all steps (one
page against one item of 256 query rows) are numbered and cut evenly; a page's maximum stands alone, so a cut needs no reduction. Every role
walks the same numbering. NVFP4 has one such kernel, over all steps, in bf16. MXFP4 has two: `int8` over the steps that int8 holds, twice as fast, and
`bf16` over the others; either leaves at once where it has no steps. The bits are the same: int8 is used where both are exact.

    warp 0        load    key pages of the steps into a ring, one bulk copy each; beside a page its place in the pass, its factor, the place of the item's next
    warps 1..3    copy    queries of the items into a ring, packed as they are (sm90_prefill_queries.py), items ahead of the consumers; where they are ahead, and to the end of the
                          work, their share of the -inf fill (first pass only, and of two kernels the one with more to do; epilogues/fill_by_copy_engine.py)
    others        score   warpgroups of 128 rows (bf16: 2, two WGMMA tiles each) or 64 (int8: 4, one tile each): at an item's start they widen its rows into registers,
                          where they stay as the A operand of every product (sm90_prefill_maxima.py)

    barrier        arrivals a phase                   completed when
    k_full[s]      1 + bytes of the page              page lies in stage s
    k_empty[s]     1 a consumer warp                  all products with it are done
    q_full[s]      1 a lane that copies, 1            rows and description lie in slot s
    q_empty[s]     1 a consumer warp                  the rows are in registers
A ring slot is first waited for with the parity of the phase before, so that fresh barriers pass. A share of no steps touches no barrier: all roles
agree on its length before the first wait.

A page is *full* for a warpgroup if all of its rows see every key of it; else a second copy of the step masks: column c of a row counts iff
128 * page + c <= last_key of the row's token. That covers the diagonal, offsets and the tail of a sequence alike.
"""
import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ...configs.arch import REGISTERS_PER_SM
from ...configs.block_scores import HEAD_DIM, PAGE, Scratch
from ..device.ptx_barriers import (
    bar_arrive, bar_sync, fence_mbarrier_init, mbarrier_arrive, mbarrier_expect_tx, mbarrier_init, mbarrier_passed,
    mbarrier_wait,
)
from ..device.ptx_copies import bulk_load_shared_often, bulk_stores_have_read, copies_arrive
from ..device.ptx_math import bits_f32, opaque, select
from ..device.ptx_memory import ldg32, ldg_f32, lds128, lds32, stg_f32_if, sts_v4
from ..device.ptx_warp import lane_here, shfl_idx
from ..device.ring import advance
from ..device.wgmma import tile_descriptor
from ..epilogues import fill_by_table
from ..epilogues.fill_by_copy_engine import fill_unit, write_pattern
from ..operands import s8
from ..operands.bf16 import OUT_SCALE
from . import prefill_schedule, sm90_choose_precision, sm90_prefill_queries
from .kernel import BlockScoresKernel
from .sm90_prefill_maxima import arrive_once, columns_up_to, quad_max, step, TILE_ROWS
from .sm90_prefill_steps import AllSteps, StepsOfPrecision

ROWS_LOG2 = 8
TILES = sm90_prefill_queries.ROWS // TILE_ROWS
COST = {sm90_choose_precision.INT8: 1, sm90_choose_precision.BF16: 2}   # of a step
# Named barriers, 0 being the CTA's: the copying warps' first item is on its way, for the loading warp; of the copying warps: what the fill writes.
ASKED, PATTERN = 1, 2


@dataclasses.dataclass(frozen=True)
class PrefillConfig:
    """stages, slots: K ring, Q ring; slot_bytes: of the latter; tiles: WGMMA tiles of a consumer warpgroup; registers of producers and consumers;
    q_arrivals: a phase of q_full; pattern_bytes: of what the fill writes (epilogues/fill_by_copy_engine.py)."""
    int8: bool
    stages: int
    slots: int
    tiles: int
    registers: tuple
    producer_warps: int
    slot_bytes: int
    q_arrivals: int
    pattern_bytes: int = 0

    def __post_init__(self):
        row_bytes = HEAD_DIM * (1 if self.int8 else 2)
        place = dict(row_bytes=row_bytes, page_bytes=PAGE * row_bytes, consumer_warps=4 * TILES // self.tiles)
        # shared memory: K ring, Q ring, descriptions, what is said of pages, barriers, what the fill writes
        place["k_ring"] = 0
        place["q_ring"] = self.stages * place["page_bytes"]
        place["items"] = place["q_ring"] + self.slots * self.slot_bytes
        place["infos"] = place["items"] + self.slots * sm90_prefill_queries.DESCRIPTION
        place["k_full"] = place["infos"] + self.stages * 16
        place["k_empty"] = place["k_full"] + self.stages * 8
        place["q_full"] = place["k_empty"] + self.stages * 8
        place["q_empty"] = place["q_full"] + self.slots * 8
        place["pattern"] = (place["q_empty"] + self.slots * 8 + 127) // 128 * 128
        place["shared_bytes"] = place["pattern"] + self.pattern_bytes
        for name, value in place.items():
            object.__setattr__(self, name, value)
        # What a CTA starts with is all it gets: setmaxnreg waits for ever for more. Registers come in eights a thread.
        threads = 32 * (self.producer_warps + self.consumer_warps)
        if 32 * (self.producer_warps * self.registers[0] + self.consumer_warps * self.registers[1]) > REGISTERS_PER_SM // threads // 8 * 8 * threads:
            raise ValueError(f"prefill: registers {self.registers} are more than {threads} threads start with")


COPIERS = 3
PACKED = dict(producer_warps=1 + COPIERS, slot_bytes=sm90_prefill_queries.SLOT_BYTES, q_arrivals=32 * COPIERS + 1)      # how queries lie in the ring; "direct": widened
CONFIGS = {"bf16": PrefillConfig(False, stages=5, slots=3, tiles=2, registers=(56, 224), pattern_bytes=1536, **PACKED),
         "int8": PrefillConfig(True, stages=10, slots=3, tiles=1, registers=(32, 112), pattern_bytes=4096, **PACKED),
         "direct": PrefillConfig(False, stages=3, slots=2, tiles=2, registers=(56, 200), producer_warps=8, slot_bytes=sm90_prefill_queries.ROWS * HEAD_DIM * 2, q_arrivals=8)}


class Prefill(BlockScoresKernel):
    """format "nvfp4" | "mxfp4", scale_layout "public" | "preordered_mma", form "bf16" | "int8" (mxfp4 only). sm90_prefill_direct.py has the form without a K pre-pass,
    with another role for the producers."""
    k_arrivals = 1                  # a phase of k_full
    in_registers = True             # rows of an item: widened by the consumers into registers, else by the producers into the slot
    skips_empty = False             # a warpgroup without rows skips its products: worth a branch a page only where items are seldom full

    def __init__(self, format, scale_layout, precision="bf16"):
        self.format, self.scale_layout, self.config = format, scale_layout, CONFIGS[precision]
        self.name = f"block_scores.prefill{'' if precision == 'bf16' else f'_{precision}'}.{format}.{scale_layout}"
        self.block = (32 * (self.config.producer_warps + self.config.consumer_warps), 1, 1)
        self.dynamic_shared_bytes = self.config.shared_bytes
        self.two_precisions = format == "mxfp4"
        self.precision = sm90_choose_precision.INT8 if precision == "int8" else sm90_choose_precision.BF16
        self.steps = StepsOfPrecision(self.precision) if self.two_precisions else AllSteps()

    @cute.kernel
    def kernel(self, args):
        f = self.config
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        layout = prefill_schedule.scratch_layout(args)
        # As a number that it has to keep, the compiler does not work out the base of shared memory anew in every step.
        smem = opaque(cute.arch.get_dyn_smem(cutlass.Uint8, 1024).toint())
        if (warp == 0) & (lane == 0):
            for s in cutlass.range_constexpr(f.stages):
                mbarrier_init(smem + (f.k_full + 8 * s), self.k_arrivals)
                mbarrier_init(smem + (f.k_empty + 8 * s), f.consumer_warps)
            for s in cutlass.range_constexpr(f.slots):
                mbarrier_init(smem + (f.q_full + 8 * s), f.q_arrivals)
                mbarrier_init(smem + (f.q_empty + 8 * s), f.consumer_warps)
            fence_mbarrier_init()
        cute.arch.sync_threads()
        if warp < f.producer_warps:
            cute.arch.setmaxregister_decrease(f.registers[0])
            self.produce(args, layout, smem, cta, ctas, warp, lane)
        else:
            cute.arch.setmaxregister_increase(f.registers[1])
            self.score(args, smem, cta, ctas, warp - f.producer_warps, lane)

    @cute.jit
    def produce(self, args, layout, smem: Int32, cta: Int32, ctas: Int32, warp: Int32, lane: Int32):
        if warp == 0:
            self.load(args, layout, smem, cta, ctas)
        else:
            self.copy(args, layout, smem, cta, ctas, warp - 1, lane)

    # ---------------------------------------------------------------- key pages
    @cute.jit
    def load(self, args, layout, smem: Int32, cta: Int32, ctas: Int32):
        f = self.config
        first, left = self.steps.share(args, cta, ctas)
        if left > 0:
            pool = args.scratch.toint() + (layout.narrow if f.int8 else layout.wide)
            stage, parity, opening = Int32(0), Int32(1), Int32(1)
            at, skip = self.steps.start(args, layout, first)
            while left > 0:
                item = self.steps.load_item(args, layout, at, skip, ROWS_LOG2)
                pages = cutlass.min(left, item.pages)
                words, ahead = [self.page_words(args, layout, item, Int32(x), pages) for x in (0, 32)]
                word = shfl_idx(words, Int32(0))
                for i in cutlass.range(pages, unroll=1):
                    if (i & 31) == 31:
                        words, ahead = ahead, self.page_words(args, layout, item, i + 33, pages)
                    following = shfl_idx(words, (i + 1) & 31)
                    page, next_page, factor = word, following, Int32(0)
                    if const_expr(self.two_precisions):
                        page, next_page, factor = word & 0xFFFFFF, following & 0xFFFFFF, s8.unit_bits((word >> 24) & 255)
                    source = pool + (Int64(page) * Int64(args.heads_kv) + Int64(item.kv)) * f.page_bytes
                    full = smem + f.k_full + stage * 8
                    mbarrier_wait(smem + f.k_empty + stage * 8, parity)
                    with cute.arch.elect_one():
                        sts_v4(smem + f.infos + stage * 16, [page, next_page, factor, Int32(0)])
                        mbarrier_expect_tx(full, f.page_bytes)
                        bulk_load_shared_often(smem + f.k_ring + stage * f.page_bytes, source, f.page_bytes, full)
                    word = following
                    if opening != 0:        # a ring of pages for every CTA takes longer to come than the first queries, which nothing can start without
                        bar_sync(Int32(ASKED), 32 * f.producer_warps)
                        opening = Int32(0)
                    stage, parity = advance(stage, parity, f.stages)
                left, first = left - pages, first + Int64(pages)
                skip = Int32(0)
                if left > 0:
                    at = self.steps.next_cursor(args, layout, at, item, first)

    def page_words(self, args, layout, item, first, pages):
        """A lane a page: of the item's pages first .. first + 31 (past its last: that one) the place in the pass; of two forms a word of `lists`. Read so and not page by page: a load
        beside every page keeps the matrix instructions waiting."""
        at = item.page + cutlass.min(first + lane_here(), pages - 1)
        if self.two_precisions:
            return ldg32(args.scratch.toint() + layout.lists + Int64(at) * 4)
        return item.flat - args.first_page + at

    # ---------------------------------------------------------------- queries and -inf
    @cute.jit
    def copy(self, args, layout, smem: Int32, cta: Int32, ctas: Int32, w: Int32, lane: Int32):
        f = self.config
        unit, units = Int64(cta * COPIERS + w), Int64(0)
        falls = ldg32(args.scratch.toint(), Scratch.FALLS)
        first, left = self.steps.share(args, cta, ctas)
        if (args.first_page == 0) & self.fills(args):
            units = fill_by_table.fill_units(args)
        stride = Int64(ctas * COPIERS)
        if units > Int64(0):
            write_pattern(falls, smem + f.pattern, f.pattern_bytes, w, lane, COPIERS, PATTERN)
        if left > 0:
            slot, parity, opening = Int32(0), Int32(1), Int32(1)
            at, skip = self.steps.start(args, layout, first)
            while left > 0:
                item = self.steps.load_item(args, layout, at, skip, ROWS_LOG2)
                pages = cutlass.min(left, item.pages)
                full, empty = smem + f.q_full + slot * 8, smem + f.q_empty + slot * 8
                if unit < units:
                    # Only who is ahead of the consumers has the time: of short items, and at the start, they would wait for it.
                    if cute.arch.make_warp_uniform(mbarrier_passed(empty, parity)) == 0:
                        fill_unit(args, layout, unit, lane_here(), smem + f.pattern, f.pattern_bytes)
                        unit = unit + stride
                mbarrier_wait(empty, parity)
                sm90_prefill_queries.copy_item(args, item, smem + f.q_ring + slot * f.slot_bytes, w, lane, self.format, self.scale_layout, COPIERS)
                copies_arrive(full)
                if (w == 0) & (lane == 0):
                    sm90_prefill_queries.describe(smem + f.items + slot * sm90_prefill_queries.DESCRIPTION, item, item.flat - args.first_page, pages)
                    mbarrier_arrive(full)
                if opening != 0:
                    bar_arrive(Int32(ASKED), 32 * f.producer_warps)
                    opening = Int32(0)
                slot, parity = advance(slot, parity, f.slots)
                left, first = left - pages, first + Int64(pages)
                skip = Int32(0)
                if left > 0:
                    at = self.steps.next_cursor(args, layout, at, item, first)
        while unit < units:
            fill_unit(args, layout, unit, lane_here(), smem + f.pattern, f.pattern_bytes)
            unit = unit + stride
        bulk_stores_have_read()

    def fills(self, args):
        """Is the -inf fill this kernel's? Of two the one whose steps take longer: it has the time."""
        if not self.two_precisions:
            return True
        times = {precision: StepsOfPrecision(precision).total(args) * cost for precision, cost in COST.items()}
        in_int8 = times[sm90_choose_precision.INT8] >= times[sm90_choose_precision.BF16]
        return in_int8 if self.config.int8 else times[sm90_choose_precision.INT8] < times[sm90_choose_precision.BF16]

    # ---------------------------------------------------------------- scores
    @cute.jit
    def score(self, args, smem: Int32, cta: Int32, ctas: Int32, warp: Int32, lane: Int32):
        f = self.config
        group = warp // 4
        kind = Int32 if f.int8 else Float32
        operands = [cute.make_rmem_tensor(f.row_bytes // 8, Int32) for _ in range(f.tiles)] if self.in_registers else []
        for t in cutlass.range_constexpr(len(operands)):
            for i in cutlass.range_constexpr(f.row_bytes // 8):
                operands[t][i] = Int32(0)
        keys = tile_descriptor(smem + f.k_ring)
        row = group * (f.tiles * TILE_ROWS) + (warp % 4) * 16 + lane // 4      # of the first tile, first half
        if const_expr(f.tiles == 2):
            my_row = row + ((lane & 2) // 2) * TILE_ROWS + (lane & 1) * 8
        else:
            my_row = row + ((lane & 2) // 2) * 8
        stage, k_parity, slot, q_parity = Int32(0), Int32(0), Int32(0), Int32(0)
        left, page, place, full, rows, mine, exists = Int32(0), Int32(0), Int32(0), Int32(0), Int32(0), Int32(0), Int32(0)
        limits = [Int32(0)] * (2 * f.tiles)
        addr, scale, factor = Int64(0), Float32(0.0), Float32(0.0)
        _, steps = self.steps.share(args, cta, ctas)
        for _ in cutlass.range(steps, unroll=1):
            if left == 0:
                mbarrier_wait(smem + f.q_full + slot * 8, q_parity)
                left, place, full, rows, limits, mine, exists, addr, scale = self.open_item(args, smem + f.items + slot * sm90_prefill_queries.DESCRIPTION, group, row, my_row, lane)
                if const_expr(self.in_registers):
                    factor = self.take_rows(operands, smem + f.q_ring + slot * f.slot_bytes, row, lane_here())
                    cute.arch.sync_warp()
                    slot, q_parity = self.give_back(smem, slot, q_parity)
                mbarrier_wait(smem + f.k_full + stage * 8, k_parity)
                page = cute.arch.make_warp_uniform(lds32(smem + f.infos + stage * 16)) - place
            mbarrier_wait(smem + f.k_full + stage * 8, k_parity)
            # `page` is known from the page before: which copy of the step to take need not wait for this
            _, next_page, page_factor, _ = lds128(smem + f.infos + stage * 16)
            k_empty = smem + f.k_empty + stage * 8
            maxima = [kind(0) for _ in range(2 * f.tiles)]
            tiles, b = self.operands_of(operands, smem, slot, group), keys + Int64(stage * (f.page_bytes >> 4))
            if const_expr(not self.skips_empty):
                maxima = self.products(tiles, b, k_empty, limits, page, full)
            elif rows != 0:
                maxima = self.products(tiles, b, k_empty, limits, page, full)
            else:
                cute.arch.sync_warp()
                arrive_once(k_empty)
            left = left - 1
            if const_expr(not self.in_registers):
                if left == 0:
                    slot, q_parity = self.give_back(smem, slot, q_parity)
            best = quad_max(maxima, lane)
            if const_expr(f.int8):
                best = Float32(best) * (factor * bits_f32(page_factor)) * scale         # exact but for `scale`: powers of two within the windows
            elif const_expr(OUT_SCALE[self.format] != 1.0):
                best = best * OUT_SCALE[self.format] * scale
            else:
                best = best * scale
            if mine < page * PAGE:
                best = Float32(-float("inf"))
            stg_f32_if(exists, addr + Int64(page) * Int64(args.tokens) * 4, best)
            page = cute.arch.make_warp_uniform(next_page) - place
            stage, k_parity = advance(stage, k_parity, f.stages)

    @cute.jit
    def give_back(self, smem: Int32, slot: Int32, parity: Int32):
        """A slot of queries to the producers; the next one and its parity."""
        arrive_once(smem + self.config.q_empty + slot * 8)
        slot, parity = advance(slot, parity, self.config.slots)
        return slot, parity

    @cute.jit
    def take_rows(self, operands, slot: Int32, row: Int32, lane: Int32):
        """The thread's rows out of a slot (shared address) into its A operands. Returns int8's factor of the row that it stores, 2^(least exponent - 128)."""
        factor = Float32(1.0)
        if const_expr(self.config.int8):
            low, high = sm90_prefill_queries.widen_int8(operands[0], slot, row, lane)
            factor = bits_f32(s8.unit_bits(select(lane & 2, Int32(0), low, high)))
        else:
            for t in cutlass.range_constexpr(self.config.tiles):
                sm90_prefill_queries.widen_bf16(operands[t], slot, row + t * TILE_ROWS, lane, self.format)
        return factor

    def operands_of(self, operands, smem, slot, group):
        """A operand of each tile of the warpgroup."""
        return [[x[i] for i in range(self.config.row_bytes // 8)] for x in operands]

    @cute.jit
    def products(self, tiles, b: Int64, k_empty: Int32, limits, page: Int32, full: Int32):
        maxima = [(Int32 if self.config.int8 else Float32)(0) for _ in range(2 * self.config.tiles)]
        if page < full:
            maxima = step(self.config.int8, tiles, b, k_empty, [None] * len(limits))
        else:
            maxima = step(self.config.int8, tiles, b, k_empty, [columns_up_to(x - page * PAGE) for x in limits])
        return maxima

    @cute.jit
    def open_item(self, args, desc: Int32, group: Int32, row: Int32, my_row: Int32, lane: Int32):
        """Read an item's description. Returns pages; place in the pass of the sequence's page 0; the first page that is not full for the warpgroup; whether it
        has a row; limits of the thread's rows, less its first column; last key and existence of the row it stores; address (of page 0) and head_scale of that row."""
        place, pages, key, k_len = lds128(desc)
        token, token_end, head, head_end = lds128(desc, 16)
        log2, _, _, _ = lds128(desc, 32)
        pages, place, key, k_len, log2 = [cute.arch.make_warp_uniform(x) for x in (pages, place, key, k_len, log2)]
        mask = (Int32(1) << log2) - 1

        def last(r):
            """last key that row r sees, -1 for none"""
            j = r & mask
            return cutlass.max(cutlass.min(k_len - 1 - j, key) + j, -1)

        tiles = self.config.tiles
        full = (last(group * (tiles * TILE_ROWS)) + 1) >> 7
        rows = cute.arch.make_warp_uniform(Int32(head + ((group * (tiles * TILE_ROWS)) >> log2) < head_end))
        limits = [last(row + t * TILE_ROWS + r) - (lane % 4) * 2 for t in range(tiles) for r in (0, 8)]
        mine = last(my_row)
        my_head, my_token = head + (my_row >> log2), token + (my_row & mask)
        exists = Int32(0)
        scale, addr = Float32(0.0), Int64(0)
        owner = my_head < head_end
        if const_expr(tiles == 1):
            owner = owner & ((lane & 1) == 0)
        if owner & (my_token < token_end):
            exists = Int32(1)
            scale = ldg_f32(args.head_scale.toint() + Int64(my_head) * 4)
            addr = args.scores.toint() + (Int64(my_head) * Int64(args.k_tiles) * Int64(args.tokens) + Int64(my_token)) * 4
        return pages, place, full, rows, limits, mine, exists, addr, scale
