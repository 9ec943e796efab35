"""What a consumer warpgroup of the staged prefill does with one page: WGMMA tiles of 64 rows x 128 keys, row maxima over the quad.

A thread holds 2 rows x 32 columns of a tile (m64n128 accumulator layout): rows `warp*16 + lane/4` and 8 further, columns `8n + 2*(lane%4) + c`; a quad
of lanes shares the rows. Its maxima (2 rows a tile) are reduced over the quad by a transposing butterfly: of two tiles lane l of the quad
then owns (tile l // 2, row half l % 2), of one tile (row half l // 2). bf16 products have f32 accumulators, int8 ones int32.
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from ...configs.block_scores import HEAD_DIM, PAGE
from ..common.asm import fmax_nan, mbarrier_arrive, shfl_xor, shfl_xor_f32, shl_by
from .wgmma import start_tile, wait_for

TILE_ROWS = 64                  # rows of a WGMMA tile
COLUMNS = [8 * n + c for n in range(PAGE // 8) for c in range(2)]      # of a thread, less 2 * (lane % 4)


def columns_up_to(limit):
    """A word whose bit i says whether COLUMNS[i] <= limit; limit may be anything from -2^31 on."""
    count = cutlass.max(cutlass.max(limit >> 3, -1) * 2 + cutlass.min(limit & 7, 1) + 1, 0)
    return shl_by(Int32(1), count) - 1


@dsl_user_op
def max_tree(values, counted=None, *, loc=None, ip=None):
    """Maximum of the 32 accumulators of a row, NaN wins; with `counted`, only of those whose bit is set there (of none: -inf, or the least int32).

    One volatile block, computed where it is written: plain maximum operations are sunk past the next WGMMA, which costs a copy of the accumulator.
    Integers have a maximum of three, which ptxas makes of two that follow one another. ptxas moves the bits of `counted` into predicates seven at a time, so that
    a column costs one predicated maximum, not a comparison and a selection beside it."""
    int8 = isinstance(values[0], Int32)
    ty, letter, op, low = ("s32", "r", "max.s32", "0x80000000") if int8 else ("f32", "f", "max.NaN.f32", "0fFF800000")
    n, names = len(values), [f"${i + 1}" for i in range(len(values))]
    text = ["{", f".reg .{ty} t<{n}>;", ".reg .pred p;"]
    operands, constraints = [x.ir_value(loc=loc, ip=ip) for x in values], [letter] * n
    if counted is not None:
        mask, chains = f"${n + 1}", 4
        text += [f".reg .{ty} r<{chains}>;", ".reg .b32 bit;"]
        for i in range(n):
            text += [f"and.b32 bit, {mask}, {1 << i:#x};", "setp.ne.b32 p, bit, 0;"]
            if i < chains:
                text.append(f"selp.{'b32' if int8 else 'f32'} r{i}, {names[i]}, {low}, p;")
            else:
                text.append(f"@p {op} r{i % chains}, r{i % chains}, {names[i]};")
        names = [f"r{i}" for i in range(chains)]
        operands, constraints = operands + [Int32(counted).ir_value(loc=loc, ip=ip)], constraints + ["r"]
    k = 0
    while len(names) > 1:
        width = 3 if int8 and len(names) != 4 else 2
        groups = [names[i:i + width] for i in range(0, len(names), width)]
        names = []
        for first, *others in groups:
            for x in others:
                text.append(f"{op} t{k}, {first}, {x};")
                first = f"t{k}"
                k += 1
            names.append(first)
    text += [f"mov.b32 $0, {names[0]};", "}"]
    result, kind = (Int32, T.i32()) if int8 else (Float32, T.f32())
    return result(llvm.inline_asm(kind, operands, "\n".join(text), ",".join(["=" + letter] + constraints), has_side_effects=True, is_align_stack=False,
                                  asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip))


@cute.jit
def row_maxima(acc, counted0, counted1):
    """Maxima of this thread's part of its two rows: of the columns whose bits are set in the row's word, or, without words, of all."""
    rows = [[acc[c + 2 * r + 4 * n] for n in range(PAGE // 8) for c in range(2)] for r in range(2)]
    return max_tree(rows[0], counted0), max_tree(rows[1], counted1)


@cute.jit
def arrive_once(bar: Int32):
    """One arrival of the warp."""
    with cute.arch.elect_one():
        mbarrier_arrive(bar)


@cute.jit
def step(int8: cutlass.Constexpr, tiles, b: Int64, k_empty: Int32, counted):
    """Products and maxima of one page: two maxima a tile. tiles: the A operand of each (wgmma.start_tile); b: the page's descriptor; counted: a word (`columns_up_to`)
    for each of the maxima, or None: all columns count. The maxima of a tile run under the WGMMAs of the next (and those of the other warpgroups); nothing is in
    flight at the end, and the page is given back (k_empty: address of the stage's barrier) as soon as all products are done."""
    accs = [start_tile("s8" if int8 else "bf16", PAGE, HEAD_DIM * (1 if int8 else 2), a, b) for a in tiles]
    maxima = []
    for t in cutlass.range_constexpr(len(accs)):
        wait_for(len(accs) - 1 - t)
        if const_expr(t == len(accs) - 1):
            arrive_once(k_empty)
        low, high = row_maxima(accs[t], counted[2 * t], counted[2 * t + 1])
        maxima += [low, high]
    return maxima


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
