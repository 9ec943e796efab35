"""Hopper's warpgroup matrix instructions: A (64 rows) from registers or shared memory, B (columns) from shared
memory.

They run asynchronously. Order: `fence` the A registers, `mma` ..., `commit`, later `wait`. Until the wait nothing may
touch the accumulators or the A registers. Keep one accumulator per commit group, and nothing but that in flight over
a loop's back edge: with two of them ptxas has given the registers away (seen with CUDA 13; no warning).

`mma`: f16 operands, f32 accumulators; B lies in 8 x 16-byte core matrices without swizzle: (column c, k) of a k16
step is at byte
    (c // 8) * 256 + ((k % 16) // 8) * 128 + (c % 8) * 16 + (k % 8) * 2,    steps of N columns are N * 32 bytes apart.

`start_tile`: all K steps of a tile of bf16 (f32 accumulators) or int8 (int32), one commit group. Shared operands are
K-major with 128-byte swizzle: of n rows the 16-byte piece c of row r is at `(c // 8) * n * 128 + r * 128 + ((c % 8) ^
(r % 8)) * 16`.
"""

from cutlass import Float32, Int32, Int64

from .ptx import asm

CORE_STRIDE_K, CORE_STRIDE_N = 128, 256  # bytes between core matrices


def operand_descriptor(addr):
    """Descriptor of the B operand of the first k16 step at shared address addr."""
    return (Int64(addr >> 4) & 0x3FFF) | (Int64(CORE_STRIDE_K >> 4) << 16) | (Int64(CORE_STRIDE_N >> 4) << 32)


def step_bytes(columns):
    """Bytes from a k16 step of the B operand to the next."""
    return columns * 32


def mma(d, a, descriptor, columns, accumulate):
    """d (columns / 2 f32) = [d +] a (4 x f16x2: 16 keys of this warp) * B (16 x columns)."""
    n = columns // 2
    regs = ",".join(f"${i}" for i in range(n))
    text = (
        "{ .reg .pred p; setp.ne.b32 p, " + str(int(accumulate)) + ", 0; "
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{regs}}}, {{${n},${n + 1},${n + 2},${n + 3}}}, ${n + 4}, p, 1, 1, 0; }}"
    )
    constraints = ",".join(["=f"] * n + ["r"] * 4 + ["l"] + [str(i) for i in range(n)])
    return list(asm(text, [Float32] * n, [*a, descriptor, *d], constraints, pure=False))


def tile_descriptor(addr):
    """Descriptor of a shared operand of `start_tile` at shared address addr, a multiple of 1024."""
    return (Int64(addr >> 4) & 0x3FFF) | (Int64(1) << 16) | (Int64(1024 >> 4) << 32) | (Int64(1) << 62)


def _k_step(k, rows):
    """What K step k adds to the descriptor of an operand of that many rows."""
    return k // 4 * (rows * 128 >> 4) + k % 4 * (32 >> 4)


def start_tile(kind, columns, row_bytes, a, b):
    """A tile of 64 rows x `columns`: the bits of a new accumulator (columns / 2 registers a thread), which nothing
    may touch before a wait. The fence of A's registers is in it.

    kind: "bf16" | "s8"; a: registers, four a K step of 32 bytes, or a descriptor; b: descriptor."""
    n, steps, in_registers = columns // 2, row_bytes // 32, isinstance(a, list)
    name, flags = {
        "bf16": ("k16.f32.bf16.bf16", ", 1, 1, 0" if in_registers else ", 1, 1, 0, 0"),
        "s8": ("k32.s32.s8.s8", ""),
    }[kind]
    operands = [*a, b] if in_registers else [a, b]
    accumulator = "{" + ",".join(f"${i}" for i in range(n)) + "}"
    text = ["{ .reg .b64 a, b;", "wgmma.fence.sync.aligned;"]
    for k in range(steps):
        of_a = "{" + ",".join(f"${n + 4 * k + i}" for i in range(4)) + "}"
        if not in_registers:
            of_a = "a"
            text.append(f"add.s64 a, ${n}, {_k_step(k, 64)};")
        text += [
            f"add.s64 b, ${n + len(operands) - 1}, {_k_step(k, columns)};",
            f"wgmma.mma_async.sync.aligned.m64n{columns}{name} {accumulator}, {of_a}, b, {int(k > 0)}{flags};",
        ]
    text.append("wgmma.commit_group.sync.aligned; }")
    return list(
        asm(
            "\n".join(text),
            [Int32] * n,
            operands,
            ",".join(["=&r"] * n + (["r"] * len(a) if in_registers else ["l"]) + ["l"]),
            pure=False,
        )
    )


def fence(regs):
    """Orders the writes of these registers before the matrix instructions that follow (they pass through it, so
    nothing sinks below)."""
    n = len(regs)
    return list(
        asm(
            "wgmma.fence.sync.aligned;",
            [Int32] * n,
            regs,
            ",".join(["=r"] * n + [str(i) for i in range(n)]),
            pure=False,
        )
    )


def commit():
    """Close a group: the matrix instructions since the last one."""
    asm("wgmma.commit_group.sync.aligned;", [], [], "")


def wait(d, groups):
    """Until at most `groups` commit groups are in flight; d is the accumulator that is complete then."""
    n = len(d)
    return list(
        asm(
            f"wgmma.wait_group.sync.aligned {groups};",
            [Float32] * n,
            d,
            ",".join(["=f"] * n + [str(i) for i in range(n)]),
            pure=False,
        )
    )


def wait_for(groups):
    """The same for accumulators of `start_tile`, without passing them through."""
    asm(f"wgmma.wait_group.sync.aligned {groups};", [], [], "")
