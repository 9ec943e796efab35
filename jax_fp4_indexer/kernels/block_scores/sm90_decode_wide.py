"""Block scores, packed-query decode, sm_90a, for more than 16 packed rows: as sm90_decode.py, on wgmma, which a wide
tile fills better:

    scores[hq, kb, tq] = max over the visible keys of page kb of q[tq, hq] . k[key, hq // R], times head_scale[hq]

Every page's maximum stands alone, so the units (page, KV head), flattened over the sequences, are cut evenly over all
warpgroups of the grid and nothing is reduced between them. A warpgroup walks its units in order:

| warps | do |
|---|---|
| warp w, page ordinal o with o % 4 == w | waits for the four warps' maxima, reduces and stores the page's scores, refills its ring stage (a lane a page: `Ring`) |
| every warp | a slice of 32 keys: codes -> f16 operands in registers -> wgmma m64 n(columns) k16 against the staged columns -> maxima to shared memory |
| every warp, on a page whose slice is not fully visible or not regular | the same maxima again in the any-scale path, for the columns concerned |
| all threads of the grid, while the first pages are on their way | -inf of blocks past a sequence and of padding tokens |

Copies are cp.async.bulk (codes, then scales, one mbarrier a stage); 147 KB in flight an SM hide the latency. The
second m64 tile of a page runs in the tensor core under the decode of the next page's first. Named barriers (four a
warpgroup) replace empty-stage mbarriers: a page's stage is free once its four warps have arrived, and no warp gets
four pages ahead, because each of them waits once in four pages. One warp waits and three arrive: were all to wait, at
two places of the code, compute-sanitizer would call it divergence.

A score is a function of its own query row and its block alone: a column takes the any-scale path on a slice if it
does not see all 32 keys, or if a scale of its own or of these keys asks for it, whatever the other columns are.
Columns beyond `columns` (R * q_len large) are worked in further tiles, page by page, the page staying in its stage.

The way of the one warp that reduces a page is what the other three wait for at the next matrix instruction, so it is
kept short: what it needs is read before the barrier, a page's address is known long before its turn, and the refill
comes behind the next matrix instructions. Between the matrix instructions of a tile lies nothing that waits: neither
a scale on its way nor a descriptor to compute. docs/notebook/sm90_decode_wgmma.md has what was tried.

| columns | warpgroups | registers (nvfp4, mxfp4) | shared memory | measured on H200, B 128, q_len 4, Hq/Hkv 4/1, 32k keys |
|---|---|---|---|---|
| 32 | 3 | 144, 151 | 194 KB | for R * q_len above 16: 123 us with 16 rows (an earlier build) |
| 64 | 2 | 172, 180 | 183 KB, 187 KB | above 32: 187 us with 16 rows (an earlier build) |
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ..addressing.ragged import table_from
from ..addressing.shares import cut
from ..device import wgmma
from ..device.ptx_barriers import bar_arrive, bar_sync, mbarrier_wait
from ..device.ptx_math import bits_f32, fmax_nan, fmul, opaque, pack64
from ..device.ptx_memory import lds128, lds128_f32, stg_f32_if, sts128_f32
from ..epilogues.block_max import over_row_groups
from ..epilogues.fill_ragged import fill_invisible
from .kernel import BlockScoresArgs, BlockScoresKernel
from .sm90_decode_ring import Ring
from .sm90_decode_start import Warp
from .sm90_decode_wide_columns import Columns
from .sm90_decode_wide_config import WideDecodeConfig
from .sm90_decode_wide_pages import SLICE_END, Slice


class WideDecodeKernel(BlockScoresKernel):
    cluster = (1, 1, 1)
    grid = {"per_sm": 1}

    def __init__(self, config: WideDecodeConfig):
        reason = config.fits()
        if reason:
            raise ValueError(f"block_scores decode sm_90a, {config}: {reason}")
        self.c = config
        self.name = config.name
        self.block = (config.threads, 1, 1)
        self.dynamic_shared_bytes = config.shared_bytes

    @cute.kernel
    def kernel(self, args: BlockScoresArgs):
        """One CTA: the start, then the loop over this warpgroup's units: sequence by sequence, tile of columns by
        tile, page by page."""
        c = self.c
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        w = Warp.here(c, args)
        seqs = table_from(args, w.shared + c.warpgroups * c.warpgroup_bytes)
        ring, part, columns = Ring(c, args, seqs), Slice(c, w), Columns(c, args)
        seqs.load(thread, c.threads)
        w.make_barriers()
        cute.arch.sync_threads()

        # This warpgroup's units [u, stop)
        falls = seqs.falls(w.lane, c.threads)
        u, stop = cut(seqs.total_units() * (1 - falls), ctas * c.warpgroups, cta * c.warpgroups + w.group)
        u, end, _, head, _, index = seqs.find_run(u, stop, w.lane)
        cursor = ring.refill(w, ring.start(w, u, end, head, index - u, stop), w.warp)
        fill_invisible(
            seqs, falls, args.scores.toint(), args.heads_q, cta * c.threads + w.index * 32 + w.lane, ctas * c.threads
        )

        descriptors = part.descriptors(w)
        output = w.base + c.outputs + self.output_column(w) * 16
        ordinal, tile = Int32(0), Int32(0)
        while u < stop:
            u, end, sequence, kv_head, block, _ = seqs.find_run(u, stop, w.lane)
            if u < stop:
                # Of the page's own barrier if it is new, else of any other: the page's maxima come next to its own,
                # before all warps have left it
                fast, tiles = columns.stage(
                    w, seqs, sequence, kv_head, tile, w.barrier + ((ordinal + Int32(tile > 0)) & 3)
                )
                first_unit = u - block  # of block 0
                if tiles > 1:
                    end = u + 1
                release = Int32(1)
                if tile + 1 < tiles:
                    release = Int32(0)
                last = end - first_unit
                while block < last:
                    # A segment: the blocks that the fast path serves for every column, or one other block
                    segment_end = cutlass.min(last, fast >> 7)
                    if segment_end <= block:
                        segment_end = block + 1
                    pending = Int32(0)
                    acc1 = [Float32(0.0)] * (c.columns // 2)
                    best0 = [Float32(float("-inf"))] * (c.columns // 4)
                    factor = Int32(1)
                    while block < segment_end:
                        cursor = ring.settle(w, cursor, stop)
                        stage = ordinal & 3
                        mbarrier_wait(w.base + c.barriers + stage * 8, (ordinal >> 2) & 1)
                        buffer = w.base + stage * c.page_bytes
                        # Stage of the page before: computed here, under the loads
                        before = opaque((ordinal - 1) & 3)
                        scales, window = part.scales(buffer)
                        # The last page's second tile ran while this page's first was decoded
                        operand = wgmma.fence(part.operand(buffer, 0, scales))
                        acc1 = wgmma.wait(acc1, 0)
                        best = part.maximum(best0, acc1)
                        acc0 = part.issue(operand, descriptors, [Float32(0.0)] * (c.columns // 2))
                        due = Int32(0)
                        if pending != 0:
                            due, cursor = self.combine(
                                w, ring, part, best, factor, before, block - 1, None, Int32(1), cursor, output
                            )
                        operand = wgmma.fence(part.operand(buffer, 1, scales))
                        acc1 = part.issue(operand, descriptors, acc1)
                        if due != 0:
                            cursor = ring.refill(w, cursor, (ordinal - 1) & 3)
                        factor = part.factor(window)
                        acc0 = wgmma.wait(acc0, 1)
                        best0 = part.maximum(None, acc0)
                        pending = Int32(1)
                        ordinal = ordinal + 1
                        block = block + 1
                    acc1 = wgmma.wait(acc1, 0)
                    _, cursor = self.combine(
                        w,
                        ring,
                        part,
                        part.maximum(best0, acc1),
                        factor,
                        (ordinal - 1) & 3,
                        block - 1,
                        fast,
                        release,
                        cursor,
                        output,
                    )
                u = first_unit + block
                tile = tile + 1
                if release != 0:
                    tile = Int32(0)
                else:  # the same page again, against the next tile of columns
                    u, ordinal = u - 1, ordinal - 1

    @cute.jit
    def combine(self, w, ring, part, best, factor, stage, kb, fast, release, cursor, output):
        """A page's maxima of this warp to shared memory; one warp of the four reduces them and stores the scores.

        fast: keys that the fast path serves for every column; None inside a segment, where it serves them all.
        Returns (whether this warp is to refill the stage, always 0 at a segment's end where that is done here;
        cursor)."""
        c = self.c
        maxima = w.base + c.maxima + stage * (c.columns * 128)
        mine = maxima + w.warp * 512 + w.lane * 16
        if const_expr(c.format == "mxfp4"):
            best = part.rescale(w, best, bits_f32(factor))
        for i in cutlass.range_constexpr(c.columns // 16):
            sts128_f32(mine + i * 2048, best[4 * i : 4 * i + 4])
        irregular, due = Int32(factor == 0), Int32(0)
        need = irregular
        if const_expr(fast is not None):
            if fast <= kb * 128 + (SLICE_END - 1 + 16 * w.warp):
                need = need | 2
        if const_expr(fast is not None or c.format == "mxfp4"):
            if need != 0:
                part.general(w.aside(), stage, kb, irregular, 1 if const_expr(fast is None) else 4)
        if stage == w.warp:
            bad = cursor.bad
            # Read before the barrier, whose wait hides it
            outputs = [lds128(output, i * 16) for i in range(max(1, c.columns // 32))]
            bar_sync(w.barrier + stage, 128)
            values = []
            for i in cutlass.range_constexpr(c.columns // 16):
                four = [lds128_f32(maxima + i * 2048 + w.lane * 16, 512 * x) for x in range(4)]
                values += [
                    fmax_nan(fmax_nan(four[0][x], four[1][x]), fmax_nan(four[2][x], four[3][x])) for x in range(4)
                ]
            self.store(w, over_row_groups(values, w.lane), bad, kb, outputs)
            if const_expr(fast is None):
                due = Int32(1)
            elif release != 0:
                cursor = ring.refill(w, cursor, stage)
        else:
            bar_arrive(w.barrier + stage, 128)
        return due, cursor

    def output_column(self, w):
        """The column whose score a lane holds after over_row_groups (with 64 columns: this one and the next; with 16:
        lanes without bit 2)."""
        values, v = self.c.columns // 4, Int32(0)
        for bit in (16, 8, 4):
            values = values // 2
            v = v + ((w.lane >> bit.bit_length() - 1) & 1) * values
        return (v >> 1) * 8 + 2 * w.t + (v & 1)

    @cute.jit
    def store(self, w, values, bad, kb, outputs):
        """Scores of block kb from the columns' maxima; NaN where the page's id is out of range (`bad`). outputs: what
        `Columns.store` laid out for the columns."""
        c = self.c
        for i in cutlass.range_constexpr(len(values)):
            low, high, visible, scale = outputs[i]
            address = pack64(low, high)
            r = values[i]
            if const_expr(c.format == "nvfp4"):
                r = fmul(r, Float32(16384.0))
            r = fmul(r, bits_f32(scale))
            if bad != 0:
                r = Float32(float("nan"))
            if visible <= kb * 128:
                r = Float32(float("-inf"))
            holds = address != 0
            stg_f32_if(Int32(holds), address + Int64(kb) * (Int64(w.tokens) * 4), r)
