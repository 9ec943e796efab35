"""What single instructions give on numbers that manuals leave open: NaNs, infinities, subnormals, ties, shifts too far. And who is elected."""

import numpy as np

from .common import NOTHING, Launch, lines

PAIRS = 512
# name -> text: %r6, %r9 are a pair of words; %h1, %h2 their lower halves; the result goes to %r7
OPS = {
    **{
        f"{op}.f32": f"{op}.f32 %r7, %r6, %r9;"
        for op in ("add", "sub", "mul", "min", "max", "max.NaN", "min.NaN", "add.ftz", "mul.ftz", "div.rn")
    },
    "fma.f32": "fma.rn.f32 %r7, %r6, %r9, %r9;",
    "sqrt.f32": "sqrt.rn.f32 %r7, %r6;",
    "neg.f32": "neg.f32 %r7, %r6;",
    "abs.f32": "abs.f32 %r7, %r6;",
    **{
        f"{op}.{t}": f"{op}.{t} %r7, %r6, %r9;"
        for t in ("f16x2", "bf16x2")
        for op in ("add.rn", "mul.rn", "min", "max", "max.NaN", "min.NaN")
    },
    **{f"fma.{t}": f"fma.rn.{t} %r7, %r6, %r9, %r6;" for t in ("f16x2", "bf16x2")},
    "cvt.f16x2.f32": "cvt.rn.f16x2.f32 %r7, %r6, %r9;",
    "cvt.bf16x2.f32": "cvt.rn.bf16x2.f32 %r7, %r6, %r9;",
    "cvt.e4m3x2.f32": "cvt.rn.satfinite.e4m3x2.f32 %h1, %r6, %r9; cvt.u32.u16 %r7, %h1;",
    "cvt.f16x2.e4m3x2": "cvt.rn.f16x2.e4m3x2 %r7, %h1;",
    "cvt.f32.f16": "cvt.f32.f16 %r7, %h1;",
    "cvt.f32.bf16": "cvt.f32.bf16 %r7, %h1;",
    **{
        f"cvt.{by}.{t}.f32": f"cvt.{by}.{t}.f32 %r7, %r6;"
        for by in ("rni", "rzi", "rmi", "rpi")
        for t in ("s32", "u32")
    },
    "cvt.f32.s32": "cvt.rn.f32.s32 %r7, %r6;",
    "cvt.f32.u32": "cvt.rn.f32.u32 %r7, %r6;",
    "mul.hi.s32": "mul.hi.s32 %r7, %r6, %r9;",
    "mul.hi.u32": "mul.hi.u32 %r7, %r6, %r9;",
    "add.sat.s32": "add.sat.s32 %r7, %r6, %r9;",
    "sub.sat.s32": "sub.sat.s32 %r7, %r6, %r9;",
    "shl.b32": "shl.b32 %r7, %r6, %r9;",
    "shr.s32": "shr.s32 %r7, %r6, %r9;",
    "shr.u32": "shr.u32 %r7, %r6, %r9;",
    "shf.l.wrap": "shf.l.wrap.b32 %r7, %r6, %r9, %r9;",
    "shf.r.clamp": "shf.r.clamp.b32 %r7, %r6, %r9, %r9;",
    "bfe.s32": "bfe.s32 %r7, %r6, %r9, 9;",
    "bfe.u32": "bfe.u32 %r7, %r6, 5, %r9;",
    "bfi.b32": "bfi.b32 %r7, %r6, %r9, %r9, 7;",
    "prmt": "prmt.b32 %r7, %r6, %r9, %r9;",
    "lop3": "lop3.b32 %r7, %r6, %r9, %r0, 0x96;",
    "clz": "clz.b32 %r7, %r6;",
    "brev": "brev.b32 %r7, %r6;",
    "popc": "popc.b32 %r7, %r6;",
    "bfind": "bfind.u32 %r7, %r6;",
}
# correctly rounded in the simulator
APPROXIMATE = {
    "rcp.approx.f32": "rcp.approx.f32 %r7, %r6;",
    "rcp.approx.ftz.f32": "rcp.approx.ftz.f32 %r7, %r6;",
    "rsqrt.approx.f32": "rsqrt.approx.f32 %r7, %r6;",
    "ex2.approx.f32": "ex2.approx.f32 %r7, %r6;",
    "ex2.approx.ftz.f32": "ex2.approx.ftz.f32 %r7, %r6;",
    "lg2.approx.f32": "lg2.approx.f32 %r7, %r6;",
}


def pairs():
    """uint32 [2, PAIRS]: special words against each other, then numbers of many sizes, then any bits."""
    special = np.array(
        [
            0,
            0x80000000,
            0x3F800000,
            0xBF800000,
            0x7F800000,
            0xFF800000,
            0x7FC00000,
            0x7F800001,
            0xFFC12345,
            1,
            0x80000001,
            0x007FFFFF,
            0x00800000,
            0x7F7FFFFF,
            0x33000001,
            0x477FF000,
            0x43E00000,
            0x7C017C00,
            0xFE007E00,
            0x7F807F81,
        ],
        np.uint32,
    )
    rng = np.random.RandomState(9)
    a, b = (x.reshape(-1) for x in np.meshgrid(special, special[:12]))
    n = PAIRS - a.size
    sized = (rng.standard_normal((2, n)) * 2.0 ** rng.randint(-12, 13, (2, n))).astype(np.float32).view(np.uint32)
    sized[:, n // 2 :] = rng.randint(0, 1 << 32, (2, n - n // 2), dtype=np.uint64).astype(np.uint32)
    sized[1, -40:] = rng.randint(0, 40, 40)
    return np.concatenate([[a, b], sized], 1)


def _table(name, ops, data):
    body = [
        "mul.wide.u32 %rd4, %r0, 4;",
        "mad.wide.u32 %rd5, %r1, 512, %rd4;",
        "add.s64 %rd6, %rd0, %rd5;",
        "add.s64 %rd7, %rd1, %rd5;",
        "ld.global.u32 %r6, [%rd6];",
        f"ld.global.u32 %r9, [%rd6 + {4 * PAIRS}];",
    ]
    for i, text in enumerate(ops.values()):
        body += [
            "cvt.u16.u32 %h1, %r6;",
            "cvt.u16.u32 %h2, %r9;",
            text,
            f"st.global.u32 [%rd7 + {4 * PAIRS * i}], %r7;",
        ]
    return Launch(
        name,
        lines(*body),
        np.ascontiguousarray(data, np.uint32).reshape(-1),
        PAIRS * len(ops),
        threads=128,
        grid=PAIRS // 128,
    )


def tables():
    yield _table("instructions", OPS, pairs())
    rng = np.random.RandomState(10)
    x = (np.exp2(rng.uniform(-20, 20, PAIRS)) * np.where(rng.rand(PAIRS) < 0.2, -1, 1)).astype(np.float32)
    x[::3] = rng.uniform(-30, 30, x[::3].size)
    x[:8] = [0.0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-40, -1e-40]
    yield _table("approximate", APPROXIMATE, [x.view(np.uint32)] * 2)


def elected():
    """Lane and predicate of elect.sync: by all lanes, by lanes from 7 on, by those of a mask with holes, and all again."""
    steps, body = (
        [0xFFFFFFFF, 0xFFFFFF80, 0xA0A0A050, 0xFFFFFFFF],
        [
            "shl.b32 %r10, %r2, 3;",
            "cvt.u64.u32 %rd4, %r10;",
            "add.s64 %rd4, %rd1, %rd4;",
            "mov.u32 %r11, 1;",
            "shl.b32 %r11, %r11, %r2;",
        ],
    )
    for i, mask in enumerate(steps):
        body += [
            f"and.b32 %r12, %r11, {mask:#x};",
            "setp.eq.u32 %p1, %r12, 0;",
            f"@%p1 bra SKIP{i};",
            f"elect.sync %r13|%p2, {mask:#x};",
            "selp.u32 %r14, 1, 0, %p2;",
            f"st.global.u32 [%rd4 + {256 * i}], %r13;",
            f"st.global.u32 [%rd4 + {256 * i + 4}], %r14;",
            f"SKIP{i}: bar.warp.sync 0xffffffff;",
        ]
    return [Launch("elected", lines(*body), NOTHING, 64 * len(steps))]
