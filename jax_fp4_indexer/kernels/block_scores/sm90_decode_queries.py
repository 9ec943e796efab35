"""The packed queries of one sequence and KV head, a tile of 16 rows at a time, in a warp's registers.

Row r of a tile is row `16 tile + r` of the sequence's (head in group, query) rows, query fastest. They are the A
operand of mma.sync: lane (g, t) = (lane / 4, lane % 4) holds bytes 16t .. 16t+15 of rows g and g + 8. Its *own* row,
whose score it stores, is g + 8 (t & 1).

nvfp4: f16 value * scale, exact. mxfp4: signed bytes 4 * value * 2^(byte - base + 2), base = the largest of the row's
four bytes; exact where the smallest is at most 2 below it. For wider rows or keys the codes are also kept in f16,
value * 2^(byte - base + 1), exact to a spread of 24. A row outside that (or with byte 255, or a base outside 8 ..
180) is not regular: all of its scores come from the any-scale path.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ..addressing.ragged import LARGEST
from ..device.fixed import Fixed
from ..device.ptx_math import add_sat, hmul2, mad_wide, opaque, select, shr, udiv
from ..device.ptx_memory import ld_u8_if, ld_u16_if, ld_v4_if, ldg32_if, lds128, sts_v4
from ..device.ptx_warp import redux, shfl_idx
from ..operands import s8_tables
from ..operands.any_scale import TWO_POW_14
from ..operands.f16 import codes_to_f16, nvfp4_scales, power_of_two
from ..operands.scale_addresses import SCALE_TILE, Shifts, token_offset
from .sm90_decode_config import ROWS
from .sm90_decode_start import FACTOR_BIAS, QUERY_BASES

WINDOW = 24  # binades below the base that an f16 operand holds exactly, keys and queries alike


@dataclasses.dataclass(frozen=True)
class QueryTile:
    """A tile of queries on its way from global memory, as a lane has it. Nothing may be derived from what is loaded
    before `Queries.prepare`.

    codes    4 words of row g, then 4 of row g + 8
    scales   scale bytes of the two rows
    address  of the own row's score of block 0; 0: no such row
    sees     last key that the own row sees, without `given`
    scale    head scale of the own row
    tiles    of the sequence and KV head
    given    the sequence's offset where that is an operand, else 0
    k_len    keys of the sequence
    """

    codes: tuple
    scales: tuple
    address: Int64
    sees: Int32
    scale: Int32
    tiles: Int32
    given: Int32
    k_len: Int32

    @classmethod
    def none(cls):
        """Of no rows."""
        zero = Int32(0)
        return cls((zero,) * 8, (zero,) * 2, Int64(0), zero, zero, zero, zero, zero)


@dataclasses.dataclass(frozen=True)
class OwnRow:
    """The row whose score a lane stores: address of its score of block 0 (0: none), keys that it sees, bits of the
    head scale, and mxfp4's factor as bits (0: not regular)."""

    address: Int64
    visible: Int32
    scale: Int32
    factor: Int32


def interleave(lo, hi):
    """A fragments from what codes_to_f16 made of rows g and g + 8: two k16 steps of four registers."""
    return [lo[0], hi[0], lo[1], hi[1], lo[2], hi[2], lo[3], hi[3]]


class Queries(Fixed):
    """Where the queries lie in global memory."""

    def __init__(self, config, args):
        self.c = config
        self.q, self.q_scale = args.q.toint(), args.q_scale.toint()
        self.head_scale, self.scores = args.head_scale.toint(), args.scores.toint()
        self.tokens, self.k_tiles, self.heads_q = args.tokens, args.k_tiles, args.heads_q
        self.heads_kv = args.heads_kv

    def scale_address(self, row, head, token, t):
        """Global address of the scale bytes of the groups that lane t of a row holds. row: token * heads + head; no
        buffer has 2^32 of them."""
        c = self.c
        first = t * (c.groups // 4)
        if c.scale_layout == "public":
            return mad_wide(row, Int32(c.groups), self.q_scale + Int64(first))
        tile = head * shr(self.tokens + 127, 7) + shr(token, 7)
        return mad_wide(
            tile,
            Int32(128 * c.groups),
            self.q_scale + Int64(token_offset(token, Shifts) + shr(first, 2) * SCALE_TILE + (first & 3)),
        )

    @cute.jit
    def load(self, w, seqs, run, tile):
        """A tile of the run's queries, on its way from global memory (QueryTile).

        Nothing in here waits for a load, nor does anything until `prepare`: a number derived from one would wait for
        all of them, 2,000 clocks at the start."""
        c = self.c
        kv_head, q0, q_len, k_len = run.kv_head, run.token, run.q_len, run.k_len
        # As Sequences.offset has it
        offset = select(seqs.mask, Int32(1), k_len - q_len, select(seqs.mask, Int32(2), Int32(0), Int32(LARGEST)))
        given = ldg32_if(Int32((seqs.mask == 2) & (q_len > 0)), seqs.offsets + Int64(run.sequence) * 4)
        ratio = self.heads_q
        if self.heads_kv > 1:
            ratio = udiv(ratio, self.heads_kv)
        rows = ratio * q_len
        lane = opaque(w.lane)
        t, own = lane & 3, lane & 1
        codes, raws, places = [], [], []
        for r in cutlass.range_constexpr(2):
            row = tile * ROWS + r * 8 + shr(lane, 2)
            in_group = udiv(row, q_len)
            i = row - in_group * q_len
            head, token, exists = kv_head * ratio + in_group, q0 + i, Int32(row < rows)
            line = token * self.heads_q + head
            codes += ld_v4_if(exists, mad_wide(line, Int32(64), self.q + Int64(t * 16)))
            raws.append(
                (ld_u16_if if c.format == "nvfp4" else ld_u8_if)(exists, self.scale_address(line, head, token, t))
            )
            places.append([head, token, i, exists])
        head, token, i, exists = [select(own, Int32(0), x, y) for x, y in zip(*places)]
        scale = ldg32_if(exists, self.head_scale + Int64(head) * 4)
        address = self.scores + mad_wide(head * self.k_tiles, self.tokens, Int64(token)) * 4
        if exists == 0:
            address = Int64(0)
        return QueryTile(
            tuple(codes),
            tuple(raws),
            address,
            add_sat(i, offset),
            scale,
            shr(rows + ROWS - 1, ROWS.bit_length() - 1),
            given,
            k_len,
        )

    @cute.jit
    def prepare(self, w, loaded):
        """(A fragments, OwnRow, the last block that every row sees whole, whether all rows fit bytes). mxfp4: the
        queries also go to shared memory in f16, where each lane reads its own again."""
        c = self.c
        lo, hi, raws, address = loaded.codes[:4], loaded.codes[4:], loaded.scales, loaded.address
        visible = cutlass.max(add_sat(cutlass.min(loaded.k_len - 1, add_sat(loaded.sees, loaded.given)), Int32(1)), 0)
        if address == 0:
            visible = Int32(0)
        sees_all, fits, factor = visible, Int32(1), Int32(1)
        if const_expr(c.format == "nvfp4"):
            scales = [nvfp4_scales(raw) for raw in raws]
            a = [
                x
                for j in range(4)
                for x in interleave(
                    *[
                        [_exact(hmul2(x, s[j // 2])) for x in codes_to_f16(words[j])]
                        for words, s in zip((lo, hi), scales)
                    ]
                )
            ]
        else:
            quads = [window(w, raw) for raw in raws]
            tables = [lds128(w.tables + cutlass.max(raws[r] - quads[r][0] + 2, 0) * 16) for r in range(2)]
            a = s8_tables.fragments(lo, hi, *tables)
            base, least = quads[0]
            if (w.t & 1) == 1:
                base, least = quads[1]
            factor = (base - FACTOR_BIAS + 127) << 23
            if (base < QUERY_BASES[0]) | (base > QUERY_BASES[1]) | (base - least > WINDOW):
                factor = Int32(0)
            if (base - least >= s8_tables.SHIFTS) & (address != 0):
                fits = Int32(0)
            scales = [power_scale(raws[r], quads[r][0]) for r in range(2)]
            for j in cutlass.range_constexpr(4):
                q = interleave(
                    *[[hmul2(x, scales[r]) for x in codes_to_f16(words[j])] for r, words in enumerate((lo, hi))]
                )
                for x in cutlass.range_constexpr(2):
                    sts_v4(w.wide(), q[4 * x : 4 * x + 4], j * 1024 + x * 512)
        if address == 0:  # a row that does not exist requires nothing
            sees_all, factor = Int32(LARGEST), Int32(1)
        full = (redux("min", sees_all) >> 7) - 1
        if const_expr(c.format == "mxfp4"):
            fits = redux("min", fits)
        return a, OwnRow(address, visible, loaded.scale, factor), full, fits


def _exact(x):
    """value * scale of a query without the 2^-14 of its code."""
    return hmul2(x, Int32(TWO_POW_14))


def window(w, raw):
    """[largest, smallest] of a row's four bytes, of which each lane of a quad holds one."""
    quad = w.lane - w.t
    others = [shfl_idx(raw, quad + x) for x in range(4)]
    return [
        cutlass.max(cutlass.max(others[0], others[1]), cutlass.max(others[2], others[3])),
        cutlass.min(cutlass.min(others[0], others[1]), cutlass.min(others[2], others[3])),
    ]


def power_scale(byte, base):
    """mxfp4 in f16: the factor 2^(byte - base + 15) of a code as f16 (which carries 2^-14), twice in a word. Exact to
    WINDOW binades below the base."""
    return power_of_two(byte - base + 15)
