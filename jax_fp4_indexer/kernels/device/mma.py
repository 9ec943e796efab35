"""Matrix instructions of one warp (mma.sync, sm_80 and later)."""

from cutlass import Float32, Int32

from .ptx import asm


def mma_m16n8k16(a, b0, b1, c):
    """c (4 f32) + a (16x16 f16, 4 registers) * b (16x8 f16, 2 registers)."""
    return list(
        asm(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
            [Float32] * 4,
            [*a, b0, b1, *c],
            "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
        )
    )


def mma_m16n8k32_s8(a, b0, b1, c):
    """c (4 s32) + a (16x32 s8, 4 registers) * b (32x8 s8, 2 registers)."""
    return list(
        asm(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
            [Int32] * 4,
            [*a, b0, b1, *c],
            "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r",
        )
    )
