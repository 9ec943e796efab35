"""Columns: the packed queries of one sequence and KV head, a tile of `columns` at a time, staged in shared memory for
one warpgroup.

Column c of the tile is row `tile * columns + c` of the sequence's (head in group, query) rows, query fastest. Staged
are the f16 operand in the order of device/wgmma.py and, for each column, where its scores go, how many keys it sees,
and how many of them the fast path may serve.

Operand: nvfp4 value * scale, exact. mxfp4 value * 2^(byte - base + 13), base = the largest of the column's four
bytes; exact where the smallest is at most 27 below it. A column outside that (or with byte 255, or a base outside 8
.. 180) is not regular: all of its scores come from the any-scale path, which reads the raw codes, which are staged as
well.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ..addressing.ragged import LARGEST
from ..device import wgmma
from ..device.fixed import Fixed
from ..device.ptx_barriers import bar_sync, fence_async_shared
from ..device.ptx_math import add_sat, hmul2, unpack64
from ..device.ptx_memory import evict_first, ldg32, ldg128, ldg_u8, ldg_u16, lds64, sts32, sts_v4
from ..device.ptx_warp import redux, shfl_idx
from ..operands.any_scale import query_operands
from ..operands.f16 import nvfp4_scales, power_of_two
from ..operands.scale_addresses import Operators, group_offset, token_offset
from .sm90_decode_start import FACTOR_BIAS, QUERY_BASES

Q_WINDOW = 27  # binades below a column's base that its operand holds exactly


class Columns(Fixed):
    """Where the queries lie in global memory."""

    def __init__(self, config, args):
        self.c = config
        self.q, self.q_scale = args.q.toint(), args.q_scale.toint()
        self.head_scale, self.scores = args.head_scale.toint(), args.scores.toint()
        self.tokens, self.k_tiles, self.heads_q = args.tokens, args.k_tiles, args.heads_q
        self.ratio = args.heads_q // args.heads_kv

    @cute.jit
    def scale_address(self, head, token, t):
        """Global address of the scale bytes of the groups that lane t of a row holds."""
        c = self.c
        first = t * (c.groups // 4)
        if const_expr(c.scale_layout == "public"):
            at = (Int64(token) * Int64(self.heads_q) + Int64(head)) * c.groups + Int64(first)
        else:
            plane = Int64((self.tokens + 127) // 128) * (128 * c.groups)
            row = Int64(token // 128) * (128 * c.groups) + Int64(token_offset(token, Operators))
            at = Int64(head) * plane + row + Int64(group_offset(first, Operators))
        return self.q_scale + at

    @cute.jit
    def stage(self, w, seqs, sequence, kv_head, tile, barrier):
        """Stage one tile; all 128 threads of the warpgroup.

        Returns (keys that the fast path serves for every column of the tile, tiles of the sequence)."""
        c, w = self.c, w.aside()
        q0, q_len = seqs.queries(sequence)
        k_len = seqs.key_count(sequence)
        offset = seqs.offset(sequence, k_len, q_len)
        rows = self.ratio * q_len
        tiles8 = c.columns // 8
        rounds = (tiles8 + 3) // 4
        words, raws, addrs, scales, visibles = [], [], [], [], []
        for r in cutlass.range_constexpr(rounds):
            n = w.warp + 4 * r  # eight columns a warp and round
            row = tile * c.columns + n * 8 + w.g
            code = [Int32(0)] * 4
            raw, visible, address, scale = Int32(0), Int32(0), Int64(0), Int32(0)
            if (row < rows) & (n < tiles8):
                in_group = row // q_len
                i = row - in_group * q_len
                head, token = kv_head * self.ratio + in_group, q0 + i
                code = ldg128(
                    self.q + (Int64(token) * Int64(self.heads_q) + Int64(head)) * 64 + Int64(w.t * 16), 0, evict_first()
                )
                at = self.scale_address(head, token, w.t)
                if const_expr(c.format == "nvfp4"):
                    raw = ldg_u16(at)
                else:
                    raw = ldg_u8(at)
                scale = ldg32(self.head_scale + Int64(head) * 4)
                visible = cutlass.max(add_sat(cutlass.min(k_len - 1, add_sat(i, offset)), Int32(1)), 0)
                address = self.scores + (Int64(head) * Int64(self.k_tiles) * Int64(self.tokens) + Int64(token)) * 4
            words.append(code)
            raws.append(raw)
            addrs.append(address)
            scales.append(scale)
            visibles.append(visible)
        bar_sync(barrier, 128)  # no warp reads the last tile's columns any more
        for r in cutlass.range_constexpr(rounds):
            n = w.warp + 4 * r
            if n < tiles8:
                self.store(w, n, words[r], raws[r], addrs[r], scales[r], visibles[r])
        fence_async_shared()
        bar_sync(barrier, 128)
        fast = Int32(LARGEST)
        for r in cutlass.range_constexpr((c.columns + 31) // 32):
            fast = cutlass.min(fast, lds64(w.base + c.limits + (w.lane % c.columns + 32 * r) * 8)[1])
        return redux("min", fast), (rows + c.columns - 1) // c.columns

    @cute.jit
    def store(self, w, n, words, raw, address, scale, visible):
        """Lane (g, t) stores its part of column 8 n + g."""
        c = self.c
        column = n * 8 + w.g
        b = query_operands(words)
        regular = Int32(1)
        if const_expr(c.format == "nvfp4"):
            s = nvfp4_scales(raw)
        else:
            quad = w.lane - w.t
            others = [shfl_idx(raw, quad + x) for x in range(4)]
            base = cutlass.max(cutlass.max(others[0], others[1]), cutlass.max(others[2], others[3]))
            least = cutlass.min(cutlass.min(others[0], others[1]), cutlass.min(others[2], others[3]))
            if (base < QUERY_BASES[0]) | (base > QUERY_BASES[1]) | (base - least > Q_WINDOW):
                regular = Int32(0)
            s = [power_of_two(raw - base + 13)] * 2
            sts_v4(w.base + c.raw_codes + column * 64 + w.t * 16, words)
            if w.t == 0:
                packed = others[0] | (others[1] << 8) | (others[2] << 16) | (others[3] << 24)
                sts32(w.base + c.raw_scales + column * 4, 0, packed)
                exponent = cutlass.max(base, QUERY_BASES[0]) - FACTOR_BIAS + 127
                sts32(w.base + c.factors + column * 4, 0, exponent << 23)
        for x in cutlass.range_constexpr(16):
            sts32(
                w.base + c.operand + n * wgmma.CORE_STRIDE_N + w.lane * 4,
                (x // 2) * wgmma.step_bytes(c.columns) + (x % 2) * wgmma.CORE_STRIDE_K,
                hmul2(b[x], s[x // 8]),
            )
        if w.t == 0:
            fast = Int32(LARGEST)  # a column that does not exist requires nothing
            if address != 0:
                fast = visible
                if regular == 0:
                    fast = Int32(0)
            low, high = unpack64(address)
            sts_v4(w.base + c.outputs + column * 16, [low, high, visible, scale])
            sts32(w.base + c.limits + column * 8, 0, visible)
            sts32(w.base + c.limits + column * 8, 4, fast)
