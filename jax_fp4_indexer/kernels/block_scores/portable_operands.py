"""Bytes of keys and queries -> f16 operands of mma.sync m16n8k16, with nothing that sm_80 lacks.

Keys are rows (A), query columns are columns (B). Lane (g, t) = (lane / 4, lane % 4) of a warp holds bytes 16t ..
16t+15 of key rows 16m + g and 16m + g + 8, one 16-byte load each, and of query column 8n + g; kernels/operands/f16.py
gives the order of d.

| format | key operand | query operand | score = product * |
|---|---|---|---|
| nvfp4 | value * scale * 2^-14, a multiple of 2^-24 | value * scale | 2^14 |
| mxfp4 | value * 2^(byte - 133), byte in 110 .. 134 | value * 2^(byte - top + 13), top = largest byte of the row, span <= 27 | 2^(top - 134) |

All of them are exact in f16. A key row of mxfp4 whose bytes leave KEY_LOW .. KEY_HIGH is shifted into it as a whole
(`key_window`) if it spans no more; otherwise, and for a query row whose bytes span more than QUERY_SPAN or hold 255,
`any_scale.mxfp4_piece` gives the score. Which way a score takes depends on its own key and query row alone.
"""

import cutlass
from cutlass import Float32, Int32, Int64

from ...configs.block_scores import CODE_BYTES, GROUPS, PAGE
from ..device.integers import signed
from ..device.mma import mma_m16n8k16
from ..device.ptx_math import and_, bcast_half, e4m3x2_to_f16x2, hmul2, imad, shr
from ..device.ptx_memory import ldg32, ldg_u8, ldg_u16, ldg_v4
from ..operands.any_scale import query_operands
from ..operands.f16 import codes_to_f16
from ..operands.scale_addresses import SCALE_ROW, SCALE_TILE, Masks, Operators, row_offset, token_offset

KEY_LOW, KEY_HIGH = 110, 134  # mxfp4 scale bytes whose factor * 2^-14 keeps every E2M1 value exact in f16
SHIFTABLE = (64, 191)  # key bytes for which products times 2^shift stay normal numbers
QUERY_SPAN = 27
ONE_IN_BOTH = 0x04000400  # an exponent field of 1 in both halves


def byte_range(word):
    """(smallest, largest) of the four bytes of a word."""
    b = [and_(word, 255), and_(shr(word, 8), 255), and_(shr(word, 16), 255), shr(word, 24)]
    low = cutlass.min(cutlass.min(b[0], b[1]), cutlass.min(b[2], b[3]))
    high = cutlass.max(cutlass.max(b[0], b[1]), cutlass.max(b[2], b[3]))
    return low, high


def key_window(word):
    """(shift, general) of a key row with these four mxfp4 scale bytes: bytes minus shift lie in the operand window,
    and the scores are to be multiplied by 2^shift; 0 where they lie in it already. general: 1 where no shift serves."""
    low, high = byte_range(word)
    inside = (low >= KEY_LOW) & (high <= KEY_HIGH)
    shift = (high - KEY_HIGH) * (1 - Int32(inside))
    shiftable = (high - low <= KEY_HIGH - KEY_LOW) & (low >= SHIFTABLE[0]) & (high <= SHIFTABLE[1])
    return shift, 1 - Int32(inside | shiftable)


def query_window(word):
    """(largest byte, general) of a query row with these four mxfp4 scale bytes. general: 1 where f16 operands do not
    hold the row."""
    low, top = byte_range(word)
    return top, Int32((top - low > QUERY_SPAN) | (top == 255))


class Operands:
    """How one format in one scale layout is read. `convert`: the target has cvt.rn.f16x2.e4m3x2 (sm_89 and later)."""

    def __init__(self, format, scale_layout, convert):
        self.nvfp4 = format == "nvfp4"
        self.public = scale_layout == "public"
        self.convert = convert
        self.groups = GROUPS[format]

    # ------------------------------------------------------------ scales
    def scale_pair(self, raw):
        """Two UE4M3 bytes in the low half of raw -> f16x2 of their values. Bit 7 plays no part, 0x7F is NaN."""
        if self.convert:
            return e4m3x2_to_f16x2(raw)
        # 0 e e e e m m m at bits 14 .. 7 of a half reads as the value * 2^-8; 0x7F (0x3F80 there) becomes 0x7F80, a
        # NaN. The two bytes' sum between the fields stays below 2^8, so it never carries into the upper one.
        v = and_(imad(and_(raw, 0x7F7F), 0x8080, Int32(0)), 0x3F803F80)
        v = v | and_(v + Int32(0x00800080), 0x40004000)
        return hmul2(v, Int32(0x5C005C00))  # * 2^8

    def row_offset(self, row):
        """Byte offset of a row's scales, row a multiple of 8, from those of row g of the page."""
        return row * self.groups if self.public else row_offset(row, Operators)

    def lane_scales(self, g, t):
        """Byte offset of this lane's scales of row g within a page."""
        if self.nvfp4:
            return g * 8 + t * 2 if self.public else (t >> 1) * SCALE_TILE + g * SCALE_ROW + (t & 1) * 2
        return g * 4 + t if self.public else g * SCALE_ROW + t

    def query_scales(self, args, head, token):
        """Address of the first scale byte of a query row; its groups 4 .. 7, if any, are 4 or (preordered) 512 bytes
        further."""
        if self.public:
            return args.q_scale.toint() + (Int64(token) * Int64(args.heads_q) + Int64(head)) * self.groups
        tile_bytes = self.groups // 4 * SCALE_TILE
        tiles = (Int64(args.tokens) + 127) >> 7
        return (
            args.q_scale.toint()
            + (Int64(head) * tiles + Int64(token >> 7)) * tile_bytes
            + Int64(token_offset(token, Masks))
        )

    # ------------------------------------------------------------ keys
    def block_addresses(self, args, page, kv, lane):
        """(address of this lane's codes of row g, address of this lane's scales of row g) of a page's KV head."""
        block = Int64(page) * Int64(args.heads_kv) + Int64(kv)
        codes = args.k.toint() + block * (PAGE * CODE_BYTES) + Int64(lane * 16)
        return codes, args.k_scale.toint() + block * (PAGE * self.groups) + Int64(self.lane_scales(lane >> 2, lane & 3))

    def load_scales(self, address, row):
        """Raw scales of a lane: the bytes of groups 2t, 2t + 1 (nvfp4), the byte of group t (mxfp4)."""
        return ldg_u16(address, self.row_offset(row)) if self.nvfp4 else ldg_u8(address, self.row_offset(row))

    def key_scale(self, raw):
        """Raw scales -> f16x2 factors."""
        if self.nvfp4:
            return self.scale_pair(raw)
        return imad(raw, ONE_IN_BOTH, Int32(signed(-(KEY_HIGH - 30) * ONE_IN_BOTH)))

    def group_scale(self, scale, i):
        """The factor of words 2i and 2i + 1 of a lane."""
        return bcast_half(scale, i == 1) if self.nvfp4 else scale

    def multiply(self, lo, hi, scale_lo, scale_hi, qf, column_tiles):
        """Products of 16 keys with 8 * column_tiles columns: [tile][row g: columns 2t, 2t + 1; row g + 8: the same]."""
        acc = [[Float32(0.0)] * 4 for _ in range(column_tiles)]
        for j in range(4):
            sl, sh = self.group_scale(scale_lo, j // 2), self.group_scale(scale_hi, j // 2)
            a = [hmul2(x, sl) for x in codes_to_f16(lo[j])]
            b = [hmul2(x, sh) for x in codes_to_f16(hi[j])]
            for h in range(2):
                s = 2 * j + h
                for n in range(column_tiles):
                    acc[n] = mma_m16n8k16(
                        (a[2 * h], b[2 * h], a[2 * h + 1], b[2 * h + 1]),
                        qf[n * 16 + 2 * s],
                        qf[n * 16 + 2 * s + 1],
                        acc[n],
                    )
        return acc

    # ------------------------------------------------------------ queries
    def query_row(self, args, head, token, lane):
        """This lane's 16 bytes of a query row (four words)."""
        row = Int64(token) * Int64(args.heads_q) + Int64(head)
        return ldg_v4(args.q.toint() + row * CODE_BYTES + Int64((lane & 3) * 16))

    def query_column(self, args, head, token, lane):
        """(16 operand registers, info) of the row. info (mxfp4): its largest scale byte, plus 256 if its scales are
        outside QUERY_SPAN."""
        t = lane & 3
        values = query_operands(self.query_row(args, head, token, lane))
        address = self.query_scales(args, head, token)
        if self.nvfp4:
            pair = self.scale_pair(ldg_u16(address + Int64(t * 2 if self.public else (t >> 1) * 512 + (t & 1) * 2)))
            factors = [bcast_half(pair, False), bcast_half(pair, True)]
            info = Int32(0)
        else:
            word = ldg32(address)
            top, general = query_window(word)
            own = and_(word >> (8 * t), 255)
            factor = imad(cutlass.max(own - top + 28, Int32(1)), ONE_IN_BOTH, Int32(0))
            factors = [factor, factor]
            info = top + 256 * general
        return [hmul2(v, factors[i // 8]) for i, v in enumerate(values)], info
