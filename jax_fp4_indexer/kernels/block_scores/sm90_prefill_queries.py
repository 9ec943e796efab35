"""The query side of the staged prefill: packed rows of an item come to shared memory as they are, the consumers
dequantise their own into registers.

A slot holds the codes of 256 rows (64 bytes each), after them their scale bytes (SCALE_ROOM each); the item's
description stands apart. The copying warps bring rows there by cp.async, with no register and no wait in between.
Rows that do not exist (head or token past the end) repeat one that does; no thread stores their scores.

A thread of a warpgroup holds, of an m64 tile, the rows `16 * warp + lane / 4` and 8 further, of each the quarter
`lane % 4`: 32 elements, the four words of one 16-byte load, under the scales of one MXFP4 group or two NVFP4 groups.
As operands they are its part of the matrix instruction's A operand for all of D: sm90_prepare.py lays the elements of
a key page out so that K steps meet the same ones (the order of D is free as long as both sides have it).

    bf16    step 2 * j + i / 2, half i % 2 of its 16 elements: pair i of word j (codes i, i + 4)
    int8    step j, half h of its 32 elements: codes 4 * h .. 4 * h + 3 of word j

A description is 12 words:
    0 place in the pass of the sequence's page 0 (may be negative)   1 pages (of this CTA's share)   2 key   3 k_len
    4 token   5 token_end   6 head   7 head_end   8 log2(tile width)   9-11 unused
(token + j sees the keys up to min(k_len - 1 - j, key) + j; kernels/block_scores/prefill_items.py)
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ...configs.block_scores import CODE_BYTES, GROUPS
from ..device.ptx_copies import copy4, copy16
from ..device.ptx_math import shr, shr_by
from ..device.ptx_memory import lds32, lds128, sts_v4
from ..operands import s8
from ..operands.bf16 import codes_to_bf16, query_scales_of_quarter
from ..operands.scale_addresses import Instructions, Operators, group_offset, tile_bytes, token_offset

ROWS = 256
SCALE_ROOM, DESCRIPTION = 8, 64  # bytes of a row's scales, of an item
SLOT_BYTES = ROWS * (CODE_BYTES + SCALE_ROOM)


@cute.jit
def scale_address(
    args, token: Int32, head: Int32, part: Int32, format: cutlass.Constexpr, scale_layout: cutlass.Constexpr
):
    """Address of the scale bytes of quarter `part` of a query row."""
    groups = GROUPS[format]
    group = part * (groups // 4)
    if const_expr(scale_layout == "public"):
        at = (Int64(token) * Int64(args.heads_q) + Int64(head)) * groups + Int64(group)
    else:
        # No token is negative: by shifts, a division takes one instruction, not four.
        tile = Int64(head) * Int64(shr(args.tokens + 127, 7)) + Int64(shr(token, 7))
        at = tile * tile_bytes(format) + Int64(token_offset(token, Instructions) + group_offset(group, Operators))
    return args.q_scale.toint() + at


@cute.jit
def describe(desc: Int32, item, place: Int32, pages: Int32):
    """One thread writes the item's description."""
    sts_v4(desc, [place, pages, item.key, item.k_len])
    sts_v4(desc + 16, [item.token, item.token_end, item.head, item.head_end])
    sts_v4(desc + 32, [item.log2, Int32(0), Int32(0), Int32(0)])


@cute.jit
def place_of(item, row: Int32):
    """(token, head) of a row of an item."""
    return (
        cutlass.min(item.token + (row & ((Int32(1) << item.log2) - 1)), item.token_end - 1),
        cutlass.min(item.head + (row >> item.log2), item.head_end - 1),
    )


def row_address(args, token: Int32, head: Int32):
    """Global address of the codes of a query row."""
    return args.q.toint() + (Int64(token) * Int64(args.heads_q) + Int64(head)) * CODE_BYTES


@cute.jit
def copy_item(
    args,
    item,
    slot: Int32,
    warp: Int32,
    lane: Int32,
    format: cutlass.Constexpr,
    scale_layout: cutlass.Constexpr,
    warps: cutlass.Constexpr,
):
    """This warp's (0 .. warps - 1) part of the rows of an item on their way to shared address `slot`, 8 rows at a
    time: of a row's four lanes each copies 16 bytes of codes, the first (NVFP4: two) four scale bytes as well."""
    part, row8 = lane % 4, lane // 4
    words = GROUPS[format] // 4
    for block in cutlass.range(warp, ROWS // 8, warps, unroll=1):
        row = block * 8 + row8
        token, head = place_of(item, row)
        copy16(slot + row * CODE_BYTES + part * 16, row_address(args, token, head) + Int64(part * 16))
        if part < words:
            copy4(
                slot + ROWS * CODE_BYTES + row * SCALE_ROOM + part * 4,
                scale_address(args, token, head, part * (4 // words), format, scale_layout),
            )


@cute.jit
def quarter(slot: Int32, row: Int32, part: Int32, format: cutlass.Constexpr):
    """(four words of codes, their scale bytes from the lowest on; MXFP4: those of all four quarters) of a row in a
    slot."""
    words = lds128(slot + row * CODE_BYTES + part * 16)
    scales = slot + ROWS * CODE_BYTES + row * SCALE_ROOM
    if const_expr(format == "nvfp4"):
        raw = shr_by(lds32(scales + (part & 2) * 2), (part & 1) * 16)
    else:
        raw = lds32(scales)
    return words, raw


@cute.jit
def widen_bf16(a, slot: Int32, row: Int32, lane: Int32, format: cutlass.Constexpr):
    """A thread's part of the tile whose first row of the thread is `row`, into a[0..31]."""
    part = lane % 4
    for half in cutlass.range_constexpr(2):
        words, raw = quarter(slot, row + 8 * half, part, format)
        if const_expr(format == "mxfp4"):
            raw = (raw >> (8 * part)) & 255
        factors = query_scales_of_quarter(raw, format)
        for j in cutlass.range_constexpr(4):
            pairs = codes_to_bf16(words[j], factors[j // 2])
            for i in cutlass.range_constexpr(4):
                a[(2 * j + i // 2) * 4 + i % 2 * 2 + half] = pairs[i]


@cute.jit
def widen_int8(a, slot: Int32, row: Int32, lane: Int32):
    """The same in int8, into a[0..15]. Returns the least exponent bytes of the two rows."""
    part, least = lane % 4, [Int32(0), Int32(0)]
    for half in cutlass.range_constexpr(2):
        words, raw = quarter(slot, row + 8 * half, part, "mxfp4")
        least[half] = least_byte(raw)
        t = s8.tables(((raw >> (8 * part)) & 255) - least[half])
        for j in cutlass.range_constexpr(4):
            low, high = s8.codes_to_s8(words[j], t)
            a[j * 4 + half], a[j * 4 + 2 + half] = low, high
    return least


def least_byte(word):
    """The smallest of the four bytes of a word."""
    exponents = [(word >> (8 * i)) & 255 for i in range(4)]
    return cutlass.min(cutlass.min(exponents[0], exponents[1]), cutlass.min(exponents[2], exponents[3]))
