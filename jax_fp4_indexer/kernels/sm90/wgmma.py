"""Hopper's warpgroup matrix instructions, f16 operands, f32 accumulators: A (64 keys) from registers, B (columns) from shared memory.

They run asynchronously. Order: `fence` the A registers, `mma` ..., `commit`, later `wait`. Until the wait nothing may touch the
accumulators or the A registers. Keep one accumulator per commit group, and nothing but that in flight over a loop's back edge:
with two of them ptxas has given the registers away (seen with CUDA 13; no warning).

B lies in 8 x 16-byte core matrices without swizzle: (column c, k) of a k16 step is at byte
    (c // 8) * 256 + ((k % 16) // 8) * 128 + (c % 8) * 16 + (k % 8) * 2,    steps of N columns are N * 32 bytes apart.
"""
from cutlass import Float32, Int32, Int64

from ..common.asm import asm

CORE_STRIDE_K, CORE_STRIDE_N = 128, 256     # bytes between core matrices


def operand_descriptor(addr):
    """Descriptor of the B operand of the first k16 step at shared address addr."""
    return (Int64(addr >> 4) & 0x3FFF) | (Int64(CORE_STRIDE_K >> 4) << 16) | (Int64(CORE_STRIDE_N >> 4) << 32)


def step_bytes(columns):
    return columns * 32


def mma(d, a, descriptor, columns, accumulate):
    """d (columns / 2 f32) = [d +] a (4 x f16x2: 16 keys of this warp) * B (16 x columns)."""
    n = columns // 2
    regs = ",".join(f"${i}" for i in range(n))
    text = ("{ .reg .pred p; setp.ne.b32 p, " + str(int(accumulate)) + ", 0; "
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{regs}}}, {{${n},${n + 1},${n + 2},${n + 3}}}, ${n + 4}, p, 1, 1, 0; }}")
    constraints = ",".join(["=f"] * n + ["r"] * 4 + ["l"] + [str(i) for i in range(n)])
    return list(asm(text, [Float32] * n, [*a, descriptor, *d], constraints, pure=False))


def fence(regs):
    """Orders the writes of these registers before the matrix instructions that follow (they pass through it, so nothing sinks below)."""
    n = len(regs)
    return list(asm("wgmma.fence.sync.aligned;", [Int32] * n, regs, ",".join(["=r"] * n + [str(i) for i in range(n)]), pure=False))


def commit():
    asm("wgmma.commit_group.sync.aligned;", [], [], "")


def wait(d, groups):
    """Until at most `groups` commit groups are in flight; d is the accumulator that is complete then."""
    n = len(d)
    return list(asm(f"wgmma.wait_group.sync.aligned {groups};", [Float32] * n, d, ",".join(["=f"] * n + [str(i) for i in range(n)]), pure=False))
