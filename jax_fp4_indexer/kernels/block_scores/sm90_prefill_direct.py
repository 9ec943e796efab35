"""Prefill for few query rows a KV head, sm_90a: the staged prefill (sm90_prefill.py) with key pages dequantised where
they are used.

A dequantised page is 32 KB, written and read back: 3.5 times what its codes are, and worth it only where several
items read it. Here each item that meets a page dequantises it for itself, straight from codes and scales into the K
ring, so that there is neither a pre-pass over the pages nor memory for it, and the page list is worked in one go
whatever its length. Ring, barriers, items and scores are those of sm90_prefill.py; only the producers differ, and
where the consumers' A operand is: eight producer warps leave no registers for it, so queries are dequantised into the
Q ring.

    warps 0..7    feed    an item's queries into the Q ring, then the rows of its pages into the K ring, 16 rows of a
                  page a warp; between items, and
                          to the end of the work, their share of the -inf fill

A lane takes a quarter of a row: 16 bytes of codes and their scales. As soon as a block of 8 rows is taken out of the
registers, the next page's is loaded into them, so that a load has the time of a whole page. Rows of queries and keys
lie as sm90_prepare.py lays out keys, four bytes of each quarter in a piece (8 rows of four lanes then hit all banks):
a score sums in the order of the staged prefill, and has its bits.

MXFP4: rows that bf16 does not hold are flagged here, page by page, as sm90_prepare.py does for staged pages:
page_flags by atomic maximum, the header's flag by atomic or; the plan's launch has cleared both.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...configs.block_scores import CODE_BYTES, GROUPS, KEY_WINDOW, PAGE, QUERY_CHUNK
from ..device.ptx_barriers import fence_async_shared, mbarrier_wait
from ..device.ptx_math import outside, shr
from ..device.ptx_memory import ld_v4, ld_v4_passing, ldg32, red_max, red_or, sts32, sts_v4
from ..device.ptx_warp import redux, shfl_idx
from ..device.ring import advance
from ..device.wgmma import tile_descriptor
from ..epilogues import fill_by_table
from ..operands.bf16 import codes_to_bf16, key_codes_to_bf16, key_scale, load_scales, query_scales_of_quarter
from ..operands.scale_addresses import Operators, tile_bytes, tiled_offset
from . import sm90_prefill_queries
from .sm90_prefill import PrefillKernel
from .sm90_prefill_config import CONFIGS, ROWS_LOG2
from .sm90_prefill_maxima import TILE_ROWS, arrive_once
from .sm90_prefill_steps import AllSteps

FEEDERS = CONFIGS["direct"].producer_warps
ROWS = 8 * FEEDERS  # from a block of 8 rows of a warp to its next
BLOCKS = PAGE // ROWS
Q_BATCH = 2  # blocks of 8 query rows of a warp whose loads are in flight
NAN_SCALES = {"nvfp4": 0x7F7F, "mxfp4": 255}  # or-ed to the scale bytes of a lane: NaN


def store_pairs(base, j, half, offset, pairs):
    """The pairs of word j of a quarter into their pieces 4 * j + p. base: the row's address + 4 * quarter, and in
    bits 4..6, which the swizzle turns, row % 8; half: bytes from the first eight pieces to the others."""
    for p, pair in enumerate(pairs):
        sts32(base ^ ((j % 2 * 4 + p) * 16), j // 2 * half + offset, pair)


class DirectProducer:
    """See StagedProducer for what the fields say."""

    k_arrivals = FEEDERS
    q_in_registers = False
    skips_empty = True

    def __init__(self, format, scale_layout):
        self.format, self.scale_layout, self.config = format, scale_layout, CONFIGS["direct"]
        self.steps = AllSteps()
        self.flagged = format == "mxfp4"

    @cute.jit
    def produce(self, args, layout, smem: Int32, cta: Int32, ctas: Int32, warp: Int32, lane: Int32):
        """A producer warp: queries of each item of the CTA's share into the Q ring, its pages into the K ring, then
        its share of the fill."""
        f = self.config
        unit, units = Int64(cta * FEEDERS + warp), fill_by_table.fill_units(args)
        stride = Int64(ctas * FEEDERS)
        first, left = self.steps.share(args, cta, ctas)
        if left > 0:
            codes, scales = cute.make_rmem_tensor(BLOCKS * 4, Int32), cute.make_rmem_tensor(BLOCKS, Int32)
            for i in cutlass.range_constexpr(BLOCKS * 4):
                codes[i] = Int32(0)
            for i in cutlass.range_constexpr(BLOCKS):
                scales[i] = Int32(0)
            slot, q_parity, stage, k_parity = Int32(0), Int32(1), Int32(0), Int32(1)
            at, skip = self.steps.start(args, layout, first)
            while left > 0:
                item = self.steps.load_item(args, layout, at, skip, ROWS_LOG2)
                pages = cutlass.min(left, item.pages)
                ids = self.page_ids(args, item, Int32(0), pages, lane)
                ids_ahead = self.page_ids(args, item, Int32(32), pages, lane)
                nan = self.load_page(args, item, shfl_idx(ids, Int32(0)), codes, scales, warp, lane)
                mbarrier_wait(smem + f.q_empty + slot * 8, q_parity)
                if (warp == 0) & (lane == 0):
                    sm90_prefill_queries.describe(
                        smem + f.items + slot * sm90_prefill_queries.DESCRIPTION, item, item.flat, pages
                    )
                self.widen_item(args, item, smem + f.q_ring + slot * f.slot_bytes, warp, lane)
                fence_async_shared()
                cute.arch.sync_warp()
                arrive_once(smem + f.q_full + slot * 8)
                slot, q_parity = advance(slot, q_parity, f.slots)
                for p in cutlass.range(pages, unroll=1):
                    following = p + 1
                    if following % 32 == 0:
                        ids = ids_ahead
                        ids_ahead = self.page_ids(args, item, following + 32, pages, lane)
                    page_id = shfl_idx(ids, following % 32)
                    if following == pages:
                        page_id = Int32(-1)  # nothing to load
                    mbarrier_wait(smem + f.k_empty + stage * 8, k_parity)
                    if (warp == 0) & (lane == 0):
                        here = item.flat + item.page + p
                        sts_v4(smem + f.infos + stage * 16, [here, here + 1, Int32(0), Int32(0)])
                    counted = item.k_len - (item.page + p) * PAGE
                    nan, bad = self.widen_page(
                        args,
                        item,
                        page_id,
                        nan,
                        counted,
                        smem + f.k_ring + stage * f.page_bytes,
                        codes,
                        scales,
                        warp,
                        lane,
                    )
                    fence_async_shared()
                    cute.arch.sync_warp()
                    arrive_once(smem + f.k_full + stage * 8)
                    if const_expr(self.flagged):
                        self.flag_page(args, layout, item, p, bad, lane)
                    stage, k_parity = advance(stage, k_parity, f.stages)
                left, first = left - pages, first + Int64(pages)
                skip = Int32(0)
                at = self.steps.next_cursor(args, layout, at, item, first)
                if unit < units:
                    fill_by_table.fill_unit(args, layout, unit, lane)
                    unit = unit + stride
        while unit < units:
            fill_by_table.fill_unit(args, layout, unit, lane)
            unit = unit + stride
        if const_expr(self.flagged):
            if (cta == 0) & (warp == 1):
                self.flag_queries(args, layout, lane)

    # ---------------------------------------------------------------- queries
    @cute.jit
    def widen_item(self, args, item, slot: Int32, warp: Int32, lane: Int32):
        """This warp's part of the rows of an item, four blocks of 8 rows, dequantised into a slot: tiles of 64 rows,
        laid out as a page of 64."""
        part, row8 = lane % 4, lane // 4
        base = slot + row8 * 144 + part * 4
        for first in cutlass.range(warp, sm90_prefill_queries.ROWS // 8, FEEDERS * Q_BATCH, unroll=1):
            words, scales = [], []
            for i in cutlass.range_constexpr(Q_BATCH):
                token, head = sm90_prefill_queries.place_of(item, (first + FEEDERS * i) * 8 + row8)
                words.append(ld_v4(sm90_prefill_queries.row_address(args, token, head) + Int64(part * 16)))
                scales.append(
                    load_scales(
                        sm90_prefill_queries.scale_address(args, token, head, part, self.format, self.scale_layout),
                        self.format,
                    )
                )
            # Keeps the loads together (they are not read-only ones): ptxas would sink each to its use
            cute.arch.sync_warp()
            for i in cutlass.range_constexpr(Q_BATCH):
                block = first + FEEDERS * i
                factor = query_scales_of_quarter(scales[i], self.format)
                dst = base + (block // 8) * 16384 + (block % 8) * 1024
                for j in cutlass.range_constexpr(4):
                    store_pairs(dst, j, 8192, 0, codes_to_bf16(words[i][j], factor[j // 2]))

    def operands_of(self, operands, smem, slot, group):
        """A operand of each tile of the warpgroup: a descriptor of the slot's rows."""
        f = self.config
        first = tile_descriptor(smem + f.q_ring + slot * f.slot_bytes + group * (f.tiles * TILE_ROWS * f.row_bytes))
        return [first + Int64(t * (TILE_ROWS * f.row_bytes >> 4)) for t in range(f.tiles)]

    # ---------------------------------------------------------------- loads
    @cute.jit
    def page_ids(self, args, item, first: Int32, pages: Int32, lane: Int32):
        """A lane a page: ids of the item's pages first .. first + 31; -1 past its last."""
        page_id = Int32(-1)
        if first + lane < pages:
            page_id = ldg32(args.kv_indices.toint() + (Int64(item.flat) + Int64(item.page + first + lane)) * 4)
        return page_id

    @cute.jit
    def addresses(self, args, item, page_id: Int32, warp: Int32, lane: Int32):
        """(codes, scales) of this lane's part of the warp's first block of 8 rows of a page."""
        row, part = warp * 8 + lane // 4, lane % 4
        source = Int64(page_id) * Int64(args.heads_kv) + Int64(item.kv)
        groups = GROUPS[self.format]
        scale_bytes, scale_at = PAGE * groups, row * groups + part * (groups // 4)
        if const_expr(self.scale_layout != "public"):
            scale_bytes, scale_at = tile_bytes(self.format), tiled_offset(row, part * (groups // 4), Operators)
        return args.k.toint() + source * (PAGE * CODE_BYTES) + Int64(
            row * CODE_BYTES + part * 16
        ), args.k_scale.toint() + source * scale_bytes + Int64(scale_at)

    @cute.jit
    def load_block(self, code_at: Int64, scale_at: Int64, codes, scales, i: cutlass.Constexpr):
        """Block i of the warp's into its registers."""
        step = ROWS * GROUPS[self.format] if self.scale_layout == "public" else ROWS // 32 * 4
        words = ld_v4_passing(code_at, i * ROWS * CODE_BYTES)
        for j in cutlass.range_constexpr(4):
            codes[i * 4 + j] = words[j]
        scales[i] = load_scales(scale_at + i * step, self.format)

    @cute.jit
    def load_page(self, args, item, page_id: Int32, codes, scales, warp: Int32, lane: Int32):
        """An item's first page. Returns what `widen_page` is to know of it: 0, or NAN_SCALES for a page that does not
        exist."""
        nan = Int32(NAN_SCALES[self.format])
        if (page_id >= 0) & (page_id < args.num_pages):
            nan = Int32(0)
            code_at, scale_at = self.addresses(args, item, page_id, warp, lane)
            for i in cutlass.range_constexpr(BLOCKS):
                self.load_block(code_at, scale_at, codes, scales, i)
        cute.arch.sync_warp()  # keeps the loads here
        return nan

    # ---------------------------------------------------------------- a page
    @cute.jit
    def widen_page(
        self,
        args,
        item,
        next_id: Int32,
        nan: Int32,
        counted: Int32,
        stage: Int32,
        codes,
        scales,
        warp: Int32,
        lane: Int32,
    ):
        """The page in the registers into the ring; page `next_id` into the registers, if it exists. nan: NAN_SCALES
        make it a page of NaN. Returns (the same for the next page; MXFP4: 128 - the first row of this lane with a
        counted exponent outside the window, or 0)."""
        row8 = lane // 4
        base = stage + warp * 1024 + row8 * 144 + lane % 4 * 4
        next_nan, bad = Int32(NAN_SCALES[self.format]), Int32(0)
        if (next_id >= 0) & (next_id < args.num_pages):
            next_nan = Int32(0)
        code_at, scale_at = self.addresses(args, item, next_id, warp, lane)
        for i in cutlass.range_constexpr(BLOCKS):
            words, raw = [codes[i * 4 + j] for j in range(4)], scales[i] | nan
            if next_nan == 0:
                self.load_block(code_at, scale_at, codes, scales, i)
            cute.arch.sync_warp()  # keeps the loads here
            factors = [key_scale(raw, self.format)] * 2
            if const_expr(self.format == "nvfp4"):
                factors[1] = key_scale(shr(raw, 8), self.format)
            for j in cutlass.range_constexpr(4):
                store_pairs(base, j, 16384, i * ROWS * 128, key_codes_to_bf16(words[j], factors[j // 2], self.format))
            if const_expr(self.flagged):
                row = warp * 8 + row8 + i * ROWS
                if (row < counted) & (raw != 255):
                    bad = cutlass.max(
                        bad, outside(raw, Int32(KEY_WINDOW[0]), Int32(KEY_WINDOW[1] - KEY_WINDOW[0])) * (PAGE - row)
                    )
        return next_nan, bad

    @cute.jit
    def flag_page(self, args, layout, item, p: Int32, bad: Int32, lane: Int32):
        """MXFP4: note what `widen_page` found, for the fixup."""
        worst = redux("max", bad)
        if (worst != 0) & (lane == 0):
            at = (Int64(item.flat) + Int64(item.page + p)) * Int64(args.heads_kv) + Int64(item.kv)
            red_max(args.scratch.toint() + layout.page_flags + at * 4, worst)
            red_or(args.scratch.toint() + 8, Int32(1))

    @cute.jit
    def flag_queries(self, args, layout, lane: Int32):
        """One warp adds the query rows' part of the header's flag, from what the plan's launch has written."""
        found, count = Int32(0), (args.tokens + QUERY_CHUNK - 1) // QUERY_CHUNK
        for i in cutlass.range((count + 255) // 256, unroll=1):
            words = [
                ldg32(
                    args.scratch.toint()
                    + layout.query_flags
                    + Int64(cutlass.min(i * 256 + j * 32 + lane, count - 1)) * 4
                )
                for j in range(8)
            ]
            for j in cutlass.range_constexpr(8):
                found = found | words[j]
        if ((redux("or", found) & 1) != 0) & (lane == 0):
            red_or(args.scratch.toint() + 8, Int32(2))


class PrefillDirect(PrefillKernel):
    """format: "nvfp4" | "mxfp4"; scale_layout: "public" | "preordered_mma"."""

    def __init__(self, format, scale_layout):
        super().__init__(f"block_scores.prefill_direct.{format}.{scale_layout}", DirectProducer(format, scale_layout))
