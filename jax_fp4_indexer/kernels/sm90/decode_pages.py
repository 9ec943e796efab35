"""Pages of one warpgroup: the ring that brings them, and what a warp computes from one.

A page is 128 keys of one KV head: codes [128, 64], then scales, in one ring stage. Warp w of the warpgroup owns keys 32w .. 32w+31, its *slice*; they are the
B operand of mma.sync, 8 keys a tile.

| format | operand of a key | exact where | factor left over |
|---|---|---|---|
| nvfp4 | f16 value * scale * 2^-14, a multiple of 2^-24 with at most 6 significant bits | always | 2^14 |
| mxfp4 | signed byte 4 * value * 2^(byte - base + 2), base = the largest byte of the slice; the sum is an exact integer | smallest byte at most 2 below base | 2^(base - 131) |
| mxfp4, wider | f16 value * 2^(byte - base + 1) | at most 24 below | 2^(base - 128) |

Both mxfp4 forms give the same bits where both are exact. One f32 factor covers bases of 47 .. 180. A slice outside all that is not regular: the general form.
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ..common.asm import (asm, ballot_le, bcast_half, bulk_load, e4m3x2_to_f16x2, fence_async_shared, fmax_nan, fmul, hmul2, ldg32_if, lds128, lds32, lds_u16, lds_u8, mad_wide,
                          max_s32, mbarrier_arrive, mbarrier_expect_tx, mbarrier_wait, mma_m16n8k16, mma_m16n8k32_s8, opaque, outside, redux, s32_to_f32, select_f32, shfl_idx, shr, sts_v4, unseen)
from ..common.e2m1 import decode_word
from ..common.exact_rows import times_pow2
from ..common.fixed import Fixed
from . import decode_int8
from .decode_queries import WINDOW, power_scale

EVICT_FIRST = 0x12F0000000000000      # the value that createpolicy.fractional.L2::evict_first 1.0 makes: an immediate costs less in the main loop
K_BASE_MIN, K_BASE_MAX = 47, 180        # with a column's base of at most 180 no group's term leaves the range of f32
TILES = 4                       # of 8 keys, a slice


def prefetch_l2(at, nbytes):
    asm(f"cp.async.bulk.prefetch.L2.global [$0], {nbytes};", [], [at], "l")


def nvfp4_scales(raw):
    pair = e4m3x2_to_f16x2(raw)
    return [bcast_half(pair, False), bcast_half(pair, True)]


class Ring(Fixed):
    """Copies of a warpgroup's pages. Warp w issues those of page ordinals o with o % 4 == w."""

    def __init__(self, config, args, seqs):
        self.c, self.seqs = config, seqs
        self.k, self.k_scale, self.ids = args.k.toint(), args.k_scale.toint(), args.kv_indices.toint()
        self.num_pages, self.heads_kv = args.num_pages, args.heads_kv

    # A warp's cursor: [its next unit, end of its batch, this lane's unit, this lane's page, lanes whose page id is out of range, whether the page
    # that it brought last, which is the one that it reduces next, has such an id]. A batch is up to 32 of the warp's units in one run. Each lane
    # looks up one of its pages, long before the page's turn, and issues that page's copies.
    @cute.jit
    def start(self, w, u, end, head, delta, stop):
        """The cursor on the warp's first unit (that of page ordinal w), u being the warpgroup's first, in a run of this KV head up to `end`; unit + delta is its list index."""
        return self.settle(w, self.take(w, u + w.warp, self.ask(w, u + w.warp, end, delta), head, Int32(0)), stop)

    @cute.jit
    def settle(self, w, cursor, stop):
        """A cursor that has left its batch takes the next one, a run's end being left by as many existing units as it was overrun."""
        u, end, mine, page, unknown, bad = cursor
        if (u >= end) & (end < stop):
            head, delta = Int32(0), Int32(0)
            while (u >= end) & (end < stop):
                beyond = u - end
                u, end, _, head, _, index = self.seqs.find_run(end, stop, opaque(w.lane))
                delta = index - u
                u = u + beyond
            u, end, mine, page, unknown, bad = self.take(w, u, self.ask(w, u, end, delta), head, bad)
        return [u, end, mine, page, unknown, bad]

    def ask(self, w, u, end, delta):
        """The page ids of a batch from unit u of a run on, on their way: [end of the batch, this lane's unit, its page id]."""
        lane = opaque(w.lane)
        end = cutlass.min(end, u + 4 * 32)
        turn = u + ((lane - shr(u, 2)) & 31) * 4            # lane (unit / 4) % 32 has a unit
        return [end, turn, ldg32_if(Int32(turn < end), self.ids + Int64(turn + delta) * 4)]

    @cute.jit
    def announce(self, asked, u):
        """Into L2 what `asked`, the page ids of one KV head's units, has at unit u: pages for which nobody waits yet, and which may turn out not to be wanted."""
        end, turn, page_id = asked
        if (turn == u) & (u < end) & (page_id >= 0) & (page_id < self.num_pages):
            for base, nbytes in ((self.k, 8192), (self.k_scale, 128 * self.c.groups)):
                prefetch_l2(mad_wide(page_id, Int32(nbytes), base), nbytes)

    @cute.jit
    def take(self, w, u, asked, head, bad):
        """The cursor on unit u, the first of a batch that was asked for."""
        end, turn, page_id = asked
        mine, page, wrong = Int32(-1), Int32(0), Int32(0)
        if (page_id < 0) | (page_id >= self.num_pages):
            wrong = Int32(turn < end)
        elif turn < end:
            mine, page = turn, page_id * self.heads_kv + head      # 32 bits, unsigned: 2^32 pages would be 36 TB
        return [u, end, mine, page, ballot_le(Int32(1), wrong), bad]

    @cute.jit
    def refill(self, w, cursor, stage):
        """Copy the cursor's page into a stage, and move on by four units (`settle` before the next refill)."""
        c = self.c
        u, end, mine, page, unknown, _ = cursor
        bar = w.base + c.barriers + stage * 8
        buffer = w.base + stage * c.page_bytes
        bad = Int32(0)
        if mine == u:
            policy = Int64(EVICT_FIRST)
            mbarrier_expect_tx(bar, c.page_bytes)
            bulk_load(buffer, mad_wide(page, Int32(8192), self.k), 8192, bar, policy)
            bulk_load(buffer + 8192, mad_wide(page, Int32(128 * c.groups), self.k_scale), 128 * c.groups, bar, policy)
        if unknown != 0:
            bad = (unknown >> ((u >> 2) & 31)) & 1
            if (bad != 0) & (u < end):          # nothing to read: the block is NaN where it is visible. Plain scales keep it off the general form
                one = Int32(0x38383838)
                for i in cutlass.range_constexpr(c.groups // 4):
                    sts_v4(buffer + 8192 + i * 512 + w.lane * 16, [one, one, one, one])
                fence_async_shared()
                cute.arch.sync_warp()
                if w.lane == 0:
                    mbarrier_arrive(bar)
        return [u + 4, end, mine, page, unknown, bad]


class Slice(Fixed):
    """A warp's slice of a page: keys 32 w .. 32 w + 31, in four n8 tiles. Lane (g, t) reads bytes 16t .. 16t+15 of row g of a tile."""

    def __init__(self, config, w):
        c = self.c = config
        if c.scale_layout == "public":
            self.scale_offset = (w.warp * 32 + w.g) * c.groups + w.t * (c.groups // 4)
            self.step = 8 * c.groups                # bytes from a tile's scales to the next one's
        else:
            first = w.t * (c.groups // 4)
            self.scale_offset = (first // 4) * 512 + w.g * 16 + w.warp * 4 + first % 4
            self.step = 128
        self.code_offset = w.warp * 2048 + w.lane * 16
        self.two = unseen(2, w.tokens)

    @cute.jit
    def maxima(self, w, codes, at, a, fits, run):
        """Maxima over the slice, rows g and g + 8, of this lane's keys (nvfp4: without their 2^14), and bits of the factor that the slice's scales leave over (0: not
        regular). codes, at: where this lane reads codes and scales."""
        c = self.c
        best, factor = [Float32(float("-inf"))] * 2, Int32(1)
        if const_expr(c.format == "nvfp4"):
            halves = [self.f16_tiles([lds128(codes, i * 512) for i in two], [nvfp4_scales(lds_u16(at, i * self.step)) for i in two], a) for two in ((0, 1), (2, 3))]
            most = [[fmax_nan(acc[2 * r], acc[2 * r + 1]) for r in range(2)] for half in halves for acc in half]
            best = [fmax_nan(fmax_nan(most[0][r], most[1][r]), fmax_nan(most[2][r], most[3][r])) for r in range(2)]
        else:
            bytes_ = [lds_u8(at, i * self.step) for i in range(TILES)]
            base = redux("max", cutlass.max(cutlass.max(bytes_[0], bytes_[1]), cutlass.max(bytes_[2], bytes_[3])))
            least = redux("min", cutlass.min(cutlass.min(bytes_[0], bytes_[1]), cutlass.min(bytes_[2], bytes_[3])))
            outside_ = outside(base, Int32(K_BASE_MIN), Int32(K_BASE_MAX - K_BASE_MIN))
            if (base - least < decode_int8.SHIFTS * fits) & (outside_ == 0):
                tables = w.tables + (decode_int8.SHIFTS - 1 - base) * 16
                most = [Int32(-2**31)] * 2
                for i in cutlass.range_constexpr(TILES):
                    words, t = lds128(codes, i * 512), lds128(tables + bytes_[i] * 16)
                    acc = self.int8_tile(words, t, a)
                    most = [max_s32(max_s32(most[r], acc[2 * r]), acc[2 * r + 1]) for r in range(2)]
                best, factor = [s32_to_f32(x) for x in most], (base - 1) << 23
            else:
                factor = (base + 5) << 23
                if (base - least > WINDOW) | (outside_ != 0):
                    factor = Int32(0)
                else:
                    best = self.wide(w, codes, at, base, run)
        return best[0], best[1], factor

    @cute.jit
    def wide(self, w, codes, at, base, run):
        """mxfp4 in f16: maxima over the slice, rows g and g + 8."""
        mbarrier_wait(w.base + self.c.ready, run & 1)
        q = w.wide(run)
        best = [Float32(float("-inf"))] * 2
        for half in cutlass.range(2, unroll=1):         # rolled: registers
            words = [lds128(codes + half * 1024, i * 512) for i in range(2)]
            scales = [power_scale(lds_u8(at + half * 2 * self.step, i * self.step), base) for i in range(2)]
            acc = [[Float32(0.0)] * 4 for _ in range(2)]
            for j in cutlass.range_constexpr(4):
                steps = [lds128(q, (2 * j + x) * 512) for x in range(2)]
                for i in cutlass.range_constexpr(2):
                    b = [hmul2(x, scales[i]) for x in decode_word(words[i][j])]
                    acc[i] = mma_m16n8k16(steps[1], b[2], b[3], mma_m16n8k16(steps[0], b[0], b[1], acc[i]))
            best = self.join(self.join(best, acc[0]), acc[1])
        return best

    def f16_tiles(self, words, scales, a):
        """Tiles side by side, each with its words and scales: an accumulator a tile."""
        accs = [[Float32(0.0)] * 4 for _ in words]
        for j in range(4):
            b = [[hmul2(v, s[j // 2]) for v in decode_word(x[j], self.two)] for x, s in zip(words, scales)]
            for h in range(2):
                accs = [mma_m16n8k16(a[8 * j + 4 * h:8 * j + 4 * h + 4], *b[i][2 * h:2 * h + 2], acc) for i, acc in enumerate(accs)]
        return accs

    def int8_tile(self, words, t, a):
        acc = [Int32(0)] * 4
        for j in range(4):
            acc = mma_m16n8k32_s8(a[4 * j:4 * j + 4], *decode_int8.widen_word(words[j], t), acc)
        return acc

    def join(self, best, acc):
        return [fmax_nan(best[r], fmax_nan(acc[2 * r], acc[2 * r + 1])) for r in range(2)]

    @cute.jit
    def general(self, w, buffer, a, first_key, visible):
        """The same maxima in the general form: any scales, keys that count for some rows. visible: of the own row; first_key: the slice's."""
        c = self.c
        part = Slice(c, w)
        quad = w.lane - w.t
        limits = [shfl_idx(visible, quad + r) for r in range(2)]
        codes, at = buffer + part.code_offset, buffer + 8192 + part.scale_offset
        best = [Float32(float("-inf"))] * 2
        if const_expr(c.format == "mxfp4"):
            unit = lds128(w.tables)
            raw = [lds32(w.raw(), i * 128) for i in range(10)]
            a = decode_int8.fragments(raw[:4], raw[4:8], unit, unit)
        for i in cutlass.range(TILES, unroll=1):
            words = lds128(codes + i * 512)
            scale = at + i * part.step
            if const_expr(c.format == "nvfp4"):
                (scores,) = part.f16_tiles([words], [nvfp4_scales(lds_u16(scale))], a)
            else:
                scores = part.mxfp4_tile(w, words, lds_u8(scale), a, raw[8], raw[9])
            key = first_key + i * 8 + 2 * w.t
            best = self.join(best, [select_f32(scores[y], Float32(float("-inf")), Int32(key + y % 2 < limits[y // 2])) for y in range(4)])
        return best[0], best[1]

    @cute.jit
    def mxfp4_tile(self, w, words, k_byte, a, q_lo, q_hi):
        """Scores of 16 rows and 8 keys, right for every pair of bytes: the exact dot of each group times 2^(q byte + k byte - 254), groups added in order."""
        total = [Float32(0.0)] * 4
        for x in cutlass.range(4, unroll=1):
            mine = Int32(0) - Int32(w.t == x)       # only the lanes that hold group x feed the product
            unit = lds128(w.tables)
            acc = self.int8_tile([word & mine for word in words], unit, a)
            k = [shfl_idx(k_byte, 8 * w.t + 4 * y + x) for y in range(2)]
            q = [shfl_idx(q_byte, w.lane - w.t + x) for q_byte in (q_lo, q_hi)]
            total = [total[i] + times_pow2(fmul(s32_to_f32(acc[i]), Float32(0.0625)), k[i % 2], q[i // 2]) for i in range(4)]
        return total
