"""The roles that bring operands: key pages through the ring, query rows by hand."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr
from cutlass.cute.nvgpu import cpasync

from ...configs.block_scores import CODE_BYTES, PAGE
from ..device.fixed import Fixed
from ..device.ptx_barriers import fence_async_shared, mbarrier_arrive, mbarrier_expect_tx, mbarrier_wait
from ..device.ptx_copies import bulk_load, copies_arrive, copy4
from ..device.ptx_memory import ld_v4, ldg32, stg32, sts32, sts_v4
from ..device.ptx_warp import shfl_idx
from ..device.ring import advance
from ..epilogues.fill_by_table import fill_bits
from ..operands.scale_addresses import SCALE_TILE, Masks, row_offset, token_offset
from .sm100_config import ALIGN, GATHER_WARPS, Q_STAGES, ROWS
from .sm100_protocol import announce, next_segment, tiles_of

GATHER_THREADS = GATHER_WARPS * 32
CODES = ROWS * 64  # bytes of a tile's or a page's codes


class KeyMap(Fixed):
    """The tensor map of the pool's codes: page `index` to shared memory, rows of 64 bytes swizzled as the tensor core
    wants them."""

    def __init__(self, atom, coordinates, policy):
        self.atom, self.policy = atom, policy
        self.pages = cute.group_modes(coordinates, 0, 2)

    def load(self, dst, index, bar):
        """The whole warp; one lane is elected inside."""
        stage = cute.make_tensor(
            cute.make_ptr(cutlass.Uint8, dst, cute.AddressSpace.smem, assumed_align=ALIGN), stage_layout()
        )
        into, source = cpasync.tma_partition(
            self.atom, 0, cute.make_layout(1), cute.group_modes(stage, 0, 2), self.pages
        )
        cute.copy(
            self.atom,
            source[None, index],
            into[None, 0],
            tma_bar_ptr=cute.make_ptr(cutlass.Int64, bar, cute.AddressSpace.smem),
            cache_policy=self.policy,
        )


def stage_layout():
    """One page's codes in shared memory."""
    return cute.make_composed_layout(
        cute.make_swizzle(2, 4, 3),
        0,
        cute.make_layout((CODE_BYTES, PAGE, 1), stride=(1, CODE_BYTES, PAGE * CODE_BYTES)),
    )


@cute.jit
def load_pages(config: cutlass.Constexpr, shared, args, schedule, key_map, cta: Int32, ctas: Int32, lane: Int32):
    """One warp: finds and announces the CTA's segments, and loads codes and scales of their pages, `stages` ahead of
    the tensor core."""
    policy = key_map.policy
    stage, phase, turn = Int32(0), Int32(1), Int32(0)
    cursor, words = schedule.step(schedule.start(cta, ctas, lane), lane)
    announce(shared, turn, words, lane)
    while words[0] >= 0:
        pages, index, kv = words[0], words[3], words[4]
        j, ids = Int32(0), Int32(-1)
        while j < pages:
            if (j & 31) == 0:
                ids = Int32(-1)
                if j + lane < pages:
                    ids = ldg32(args.kv_indices.toint() + Int64(index + j + lane) * 4)
            page = shfl_idx(ids, j & 31)
            bar = shared.k_full + stage * 8
            mbarrier_wait(shared.k_empty + stage * 8, phase)
            codes = shared.base + config.k_codes + stage * CODES
            scales = shared.base + config.k_scales + stage * config.scale_bytes
            if (page >= 0) & (page < args.num_pages):
                at = page * args.heads_kv + kv
                source = args.k_scale.toint() + Int64(at) * config.scale_bytes
                if lane == 0:
                    if const_expr(config.scale_layout == "public"):
                        mbarrier_expect_tx(bar, CODES)
                    else:
                        mbarrier_expect_tx(bar, CODES + config.scale_bytes)
                        bulk_load(scales, source, config.scale_bytes, bar, policy)
                key_map.load(codes, at, bar)
                if const_expr(config.scale_layout == "public"):
                    # A word is four scales of one row; the copy engine cannot transpose words
                    for x in cutlass.range_constexpr(ROWS * config.words // 32):
                        i = lane + 32 * x
                        row, atom = i // config.words, i % config.words
                        copy4(row_offset(row, Masks, scales + atom * SCALE_TILE), source + Int64(i) * 4)
            else:
                nothing(config, codes, scales, lane)
                fence_async_shared()
                cute.arch.sync_warp()
                if lane == 0:
                    mbarrier_arrive(bar)
            if const_expr(config.scale_layout == "public"):
                copies_arrive(bar)
            stage, phase = advance(stage, phase, config.stages)
            j = j + 1
        turn = turn + 1
        cursor, words = schedule.step(cursor, lane)
        announce(shared, turn, words, lane)
    # A commit that arrives after the CTA has gone would hit another's shared memory
    for _ in cutlass.range(config.stages, unroll=1):
        mbarrier_wait(shared.k_empty + stage * 8, phase)
        stage, phase = advance(stage, phase, config.stages)


@cute.jit
def nothing(config: cutlass.Constexpr, codes, scales, lane: Int32):
    """A page that does not exist: every product is NaN, by NaN scales of codes that are not zero."""
    one = Int32(0x22222222)
    nan = Int32(0x7F7F7F7F) if const_expr(config.format == "nvfp4") else Int32(-1)
    for i in cutlass.range(CODES // 512, unroll=1):
        sts_v4(codes + (i * 32 + lane) * 16, [one, one, one, one])
    for i in cutlass.range_constexpr(config.scale_bytes // 512):
        sts_v4(scales + (i * 32 + lane) * 16, [nan, nan, nan, nan])


@cute.jit
def gather_queries(config: cutlass.Constexpr, shared, args, thread: Int32, lane: Int32, falls: Int32):
    """GATHER_WARPS warps: query codes and scales of every segment into its stage, and its -inf blocks; NaN where
    `falls` is 1 (all slots lie in such blocks then)."""
    nothing = fill_bits(falls)
    heads = cutlass.min(args.heads_q // args.heads_kv, Int32(ROWS))
    turn = Int32(0)
    segment = next_segment(shared, turn, lane)
    while segment.pages >= 0:
        stage = turn % Q_STAGES
        mbarrier_wait(shared.q_empty + stage * 8, ((turn // Q_STAGES) & 1) ^ 1)
        if segment.pages > 0:
            i = thread
            while i < ROWS * tiles_of(config, segment):
                row, tile = i % ROWS, i // ROWS
                token, head = row, tile
                if const_expr(config.packed):
                    token = row // heads
                    head = row - token * heads
                live = (token < segment.tokens) & (head < segment.heads)
                bring_row(
                    config,
                    shared,
                    args,
                    stage * config.heads + tile,
                    row,
                    segment.token + token,
                    segment.head + head,
                    live,
                )
                i = i + GATHER_THREADS
            fence_async_shared()
        cute.arch.sync_warp()
        if lane == 0:
            mbarrier_arrive(shared.q_full + stage * 8)
        if const_expr(config.packed):
            fill_packed(args, segment, nothing, thread)
        else:
            fill(args, segment, nothing, thread)
        turn = turn + 1
        segment = next_segment(shared, turn, lane)
    for i in cutlass.range_constexpr(Q_STAGES):
        mbarrier_wait(shared.q_empty + ((turn + i) % Q_STAGES) * 8, (((turn + i) // Q_STAGES) & 1) ^ 1)


@cute.jit
def bring_row(config: cutlass.Constexpr, shared, args, slot, row, token, head, live):
    """One query row: 16-byte piece c of row r lies at 64 r + 16 (c ^ (r / 2) % 4), its scale words at 16 (r % 32) + 4
    (r / 32) of their atoms."""
    zero = Int32(0)
    pieces = [[zero] * 4] * 4
    words = [zero] * config.words
    if live:
        at = Int64(token) * Int64(args.heads_q) + Int64(head)
        for c in cutlass.range_constexpr(4):
            pieces[c] = ld_v4(args.q.toint() + at * 64, 16 * c)
        for i in cutlass.range_constexpr(config.words):
            if const_expr(config.scale_layout == "public"):
                place = (at * config.words + i) * 4
            else:
                tiles = (args.tokens + (ROWS - 1)) // ROWS
                place = ((Int64(head) * Int64(tiles) + Int64(token >> 7)) * config.words + i) * SCALE_TILE + Int64(
                    token_offset(token, Masks)
                )
            words[i] = ldg32(args.q_scale.toint() + place)
    codes = shared.base + config.q_codes + slot * CODES + row * 64
    for c in cutlass.range_constexpr(4):
        sts_v4(codes + 16 * (Int32(c) ^ ((row >> 1) & 3)), pieces[c])
    scales = row_offset(row, Masks, shared.base + config.q_scales + slot * config.scale_bytes)
    for i in cutlass.range_constexpr(config.words):
        word = words[i]
        if const_expr(config.format == "nvfp4"):
            word = word & 0x7F7F7F7F  # bit 7 plays no part
        sts32(scales, SCALE_TILE * i, word)


@cute.jit
def fill(args, segment, nothing, thread):
    """`nothing` to the blocks from segment.fill on, a token a thread."""
    row = thread
    while row < segment.tokens:
        h = Int32(0)
        while h < segment.heads:
            at = (
                args.scores.toint()
                + (
                    (Int64(segment.head + h) * Int64(args.k_tiles) + Int64(segment.fill)) * Int64(args.tokens)
                    + Int64(segment.token + row)
                )
                * 4
            )
            block = segment.fill
            while block < args.k_tiles:
                stg32(at, nothing)
                at = at + Int64(args.tokens) * 4
                block = block + 1
            h = h + 1
        row = row + GATHER_THREADS


@cute.jit
def fill_packed(args, segment, nothing, thread):
    """The same for few tokens of many heads: a slot (head, block, token) a thread, tokens fastest."""
    blocks = args.k_tiles - segment.fill
    if blocks > 0:
        count = blocks * segment.tokens
        i, h = thread, Int32(0)
        while h < segment.heads:
            while i < count:
                block = i // segment.tokens
                place = (Int64(segment.head + h) * Int64(args.k_tiles) + Int64(segment.fill + block)) * Int64(
                    args.tokens
                )
                stg32(args.scores.toint() + (place + Int64(segment.token + i - block * segment.tokens)) * 4, nothing)
                i = i + GATHER_THREADS
            i = i - count
            h = h + 1
