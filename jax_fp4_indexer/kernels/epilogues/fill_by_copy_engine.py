"""The -inf fill of the staged prefill (kernels/epilogues/fill_by_table.py) by the copy engine: chunks that are all
-inf and follow one another are copied out of a stretch of shared memory that holds nothing else. Ordinary stores of
the same bytes, 32 lanes wide, pass through the path that brings operands from shared memory to the tensor cores, and
take the copying warps' time."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..device.ptx_barriers import bar_sync, fence_async_shared
from ..device.ptx_copies import bulk_store, bulk_stores_commit
from ..device.ptx_math import lowest_bit, shl_by, shr_by
from ..device.ptx_memory import sts_v4
from . import fill_by_table

CHUNK_BYTES = 128 * 4


@cute.jit
def write_pattern(
    falls: Int32,
    pattern: Int32,
    size: cutlass.Constexpr,
    warp: Int32,
    lane: Int32,
    warps: cutlass.Constexpr,
    barrier: cutlass.Constexpr,
):
    """Warps 0 .. warps - 1 write `size` bytes of what the fill writes to shared address `pattern`. falls: the plan's
    word of that name."""
    bits = fill_by_table.fill_bits(falls)
    for i in cutlass.range(warp * 32 + lane, size // 16, warps * 32, unroll=1):
        sts_v4(pattern + i * 16, [bits, bits, bits, bits])
    fence_async_shared()
    bar_sync(Int32(barrier), warps * 32)


@cute.jit
def fill_unit(args, layout, unit: Int64, lane: Int32, pattern: Int32, size: cutlass.Constexpr):
    """One warp writes one unit. Lane 0 issues the copies; `bulk_stores_have_read` before shared memory goes."""
    chunks = fill_by_table.chunks_of_unit(args, layout, unit, lane)
    copied = Int32(0)
    if (args.tokens & 3) == 0:  # rows start on 16 bytes
        # The last chunk may be short
        copied = chunks.whole & (shl_by(Int32(1), (args.tokens >> 7) - chunks.first) - 1)
    some = chunks.some & ~copied
    while copied != 0:
        first = lowest_bit(copied)
        others = ~shr_by(copied, first)
        count = Int32(32)
        if others != 0:
            count = lowest_bit(others)
        if lane == 0:
            at, left = chunks.base + Int64(chunks.first + first) * CHUNK_BYTES, count * CHUNK_BYTES
            while left > 0:
                some_bytes = cutlass.min(left, size)
                bulk_store(at, pattern, some_bytes)
                at, left = at + Int64(some_bytes), left - some_bytes
            bulk_stores_commit()
        copied = copied & ~shl_by(shl_by(Int32(1), count) - 1, first)
    fill_by_table.fill_chunks(args, layout, chunks, some, lane)
