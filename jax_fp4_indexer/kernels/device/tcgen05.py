"""Tensor-core instructions of sm_100a / sm_103a, one function each, and the descriptors that they take.

Every function that issues asynchronous work is called by a whole warp and elects one lane inside.
"""

from cutlass import Float32

from .integers import signed
from .ptx import asm

_ELECT = "{ .reg .pred one; .reg .b32 e; elect.sync e|one, -1; "

# Shared-memory descriptor: start in 16-byte units in bits 0-13; high word: stride of 8 rows in the same units in bits
# 0-13, version 1 in bits 14-15, layout in bits 29-31 (4: rows of 64 bytes, swizzled)
OPERAND = 4 << 29 | 1 << 14 | 512 // 16  # K-major codes: 128 rows of 64 bytes, 64-byte swizzle
SCALE_ATOM = 1 << 14 | 128 // 16  # 32 rows of 16 bytes, dense
K_STEP = 2  # 64 codes = 32 bytes further, in 16-byte units


def start(address):
    """Low word of a descriptor: what lies at a shared-memory address (16-byte aligned, below 256 KB)."""
    return address >> 4


def instruction(format, step):
    """Instruction descriptor: E2M1 x E2M1, M 128, N 128, K 64, scales UE4M3 or E8M0; of `step` 0 or 1 (64 elements of
    d each).

    MXFP4 has two scales for 64 elements: both steps lie in the same scale columns, and the second takes bytes 2 and 3
    (scale factor id 2)."""
    value = 1 << 7 | 1 << 10 | (128 // 8) << 17 | (128 // 16) << 24
    if format == "mxfp4":
        value |= 1 << 23 | (2 * step) << 29 | (2 * step) << 4
    return value


def tmem_alloc(address, columns):
    """Write the TMEM address of `columns` columns to shared memory, and let no one wait for more."""
    asm(f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [$0], {columns};", [], [address], "r")
    asm("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", [], [], "")


def tmem_dealloc(tmem, columns):
    """Give `columns` columns back."""
    asm(f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 $0, {columns};", [], [tmem], "r")


def fence_after():
    """What other threads did to TMEM before the barrier just waited on comes before what follows."""
    asm("tcgen05.fence::after_thread_sync;", [], [], "")


def copy_scales(column, atoms, words):
    """Scales of 128 rows (`words` atoms of 512 bytes from descriptor start `atoms` on) to TMEM columns, in every lane
    quarter."""
    text = _ELECT + ".reg .b32 s; .reg .b64 d; "
    for i in range(words):
        text += f"add.s32 s, $1, {32 * i}; mov.b64 d, {{s, {signed(SCALE_ATOM)}}}; @one tcgen05.cp.cta_group::1.32x128b.warpx4 [$0+{4 * i}], d; "
    asm(text + "}", [], [column, atoms], "r,r")


def multiply(format, accumulator, q, k, q_scales, k_scales, done):
    """accumulator = Q K^T over d = 128 for one tile, and an arrival on barrier `done` when it is complete.

    q, k: descriptor starts; scales: TMEM columns; done: shared address of an mbarrier."""
    block = {"nvfp4": 16, "mxfp4": 32}[format]
    columns = 4 if format == "nvfp4" else 0  # from the scales of one step to those of the next
    text = _ELECT + ".reg .pred t; .reg .b64 a, b; .reg .b32 x, y, u, v; "
    for step in range(2):
        text += (
            f"setp.ne.b32 t, {step}, 0; add.s32 x, $1, {K_STEP * step}; add.s32 y, $2, {K_STEP * step}; mov.b64 a, {{x, {signed(OPERAND)}}}; "
            f"mov.b64 b, {{y, {signed(OPERAND)}}}; add.s32 u, $3, {columns * step}; add.s32 v, $4, {columns * step}; "
            f"@one tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block{block}.collector::a::discard [$0], a, b, {signed(instruction(format, step))}, [u], [v], t; "
        )
    text += "@one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [$5]; }"
    asm(text, [], [accumulator, q, k, q_scales, k_scales, done], "r,r,r,r,r,r")


def commit(done):
    """An arrival on barrier `done` when all that this thread has issued so far is complete."""
    asm(_ELECT + "@one tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [$0]; }", [], [done], "r")


_RELEASE = (
    "tcgen05.fence::before_thread_sync; bar.warp.sync -1; { .reg .pred one; .reg .b32 e; elect.sync e|one, -1; "
    "@one mbarrier.arrive.shared::cta.b64 _, [%s]; } "
)


def _tree(x):
    """PTX that leaves the NaN-winning maximum of registers x[0..] in x[0]: four chains of three-input maxima."""
    text, chains, rest = "", list(x[:4]), x[4:]
    for i in range(0, len(rest), 2):
        c = chains[i // 2 % 4]
        text += f"max.NaN.f32 {c}, {c}, " + ", ".join(rest[i : i + 2]) + "; "
    return text + f"max.NaN.f32 {x[0]}, {x[0]}, {x[1]}, {x[2]}; max.NaN.f32 {x[0]}, {x[0]}, {x[3]}; "


def row_maximum(tmem, free, ld_red):
    """Maximum over the 128 columns of this lane's row; one arrival a warp on `free` once the columns are in
    registers."""
    names = [f"x{i}" for i in range(128)]
    text = "{ .reg .f32 x<128>; "
    listed = "{" + ", ".join(names) + "}"
    if ld_red:
        text += f".reg .f32 top; tcgen05.ld.red.sync.aligned.32x32b.x128.max.NaN.f32 {listed}, top, [$1]; tcgen05.wait::ld.sync.aligned; "
        return asm(text + _RELEASE % "$2" + "mov.f32 $0, top; }", [Float32], [tmem, free], "=f,r,r", pure=False)
    text += f"tcgen05.ld.sync.aligned.32x32b.x128.b32 {listed}, [$1]; tcgen05.wait::ld.sync.aligned; "
    return asm(
        text + _RELEASE % "$2" + _tree(names) + "mov.f32 $0, x0; }", [Float32], [tmem, free], "=f,r,r", pure=False
    )


def piece_maximum(tmem, best, visible):
    """Maximum of `best` and the first `visible` (any number) of 32 columns of this lane's row."""
    names = [f"x{i}" for i in range(32)]
    text = (
        "{ .reg .f32 x<32>; .reg .pred p; tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
        + ", ".join(names)
        + "}, [$1]; tcgen05.wait::ld.sync.aligned; "
    )
    for i, x in enumerate(names):
        text += f"setp.gt.s32 p, $3, {i}; selp.f32 {x}, {x}, 0fFF800000, p; "
    return asm(
        text + _tree(names) + "max.NaN.f32 $0, x0, $2; }", [Float32], [tmem, best, visible], "=f,r,f,r", pure=False
    )


def release(free):
    """One arrival of the warp on `free`: it has read what it wants of an accumulator."""
    asm(_RELEASE % "$0", [], [free], "r")
