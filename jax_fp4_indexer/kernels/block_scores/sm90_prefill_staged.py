"""The producers of the staged prefill of sm_90a: they copy key pages that a launch before has dequantised, and queries
as they are.

| warps | role |
|---|---|
| 0 | load: key pages of the steps into a ring, one bulk copy each; with a page go its place in the pass, its factor and the place of the item's next page |
| 1 to 3 | copy: queries of the items into a ring, packed as they are (sm90_prefill_queries.py), items ahead of the consumers. Where they are ahead, and after the last item, their share of the fill (first pass only, and of two kernels the one with more to do; epilogues/fill_by_copy_engine.py) |
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...configs.block_scores import Scratch
from ..device.ptx_barriers import (
    bar_arrive,
    bar_sync,
    mbarrier_arrive,
    mbarrier_expect_tx,
    mbarrier_passed,
    mbarrier_wait,
)
from ..device.ptx_copies import bulk_load_shared_often, bulk_stores_have_read, copies_arrive
from ..device.ptx_memory import ldg32, sts_v4
from ..device.ptx_warp import lane_here, shfl_idx
from ..device.ring import advance
from ..epilogues import fill_by_table
from ..epilogues.fill_by_copy_engine import fill_unit, write_pattern
from ..operands import s8
from . import sm90_choose_precision, sm90_prefill_queries
from .sm90_prefill_config import CONFIGS, COPIERS, ROWS_LOG2
from .sm90_prefill_steps import AllSteps, StepsOfPrecision

COST = {sm90_choose_precision.INT8: 1, sm90_choose_precision.BF16: 2}  # of a step
# Named barriers, 0 being the CTA's: the copying warps' first item is on its way, for the loading warp; of the copying
# warps: what the fill writes.
ASKED, PATTERN = 1, 2


class StagedProducer:
    """precision: "bf16" | "int8" (MXFP4 only). A producer says how the kernel around it (sm90_prefill.py) works:

    k_arrivals      arrivals a phase of k_full
    q_in_registers  an item's rows become operands in the consumers' registers, else in the slot of the ring
    skips_empty     a warpgroup without rows skips its products: worth a branch a page only where items are seldom full
    steps           which steps the kernel works, and in which order (sm90_prefill_steps.py)
    """

    k_arrivals = 1
    q_in_registers = True
    skips_empty = False

    def __init__(self, format, scale_layout, precision):
        self.format, self.scale_layout, self.config = format, scale_layout, CONFIGS[precision]
        self.two_precisions = format == "mxfp4"
        which = sm90_choose_precision.INT8 if precision == "int8" else sm90_choose_precision.BF16
        self.steps = StepsOfPrecision(which) if self.two_precisions else AllSteps()

    @cute.jit
    def produce(self, args, layout, smem: Int32, cta: Int32, ctas: Int32, warp: Int32, lane: Int32):
        """Warp 0 loads key pages, the others copy queries."""
        if warp == 0:
            self.load(args, layout, smem, cta, ctas)
        else:
            self.copy(args, layout, smem, cta, ctas, warp - 1, lane)

    # ---------------------------------------------------------------- key pages
    @cute.jit
    def load(self, args, layout, smem: Int32, cta: Int32, ctas: Int32):
        """The loading warp: the pages of the CTA's steps into the K ring."""
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
                        page, next_page, factor = (
                            word & 0xFFFFFF,
                            following & 0xFFFFFF,
                            s8.unit_bits((word >> 24) & 255),
                        )
                    source = pool + (Int64(page) * Int64(args.heads_kv) + Int64(item.kv)) * f.page_bytes
                    full = smem + f.k_full + stage * 8
                    mbarrier_wait(smem + f.k_empty + stage * 8, parity)
                    with cute.arch.elect_one():
                        sts_v4(smem + f.infos + stage * 16, [page, next_page, factor, Int32(0)])
                        mbarrier_expect_tx(full, f.page_bytes)
                        bulk_load_shared_often(smem + f.k_ring + stage * f.page_bytes, source, f.page_bytes, full)
                    word = following
                    # A ring of pages for every CTA takes longer to come than the first queries, which nothing can
                    # start without
                    if opening != 0:
                        bar_sync(Int32(ASKED), 32 * f.producer_warps)
                        opening = Int32(0)
                    stage, parity = advance(stage, parity, f.stages)
                left, first = left - pages, first + Int64(pages)
                skip = Int32(0)
                if left > 0:
                    at = self.steps.next_cursor(args, layout, at, item, first)

    def page_words(self, args, layout, item, first, pages):
        """A lane a page: of the item's pages first .. first + 31 (past its last: that one) the place in the pass; of
        two precisions a word of `lists`. Read so and not page by page: a load for every page keeps the matrix instructions
        waiting."""
        at = item.page + cutlass.min(first + lane_here(), pages - 1)
        if self.two_precisions:
            return ldg32(args.scratch.toint() + layout.lists + Int64(at) * 4)
        return item.flat - args.first_page + at

    # ---------------------------------------------------------------- queries and -inf
    @cute.jit
    def copy(self, args, layout, smem: Int32, cta: Int32, ctas: Int32, w: Int32, lane: Int32):
        """Copying warp w: its part of the rows of each item into the Q ring, and its share of the fill."""
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
                    # Only a warp that is ahead of the consumers has the time: with short items, and at the start,
                    # they would wait for it.
                    if cute.arch.make_warp_uniform(mbarrier_passed(empty, parity)) == 0:
                        fill_unit(args, layout, unit, lane_here(), smem + f.pattern, f.pattern_bytes)
                        unit = unit + stride
                mbarrier_wait(empty, parity)
                sm90_prefill_queries.copy_item(
                    args, item, smem + f.q_ring + slot * f.slot_bytes, w, lane, self.format, self.scale_layout, COPIERS
                )
                copies_arrive(full)
                if (w == 0) & (lane == 0):
                    sm90_prefill_queries.describe(
                        smem + f.items + slot * sm90_prefill_queries.DESCRIPTION,
                        item,
                        item.flat - args.first_page,
                        pages,
                    )
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

    # ---------------------------------------------------------------- the consumers' side
    def operands_of(self, operands, smem, slot, group):
        """A operand of each tile of the warpgroup."""
        return [[x[i] for i in range(self.config.row_bytes // 8)] for x in operands]
