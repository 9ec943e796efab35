"""A warp's pages against its query columns: loads ahead, the plain page, the careful page, reduction over keys and
the store."""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ...configs.block_scores import CODE_BYTES, PAGE, QUERY_WINDOW, Scratch
from ..device.fixed import Fixed
from ..device.ptx_math import and_, fmax_nan, fmul, select_f32
from ..device.ptx_memory import ldg32, ldg128, ldg_f32, ldg_v4, lds128, stg_f32, sts_v4
from ..device.ptx_warp import redux, shfl_idx
from ..epilogues.block_max import over_row_groups
from ..operands.any_scale import counted_maximum, mxfp4_piece, query_operands, times_two_factors
from .portable_operands import KEY_HIGH, KEY_LOW, Operands, byte_range, key_window

NEG_INF = float("-inf")
TILE_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Tile:
    """Query columns of one KV head of one sequence. Column c is row i = first + c: head `head + i // width`, token
    `token + i % width` (`width` is q_len in the decode role, log2 of the tile width in the others), and exists below
    head_end and token_end. Token token + j sees the keys up to min(k_len - 1 - j, key) + j. The sequence's page 0 is
    `flat` in the page list."""

    first: Int32
    width: Int32
    token: Int32
    token_end: Int32
    head: Int32
    head_end: Int32
    k_len: Int32
    key: Int32
    kv: Int32
    flat: Int32


@dataclasses.dataclass(frozen=True)
class Columns:
    """What a warp knows of its columns. lowest, highest: last key of the first and of the last token; special: some
    column needs the any-scale path. Of the one column whose maximum this lane ends up with: its last key, the address
    of its scores of block 0, head scale, exponent left to apply (mxfp4), and whether to store it (fixup: 1 only where
    it sees a flagged key, 2 always)."""

    lowest: Int32
    highest: Int32
    special: Int32
    last: Int32
    address: Int64
    scale: Float32
    exponent: Int32
    store: Int32


class Visit(Fixed):
    """What stays the same for all pages of a visit.

    slot        shared address of the warp's tile
    kv, flat    KV head; position in the page list of the sequence's page 0
    q, info     registers: operands of the query columns, and one word a column (`Operands.query_column`)
    keys, raw   registers: codes and scales of the tiles in flight
    policy      of loads of keys
    """

    def __init__(self, args, slot, kv, flat, q, info, keys, raw, policy, lane):
        self.args, self.slot, self.kv, self.flat = args, slot, kv, flat
        self.q, self.info, self.keys, self.raw = q, info, keys, raw
        self.policy, self.lane = policy, lane


class Pages:
    def __init__(self, config):
        self.c = config
        self.decode = config.role == "decode"
        self.fixup = config.role == "fixup"
        self.nt = config.column_tiles
        self.ops = Operands(config.format, config.scale_layout, config.convert)

    # ------------------------------------------------------------ columns
    # A tile goes through shared memory to the careful page, so that the loop over plain pages need not carry it in
    # registers.
    @cute.jit
    def write_tile(self, slot, tile, lane):
        """Write the tile to the warp's slot."""
        cute.arch.sync_warp()
        if lane == 0:
            sts_v4(slot, [tile.first, tile.width, tile.token, tile.token_end])
            sts_v4(slot + 16, [tile.head, tile.head_end, tile.k_len, tile.key])
        cute.arch.sync_warp()

    def read_tile(self, slot, kv, flat):
        """The tile that `write_tile` wrote."""
        return Tile(*lds128(slot), *lds128(slot, 16), kv, flat)

    def column(self, tile, c):
        """(head, token, 1 if it exists) of column c; the tile's first row where it does not."""
        i = tile.first + c
        if self.decode:
            h = i // tile.width
            j = i - h * tile.width
        else:
            h = i >> tile.width
            j = i & ((Int32(1) << tile.width) - 1)
        exists = Int32((tile.head + h < tile.head_end) & (tile.token + j < tile.token_end))
        return tile.head + h * exists, tile.token + j * exists, exists

    def last_key(self, tile, token):
        """Last key that a token of the tile sees; negative for none."""
        j = token - tile.token
        return cutlass.min(tile.k_len - 1 - j, tile.key) + j

    def own_column(self, lane):
        """(column whose maximum over all keys `finish` leaves in this lane, 1 in the one lane that stores it)"""
        bits = [and_(lane >> b, 1) for b in (4, 3, 2)]
        split = self.nt.bit_length()  # halvings of the 2 * nt values: the lane bits that choose one
        x = bits[0]
        for b in bits[1:split]:
            x = 2 * x + b
        alone = Int32(1)
        for b in bits[split:]:
            alone = alone - alone * b
        return (x >> 1) * 8 + 2 * (lane & 3) + (x & 1), alone

    @cute.jit
    def load_columns(self, args, tile, qf, info, lane):
        """Fills qf (16 registers an n8 tile) and info (one an n8 tile: column 8n + g), and says what else there is to
        know."""
        special = Int32(0)
        for n in cutlass.range_constexpr(self.nt):
            head, token, _ = self.column(tile, n * 8 + lane // 4)
            regs, one = self.ops.query_column(args, head, token, lane)
            for i in cutlass.range_constexpr(16):
                qf[n * 16 + i] = regs[i]
            info[n] = one
            special = special | (one >> 8)
        own, store = self.own_column(lane)
        head, token, exists = self.column(tile, own)
        store = store * exists
        exponent = Int32(0)
        if const_expr(not self.ops.nvfp4):
            special = redux("or", special)
            for n in cutlass.range_constexpr(self.nt):
                theirs = shfl_idx(info[n], (own & 7) * 4)
                if own >> 3 == n:
                    exponent = and_(theirs, 255) - KEY_HIGH
        if const_expr(self.fixup):
            low, high = byte_range(ldg32(self.ops.query_scales(args, head, token)))
            store = store * (1 + Int32((low < QUERY_WINDOW[0]) | (high > QUERY_WINDOW[1])))
        last_token = tile.token_end - 1
        if const_expr(not self.decode):
            last_token = cutlass.min(last_token, tile.token + (Int32(1) << tile.width) - 1)
        address = args.scores.toint() + (Int64(head) * Int64(args.k_tiles) * Int64(args.tokens) + Int64(token)) * 4
        return Columns(
            self.last_key(tile, tile.token),
            self.last_key(tile, last_token),
            special,
            self.last_key(tile, token),
            address,
            ldg_f32(args.head_scale.toint() + Int64(head) * 4),
            exponent,
            store,
        )

    # ------------------------------------------------------------ loads
    def load_codes(self, address, offset, policy):
        """16 bytes a lane. The keys of a decode are read once (evict first); those of a prefill by many warps."""
        return ldg128(address, offset, policy) if self.decode else ldg_v4(address, offset)

    def fetch_tile(self, v, i, codes, scales):
        """Load m16 tile i after these addresses into place i of the registers."""
        for r in range(2):
            row = i * 16 + r * 8
            words = self.load_codes(codes, row * CODE_BYTES, v.policy)
            for e in range(4):
                v.keys[(i * 2 + r) * 4 + e] = words[e]
            v.raw[i * 2 + r] = self.ops.load_scales(scales, row)

    def fetch(self, v, codes, scales):
        """Load the first `ahead` m16 tiles of a page."""
        for i in range(self.c.ahead):
            self.fetch_tile(v, i, codes, scales)

    # ------------------------------------------------------------ the plain page
    def multiply_loaded(self, v, best, then_codes, then_scales, low, high):
        """Multiply the `ahead` tiles that are loaded; as each is taken, load one from the addresses that follow.
        Keeps the range of mxfp4 scales."""
        for i in range(self.c.ahead):
            lo, hi = [v.keys[i * 8 + e] for e in range(4)], [v.keys[i * 8 + 4 + e] for e in range(4)]
            raw = [v.raw[i * 2], v.raw[i * 2 + 1]]
            self.fetch_tile(v, i, then_codes, then_scales)
            if not self.ops.nvfp4:
                low, high = (
                    cutlass.min(low, cutlass.min(raw[0], raw[1])),
                    cutlass.max(high, cutlass.max(raw[0], raw[1])),
                )
            acc = self.ops.multiply(lo, hi, self.ops.key_scale(raw[0]), self.ops.key_scale(raw[1]), v.q, self.nt)
            for x in range(2 * self.nt):
                best[x] = fmax_nan(best[x], fmax_nan(acc[x // 2][x % 2], acc[x // 2][x % 2 + 2]))
        return low, high

    @cute.jit
    def plain_page(self, v, best, codes, scales, next_codes, next_scales):
        """Every key counts for every column. Returns 1 (mxfp4) where a scale of this lane lies outside the operand
        window."""
        # A multiple of 32: offsets of scales are linear in it in both layouts
        rows = 16 * self.c.ahead
        low, high = Int32(KEY_LOW), Int32(KEY_HIGH)
        for turn in cutlass.range(PAGE // rows, unroll=1):
            codes, scales = codes + rows * CODE_BYTES, scales + self.ops.row_offset(rows)
            if turn + 1 == PAGE // rows:
                codes, scales = next_codes, next_scales
            low, high = self.multiply_loaded(v, best, codes, scales, low, high)
        return Int32((low < KEY_LOW) | (high > KEY_HIGH))

    # ------------------------------------------------------------ the careful page
    @cute.jit
    def careful_page(self, v, columns, best, codes, scales, kb):
        """Key limits a column, and any scales. Maxima of nvfp4 as in the plain page, of mxfp4 as scores (no exponent
        left)."""
        args, lane = v.args, v.lane
        tile = self.read_tile(v.slot, v.kv, v.flat)
        g, t = lane // 4, lane & 3
        limits, powers = [], []
        for x in cutlass.range_constexpr(2 * self.nt):
            _, token, _ = self.column(tile, (x // 2) * 8 + 2 * t + x % 2)
            limits.append(self.last_key(tile, token) - kb * PAGE)
            best[x] = Float32(NEG_INF)
            if const_expr(not self.ops.nvfp4):
                powers.append(shfl_idx(v.info[x // 2], (2 * t + x % 2) * 4))
        top = cutlass.min(columns.highest - kb * PAGE, PAGE - 1)
        for m in cutlass.range((top >> 4) + 1, unroll=1):
            at = codes + Int64(m) * 1024
            lo, hi = self.load_codes(at, 0, v.policy), self.load_codes(at, 512, v.policy)
            scale_at = scales + Int64(self.ops.row_offset(m * 16))
            if const_expr(self.ops.nvfp4):
                acc = self.ops.multiply(
                    lo,
                    hi,
                    self.ops.key_scale(self.ops.load_scales(scale_at, 0)),
                    self.ops.key_scale(self.ops.load_scales(scale_at, 8)),
                    v.q,
                    self.nt,
                )
                for n in cutlass.range_constexpr(self.nt):
                    best[2 * n], best[2 * n + 1] = counted_maximum(
                        [best[2 * n], best[2 * n + 1]], acc[n], m * 16 + g, limits[2 * n : 2 * n + 2]
                    )
            else:
                words = [ldg32(scale_at - Int64(t)), ldg32(scale_at - Int64(t), self.ops.row_offset(8))]
                own = [and_(w >> (8 * t), 255) for w in words]
                shifts, outside = zip(*[key_window(w) for w in words])
                placed = [
                    cutlass.min(cutlass.max(own[r] - shifts[r], Int32(KEY_LOW)), Int32(KEY_HIGH)) for r in range(2)
                ]
                acc = self.ops.multiply(
                    lo, hi, self.ops.key_scale(placed[0]), self.ops.key_scale(placed[1]), v.q, self.nt
                )
                counted = [outside[r] * Int32(m * 16 + 8 * r + g <= top) for r in range(2)]
                general = redux("or", counted[0] | counted[1] | columns.special)
                for n in cutlass.range_constexpr(self.nt):
                    scores = [
                        times_two_factors(acc[n][i], and_(powers[2 * n + i % 2], 255) - KEY_HIGH + shifts[i // 2])
                        for i in range(4)
                    ]
                    if general != 0:
                        head, token, _ = self.column(tile, n * 8 + g)
                        q_word = ldg32(self.ops.query_scales(args, head, token))
                        exact = mxfp4_piece(
                            lo,
                            hi,
                            own[0],
                            own[1],
                            query_operands(self.ops.query_row(args, head, token, lane)),
                            and_(q_word >> (8 * t), 255),
                            lane,
                        )
                        scores = [
                            select_f32(exact[i], scores[i], outside[i // 2] | (powers[2 * n + i % 2] >> 8))
                            for i in range(4)
                        ]
                    best[2 * n], best[2 * n + 1] = counted_maximum(
                        [best[2 * n], best[2 * n + 1]], scores, m * 16 + g, limits[2 * n : 2 * n + 2]
                    )

    # ------------------------------------------------------------ one page, and a visit of many
    def finish(self, best, exponent, scale, lane):
        """Maximum over the 8 row groups; each lane ends with its own column, scaled."""
        v = over_row_groups([best[x] for x in range(2 * self.nt)], lane)
        r = fmul(v[0], Float32(16384.0)) if self.ops.nvfp4 else times_two_factors(v[0], exponent)
        return fmul(r, scale)

    @cute.jit
    def page(self, v, columns, kb, page, following):
        """Score block kb = physical page `page`; leave the first tiles of page `following` in flight if both exist."""
        args, kv, lane = v.args, v.kv, v.lane
        exists = (page >= 0) & (page < args.num_pages)
        follows = (following >= 0) & (following < args.num_pages)
        flagged, flag = Int32(1), Int32(PAGE)
        work = exists & (columns.highest >= kb * PAGE)
        best = cute.make_rmem_tensor(cute.make_layout(2 * self.nt), Float32)
        for x in cutlass.range_constexpr(2 * self.nt):
            best[x] = Float32(NEG_INF)
        if const_expr(self.fixup):
            layout = Scratch.layout(
                Int64(args.num_seqs), Int64(args.tokens), Int64(args.heads_kv), Int64(args.pages_per_pass)
            )
            at = Int64(v.flat + kb - args.first_page) * Int64(args.heads_kv) + Int64(kv)
            # 128 - the first key that needs it, 0 if none
            flag = ldg32(args.scratch.toint() + layout.page_flags + at * 4)
            flagged = 1 - Int32(flag == 0)
            work = work & (redux("max", columns.store) + flagged >= 2)
        plain = work & (columns.lowest >= kb * PAGE + PAGE - 1) & (columns.special == 0)
        careful = Int32(work) - Int32(plain)
        codes, scales = self.ops.block_addresses(args, page, kv, lane)
        if plain:
            other = page
            if follows:
                other = following
            next_codes, next_scales = self.ops.block_addresses(args, other, kv, lane)
            outside = self.plain_page(v, best, codes, scales, next_codes, next_scales)
            if const_expr(not self.ops.nvfp4):
                careful = redux("or", outside)
        exponent = columns.exponent
        if careful != 0:
            # What a plain page has fetched ahead is dropped, and fetched again below: no registers are held through
            # the careful page for it.
            for i in cutlass.range_constexpr(self.c.ahead * 8):
                v.keys[i] = Int32(0)
            for i in cutlass.range_constexpr(self.c.ahead * 2):
                v.raw[i] = Int32(0)
            self.careful_page(v, columns, best, codes, scales, kb)
            exponent = Int32(0)
        if ((not plain) | (careful != 0)) & follows:
            next_codes, next_scales = self.ops.block_addresses(args, following, kv, lane)
            self.fetch(v, next_codes, next_scales)
        result = self.finish(best, exponent, columns.scale, v.lane)
        if not exists:
            result = Float32(float("nan"))
        if columns.last < kb * PAGE:
            result = Float32(NEG_INF)
        if const_expr(self.fixup):
            flagged = flagged * Int32(columns.last - kb * PAGE >= PAGE - flag)  # this query sees such a key
        if columns.store * flagged + (columns.store >> 1) > 0:
            stg_f32(columns.address + Int64(kb) * (Int64(args.tokens) * 4), result)

    @cute.jit
    def visit(self, args, tile, slot, kb, count, stride: cutlass.Constexpr, policy, lane):
        """Blocks kb, kb + stride, ... (count of them, at least one) of the tile's sequence against the tile's columns.
        slot: shared address of TILE_BYTES of this warp."""
        self.write_tile(slot, tile, lane)
        qf = cute.make_rmem_tensor(cute.make_layout(self.nt * 16), Int32)
        info = cute.make_rmem_tensor(cute.make_layout(self.nt), Int32)
        kc = cute.make_rmem_tensor(cute.make_layout(self.c.ahead * 8), Int32)
        sc = cute.make_rmem_tensor(cute.make_layout(self.c.ahead * 2), Int32)
        v = Visit(args, slot, tile.kv, tile.flat, qf, info, kc, sc, policy, lane)
        ids = args.kv_indices.toint() + (Int64(tile.flat) + Int64(kb)) * 4
        page, following = ldg32(ids), Int32(-1)
        if count > 1:
            following = ldg32(ids, stride * 4)
        if (page >= 0) & (page < args.num_pages):
            codes, scales = self.ops.block_addresses(args, page, tile.kv, lane)
            self.fetch(v, codes, scales)
        columns = self.load_columns(args, tile, qf, info, lane)
        for i in cutlass.range(count, unroll=1):
            ahead = Int32(-1)
            if i + 2 < count:
                ahead = ldg32(ids + Int64(i + 2) * (stride * 4))
            self.page(v, columns, kb + i * stride, page, following)
            page = following
            following = ahead
