"""What a consumer warpgroup of the staged prefill does with one page: two WGMMA tiles of 64 rows x 128 keys, row maxima, one store.

A thread holds 2 rows x 32 columns of a tile (m64n128 accumulator layout): rows `warp*16 + lane/4` and 8 further, columns `8n + 2*(lane%4) + c`; a quad
of lanes shares the rows. Its four maxima (2 tiles x 2 rows) are reduced over the quad by a transposing butterfly (3 shuffles), after
which lane l of the quad owns (tile l // 2, row half l % 2) and stores that row.
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, const_expr
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T, dsl_user_op

from ...configs.block_scores import HEAD_DIM, PAGE
from ..common.asm import fmax_nan, mbarrier_arrive, shfl_xor_f32

TILE_ROWS = 64                  # rows of a WGMMA tile
COLUMNS = [8 * n + c for n in range(PAGE // 8) for c in range(2)]      # of a thread, less 2 * (lane % 4)


def new_mma():
    """A fresh atom for every use: its ACCUMULATE field is state of the Python object, which must not leak from one region into another."""
    op = warpgroup.MmaF16BF16Op(BFloat16, Float32, (TILE_ROWS, PAGE, 16), warpgroup.OperandSource.SMEM, warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.K)
    return cute.make_tiled_mma(cute.make_mma_atom(op), (1, 1, 1))


@dsl_user_op
def max_tree(values, limit=None, *, loc=None, ip=None):
    """Maximum of the 32 accumulators of a row, NaN wins; with `limit`, only those with COLUMNS[i] <= limit count (-inf if none).

    One volatile block, computed where it is written: plain maximum operations are sunk past the next WGMMA, which costs a copy of the accumulator."""
    n, names = len(values), [f"${i + 1}" for i in range(len(values))]
    text = ["{", f".reg .f32 t<{n}>, m<{n}>;", ".reg .pred p;"]
    operands, constraints = [x.ir_value(loc=loc, ip=ip) for x in values], ["f"] * n
    if limit is not None:
        for i in range(n):
            text += [f"setp.le.s32 p, {COLUMNS[i]}, ${n + 1};", f"selp.f32 m{i}, {names[i]}, 0fFF800000, p;"]
        names = [f"m{i}" for i in range(n)]
        operands, constraints = operands + [Int32(limit).ir_value(loc=loc, ip=ip)], constraints + ["r"]
    k = 0
    while len(names) > 1:
        pairs = []
        for a, b in zip(names[::2], names[1::2]):
            text.append(f"max.NaN.f32 t{k}, {a}, {b};")
            pairs.append(f"t{k}")
            k += 1
        names = pairs
    text += [f"mov.b32 $0, {names[0]};", "}"]
    return Float32(llvm.inline_asm(T.f32(), operands, "\n".join(text), ",".join(["=f"] + constraints), has_side_effects=True, is_align_stack=False,
                                   asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip))


@cute.jit
def issue(acc, a, b, tile: Int32, stage: Int32):
    """Start the WGMMAs of one tile; they form one group."""
    mma = new_mma()
    warpgroup.fence()
    for k in cutlass.range_constexpr(HEAD_DIM // 16):
        mma.set(warpgroup.Field.ACCUMULATE, k != 0)
        cute.gemm(mma, acc, a[None, None, k, tile], b[None, None, k, stage], acc)
    warpgroup.commit_group()


@cute.jit
def row_maxima(acc, masked: cutlass.Constexpr, limit0, limit1):
    """Maxima of this thread's part of its two rows; column c counts iff c <= limit of the row, where masked."""
    rows = [[acc[c + 2 * r + 4 * n] for n in range(PAGE // 8) for c in range(2)] for r in range(2)]
    if const_expr(masked):
        return max_tree(rows[0], limit0), max_tree(rows[1], limit1)
    return max_tree(rows[0]), max_tree(rows[1])


@cute.jit
def arrive_once(bar: Int32):
    """One arrival of the warp."""
    with cute.arch.elect_one():
        mbarrier_arrive(bar)


@cute.jit
def step(acc_a, acc_b, a, b, tile: Int32, stage: Int32, k_empty: Int32, limits, masked: cutlass.Constexpr):
    """Products and maxima of one page. The maximum of tile A runs under the WGMMAs of tile B (and those of the other warpgroup); nothing is
    in flight at the end, and the page is given back (k_empty: address of the stage's barrier) as soon as both products are done."""
    issue(acc_a, a, b, tile, stage)
    issue(acc_b, a, b, tile + 1, stage)
    warpgroup.wait_group(1)
    a0, a1 = row_maxima(acc_a, masked, limits[0], limits[1])
    warpgroup.wait_group(0)
    arrive_once(k_empty)
    b0, b1 = row_maxima(acc_b, masked, limits[2], limits[3])
    return a0, a1, b0, b1


@cute.jit
def quad_max(a0, a1, b0, b1, lane: Int32):
    """Maximum over the quad: lane l of it gets that of (tile l // 2, row half l % 2)."""
    high, odd = (lane & 2) != 0, (lane & 1) != 0
    send0, send1 = (a0 if high else b0), (a1 if high else b1)
    keep0, keep1 = (b0 if high else a0), (b1 if high else a1)
    keep0 = fmax_nan(keep0, shfl_xor_f32(send0, 2))
    keep1 = fmax_nan(keep1, shfl_xor_f32(send1, 2))
    send, keep = (keep0 if odd else keep1), (keep1 if odd else keep0)
    return fmax_nan(keep, shfl_xor_f32(send, 1))
