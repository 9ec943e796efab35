"""Prefill for sm_90a:

    scores[hq, kb, tq] = head_scale[hq] * max over the visible keys of page kb of q[tq, hq] . k[key, hq // R]

A launch before has written the schedule. Persistent CTAs, any number of them: all steps (one page against one item of
256 query rows) are numbered and cut evenly; a page's maximum stands alone, so a cut needs no reduction. Every role
goes through the same numbering (sm90_prefill_steps.py).

| warps | role |
|---|---|
| producers | bring key pages into one ring, query rows into another; write -inf. StagedProducer copies what launches before have dequantised; DirectProducer (sm90_prefill_direct.py) dequantises for itself |
| the others | score: warpgroups of 128 rows (bf16: 2, two WGMMA tiles each) or 64 (int8: 4, one tile each). An item's rows are the A operand of every product: in registers, or in the slot of the ring (`Producer.q_in_registers`) |

The staged prefill (`Prefill`) of NVFP4 is one such kernel, over all steps, in bf16. MXFP4 has two: `int8` over the
steps that int8 holds, twice as fast, and `bf16` over the others (sm90_choose_precision.py); either leaves at once
where it has no steps. The bits are the same: int8 is used where both are exact.

| barrier | arrivals a phase | completed when |
|---|---|---|
| k_full[s] | staged: 1 + bytes of the page; direct: 1 a producer warp | page lies in stage s |
| k_empty[s] | 1 a consumer warp | all products with it are done |
| q_full[s] | staged: 1 a lane that copies, and 1; direct: 1 a producer warp | rows and description lie in slot s |
| q_empty[s] | 1 a consumer warp | the rows are in registers; direct: all products with them are done |

A ring slot is first waited for with the parity of the phase before, so that fresh barriers pass. A share of no steps
touches no barrier: all roles agree on its length before the first wait.

A page is *full* for a warpgroup if all of its rows see every key of it; else a second copy of the step masks: column
c of a row counts iff 128 * page + c <= last_key of the row's token. That covers the diagonal, offsets and the tail of
a sequence alike.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ...configs.block_scores import PAGE
from ..device.ptx_barriers import fence_mbarrier_init, mbarrier_init, mbarrier_wait
from ..device.ptx_math import bits_f32, opaque, select
from ..device.ptx_memory import ldg_f32, lds32, lds128, stg_f32_if
from ..device.ptx_warp import lane_here
from ..device.ring import advance
from ..device.wgmma import tile_descriptor
from ..operands import s8
from ..operands.bf16 import OUT_SCALE
from . import prefill_schedule, sm90_prefill_queries
from .kernel import BlockScoresKernel
from .sm90_prefill_maxima import TILE_ROWS, arrive_once, columns_up_to, quad_max, step
from .sm90_prefill_staged import StagedProducer


@dataclasses.dataclass(frozen=True)
class ItemRows:
    """What a thread of a consumer warpgroup knows of an item.

    pages    pages of the item that this CTA has
    place    place in the pass of the sequence's page 0
    full     the first page of which not every row of the warpgroup sees every key
    some     whether the warpgroup has a row of the item
    limits   last key that each of the thread's rows sees, less the thread's first column
    mine     last key that the row whose score the thread stores sees, -1 for none
    exists   whether that row exists
    address  of that row's score of block 0
    scale    its head scale
    """

    pages: Int32
    place: Int32
    full: Int32
    some: Int32
    limits: tuple
    mine: Int32
    exists: Int32
    address: Int64
    scale: Float32


class PrefillKernel(BlockScoresKernel):
    """producer: what brings keys and queries, and how this kernel works with it (StagedProducer, or DirectProducer in
    sm90_prefill_direct.py)."""

    def __init__(self, name, producer):
        self.producer, self.config, self.format, self.steps = producer, producer.config, producer.format, producer.steps
        reason = self.config.fits()
        if reason:
            raise ValueError(f"{name} sm_90a, {self.config}: {reason}")
        self.name = name
        self.block = (self.config.threads, 1, 1)
        self.dynamic_shared_bytes = self.config.shared_bytes

    @cute.kernel
    def kernel(self, args):
        """One CTA: barriers, then a branch on the role of the warp."""
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
                mbarrier_init(smem + (f.k_full + 8 * s), self.producer.k_arrivals)
                mbarrier_init(smem + (f.k_empty + 8 * s), f.consumer_warps)
            for s in cutlass.range_constexpr(f.slots):
                mbarrier_init(smem + (f.q_full + 8 * s), f.q_arrivals)
                mbarrier_init(smem + (f.q_empty + 8 * s), f.consumer_warps)
            fence_mbarrier_init()
        cute.arch.sync_threads()
        if warp < f.producer_warps:
            cute.arch.setmaxregister_decrease(f.registers[0])
            self.producer.produce(args, layout, smem, cta, ctas, warp, lane)
        else:
            cute.arch.setmaxregister_increase(f.registers[1])
            self.score(args, smem, cta, ctas, warp - f.producer_warps, lane)

    # ---------------------------------------------------------------- scores
    @cute.jit
    def score(self, args, smem: Int32, cta: Int32, ctas: Int32, warp: Int32, lane: Int32):
        """The consumers: a step after the other, an item's rows in registers (or in the slot of the ring) as long as
        it lasts."""
        f = self.config
        group = warp // 4
        kind = Int32 if f.int8 else Float32
        operands = (
            [cute.make_rmem_tensor(f.row_bytes // 8, Int32) for _ in range(f.tiles)]
            if self.producer.q_in_registers
            else []
        )
        for t in cutlass.range_constexpr(len(operands)):
            for i in cutlass.range_constexpr(f.row_bytes // 8):
                operands[t][i] = Int32(0)
        keys = tile_descriptor(smem + f.k_ring)
        row = group * (f.tiles * TILE_ROWS) + (warp % 4) * 16 + lane // 4  # of the first tile, first half
        if const_expr(f.tiles == 2):
            my_row = row + ((lane & 2) // 2) * TILE_ROWS + (lane & 1) * 8
        else:
            my_row = row + ((lane & 2) // 2) * 8
        stage, k_parity, slot, q_parity = Int32(0), Int32(0), Int32(0), Int32(0)
        # The fields of ItemRows, one by one: as one value they would lie in other registers
        left, page, place, full, rows, mine, exists = (
            Int32(0),
            Int32(0),
            Int32(0),
            Int32(0),
            Int32(0),
            Int32(0),
            Int32(0),
        )
        limits = [Int32(0)] * (2 * f.tiles)
        addr, scale, factor = Int64(0), Float32(0.0), Float32(0.0)
        _, steps = self.steps.share(args, cta, ctas)
        for _ in cutlass.range(steps, unroll=1):
            if left == 0:
                mbarrier_wait(smem + f.q_full + slot * 8, q_parity)
                item = self.open_item(
                    args, smem + f.items + slot * sm90_prefill_queries.DESCRIPTION, group, row, my_row, lane
                )
                left, place, full, rows, limits = item.pages, item.place, item.full, item.some, list(item.limits)
                mine, exists, addr, scale = item.mine, item.exists, item.address, item.scale
                if const_expr(self.producer.q_in_registers):
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
            tiles, b = self.producer.operands_of(operands, smem, slot, group), keys + Int64(stage * (f.page_bytes >> 4))
            if const_expr(not self.producer.skips_empty):
                maxima = self.products(tiles, b, k_empty, limits, page, full)
            elif rows != 0:
                maxima = self.products(tiles, b, k_empty, limits, page, full)
            else:
                cute.arch.sync_warp()
                arrive_once(k_empty)
            left = left - 1
            if const_expr(not self.producer.q_in_registers):
                if left == 0:
                    slot, q_parity = self.give_back(smem, slot, q_parity)
            best = quad_max(maxima, lane)
            if const_expr(f.int8):
                # Exact but for `scale`: powers of two within the windows
                best = Float32(best) * (factor * bits_f32(page_factor)) * scale
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
        """The thread's rows out of a slot (shared address) into its A operands. Returns int8's factor of the row that
        it stores, 2^(least exponent - 128)."""
        factor = Float32(1.0)
        if const_expr(self.config.int8):
            low, high = sm90_prefill_queries.widen_int8(operands[0], slot, row, lane)
            factor = bits_f32(s8.unit_bits(select(lane & 2, Int32(0), low, high)))
        else:
            for t in cutlass.range_constexpr(self.config.tiles):
                sm90_prefill_queries.widen_bf16(operands[t], slot, row + t * TILE_ROWS, lane, self.format)
        return factor

    @cute.jit
    def products(self, tiles, b: Int64, k_empty: Int32, limits, page: Int32, full: Int32):
        """Products and maxima of one page (sm90_prefill_maxima.step), masked where not all rows see all of its keys."""
        maxima = [(Int32 if self.config.int8 else Float32)(0) for _ in range(2 * self.config.tiles)]
        if page < full:
            maxima = step(self.config.int8, tiles, b, k_empty, [None] * len(limits))
        else:
            maxima = step(self.config.int8, tiles, b, k_empty, [columns_up_to(x - page * PAGE) for x in limits])
        return maxima

    @cute.jit
    def open_item(self, args, desc: Int32, group: Int32, row: Int32, my_row: Int32, lane: Int32):
        """Read an item's description. Returns ItemRows."""
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
            addr = (
                args.scores.toint() + (Int64(my_head) * Int64(args.k_tiles) * Int64(args.tokens) + Int64(my_token)) * 4
            )
        return ItemRows(pages, place, full, rows, tuple(limits), mine, exists, addr, scale)


class Prefill(PrefillKernel):
    """The staged prefill. format: "nvfp4" | "mxfp4"; scale_layout: "public" | "preordered_mma"; precision: "bf16" |
    "int8" (mxfp4 only)."""

    def __init__(self, format, scale_layout, precision="bf16"):
        what = "prefill" if precision == "bf16" else f"prefill_{precision}"
        super().__init__(
            f"block_scores.{what}.{format}.{scale_layout}", StagedProducer(format, scale_layout, precision)
        )
