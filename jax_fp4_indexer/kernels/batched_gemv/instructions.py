"""Instructions that the GEMV kernels alone use. Registers are Int32 whatever they hold; addresses in global memory are
Int64.
"""

from cutlass import Float32, Int32

from ..device.ptx import asm


def dp4a(a, b, c):
    """c + the sum of the products of four signed bytes."""
    return asm("dp4a.s32.s32 $0, $1, $2, $3;", [Int32], [a, b, c], "=r,r,r,r")


def lookup(low, high, selector):
    """Four bytes, one for each nibble of the low half of `selector`: entry `nibble` of the eight bytes (low, high)
    where its bit 3 is 0; where it is 1, that entry's sign, which is 0 for tables of non-negative bytes.
    """
    return asm("prmt.b32 $0, $1, $2, $3;", [Int32], [low, high, selector], "=r,r,r,r")


def fadd(a, b):
    return asm("add.rn.f32 $0, $1, $2;", [Float32], [a, b], "=f,f,f")


def fma(a, b, c):
    return asm("fma.rn.f32 $0, $1, $2, $3;", [Float32], [a, b, c], "=f,f,f,f")


def halves(pair):
    """f16x2 -> (low, high) as f32."""
    return asm(
        "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
        [Float32] * 2,
        [pair],
        "=f,=f,r",
    )


def regular(a):
    """1 for a finite a whose magnitude is at least 2^-126, else 0."""
    return asm(
        "{ .reg .pred p; .reg .b32 e; mov.b32 e, $1; bfe.u32 e, e, 23, 8; sub.u32 e, e, 1; setp.lt.u32 p, e, 254; selp.b32 $0, 1, 0, p; }",
        [Int32],
        [a],
        "=r,f",
    )


def less(a, b):
    """1 where a < b (signed), else 0."""
    return asm("{ .reg .pred p; setp.lt.s32 p, $1, $2; selp.b32 $0, 1, 0, p; }", [Int32], [a, b], "=r,r,r")


def fraction(i, n):
    """i / n in units of 2^-32, or a little more, for 0 <= i < n < 2^20: never less for a greater i. A little more, so
    that a share that begins with a batch does not begin with the last row of the one before.
    """
    return asm(
        "{ .reg .f32 x, y; cvt.rn.f32.u32 x, $1; cvt.rn.f32.u32 y, $2; rcp.approx.f32 y, y; mul.rn.f32 x, x, y; mul.rn.f32 x, x, 0f4F7FFFFF; cvt.rzi.u32.f32 $0, x; add.u32 $0, $0, 1024; }",
        [Int32],
        [i, n],
        "=r,r,r",
    )


def mul_high(a, b):
    """High word of the unsigned product."""
    return asm("mul.hi.u32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def mul_wide(a, b):
    """(high, low) word of the unsigned product."""
    return asm("{ .reg .b64 x; mul.wide.u32 x, $2, $3; mov.b64 {$1, $0}, x; }", [Int32] * 2, [a, b], "=r,=r,r,r")


# ---- memory
def sts8(addr, value):
    asm("st.shared.u8 [$0], $1;", [], [addr, value], "r,r")


def sts2_f32(addr, x, y):
    asm("st.shared.v2.f32 [$0], {$1,$2};", [], [addr, x, y], "r,f,f")


def lds_f32(addr, offset=0):
    return asm(f"ld.shared.f32 $0, [$1+{offset}];", [Float32], [addr], "=f,r", pure=False)


def lds_f32_if(flag, addr, offset=0):
    """0 where flag is 0."""
    return asm(
        f"{{ .reg .pred p; mov.f32 $0, 0f00000000; setp.ne.s32 p, $1, 0; @p ld.shared.f32 $0, [$2+{offset}]; }}",
        [Float32],
        [flag, addr],
        "=&f,r,r",
        pure=False,
    )


def stg_f16(addr, value):
    asm("{ .reg .b16 h; cvt.rn.f16.f32 h, $1; st.global.b16 [$0], h; }", [], [addr, value], "l,f")


def stg_bf16(addr, value):
    asm("{ .reg .b16 h; cvt.rn.bf16.f32 h, $1; st.global.b16 [$0], h; }", [], [addr, value], "l,f")


# ---- copies and barriers
def bulk_copy_elected(dst, src, nbytes, bar, policy):
    """Copy engine, by one lane of the warp: nbytes (a multiple of 16) from global src to shared dst, completing on
    bar.
    """
    asm(
        "{ .reg .pred p; elect.sync _|p, 0xffffffff; @p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], $2, [$3], $4; }",
        [],
        [dst, src, nbytes, bar, policy],
        "r,l,r,r,l",
    )


def expect_tx_elected(bar, nbytes):
    """By one lane of the warp: arrive once and announce nbytes."""
    asm(
        "{ .reg .pred p; elect.sync _|p, 0xffffffff; @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1; }",
        [],
        [bar, nbytes],
        "r,r",
    )


def copy16_part(dst, src, nbytes):
    """The first nbytes (at most 16) of 16 bytes from global src to shared dst, zeros for the others."""
    asm("cp.async.cg.shared.global [$0], [$1], 16, $2;", [], [dst, src, nbytes], "r,l,r")


def arrive(bar):
    asm("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [$0]; }", [], [bar], "r")


def wait(bar, phase, spins):
    """Until the phase of that parity is complete. spins: the target has no waiting that suspends (before sm_90)."""
    how = "test_wait" if spins else "try_wait"
    asm(
        f"{{ .reg .pred p; L${{:uid}}: mbarrier.{how}.parity.shared.b64 p, [$0], $1; @!p bra L${{:uid}}; }}",
        [],
        [bar, phase],
        "r,r",
    )
