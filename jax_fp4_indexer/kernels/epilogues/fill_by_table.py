"""The -inf of what no item scores: slot (head, block kb, token t) with kb >= token_pages[t]
(kernels/block_scores/prefill_schedule.py).

A *unit* is 32 chunks of 128 tokens of one output row (head, kb): a lane looks at one chunk's minimum and maximum, the
warp then writes the chunks that need it, 512 bytes at a time. Scores `[Hq, Ktiles, Tq]`; units are numbered (chunk
group, head, kb), kb fastest, so that neighbours in the numbering cost about the same. Right for any Tq: rows that do
not start on 16 bytes are written a word a lane. Where the header says that a sum decreases, NaN goes to every slot
instead.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...configs.block_scores import Scratch
from ..device.ptx_math import lowest_bit
from ..device.ptx_memory import ldg32, stg32, stg_v4
from ..device.ptx_warp import ballot_le

NEG_INF_BITS = 0xFF800000 - 2**32


def fill_bits(falls):
    """Bits of what the fill writes: -inf, a NaN where `falls` is 1."""
    return Int32(NEG_INF_BITS) | (falls << 22)


def fill_units(args):
    """Number of units of the call (Int64)."""
    return Int64((args.tokens + 4095) // 4096) * Int64(args.heads_q) * Int64(args.k_tiles)


@dataclasses.dataclass(frozen=True)
class Chunks:
    """What a unit has to write.

    base   address of its output row
    kb     its block
    first  its first chunk
    some   chunks that need something written, a bit each
    whole  those of them that need it everywhere
    bits   what is written
    """

    base: Int64
    kb: Int32
    first: Int32
    some: Int32
    whole: Int32
    bits: Int32


@cute.jit
def chunks_of_unit(args, layout, unit: Int64, lane: Int32):
    """The Chunks of a unit."""
    scratch = args.scratch.toint()
    rows = Int64(args.heads_q) * Int64(args.k_tiles)
    group = unit // rows
    row = unit - group * rows
    kb = Int32(row % Int64(args.k_tiles))
    chunks = (args.tokens + 127) // 128
    c0 = Int32(group) * 32
    c = c0 + lane
    least, most = Int32(2**31 - 1), Int32(2**31 - 1)  # a chunk that does not exist is left alone
    falls = ldg32(scratch, Scratch.FALLS)
    if c < chunks:
        least = ldg32(scratch + layout.chunk_min + Int64(c) * 4)
        most = ldg32(scratch + layout.chunk_max + Int64(c) * 4)
        if falls != 0:
            least, most = Int32(0), Int32(0)
    bits = fill_bits(falls)
    some = ballot_le(least, kb)
    whole = ballot_le(most, kb)
    return Chunks(args.scores.toint() + row * Int64(args.tokens) * 4, kb, c0, some, whole, bits)


@cute.jit
def fill_unit(args, layout, unit: Int64, lane: Int32):
    """One warp writes one unit."""
    chunks = chunks_of_unit(args, layout, unit, lane)
    fill_chunks(args, layout, chunks, chunks.some, lane)


@cute.jit
def fill_chunks(args, layout, chunks: Chunks, some: Int32, lane: Int32):
    """One warp writes those chunks of a unit that `some` names, a chunk after the other."""
    scratch = args.scratch.toint()
    while some != 0:
        i = lowest_bit(some)
        some = some & (some - 1)
        t0 = (chunks.first + i) * 128
        if ((chunks.whole >> i) & 1) != 0:
            fill_chunk(args, chunks.base, t0, chunks.bits, lane)
        else:
            for j in cutlass.range(4, unroll=1):
                t = t0 + j * 32 + lane
                if t < args.tokens:
                    if ldg32(scratch + layout.token_pages + Int64(t) * 4) <= chunks.kb:
                        stg32(chunks.base + Int64(t) * 4, chunks.bits)


@cute.jit
def fill_chunk(args, base: Int64, t0: Int32, bits: Int32, lane: Int32):
    """128 tokens of a row from t0 on, as far as they exist."""
    if ((args.tokens & 3) == 0) & (t0 + 128 <= args.tokens):
        stg_v4(base + Int64(t0 + lane * 4) * 4, [bits, bits, bits, bits])
    else:
        for j in cutlass.range_constexpr(4):
            t = t0 + j * 32 + lane
            if t < args.tokens:
                stg32(base + Int64(t) * 4, bits)


@cute.jit
def fill_rest(args, layout, unit: Int64, stride: Int64, lane: Int32):
    """One warp writes the units `unit`, `unit + stride`, ... to the end."""
    units = fill_units(args)
    while unit < units:
        fill_unit(args, layout, unit, lane)
        unit = unit + stride
