"""The roles that compute: products of tiles into TMEM, maxima out of it.

Tile number t of a CTA (pages of a segment in order, live heads fastest) goes to accumulator t % ACC_STAGES, announced
by barrier acc_full[t % FULL], and is reduced by warpgroup t % 2. FULL is even, so a barrier belongs to one warpgroup,
which sees every phase of it.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ..device import tcgen05
from ..device.ptx_barriers import fence_async_shared, mbarrier_wait
from ..device.ptx_math import add_sat, fmul, select_f32
from ..device.ptx_memory import ldg_f32, stg_f32
from ..device.ptx_warp import ballot_le
from ..device.ring import advance
from .sm100_config import ACC_STAGES, FULL, Q_STAGES, ROWS, SFK_SETS
from .sm100_operands import CODES
from .sm100_protocol import next_segment, tiles_of


@cute.jit
def multiply_tiles(config: cutlass.Constexpr, shared, tmem: Int32, lane: Int32):
    """One warp. Key scales go to one of SFK_SETS column sets, round-robin: a tile's acc_empty proves that the
    products ACC_STAGES tiles back are complete, so a set is never rewritten under a product that reads it; nothing
    relies on the order of a product and a later copy. Query scale columns belong to a q stage, whose q_full proves
    (through the gatherers' wait for q_empty) that its last products are complete."""
    zero = Int32(0)
    stage, k_phase, key_set, full, turn = zero, zero, zero, zero, zero
    q_codes, k_codes = tcgen05.start(shared.base + config.q_codes), tcgen05.start(shared.base + config.k_codes)
    q_scales, k_scales = tcgen05.start(shared.base + config.q_scales), tcgen05.start(shared.base + config.k_scales)
    segment = next_segment(shared, turn, lane)
    while segment.pages >= 0:
        q, tiles = turn % Q_STAGES, tiles_of(config, segment)
        mbarrier_wait(shared.q_full + q * 8, (turn // Q_STAGES) & 1)
        first = q * config.heads
        if segment.pages > 0:
            h = Int32(0)
            while h < tiles:
                tcgen05.copy_scales(
                    tmem + (config.sfq_column + (first + h) * config.sf_columns),
                    q_scales + (first + h) * (config.scale_bytes // 16),
                    config.words,
                )
                h = h + 1
        j = Int32(0)
        while j < segment.pages:
            mbarrier_wait(shared.k_full + stage * 8, k_phase)
            if const_expr(config.scale_layout == "public"):
                fence_async_shared()  # the copied words are generic writes of another warp
            columns = tmem + (config.sfk_column + key_set * config.sf_columns)
            h = Int32(0)
            while h < tiles:
                a, used = accumulator_of(full)
                mbarrier_wait(shared.acc_empty + a * 8, used ^ 1)
                tcgen05.fence_after()
                if h == 0:
                    tcgen05.copy_scales(columns, k_scales + stage * (config.scale_bytes // 16), config.words)
                tcgen05.multiply(
                    config.format,
                    tmem + a * 128,
                    q_codes + (first + h) * (CODES // 16),
                    k_codes + stage * (CODES // 16),
                    tmem + (config.sfq_column + (first + h) * config.sf_columns),
                    columns,
                    shared.acc_full + full * 8,
                )
                full, _ = advance(full, zero, FULL)
                h = h + 1
            tcgen05.commit(shared.k_empty + stage * 8)
            stage, k_phase = advance(stage, k_phase, config.stages)
            key_set, _ = advance(key_set, zero, SFK_SETS)
            j = j + 1
        tcgen05.commit(shared.q_empty + q * 8)
        turn = turn + 1
        segment = next_segment(shared, turn, lane)


@cute.jit
def accumulator_of(full: Int32):
    """(accumulator of the tile whose number modulo FULL is given, parity of how often it was used before): FULL is
    twice the accumulators."""
    a, used = full, Int32(0)
    if full >= ACC_STAGES:
        a, used = full - ACC_STAGES, Int32(1)
    return a, used


@cute.jit
def reduce_tiles(config: cutlass.Constexpr, shared, args, tmem: Int32, warp: Int32, lane: Int32):
    """Two warpgroups, a row of every second tile a thread. Pages that every row sees whole first, then the others:
    two loops, because ptxas turns a branch into predicates, and then every tile pays for the mask."""
    group, row = warp // 4, (warp % 4) * 32 + lane
    tmem = tmem + (((warp % 4) * 32) << 16)  # lanes of TMEM that this warp may read
    ratio = args.heads_q // args.heads_kv
    own_token, own_head = row, Int32(0)
    if const_expr(config.packed):
        heads = cutlass.min(ratio, Int32(ROWS))
        own_token = row // heads
        own_head = row - own_token * heads
    head_step = Int64(args.k_tiles) * Int64(args.tokens) * 4
    block_step = Int64(args.tokens) * 4
    turn, before = Int32(0), Int32(0)  # before: tiles of earlier segments, modulo 2
    full, phase = group, Int32(0)
    segment = next_segment(shared, turn, lane)
    while segment.pages >= 0:
        tiles = tiles_of(config, segment)
        live = (own_token < segment.tokens) & (own_head < segment.heads)
        seen = cutlass.min(cutlass.max(add_sat(add_sat(segment.key, own_token), Int32(1)), 0), segment.k_len)
        scales = args.head_scale.toint() + Int64(segment.head + own_head) * 4
        # this warpgroup's first tile of the segment
        h, j = (before ^ group) & 1, Int32(0)
        if h >= tiles:
            h, j = h - tiles, Int32(1)
        at = (
            args.scores.toint()
            + Int64(segment.head + own_head + h) * head_step
            + (Int64(segment.block + j) * Int64(args.tokens) + Int64(segment.token + own_token)) * 4
        )
        for masked in cutlass.range_constexpr(2):
            last = segment.plain
            if const_expr(masked):
                last = segment.pages
            while j < last:
                scale = Float32(1.0)
                if live:
                    scale = ldg_f32(scales + Int64(h) * 4)
                mbarrier_wait(shared.acc_full + full * 8, phase)
                tcgen05.fence_after()
                a, _ = accumulator_of(full)
                visible = Int32(ROWS)
                if const_expr(masked):
                    visible = seen - (segment.block + j) * 128
                    best = masked_maximum(tmem + a * 128, shared.acc_empty + a * 8, visible)
                else:
                    best = tcgen05.row_maximum(tmem + a * 128, shared.acc_empty + a * 8, config.ld_red)
                best = fmul(best, scale)
                if const_expr(masked):
                    best = select_f32(best, Float32(float("-inf")), cutlass.max(visible, 0))
                if live:
                    stg_f32(at, best)
                full = full + 2
                if full >= FULL:
                    full, phase = full - FULL, phase ^ 1
                h = h + 2
                at = at + head_step * 2
                while h >= tiles:
                    h = h - tiles
                    j = j + 1
                    at = at + block_step - Int64(tiles) * head_step
        before = (before + segment.pages * tiles) & 1
        turn = turn + 1
        segment = next_segment(shared, turn, lane)


@cute.jit
def masked_maximum(tmem: Int32, free: Int32, visible: Int32):
    """Maximum over the first `visible` columns of this lane's row, 32 columns at a time: those that no row of the
    warp sees are not read."""
    best = Float32(float("-inf"))
    for piece in cutlass.range_constexpr(4):
        if ballot_le(Int32(32 * piece + 1), visible) != 0:
            best = tcgen05.piece_maximum(tmem + 32 * piece, best, visible - 32 * piece)
    tcgen05.release(free)
    return best
