"""Staged prefill for sm_90a: scores[hq, kb, tq] = head_scale[hq] * max over the visible keys of page kb of q[tq, hq] . k[key, hq // R].

The launches before have written the plan and the widened key pages (prepare.py; MXFP4: also forms.py). Persistent CTAs, any number of them: all steps (one
page against one item of 256 query rows) are numbered and cut evenly; a page's maximum stands alone, so a cut needs no reduction. Every role
walks the same numbering. NVFP4 has one such kernel, over all steps, in bf16. MXFP4 has two: `int8` over the steps that int8 holds, twice as fast, and
`bf16` over the others; either leaves at once where it has no steps. The bits are the same: int8 is used where both are exact.

    warp 0        load    key pages of the steps into a ring, one bulk copy each; beside a page its place in the pass, its factor, the place of the item's next
    warps 1..     widen   queries of the items into a ring (prefill_q.py), items ahead of the consumers (bf16: 7 warps, int8: 3); where they are ahead, and to the
                          end of the work, their share of the -inf fill (first pass only, and of two kernels the one with more to do; prefill_fill.py)
    others        score   warpgroups of 128 rows (bf16: 2, two WGMMA tiles each) or 64 (int8: 4, one tile each) (prefill_step.py)

    barrier        arrivals a phase                   completed when
    k_full[s]      1 + bytes of the page              page lies in stage s
    k_empty[s]     1 a consumer warp                  all products with it are done
    q_full[s]      1 a widening warp                  rows and description lie in slot s
    q_empty[s]     1 a consumer warp                  the last product of the item is done
A ring slot is first waited for with the parity of the phase before, so that fresh barriers pass. A share of no steps touches no barrier: all roles
agree on its length before the first wait.

Two slots of queries hold an item and the next. So the one behind an item of a page or two is widened while that is worked, which takes twice as long: its rows are brought into
L2 as long as its slot is not free, the first of them into registers, and bf16 has as many widening warps as there are registers for.

A page is *full* for a warpgroup if all of its rows see every key of it; else a second copy of the step masks: column c of a row counts iff
128 * page + c <= last_key of the row's token. That covers the diagonal, offsets and the tail of a sequence alike.
"""
import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int8, Int32, Int64, const_expr
from cutlass.cute.nvgpu import warpgroup

from ...configs.arch import REGISTERS_PER_SM
from ...configs.block_scores import HEAD_DIM, PAGE
from ..common import fill, int8, plan
from ..common.asm import (bar_arrive, bar_sync, bits_f32, bulk_load_shared_often, bulk_stores_have_read, fence_async_shared, fence_mbarrier_init, lane_here, ldg32, ldg_f32, lds32, lds128,
                          mbarrier_expect_tx, mbarrier_init, mbarrier_passed, mbarrier_wait, opaque, stg_f32_if, sts_v4)
from ..common.kernel import BlockScoresKernel
from ..common.widen import OUT_SCALE
from . import forms
from . import prefill_q as queries
from .form_walk import FormWalk, PlanWalk
from .prefill_fill import fill_unit, write_pattern
from .prefill_step import TILE_ROWS, arrive_once, columns_up_to, new_mma, quad_max, step

ROWS_LOG2 = 8
TILES = queries.ROWS // TILE_ROWS
COST = {forms.INT8: 1, forms.BF16: 2}   # of a step
SHORT = 4                       # items of fewer pages are worked sooner than the rows of the next one are widened
# Named barriers, 0 being the CTA's. Of each, whoever waits does so at one place (synccheck asks for that), and whoever does not need to wait only arrives.
DESCRIBED, WIDENED, PATTERN = 1, 2, 3   # the first item's description, for the consumers; its rows, for the widening warps; of those warps: what the fill writes


@dataclasses.dataclass(frozen=True)
class Form:
    """stages, slots: K ring, Q ring; tiles: WGMMA tiles of a consumer warpgroup; registers of producers and consumers; batch: see widen_item;
    wideners: producer warps that widen queries; pattern_bytes: of what the fill writes (prefill_fill.py)."""
    int8: bool
    stages: int
    slots: int
    tiles: int
    registers: tuple
    batch: int
    producer_warps: int
    wideners: int
    pattern_bytes: int = 0

    def __post_init__(self):
        size = 1 if self.int8 else 2
        place = dict(page_bytes=PAGE * HEAD_DIM * size, slot_bytes=queries.ROWS * HEAD_DIM * size, consumer_warps=4 * TILES // self.tiles)
        # shared memory: Q ring, K ring, descriptions, factors of rows, what is said of pages, barriers, what the fill writes
        place["k_ring"] = self.slots * place["slot_bytes"]
        place["items"] = place["k_ring"] + self.stages * place["page_bytes"]
        place["factors"] = place["items"] + self.slots * 64
        place["infos"] = place["factors"] + (self.slots * queries.ROWS * 4 if self.int8 else 0)
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


FORMS = {"bf16": Form(False, stages=3, slots=2, tiles=2, registers=(56, 200), batch=2, producer_warps=8, wideners=7, pattern_bytes=1536),
         "int8": Form(True, stages=5, slots=3, tiles=1, registers=(64, 104), batch=4, producer_warps=4, wideners=3, pattern_bytes=4096),
         "direct": Form(False, stages=3, slots=2, tiles=2, registers=(56, 200), batch=2, producer_warps=8, wideners=8)}


class Prefill(BlockScoresKernel):
    """fmt "nvfp4" | "mxfp4", scale_layout "public" | "preordered_mma", form "bf16" | "int8" (mxfp4 only). prefill_direct.py has the form without a K pre-pass,
    with another role for the producers."""
    k_arrivals = 1                  # a phase of k_full
    helps = True                    # the consumers widen the first item, too (`widen_first`)
    skips_empty = False             # a warpgroup without rows skips its products: worth a branch a page only where items are seldom full

    def __init__(self, fmt, scale_layout, form="bf16"):
        self.fmt, self.scale_layout, self.form = fmt, scale_layout, FORMS[form]
        self.name = f"block_scores.prefill{'' if form == 'bf16' else f'_{form}'}.{fmt}.{scale_layout}"
        self.block = (32 * (self.form.producer_warps + self.form.consumer_warps), 1, 1)
        self.dynamic_shared_bytes = self.form.shared_bytes
        self.first_workers = self.form.wideners + self.form.consumer_warps        # warps that widen the first item
        self.two_forms = fmt == "mxfp4"
        self.which = forms.INT8 if form == "int8" else forms.BF16
        self.walk = FormWalk(self.which) if self.two_forms else PlanWalk()

    @cute.kernel
    def kernel(self, args):
        f = self.form
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        lane = cute.arch.lane_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        layout = plan.scratch_layout(args)
        # As a number that it has to keep, the compiler does not work out the base of shared memory anew in every step.
        smem = opaque(cute.arch.get_dyn_smem(cutlass.Uint8, 1024).toint())
        memory = cute.make_ptr(cutlass.Uint8, smem, cute.AddressSpace.smem, assumed_align=1024)
        if (warp == 0) & (lane == 0):
            for s in cutlass.range_constexpr(f.stages):
                mbarrier_init(smem + (f.k_full + 8 * s), self.k_arrivals)
                mbarrier_init(smem + (f.k_empty + 8 * s), f.consumer_warps)
            for s in cutlass.range_constexpr(f.slots):
                mbarrier_init(smem + (f.q_full + 8 * s), f.wideners)
                mbarrier_init(smem + (f.q_empty + 8 * s), f.consumer_warps)
            fence_mbarrier_init()
        cute.arch.sync_threads()
        if warp < f.producer_warps:
            cute.arch.setmaxregister_decrease(f.registers[0])
            self.produce(args, layout, smem, cta, ctas, warp, lane)
        else:
            cute.arch.setmaxregister_increase(f.registers[1])
            self.score(args, memory, smem, cta, ctas, warp - f.producer_warps, lane)

    @cute.jit
    def produce(self, args, layout, smem: Int32, cta: Int32, ctas: Int32, warp: Int32, lane: Int32):
        if warp == 0:
            self.load(args, layout, smem, cta, ctas)
        else:
            self.widen(args, layout, smem, cta, ctas, warp - 1, lane)

    # ---------------------------------------------------------------- key pages
    @cute.jit
    def load(self, args, layout, smem: Int32, cta: Int32, ctas: Int32):
        f = self.form
        first, left = self.walk.share(args, cta, ctas)
        if left > 0:
            pool = args.scratch.toint() + (layout.narrow if f.int8 else layout.wide)
            stage, parity = Int32(0), Int32(1)
            at, skip = self.walk.start(args, layout, first)
            while left > 0:
                item = self.walk.load_item(args, layout, at, skip, ROWS_LOG2)
                pages = cutlass.min(left, item.pages)
                word, following, later = self.page_word(args, layout, item, Int32(0)), self.page_word(args, layout, item, cutlass.min(1, pages - 1)), Int32(0)
                for i in cutlass.range(pages, unroll=1):
                    later = self.page_word(args, layout, item, cutlass.min(i + 2, pages - 1))
                    page, next_page, factor = word, following, Int32(0)
                    if const_expr(self.two_forms):
                        page, next_page, factor = word & 0xFFFFFF, following & 0xFFFFFF, int8.unit_bits((word >> 24) & 255)
                    source = pool + (Int64(page) * Int64(args.heads_kv) + Int64(item.kv)) * f.page_bytes
                    full = smem + f.k_full + stage * 8
                    mbarrier_wait(smem + f.k_empty + stage * 8, parity)
                    with cute.arch.elect_one():
                        sts_v4(smem + f.infos + stage * 16, [page, next_page, factor, Int32(0)])
                        mbarrier_expect_tx(full, f.page_bytes)
                        bulk_load_shared_often(smem + f.k_ring + stage * f.page_bytes, source, f.page_bytes, full)
                    word, following = following, later
                    stage = stage + 1
                    if stage == f.stages:
                        stage = Int32(0)
                        parity = parity ^ 1
                left, first = left - pages, first + Int64(pages)
                skip = Int32(0)
                if left > 0:
                    at = self.walk.next_position(args, layout, at, item, first)

    def page_word(self, args, layout, item, i):
        """Page i of an item: place in the pass; of two forms a word of `lists`."""
        if self.two_forms:
            return ldg32(args.scratch.toint() + layout.lists + Int64(item.page + i) * 4)
        return item.flat + item.page - args.first_page + i

    # ---------------------------------------------------------------- queries and -inf
    @cute.jit
    def widen(self, args, layout, smem: Int32, cta: Int32, ctas: Int32, w: Int32, lane: Int32):
        f = self.form
        unit, units = Int64(cta * f.wideners + w), Int64(0)
        if (args.first_page == 0) & self.fills(args):
            units = fill.fill_units(args)
        stride = Int64(ctas * f.wideners)
        if units > Int64(0):
            write_pattern(args, smem + f.pattern, f.pattern_bytes, w, lane, f.wideners, PATTERN)
        first, left = self.walk.share(args, cta, ctas)
        if left > 0:
            slot, parity = Int32(0), Int32(1)
            at, skip = self.walk.start(args, layout, first)
            opening, before = Int32(1), Int32(SHORT)    # pages of the item before
            while left > 0:
                item = self.walk.load_item(args, layout, at, skip, ROWS_LOG2)
                pages = cutlass.min(left, item.pages)
                free = smem + f.q_empty + slot * 8
                if unit < units:
                    # Only who is ahead of the consumers has the time: of short items, and at the start, they would wait for it.
                    if cute.arch.make_warp_uniform(mbarrier_passed(free, parity)) == 0:
                        fill_unit(args, layout, unit, lane_here(), smem + f.pattern, f.pattern_bytes)
                        unit = unit + stride
                if before < SHORT:
                    if cute.arch.make_warp_uniform(mbarrier_passed(free, parity)) == 0:
                        queries.prefetch_item(args, item, w, lane, self.fmt, self.scale_layout, f.wideners)
                before = pages
                if opening != 0:                        # the slot is free
                    self.describe(args, item, smem, slot, pages, w, lane)
                    bar_arrive(Int32(DESCRIBED), 32 * self.first_workers)
                    self.widen_first(args, item, smem, w, lane)
                    bar_sync(Int32(WIDENED), 32 * self.first_workers)          # and then say so on q_full, for all
                    opening = Int32(0)
                else:
                    queries.widen_item(args, item, smem + slot * f.slot_bytes, smem + f.factors + slot * (queries.ROWS * 4), w, lane, self.fmt, self.scale_layout,
                                       f.int8, f.batch, f.wideners, (free, parity))
                    self.describe(args, item, smem, slot, pages, w, lane)
                    fence_async_shared()
                    cute.arch.sync_warp()
                arrive_once(smem + f.q_full + slot * 8)
                slot = slot + 1
                if slot == f.slots:
                    slot = Int32(0)
                    parity = parity ^ 1
                left, first = left - pages, first + Int64(pages)
                skip = Int32(0)
                if left > 0:
                    at = self.walk.next_position(args, layout, at, item, first)
        while unit < units:
            fill_unit(args, layout, unit, lane_here(), smem + f.pattern, f.pattern_bytes)
            unit = unit + stride
        bulk_stores_have_read()

    @cute.jit
    def describe(self, args, item, smem: Int32, slot: Int32, pages: Int32, w: Int32, lane: Int32):
        if (w == 0) & (lane == 0):
            queries.describe(smem + self.form.items + slot * 64, item, item.flat - args.first_page, pages)

    @cute.jit
    def widen_first(self, args, item, smem: Int32, worker: Int32, lane: Int32):
        """This warp's part of the first item, which all warps but that of the pages widen: the consumers have nothing else to do, and three warps take 6,000
        clocks for it. worker: from 0 on the widening warps, the consumers after them."""
        f = self.form
        workers = self.first_workers
        queries.widen_item(args, item, smem, smem + f.factors, worker, lane, self.fmt, self.scale_layout, f.int8, -(-queries.ROWS // 8 // workers), workers)
        fence_async_shared()

    def fills(self, args):
        """Is the -inf fill this kernel's? Of two the one whose steps take longer: it has the time."""
        if not self.two_forms:
            return True
        times = {form: FormWalk(form).total(args) * cost for form, cost in COST.items()}
        in_int8 = times[forms.INT8] >= times[forms.BF16]
        return in_int8 if self.form.int8 else times[forms.INT8] < times[forms.BF16]

    # ---------------------------------------------------------------- scores
    @cute.jit
    def operands(self, memory):
        """(A fragments of the Q ring, B fragments of the K ring, shape of an accumulator)"""
        f = self.form
        dtype = Int8 if f.int8 else BFloat16
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
        q_layout = cute.tile_to_shape(atom, (TILE_ROWS, HEAD_DIM, f.slots * TILES), order=(0, 1, 2))
        k_layout = cute.tile_to_shape(atom, (PAGE, HEAD_DIM, f.stages), order=(0, 1, 2))
        q = cute.make_tensor(cute.recast_ptr(memory, q_layout.inner, dtype=dtype), q_layout.outer)
        k = cute.make_tensor(cute.recast_ptr(memory + f.k_ring, k_layout.inner, dtype=dtype), k_layout.outer)
        mma = new_mma(f.int8)
        thread = mma.get_slice(0)
        return mma.make_fragment_A(thread.partition_A(q)), mma.make_fragment_B(thread.partition_B(k)), mma.partition_shape_C((TILE_ROWS, PAGE))

    @cute.jit
    def score(self, args, memory, smem: Int32, cta: Int32, ctas: Int32, warp: Int32, lane: Int32):
        f = self.form
        group = warp // 4
        a, b, shape = self.operands(memory)
        kind = Int32 if f.int8 else Float32
        accs = [cute.make_rmem_tensor(shape, kind) for _ in range(f.tiles)]
        row = group * (f.tiles * TILE_ROWS) + (warp % 4) * 16 + lane // 4      # of the first tile, first half
        if const_expr(f.tiles == 2):
            my_row = row + ((lane & 2) // 2) * TILE_ROWS + (lane & 1) * 8
        else:
            my_row = row + ((lane & 2) // 2) * 8
        stage, k_parity, slot, q_parity = Int32(0), Int32(0), Int32(0), Int32(0)
        left, page, place, full, rows, mine, exists = Int32(0), Int32(0), Int32(0), Int32(0), Int32(0), Int32(0), Int32(0)
        limits = [Int32(0)] * (2 * f.tiles)
        addr, scale, factor = Int64(0), Float32(0.0), Float32(0.0)
        _, steps = self.walk.share(args, cta, ctas)
        if const_expr(self.helps):
            if steps > 0:
                bar_sync(Int32(DESCRIBED), 32 * self.first_workers)
                self.widen_first(args, queries.described(smem + f.items), smem, f.wideners + warp, lane)
                bar_arrive(Int32(WIDENED), 32 * self.first_workers)
        for _ in cutlass.range(steps, unroll=1):
            if left == 0:
                mbarrier_wait(smem + f.q_full + slot * 8, q_parity)
                left, place, full, rows, limits, mine, exists, addr, scale = self.open_item(args, smem + f.items + slot * 64, group, row, my_row, lane)
                if const_expr(f.int8):
                    factor = bits_f32(lds32(smem + f.factors + slot * (queries.ROWS * 4) + my_row * 4))
                mbarrier_wait(smem + f.k_full + stage * 8, k_parity)
                page = cute.arch.make_warp_uniform(lds32(smem + f.infos + stage * 16)) - place
            mbarrier_wait(smem + f.k_full + stage * 8, k_parity)
            # `page` is known from the page before: which copy of the step to take need not wait for this
            _, next_page, page_factor, _ = lds128(smem + f.infos + stage * 16)
            tile = slot * TILES + group * f.tiles
            k_empty = smem + f.k_empty + stage * 8
            maxima = [kind(0) for _ in range(2 * f.tiles)]
            if const_expr(not self.skips_empty):
                maxima = self.products(accs, a, b, tile, stage, k_empty, limits, page, full)
            elif rows != 0:
                maxima = self.products(accs, a, b, tile, stage, k_empty, limits, page, full)
            else:
                cute.arch.sync_warp()
                arrive_once(k_empty)
            left = left - 1
            if left == 0:
                arrive_once(smem + f.q_empty + slot * 8)
                slot = slot + 1
                if slot == f.slots:
                    slot = Int32(0)
                    q_parity = q_parity ^ 1
            best = quad_max(maxima, lane)
            if const_expr(f.int8):
                best = Float32(best) * (factor * bits_f32(page_factor)) * scale         # exact but for `scale`: powers of two within the windows
            elif const_expr(OUT_SCALE[self.fmt] != 1.0):
                best = best * OUT_SCALE[self.fmt] * scale
            else:
                best = best * scale
            if mine < page * PAGE:
                best = Float32(-float("inf"))
            stg_f32_if(exists, addr + Int64(page) * Int64(args.tokens) * 4, best)
            page = cute.arch.make_warp_uniform(next_page) - place
            stage = stage + 1
            if stage == f.stages:
                stage = Int32(0)
                k_parity = k_parity ^ 1

    @cute.jit
    def products(self, accs, a, b, tile: Int32, stage: Int32, k_empty: Int32, limits, page: Int32, full: Int32):
        maxima = [(Int32 if self.form.int8 else Float32)(0) for _ in range(2 * self.form.tiles)]
        if page < full:
            maxima = step(self.form.int8, accs, a, b, tile, stage, k_empty, [None] * len(limits))
        else:
            maxima = step(self.form.int8, accs, a, b, tile, stage, k_empty, [columns_up_to(x - page * PAGE) for x in limits])
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

        tiles = self.form.tiles
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
