"""What a consumer warpgroup of the staged prefill does with one page: WGMMA tiles of 64 rows x 128 keys, row maxima
over the quad.

A thread holds 2 rows x 32 columns of a tile (m64n128 accumulator layout): rows `warp*16 + lane/4` and 8 further,
columns `8n + 2*(lane%4) + c`; a quad of lanes shares the rows. Its maxima (2 rows a tile) are reduced over the quad
by a transposing butterfly: of two tiles lane l of the quad then owns (tile l // 2, row half l % 2), of one tile (row
half l // 2). bf16 products have f32 accumulators, int8 ones int32.

Integers have a maximum of three in one instruction, floats do not, and predicated ones cost floats two. Floats that
are not negative (NaN among them) are ordered as their bits are as int32, and above all others; among negative ones
the greatest has the least bits. So a page that all rows see whole is reduced by its bits, and once more, by the
minimum, in a warp where a lane has met negative scores alone. On the diagonal rows that see few keys often have such,
so there floats are reduced as floats.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from ...configs.block_scores import HEAD_DIM, PAGE
from ..device.ptx_barriers import mbarrier_arrive
from ..device.ptx_math import bits_f32, fmax_nan, if_negative, shl_by
from ..device.ptx_warp import any_negative, shfl_xor, shfl_xor_f32
from ..device.wgmma import start_tile, wait_for

TILE_ROWS = 64  # rows of a WGMMA tile
COLUMNS = [8 * n + c for n in range(PAGE // 8) for c in range(2)]  # of a thread, less 2 * (lane % 4)
FLOATS, INTS, LEAST = "max.NaN.f32", "max.s32", "min.s32"
NEUTRAL = {FLOATS: "0xFF800000", INTS: "0x80000000", LEAST: "0x7FFFFFFF"}


def columns_up_to(limit):
    """A word whose bit i says whether COLUMNS[i] <= limit; limit may be anything from -2^31 on."""
    count = cutlass.max(cutlass.max(limit >> 3, -1) * 2 + cutlass.min(limit & 7, 1) + 1, 0)
    return shl_by(Int32(1), count) - 1


@dsl_user_op
def reduced(op, values, counted=None, *, loc=None, ip=None):
    """FLOATS, INTS or LEAST over 32-bit words; with `counted`, over those whose bit is set there (NEUTRAL of none).

    One volatile block, computed where it is written: plain maximum operations are sunk past the next WGMMA, which
    costs a copy of the accumulator. ptxas makes a maximum of three of two of integers that follow one another, and
    moves the bits of `counted` into predicates seven at a time, so that a column costs one predicated maximum,
    without a comparison and a selection."""
    n, names, chains = len(values), [f"${i + 1}" for i in range(len(values))], 2
    text = ["{", f".reg .b32 t<{n}>, r<4>, bit;", ".reg .pred p;"]
    operands, constraints = [x.ir_value(loc=loc, ip=ip) for x in values], ["r"] * n
    if counted is not None:
        chains = 4
        for i, name in enumerate(names):
            text += [f"and.b32 bit, ${n + 1}, {1 << i:#x};", "setp.ne.b32 p, bit, 0;"]
            if i < chains:
                text.append(f"selp.b32 r{i}, {name}, {NEUTRAL[op]}, p;")
            else:
                text.append(f"@p {op} r{i % chains}, r{i % chains}, {name};")
        names = [f"r{i}" for i in range(chains)]
        operands, constraints = operands + [Int32(counted).ir_value(loc=loc, ip=ip)], constraints + ["r"]
    k = 0
    while len(names) > 1:
        chains, ends = min(chains, (len(names) + 1) // 2), []
        for c in range(chains):
            end = names[c]
            for x in names[c + chains :: chains]:
                text.append(f"{op} t{k}, {end}, {x};")
                end = f"t{k}"
                k += 1
            ends.append(end)
        names = ends
    text += [f"mov.b32 $0, {names[0]};", "}"]
    return Int32(
        llvm.inline_asm(
            T.i32(),
            operands,
            "\n".join(text),
            ",".join(["=r"] + constraints),
            has_side_effects=True,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            loc=loc,
            ip=ip,
        )
    )


def over_rows(op, acc, counted):
    """`reduced` of this thread's part of the two rows of a tile; counted: a word or None for each."""
    return [
        reduced(op, [acc[c + 2 * r + 4 * n] for n in range(PAGE // 8) for c in range(2)], counted[r]) for r in range(2)
    ]


@cute.jit
def arrive_once(bar: Int32):
    """One arrival of the warp."""
    with cute.arch.elect_one():
        mbarrier_arrive(bar)


@cute.jit
def step(int8: cutlass.Constexpr, tiles, b: Int64, k_empty: Int32, counted):
    """Products and maxima of one page: two maxima a tile. tiles: the A operand of each (wgmma.start_tile); b: the
    page's descriptor; counted: a word (`columns_up_to`) for each of the maxima, or None for all: all columns count.
    The maxima of a tile run under the last WGMMA of the next and those of the other warpgroups; nothing is in flight
    at the end, and the page is given back (k_empty: address of the stage's barrier) as soon as all products are done.
    """
    accs = [start_tile("s8" if int8 else "bf16", PAGE, HEAD_DIM * (1 if int8 else 2), a, b) for a in tiles]
    words = [counted[2 * t : 2 * t + 2] for t in range(len(accs))]
    by_bits = not int8 and counted[0] is None
    maxima = []
    for t in cutlass.range_constexpr(len(accs)):
        wait_for(len(accs) - 1 - t)
        if const_expr(t == len(accs) - 1):
            arrive_once(k_empty)
        maxima += over_rows(INTS if int8 or by_bits else FLOATS, accs[t], words[t])
    if const_expr(by_bits):
        if any_negative(cutlass.min(cutlass.min(maxima[0], maxima[1]), cutlass.min(maxima[2], maxima[3]))) != 0:
            least = over_rows(LEAST, accs[0], words[0]) + over_rows(LEAST, accs[1], words[1])
            maxima = [if_negative(greatest, of_negative, greatest) for greatest, of_negative in zip(maxima, least)]
    return maxima if int8 else [bits_f32(x) for x in maxima]


def larger(a, b, lanes):
    """Maximum of a and lane (own ^ lanes)'s b."""
    return cutlass.max(a, shfl_xor(b, lanes)) if isinstance(a, Int32) else fmax_nan(a, shfl_xor_f32(b, lanes))


@cute.jit
def quad_max(maxima, lane: Int32):
    """Maximum over the quad of what `step` returns, in the lane that owns it."""
    high, odd = (lane & 2) != 0, (lane & 1) != 0
    if const_expr(len(maxima) == 2):
        send, keep = (maxima[0] if high else maxima[1]), (maxima[1] if high else maxima[0])
        keep = larger(keep, send, 2)
        return larger(keep, keep, 1)
    a0, a1, b0, b1 = maxima
    send0, send1 = (a0 if high else b0), (a1 if high else b1)
    keep0, keep1 = (b0 if high else a0), (b1 if high else a1)
    keep0, keep1 = larger(keep0, send0, 2), larger(keep1, send1, 2)
    send, keep = (keep0 if odd else keep1), (keep1 if odd else keep0)
    return larger(keep, send, 1)
