"""Where a swizzle puts bytes, and what the tensor core rounds."""

import numpy as np

from .common import Launch, lines

SPANS = {"none": 64, "32": 32, "64": 64, "128": 128}
OFFSETS = (0, 128, 256, 384, 512, 896, 1024, 1152)
BOX_ROWS = 16


def tensor_swizzle():
    """A box of 16 rows with a swizzle, at shared offsets that are no multiples of what the swizzle repeats after; then all of shared memory: the word loaded, or ~0."""
    body = lambda offset, size: lines(
        "mov.u32 %r10, %r0;",
        "FILL: shl.b32 %r11, %r10, 2;",
        "add.u32 %r11, %r11, %r3;",
        "mov.u32 %r12, 0xffffffff;",
        "st.shared.u32 [%r11], %r12;",
        "add.u32 %r10, %r10, 128;",
        "setp.lt.u32 %p1, %r10, 1024;",
        "@%p1 bra FILL;",
        "setp.eq.u32 %p2, %r0, 0;",
        "@%p2 mbarrier.init.shared.b64 [%r3 + 4096], 1;",
        "fence.mbarrier_init.release.cluster;",
        "fence.proxy.async.shared::cta;",
        "bar.sync 0;",
        f"add.u32 %r13, %r3, {offset};",
        "mov.u32 %r14, 0;",
        f"@%p2 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3 + 4096], {size};",
        "@%p2 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r13], [%rd2, {%r14, %r14}], [%r3 + 4096];",
        "mov.u32 %r20, 0;",
        "WAIT: mbarrier.try_wait.parity.shared.b64 %p3, [%r3 + 4096], 0;",
        "add.u32 %r20, %r20, 1;",
        "setp.lt.u32 %p4, %r20, 10000;",
        "not.pred %p5, %p3;",
        "and.pred %p4, %p4, %p5;",
        "@%p4 bra WAIT;",
        "mov.u32 %r10, %r0;",
        "DUMP: shl.b32 %r11, %r10, 2;",
        "cvt.u64.u32 %rd4, %r11;",
        "add.s64 %rd4, %rd1, %rd4;",
        "add.u32 %r11, %r11, %r3;",
        "ld.shared.u32 %r12, [%r11];",
        "st.global.u32 [%rd4], %r12;",
        "add.u32 %r10, %r10, 128;",
        "setp.lt.u32 %p1, %r10, 1024;",
        "@%p1 bra DUMP;",
    )
    for offset in OFFSETS:
        for swizzle, span in SPANS.items():
            yield Launch(
                f"tensor_swizzle.{swizzle}.{offset}",
                body(offset, span * BOX_ROWS),
                np.arange(span // 4 * 32, dtype=np.uint32),
                1024,
                threads=128,
                map=dict(
                    buffer="in",
                    dtype="u32",
                    dims=[span // 4, 32],
                    strides=[span],
                    box=[span // 4, BOX_ROWS],
                    swizzle=swizzle,
                    l2_promotion="none",
                ),
            )


IMAGE = 4096  # bytes of shared memory, every f16 in it its own number
STARTS = (0, 16, 32, 48, 96, 128, 160, 256, 384, 512, 896, 1024, 1056)


def descriptors():
    """(layout, start, base offset, words of the descriptor but for the start): K-major B of 16 rows."""
    found = []
    for layout in range(4):
        span = {0: 0, 1: 128, 2: 64, 3: 32}[layout]
        leading, stride = (512, 1024) if layout == 0 else (16, 8 * span)
        for start in STARTS:
            for base in sorted({0, start >> 7 & 7}):
                found.append((layout, start, base, leading >> 4, (stride >> 4) | base << 17 | layout << 30))
    return found


def identity_fragments():
    """A = the identity in each warp's 16 rows, f16, as registers [4][32]."""
    A, words = np.eye(16, dtype=np.float16), np.zeros((4, 32), np.uint32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for q, (row, col) in enumerate([(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)]):
            words[q, lane] = A[row, col : col + 2].view(np.uint32)[0]
    return words


def product_swizzle(bases):
    """wgmma m64n16k16 with A the identity: D[k][n] is the number of the f16 in shared memory that stands for B[n][k]. `bases`: with descriptors that have a base offset or without."""
    chosen = [x for x in descriptors() if bool(x[2]) == bases]
    data = np.concatenate(
        [
            np.arange(IMAGE // 2).astype(np.float16).view(np.uint32),
            identity_fragments().reshape(-1),
            np.array([(start, leading, high) for _, start, _, leading, high in chosen], np.uint32).reshape(-1),
        ]
    )
    acc = ", ".join(f"%f{i}" for i in range(8))
    body = lines(
        "mov.u32 %r10, %r0;",
        "FILL: shl.b32 %r11, %r10, 2;",
        "cvt.u64.u32 %rd4, %r11;",
        "add.s64 %rd4, %rd0, %rd4;",
        "ld.global.u32 %r12, [%rd4];",
        "add.u32 %r11, %r11, %r3;",
        "st.shared.u32 [%r11], %r12;",
        "add.u32 %r10, %r10, 128;",
        "setp.lt.u32 %p1, %r10, 1024;",
        "@%p1 bra FILL;",
        "fence.proxy.async.shared::cta;",
        "bar.sync 0;",
        "mul.wide.u32 %rd4, %r2, 4;",
        "add.s64 %rd4, %rd0, %rd4;",
        *(f"ld.global.u32 %r{20 + q}, [%rd4 + {4096 + 128 * q}];" for q in range(4)),
        "add.s64 %rd5, %rd0, 4608;",
        "mul.wide.u32 %rd6, %r0, 32;",
        "add.s64 %rd6, %rd1, %rd6;",
        "mov.u32 %r30, 0;",
        "setp.lt.u32 %p4, %r0, 32;",
        "setp.ne.u32 %p5, 0, 0;",
        "NEXT: ld.global.u32 %r31, [%rd5];",
        "ld.global.u32 %r32, [%rd5 + 4];",
        "ld.global.u32 %r33, [%rd5 + 8];",
        "add.u32 %r31, %r31, %r3;",
        "and.b32 %r31, %r31, 0x3ffff;",
        "shr.u32 %r31, %r31, 4;",
        "shl.b32 %r32, %r32, 16;",
        "or.b32 %r31, %r31, %r32;",
        "mov.b64 %rd7, {%r31, %r33};",
        "wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {{{acc}}}, {{%r20, %r21, %r22, %r23}}, %rd7, %p5, 1, 1, 0;",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        *(f"@%p4 st.global.f32 [%rd6 + {4 * i}], %f{i};" for i in range(8)),
        "add.s64 %rd5, %rd5, 12;",
        "add.s64 %rd6, %rd6, 1024;",
        "add.u32 %r30, %r30, 1;",
        f"setp.lt.u32 %p1, %r30, {len(chosen)};",
        "@%p1 bra NEXT;",
    )
    yield Launch(
        "product_swizzle" + (".base" if bases else ""), body, data, 256 * len(chosen), threads=128, alone=bases
    )


def read_numbers(out):
    """out of product_swizzle -> [descriptor, n, k]: numbers of f16."""
    regs, found = out.view(np.float32).reshape(-1, 32, 8), np.zeros((out.size // 256, 16, 16), np.int64)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for r in range(8):
            found[:, 8 * (r >> 2) + 2 * t + (r & 1), g + 8 * (r >> 1 & 1)] = regs[:, lane, r]
    return found


# ---- rounding
KINDS = {"f16": (16, 5, 10), "bf16": (16, 8, 7), "e4m3": (32, 4, 3)}  # K, bits of the exponent, of the mantissa


def bits(values, kind):
    """float64 -> words of `kind`; the values are ones that it holds."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    sign, magnitude = (np.signbit(values) * 128).astype(np.uint8), np.abs(values)
    mantissa, exponent = np.frexp(magnitude)  # magnitude = mantissa * 2^exponent, mantissa in [0.5, 1)
    code = np.where(
        magnitude == 0, 0, np.where(exponent < -5, magnitude * 512, (exponent + 6) * 8 + (2 * mantissa - 1) * 8)
    )
    return sign | code.astype(np.uint8)


def _values(rng, shape, kind, spread, center=0, subnormal=False):
    _, _, m = KINDS[kind]
    low, high = {"f16": (-14, 15), "bf16": (-126, 127), "e4m3": (-6, 7)}[kind]
    exponent = np.clip(rng.randint(-spread, spread + 1, shape) + center, low, high)
    value = (1 + rng.randint(0, 1 << m, shape) / (1 << m)) * 2.0**exponent
    if subnormal:
        value = np.where(rng.rand(*shape) < 0.5, rng.randint(0, 1 << m, shape) * 2.0 ** (low - m), value)
    return np.where(rng.rand(*shape) < 0.5, -value, value) * (rng.rand(*shape) < 0.95)


def rounding_inputs(kind, rows, columns, groups, seed):
    """A [groups, rows, K], B [groups, columns, K], C [groups, rows, columns] as float64. Groups go through eight spreads of exponents. Of every four eights the second
    has no C; in the fourth half of the numbers of A are subnormal (bf16: products among the subnormals of fp32). The first groups are the same for any number of groups."""
    rng, K = np.random.RandomState(seed), KINDS[kind][0]
    A, B, C = np.zeros((groups, rows, K)), np.zeros((groups, columns, K)), np.zeros((groups, rows, columns))
    for g in range(groups):
        spread, last = (0, 1, 2, 3, 4, 6, 8, 10)[g % 8], g // 8 % 4 == 3
        tiny, center = last and kind == "bf16", {"f16": -14, "e4m3": -6, "bf16": -130}[kind] if last else 0
        A[g] = _values(rng, A[g].shape, kind, spread, -66 if tiny else 0, last and not tiny)
        B[g] = _values(rng, B[g].shape, kind, spread, -66 if tiny else 0)
        c = (1 + rng.randint(0, 1 << 23, C[g].shape) / (1 << 23)) * 2.0 ** (
            rng.randint(-2 * spread - 2, 2 * spread + 5, C[g].shape) + center
        )
        c = np.where(c < 2.0**-126, np.round(c * 2.0**149) / 2.0**149, c)
        C[g] = 0 if g // 8 % 4 == 1 else np.where(rng.rand(*C[g].shape) < 0.5, -c, c)
    return A, B, C


ROUNDING = {"wgmma": (64, 8), "mma": (16, 8)}  # rows, columns of one group


def _wgmma_data(kind, A, B, C):
    """Per group: 512 words of A and 64 of B as shared memory holds them (cores of 8 rows of 16 bytes, those of a row side by side), 512 of C by register and thread."""

    def cores(x):
        raw = bits(x, kind).view(np.uint8).reshape(*x.shape[:2], 32)
        g, rows, _ = raw.shape
        return raw.reshape(g, rows // 8, 8, 2, 16).transpose(0, 1, 3, 2, 4).reshape(g, -1)

    return (
        np.ascontiguousarray(
            np.concatenate(
                [cores(A), cores(B), np.ascontiguousarray(_by_thread(C)).view(np.uint8).reshape(len(C), -1)], 1
            )
        )
        .view(np.uint32)
        .reshape(-1)
    )


def _by_thread(C):
    """[groups, 16 w, 8] -> float32 [groups, 4 registers, 32 w threads]."""
    found = np.zeros((len(C), 4, 2 * C.shape[1]), np.float32)
    for thread in range(2 * C.shape[1]):
        w, g, t = thread // 32, thread % 32 // 4, thread % 4
        for r in range(4):
            found[:, r, thread] = C[:, 16 * w + g + 8 * (r >> 1), 2 * t + (r & 1)]
    return found


def by_row(out, rows):
    """The inverse of _by_thread: uint32 -> float32 [groups, rows, 8]."""
    regs, found = out.view(np.float32).reshape(-1, 4, 2 * rows), np.zeros((out.size // (8 * rows), rows, 8), np.float32)
    for thread in range(2 * rows):
        w, g, t = thread // 32, thread % 32 // 4, thread % 4
        for r in range(4):
            found[:, 16 * w + g + 8 * (r >> 1), 2 * t + (r & 1)] = regs[:, r, thread]
    return found


def _mma_data(kind, A, B, C):
    per = 2 if KINDS[kind][0] == 16 else 4
    a, b = (
        np.ascontiguousarray(bits(x, kind)).view(np.uint32).reshape(*x.shape[:2], 8) for x in (A, B)
    )  # words of `per` values along K
    words = np.zeros((len(A), 10, 32), np.uint32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for q in range(4):
            words[:, q, lane] = a[:, g + 8 * (q & 1), t + 4 * (q >> 1)]
        for q in range(2):
            words[:, 4 + q, lane] = b[:, g, t + 4 * q]
    words[:, 6:] = _by_thread(C).view(np.uint32)
    assert per in (2, 4)
    return words.reshape(-1)


def rounding(groups):
    """One instruction on `groups` of random operands: D = A B + C."""
    for kind, (K, _, _) in KINDS.items():
        A, B, C = rounding_inputs(kind, 64, 8, groups, 11)
        body = lines(
            "mul.wide.u32 %rd4, %r1, 4352;",
            "add.s64 %rd4, %rd0, %rd4;",
            "mul.wide.u32 %rd5, %r1, 2048;",
            "add.s64 %rd5, %rd1, %rd5;",
            "mov.u32 %r10, %r0;",
            "FILL: mul.wide.u32 %rd6, %r10, 4;",
            "add.s64 %rd6, %rd4, %rd6;",
            "ld.global.u32 %r12, [%rd6];",
            "shl.b32 %r11, %r10, 2;",
            "add.u32 %r11, %r11, %r3;",
            "st.shared.u32 [%r11], %r12;",
            "add.u32 %r10, %r10, 128;",
            "setp.lt.u32 %p1, %r10, 576;",
            "@%p1 bra FILL;",
            "fence.proxy.async.shared::cta;",
            "bar.sync 0;",
            "mul.wide.u32 %rd6, %r0, 4;",
            "add.s64 %rd7, %rd4, %rd6;",
            "add.s64 %rd8, %rd5, %rd6;",
            *(f"ld.global.f32 %f{q}, [%rd7 + {2304 + 512 * q}];" for q in range(4)),
            "shr.u32 %r13, %r3, 4;",
            "or.b32 %r14, %r13, 0x80000;",
            "add.u32 %r15, %r14, 128;",
            "mov.u32 %r16, 16;",
            "mov.b64 %rd10, {%r14, %r16};",
            "mov.b64 %rd11, {%r15, %r16};",
            "setp.eq.u32 %p2, 0, 0;",
            "wgmma.fence.sync.aligned;",
            f"wgmma.mma_async.sync.aligned.m64n8k{K}.f32.{kind}.{kind} {{%f0, %f1, %f2, %f3}}, %rd10, %rd11, %p2, 1, 1{', 0, 0' if K == 16 else ''};",
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0;",
            *(f"st.global.f32 [%rd8 + {512 * q}], %f{q};" for q in range(4)),
        )
        yield Launch(f"rounding.wgmma.{kind}", body, _wgmma_data(kind, A, B, C), 512 * groups, threads=128, grid=groups)
        A, B, C = rounding_inputs(kind, 16, 8, groups, 12)
        body = lines(
            "mul.wide.u32 %rd4, %r1, 1280;",
            "add.s64 %rd4, %rd0, %rd4;",
            "mul.wide.u32 %rd5, %r1, 512;",
            "add.s64 %rd5, %rd1, %rd5;",
            "mul.wide.u32 %rd6, %r0, 4;",
            "add.s64 %rd4, %rd4, %rd6;",
            "add.s64 %rd5, %rd5, %rd6;",
            *(f"ld.global.u32 %r{10 + q}, [%rd4 + {128 * q}];" for q in range(6)),
            *(f"ld.global.f32 %f{q}, [%rd4 + {768 + 128 * q}];" for q in range(4)),
            f"mma.sync.aligned.m16n8k{K}.row.col.f32.{kind}.{kind}.f32 {{%f0, %f1, %f2, %f3}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {{%f0, %f1, %f2, %f3}};",
            *(f"st.global.f32 [%rd5 + {128 * q}], %f{q};" for q in range(4)),
        )
        yield Launch(f"rounding.mma.{kind}", body, _mma_data(kind, A, B, C), 128 * groups, threads=32, grid=groups)
