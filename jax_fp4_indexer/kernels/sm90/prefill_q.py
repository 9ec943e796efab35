"""The query side of the staged prefill: the widening warps bring an item's 256 rows into a slot of the Q ring, straight from codes and scales.

A slot holds four tiles of 64 rows x 128 elements, 128-byte swizzle, K-major. bf16: 16-byte piece c of row r of a tile lies at
`(c // 8) * 8192 + (r // 8) * 1024 + (r % 8) * 128 + ((c % 8) ^ (r % 8)) * 16`; int8: at `(r // 8) * 1024 + (r % 8) * 128 + (c ^ (r % 8)) * 16`.
A lane takes 16 bytes of codes (32 elements), a warp 8 rows at a time. Rows that do not exist (head or token past the end) repeat one that
does; nobody stores their scores.

Beside the rows the slot carries the item's description, 12 words that the consumers read, and in int8 a factor a row, 2^(least exponent - 128):
    0 place in the pass of the sequence's page 0 (may be negative)   1 pages (of this CTA's share)   2 key   3 k_len
    4 token   5 token_end   6 head   7 head_end   8 log2(tile width)   9-11 unused
(token + j sees the keys up to min(k_len - 1 - j, key) + j; kernels/common/walk.py)
"""
import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ..common import int8 as narrow
from ..common.asm import and_, ld32, ld_v4, lds32, lds128, mbarrier_wait, prefetch_line, shr, sts32, sts_v4
from ..common.widen import groups_of, load_scales, query_scales_of_quarter, tile_bytes, tiled_offset, widen_word

ROWS = 256


@cute.jit
def scale_address(args, token: Int32, head: Int32, part: Int32, fmt: cutlass.Constexpr, scale_layout: cutlass.Constexpr):
    """Address of the scale bytes of quarter `part` of a query row."""
    groups = groups_of(fmt)
    group = part * (groups // 4)
    if const_expr(scale_layout == "public"):
        at = (Int64(token) * Int64(args.heads_q) + Int64(head)) * groups + Int64(group)
    else:
        # No token is negative: by shifts, a division takes one instruction, not four.
        tile = Int64(head) * Int64(shr(args.tokens + 127, 7)) + Int64(shr(token, 7))
        at = tile * tile_bytes(fmt) + Int64(and_(token, 31) * 16 + and_(shr(token, 5), 3) * 4 + tiled_offset(0, group))
    return args.q_scale.toint() + at


@cute.jit
def describe(desc: Int32, item, place: Int32, pages: Int32):
    """One thread writes the item's description."""
    sts_v4(desc, [place, pages, item.key, item.k_len])
    sts_v4(desc + 16, [item.token, item.token_end, item.head, item.head_end])
    sts_v4(desc + 32, [item.log2, Int32(0), Int32(0), Int32(0)])


@dataclasses.dataclass(frozen=True)
class Rows:
    """What `widen_item` reads of an item (kernels/common/walk.py)."""
    token: Int32
    token_end: Int32
    head: Int32
    head_end: Int32
    log2: Int32


def described(desc):
    """Rows of a description."""
    return Rows(*lds128(desc, 16), lds32(desc, 32))


@cute.jit
def place_of(item, row: Int32):
    """(token, head) of a row of an item."""
    return (cutlass.min(item.token + (row & ((Int32(1) << item.log2) - 1)), item.token_end - 1), cutlass.min(item.head + (row >> item.log2), item.head_end - 1))


def row_address(args, token: Int32, head: Int32):
    return args.q.toint() + (Int64(token) * Int64(args.heads_q) + Int64(head)) * 64


@cute.jit
def prefetch_item(args, item, warp: Int32, lane: Int32, fmt: cutlass.Constexpr, scale_layout: cutlass.Constexpr, warps: cutlass.Constexpr):
    """Into L2 what `widen_item` will read."""
    for block in cutlass.range(warp, ROWS // 8, warps, unroll=1):
        token, head = place_of(item, block * 8 + lane // 4)
        prefetch_line(row_address(args, token, head))
        prefetch_line(scale_address(args, token, head, lane % 4, fmt, scale_layout))


@cute.jit
def widen_item(args, item, slot: Int32, factors: Int32, warp: Int32, lane: Int32, fmt: cutlass.Constexpr, scale_layout: cutlass.Constexpr, int8: cutlass.Constexpr,
               batch: cutlass.Constexpr, warps: cutlass.Constexpr, free=None):
    """This warp's (0 .. warps - 1) part of the rows of an item; slot, factors: shared addresses; batch: blocks of 8 rows whose loads are in flight;
    free: barrier and parity to wait for once the first loads are on their way."""
    part, row8 = lane % 4, lane // 4
    base = slot + row8 * 128 + (part // 2) * (0 if int8 else 8192)
    for first in cutlass.range(warp, ROWS // 8, warps * batch, unroll=1):
        words, scales = [], []
        blocks = [first + warps * i for i in range(batch)]
        for i in cutlass.range_constexpr(batch):
            # past the end the warp does its first block again
            blocks[i] = blocks[i] if blocks[i] < ROWS // 8 else first
            token, head = place_of(item, blocks[i] * 8 + row8)
            words.append(ld_v4(row_address(args, token, head) + Int64(part * 16)))
            if const_expr(int8):
                scales.append(ld32(scale_address(args, token, head, Int32(0), fmt, scale_layout)))
            else:
                scales.append(load_scales(scale_address(args, token, head, part, fmt, scale_layout), fmt))
        cute.arch.sync_warp()       # keeps the loads together (they are not read-only ones): ptxas would sink each to its use
        if const_expr(free is not None):
            if first == warp:
                mbarrier_wait(*free)
        for i in cutlass.range_constexpr(batch):
            if const_expr(int8):
                least = least_byte(scales[i])
                t = narrow.tables(((scales[i] >> (8 * part)) & 255) - least)
                if part == 0:
                    sts32(factors + (blocks[i] * 8 + row8) * 4, 0, narrow.unit_bits(least))
                for j in cutlass.range_constexpr(2):
                    piece = narrow.int8_word(words[i][2 * j], t) + narrow.int8_word(words[i][2 * j + 1], t)
                    sts_v4(base + blocks[i] * 1024 + ((part * 2 + j) ^ row8) * 16, piece)
            else:
                factor = query_scales_of_quarter(scales[i], fmt)
                dst = base + (blocks[i] // 8) * 16384 + (blocks[i] % 8) * 1024
                for j in cutlass.range_constexpr(4):
                    sts_v4(dst + (((part % 2) * 4 + j) ^ row8) * 16, widen_word(words[i][j], factor[j // 2]))


def least_byte(word):
    exponents = [(word >> (8 * i)) & 255 for i in range(4)]
    return cutlass.min(cutlass.min(exponents[0], exponents[1]), cutlass.min(exponents[2], exponents[3]))
