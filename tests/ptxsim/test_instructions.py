"""What single instructions compute, against NumPy and against the words of the PTX manual."""

import struct

import numpy as np
import pytest

from ptxsim import tensor_map
from ptxsim.decode import Program
from ptxsim.launch import Memory, run
from ptxsim.ptx_text import execute

LANES = 32


def values(body, data, result="%r7"):
    """Result of `body` in 32 lanes; %r6 holds data[lane], %r9 data[32 + lane]."""
    load = "add.s64 %rd4, %rd0, %rd2; ld.global.b32 %r6, [%rd4]; ld.global.b32 %r9, [%rd4 + 128];"
    found, out = execute(
        f"{load} {body} st.global.b32 [%rd3], {result};", threads=LANES, data=np.asarray(data).view(np.uint32)
    )
    assert not found.findings, str(found)
    return out[:LANES]


def some_ints(seed):
    rng = np.random.RandomState(seed)
    x = rng.randint(-(2**31), 2**31, 64, dtype=np.int64)
    x[:8] = [0, 1, -1, 2**31 - 1, -(2**31), 31, 32, 33]
    x[32:40] = [-1, -(2**31), 1, 2, -1, 7, 0, 40]
    return x.astype(np.int32)


def _bytes(a, of_a, b, of_b):
    """Sum of the products of four bytes."""
    parts = [U(x).view(t).reshape(-1, 4).astype(np.int64) for x, t in ((a, of_a), (b, of_b))]
    return (parts[0] * parts[1]).sum(1)


U = lambda x: np.asarray(x).astype(np.int64).astype(np.uint64).astype(np.uint32)


@pytest.mark.parametrize(
    "op, expected",
    [
        ("add.s32 %r7, %r6, %r9;", lambda a, b: a + b),
        ("mul.lo.s32 %r7, %r6, %r9;", lambda a, b: a * b),
        ("mul.hi.s32 %r7, %r6, %r9;", lambda a, b: a * b >> 32),
        ("add.sat.s32 %r7, %r6, %r9;", lambda a, b: np.clip(a + b, -(2**31), 2**31 - 1)),
        ("sub.sat.s32 %r7, %r6, %r9;", lambda a, b: np.clip(a - b, -(2**31), 2**31 - 1)),
        ("min.relu.s32 %r7, %r6, %r9;", lambda a, b: np.maximum(np.minimum(a, b), 0)),
        ("max.s32 %r7, %r6, %r9;", np.maximum),
        (
            "div.s32 %r7, %r6, %r9;",
            lambda a, b: np.where(b == 0, -1, np.trunc(a / np.where(b == 0, 1, b).astype(float)).astype(np.int64)),
        ),
        ("shl.b32 %r7, %r6, %r9;", lambda a, b: np.where((b & 0xFFFFFFFF) > 31, 0, a << (b & 31))),
        ("shr.s32 %r7, %r6, %r9;", lambda a, b: a >> np.minimum(b & 0xFFFFFFFF, 31)),
        ("lop3.b32 %r7, %r6, %r9, %r0, 0xE4;", lambda a, b: (a & np.arange(32)) | (b & ~np.arange(32))),
        ("bfe.s32 %r7, %r6, 28, 9;", lambda a, b: a >> 28),
        ("bfe.u32 %r7, %r6, 4, 6;", lambda a, b: a >> 4 & 63),
        ("bfi.b32 %r7, %r6, %r9, 8, 4;", lambda a, b: (b & ~0xF00) | (a & 15) << 8),
        ("shf.r.wrap.b32 %r7, %r6, %r9, 8;", lambda a, b: (a & 0xFFFFFFFF) >> 8 | b << 24),
        ("prmt.b32 %r7, %r6, %r9, 0x5410;", lambda a, b: (a & 0xFFFF) | b << 16),
        ("prmt.b32 %r7, %r6, %r9, 0x0888;", lambda a, b: np.where(a & 128, 0xFFFFFF, 0) | (a & 255) << 24),
        ("dp4a.s32.s32 %r7, %r6, %r9, 7;", lambda a, b: _bytes(a, np.int8, b, np.int8) + 7),
        ("dp4a.u32.s32 %r7, %r6, %r9, %r6;", lambda a, b: _bytes(a, np.uint8, b, np.int8) + a),
        ("setp.lt.s32 %p1, %r6, %r9; selp.b32 %r7, 5, 6, %p1;", lambda a, b: np.where(a < b, 5, 6)),
        ("cvt.u16.u32 %h1, %r6; cvt.s32.s16 %r7, %h1;", lambda a, b: a.astype(np.int16)),
    ],
)
def test_integers(op, expected):
    x = some_ints(3)
    a, b = x[:32].astype(np.int64), x[32:].astype(np.int64)
    np.testing.assert_array_equal(values(op, x), U(expected(a, b)))


def floats(seed=4):
    x = np.random.RandomState(seed).standard_normal(64).astype(np.float32) * np.float32(10)
    x[:4], x[32:36] = [np.nan, -0.0, np.inf, 1e-40], [1, 0.0, -np.inf, 1e-39]
    return x


@pytest.mark.parametrize(
    "op, expected",
    [
        ("add.f32 %r7, %r6, %r9;", lambda a, b: a + b),
        ("mul.rn.f32 %r7, %r6, %r9;", lambda a, b: a * b),
        ("max.NaN.f32 %r7, %r6, %r9;", np.maximum),
        ("max.f32 %r7, %r6, %r9;", np.fmax),
        (
            "add.ftz.f32 %r7, %r6, %r9;",
            lambda a, b: np.where(np.abs(a) < 2e-38, 0 * a, a) + np.where(np.abs(b) < 2e-38, 0 * b, b),
        ),
    ],
)
def test_floats(op, expected):
    x = floats()
    with np.errstate(invalid="ignore"):
        want = expected(x[:32], x[32:]).astype(np.float32)
    want = np.where(np.isnan(want), np.uint32(0x7FFFFFFF), want.view(np.uint32))
    got = values(op, x)
    zero = (want << 1) == 0  # the sign of a zero is NumPy's business
    np.testing.assert_array_equal(got[~zero], want[~zero])
    assert not (got[zero] << 1).any()


def test_fma_rounds_once():
    x = np.float32([1 + 2**-12] * 64)
    got = values("fma.rn.f32 %r7, %r6, %r9, 0fBF800000;", x).view(np.float32)
    assert set(got) == {np.float32(2**-11 + 2**-24)}


@pytest.mark.parametrize(
    "op, expected",
    [
        ("add.rn.f32x2 %rd7, %rd5, %rd6;", lambda a, b, c: a + b),
        ("sub.rn.f32x2 %rd7, %rd5, %rd6;", lambda a, b, c: a - b),
        ("mul.rn.f32x2 %rd7, %rd5, %rd6;", lambda a, b, c: a * b),
        ("mul.rn.ftz.f32x2 %rd7, %rd5, %rd6;", lambda a, b, c: np.where(np.abs(a * b) < 2.0**-126, 0, a * b)),
        ("fma.rn.f32x2 %rd7, %rd5, %rd6, %rd8;", lambda a, b, c: (a.astype(float) * b + c).astype(np.float32)),
    ],
)
@pytest.mark.parametrize("half", ["%r7", "%r8"])
def test_two_floats_at_once(op, expected, half):
    """A pair is (x, y) and (y, 3 x): the halves have to stay apart."""
    x = np.random.RandomState(7).standard_normal(64).astype(np.float32)
    x[3], x[35] = 1e-30, 1e-10
    load = (
        "mov.b64 %rd5, {%r6, %r9}; mul.f32 %r10, %r6, 0f40400000; mov.b64 %rd6, {%r9, %r10}; mov.b64 %rd8, {%r10, %r6};"
    )
    a, b, c = x[:32], x[32:], x[:32] * np.float32(3)
    want = expected(a, b, c) if half == "%r7" else expected(b, c, a)
    np.testing.assert_array_equal(
        values(f"{load} {op} mov.b64 {{%r7, %r8}}, %rd7;", x, half).view(np.float32), want.astype(np.float32)
    )


@pytest.mark.parametrize(
    "kind, widen",
    [
        ("f16", lambda u: u.astype(np.uint16).view(np.float16).astype(float)),
        ("bf16", lambda u: (u << 16).view(np.float32).astype(float)),
    ],
)
def test_fma_of_halves_into_fp32(kind, widen):
    halves = np.random.RandomState(8).standard_normal(64).astype(np.float16).view(np.uint16)
    x = (
        halves
        if kind == "f16"
        else np.random.RandomState(8).standard_normal(64).astype(np.float32).view(np.uint32) >> 16
    ).astype(np.uint32)
    got = values(f"cvt.u16.u32 %h1, %r6; cvt.u16.u32 %h2, %r9; fma.rn.f32.{kind} %r7, %h1, %h2, 0f3E99999A;", x).view(
        np.float32
    )
    np.testing.assert_array_equal(got, (widen(x[:32]) * widen(x[32:]) + float(np.float32(0.3))).astype(np.float32))


def test_parameters_in_vectors():
    text = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry kernel(.param .align 16 .b8 many[32], .param .u64 out)
{
  .reg .b32 %r<8>;
  .reg .b64 %d<4>;
  ld.param.v4.b32 {%r0, %r1, %r2, %r3}, [many + 16];
  ld.param.v2.b64 {%d0, %d1}, [many];
  ld.param.b64 %d2, [out];
  st.global.v4.b32 [%d2], {%r3, %r2, %r1, %r0};
  st.global.v2.b64 [%d2 + 16], {%d1, %d0};
  ret;
}"""
    out, memory = np.zeros(8, np.uint32), Memory()
    run(
        Program(text),
        memory,
        [np.arange(8, dtype=np.uint32).tobytes(), struct.pack("<Q", memory.add("out", out, 16, write=True))],
    )
    assert out.tolist() == [7, 6, 5, 4, 2, 3, 0, 1]


MEETING = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
def test_asynchronous_store_into_the_other_cta(mode):
    body = f"""setp.eq.u32 %p0, %r2, 0;
    @%p0 mbarrier.init.shared.b64 [%r3], 1;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], 256;
    {MEETING}
    mov.u32 %r10, %cluster_ctarank; xor.b32 %r11, %r10, 1; mapa.shared::cluster.u32 %r12, %r3, %r11; shl.b32 %r13, %r2, 3; add.u32 %r14, %r12, %r13;
    mad.lo.u32 %r15, %r10, 100, %r2; add.u32 %r16, %r15, 1000;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r14+512], {{%r15, %r16}}, [%r12];
    W: mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0; @!%p1 bra W;
    add.u32 %r17, %r3, %r13; ld.shared.v2.b32 {{%r18, %r19}}, [%r17+512];
    mul.wide.u32 %rd5, %r10, 256; add.s64 %rd5, %rd3, %rd5; st.global.b32 [%rd5], %r18; st.global.b32 [%rd5+128], %r19;
    {MEETING}"""
    result, out = execute(body, 32, grid=2, cluster=2, mode=mode, seed=2)
    assert not result.faults, str(result)
    lanes = np.arange(32)
    np.testing.assert_array_equal(out[:128].reshape(4, 32), [100 + lanes, 1100 + lanes, lanes, 1000 + lanes])


@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
def test_commit_to_both_ctas_of_a_cluster(mode):
    """Each CTA's mbarrier wants two arrivals, which come from one thread of either CTA."""
    body = f"""setp.eq.u32 %p0, %r2, 0;
    @%p0 mbarrier.init.shared.b64 [%r3], 2;
    @%p0 fence.mbarrier_init.release.cluster;
    {MEETING}
    cvt.u16.u32 %h1, 3;
    @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r3], %h1;
    W: mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0; @!%p1 bra W;
    mov.u32 %r10, %ctaid.x; mul.wide.u32 %rd5, %r10, 128; add.s64 %rd5, %rd3, %rd5; st.global.b32 [%rd5], %r0;
    {MEETING}"""
    result, out = execute(body, 32, grid=2, cluster=2, mode=mode, seed=2)
    assert not result.faults, str(result)
    np.testing.assert_array_equal(out[:64], np.tile(np.arange(32), 2))


def test_f16_rounding_and_subnormals():
    x = np.concatenate(
        [
            np.float32([65519, 65520, 1e-8, 6e-8, 2**-24, 2**-25, 3 * 2**-25, 2049, 2051]),
            np.random.RandomState(5).standard_normal(55).astype(np.float32),
        ]
    )
    got = values("cvt.rn.f16x2.f32 %r7, %r9, %r6;", x)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.astype(np.uint16).view(np.float16), x[:32].astype(np.float16))
        np.testing.assert_array_equal((got >> 16).astype(np.uint16).view(np.float16), x[32:].astype(np.float16))


def test_bf16_product_of_a_subnormal():
    """How E2M1 codes are widened: 2 << 5 is 2^-126 * 2^-1 in bf16, times 2^126."""
    assert set(values("mul.rn.bf16x2 %r7, %r6, %r9;", np.uint32([0x00400040] * 32 + [0x7E807E80] * 32))) == {0x3F003F00}


def test_every_e4m3_byte():
    bytes_ = np.arange(64).astype(np.uint32) * 4
    got = values("cvt.u16.u32 %h1, %r6; cvt.rn.f16x2.e4m3x2 %r7, %h1;", bytes_).astype(np.uint16).view(np.float16)
    b = bytes_[:32].astype(int)
    e, m = b >> 3 & 15, b & 7
    np.testing.assert_array_equal(
        got, np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7)).astype(np.float16)
    )


def test_shuffles_votes_reductions():
    x = np.arange(64, dtype=np.uint32)
    lanes = np.arange(32)
    np.testing.assert_array_equal(values("shfl.sync.bfly.b32 %r7, %r6, 5, 31, -1;", x), lanes ^ 5)
    np.testing.assert_array_equal(
        values("shfl.sync.up.b32 %r7|%p1, %r6, 3, 0, -1;", x), np.maximum(lanes - 3, np.where(lanes < 3, lanes, 0))
    )
    np.testing.assert_array_equal(values("shfl.sync.idx.b32 %r7, %r6, 2, 0x181f, -1;", x), lanes // 8 * 8 + 2)
    assert set(values("setp.lt.u32 %p1, %r6, 7; vote.sync.ballot.b32 %r7, %p1, -1;", x)) == {127}
    assert set(values("redux.sync.max.s32 %r7, %r6, -1;", x)) == {31}
    assert set(values("elect.sync %r7|%p1, -1;", x)) == {0}


@pytest.mark.parametrize(
    "op, expected",
    [
        ("max", lambda x: np.nanmax(x)),
        ("min", lambda x: np.nanmin(x)),
        ("max.abs", lambda x: np.nanmax(abs(x))),
        ("min.abs", lambda x: np.nanmin(abs(x))),
        ("max.NaN", lambda x: x.max()),
        ("min.abs.NaN", lambda x: abs(x).min()),
    ],
)
@pytest.mark.parametrize("nans", [0, 3, 32])
def test_reductions_of_floats(op, expected, nans):
    """Without .NaN a NaN is left out, unless there is nothing else; with it, it wins. The NaN is the canonical one."""
    x = np.random.RandomState(11).standard_normal(64).astype(np.float32)
    x[:nans] = np.nan
    got = set(values(f"redux.sync.{op}.f32 %r7, %r6, -1;", x))
    assert got == ({0x7FFFFFFF} if nans == 32 or (nans and "NaN" in op) else {int(expected(x[:32]).view(np.uint32))})


def test_reductions_of_floats_by_a_part_of_the_warp_and_of_zeros():
    x = np.float32([*range(32), *range(32)])
    halves = "setp.lt.u32 %p1, %r2, 12; @%p1 bra LOW; redux.sync.min.f32 %r7, %r6, 0xfffff000; bra END; LOW: redux.sync.max.f32 %r7, %r6, 0xfff; END: bar.warp.sync -1;"
    np.testing.assert_array_equal(values(halves, x).view(np.float32), [11] * 12 + [12] * 20)
    zeros = np.float32([0.0, -0.0] * 32)
    assert set(values("redux.sync.max.f32 %r7, %r6, -1;", zeros)) == {0} and set(
        values("redux.sync.min.f32 %r7, %r6, -1;", zeros)
    ) == {0x80000000}


@pytest.mark.parametrize(
    "op, expected", [("max", np.fmax), ("min", np.fmin), ("max.NaN", np.maximum), ("min.NaN", np.minimum)]
)
def test_minimum_and_maximum_of_three(op, expected):
    x = floats()
    c = np.float32(0.5)
    with np.errstate(invalid="ignore"):
        want = expected(expected(x[:32], x[32:]), c)
    want = np.where(np.isnan(want), np.uint32(0x7FFFFFFF), want.view(np.uint32))
    got = values(f"{op}.f32 %r7, %r6, %r9, 0f3F000000;", x)
    zero = (want << 1) == 0
    np.testing.assert_array_equal(got[~zero], want[~zero])
    assert not (got[zero] << 1).any()


def test_registers_and_labels_of_blocks():
    """Each block has its own; the outer ones are seen from inside and are as before after it."""
    block = "{{ .reg .b32 a; .reg .pred q; mov.b32 a, {n}; setp.lt.u32 q, %r2, {n}; @q bra SKIP; add.u32 %r7, %r7, a; SKIP: {inner} }}"
    inner = "{ .reg .b64 a; mov.b64 a, 100; cvt.u32.u64 %r8, a; add.u32 %r7, %r7, %r8; }"
    body = "mov.b32 %r7, 0;" + block.format(n=5, inner="") + block.format(n=9, inner=inner) + "SKIP:"
    lanes = np.arange(32)
    np.testing.assert_array_equal(values(body, np.zeros(64, np.uint32)), 5 * (lanes >= 5) + 9 * (lanes >= 9) + 100)


@pytest.mark.parametrize("mask, first, last", [(0xFFFFFFFF, 0, 31), (0x00FFF0F0, 4, 23)])
def test_either_leader_may_be_elected(mask, first, last):
    """The same lane for every member, and the predicate in that lane alone."""
    body = f"mov.b32 %r7, 77; mov.u32 %r8, %lanemask_eq; and.b32 %r8, %r8, {mask}; setp.eq.u32 %p1, %r8, 0; @%p1 bra OUT; elect.sync %r7|%p2, {mask}; @%p2 add.u32 %r7, %r7, 100; OUT: st.global.b32 [%rd3], %r7;"
    member = mask >> np.arange(32) & 1
    for leader, last_lane in ((first, False), (last, True)):
        result, out = execute(body, threads=LANES, elect_last=last_lane)
        assert not result.findings
        np.testing.assert_array_equal(out[:32], np.where(member, leader + 100 * (np.arange(32) == leader), 77))


# ---- matrices of 8 x 8 halves: lane l holds elements 2 (l % 4) and the next of row l / 4; transposed, of column l / 4. Lane 8 q + r names row r of matrix q.
def fragments(matrices, transposed):
    """uint32 [matrices, 32]: what the lanes hold."""
    m = np.swapaxes(matrices, 1, 2) if transposed else matrices
    return np.ascontiguousarray(m).view(np.uint32).reshape(len(m), 32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_stmatrix_and_ldmatrix(n, transposed):
    """Rows lie 48 bytes apart and in another order than the lanes that name them."""
    matrices = np.random.RandomState(12).randint(0, 1 << 16, (n, 8, 8)).astype(np.uint16)
    regs = ", ".join(f"%r{20 + q}" for q in range(n))
    trans = ".trans" if transposed else ""
    load = "".join(f"add.s64 %rd4, %rd0, %rd2; ld.global.b32 %r{20 + q}, [%rd4 + {128 * q}];" for q in range(n))
    place = f"xor.b32 %r6, %r2, 5; mad.lo.u32 %r6, %r6, 48, %r3; setp.ge.u32 %p1, %r2, {8 * n}; @%p1 mov.b32 %r6, 0x777;"  # other lanes' addresses play no part
    store = f"stmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 [%r6 + 64], {{{regs}}};"
    rows = "bar.warp.sync -1; mad.lo.u32 %r8, %r2, 48, %r3;" + "".join(
        f"@!%p1 ld.shared.b32 %r{30 + i}, [%r8 + {64 + 4 * i}]; mul.wide.u32 %rd5, %r2, 16; add.s64 %rd5, %rd5, %rd1; @!%p1 st.global.b32 [%rd5 + {4 * i}], %r{30 + i};"
        for i in range(4)
    )
    data = fragments(matrices, transposed).reshape(-1)
    result, out = execute(load + place + store + rows, threads=LANES, data=data)
    assert not result.findings, str(result)
    stored = np.zeros((8 * n, 8), np.uint16)
    stored[np.arange(8 * n) ^ 5] = matrices.reshape(-1, 8)
    np.testing.assert_array_equal(out[: 32 * n], stored.view(np.uint32).reshape(-1))
    again = (
        "bar.warp.sync -1;"
        + f"ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{{regs}}}, [%r6 + 64];"
        + "".join(f"st.global.b32 [%rd3 + {128 * q}], %r{20 + q};" for q in range(n))
    )
    result, out = execute(
        load + place + store + "".join(f"mov.b32 %r{20 + q}, 0;" for q in range(n)) + again, threads=LANES, data=data
    )
    assert not result.findings
    np.testing.assert_array_equal(out[: 32 * n], data)


def test_undefined_halves_of_stmatrix_stay_undefined():
    body = "shl.b32 %r6, %r2, 4; add.s32 %r6, %r6, %r3; setp.lt.u32 %p1, %r2, 16; @%p1 mov.b32 %r20, 7; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r20}; bar.warp.sync -1;"
    read = "ld.shared.b32 %r7, [%r3 + {}]; st.global.b32 [%rd3], %r7;"
    assert {
        f.kind for f in execute(body + read.format(60), threads=LANES)[0].faults
    } == set()  # row 3, of lanes 12 to 15
    assert {f.kind for f in execute(body + read.format(64), threads=LANES)[0].faults} == {"uninit-store"}


def test_divergence_joins_again():
    body = "mov.u32 %r7, 0; setp.lt.u32 %p1, %r2, 5; @%p1 bra A; add.s32 %r7, %r7, 1; bra B; A: add.s32 %r7, %r7, 2; B: bar.warp.sync -1;"
    np.testing.assert_array_equal(values(body, np.zeros(64, np.uint32)), [2] * 5 + [1] * 27)


def test_mma_m16n8k16():
    """Fragments as the manual lays them out, against a matrix product of small integers."""
    rng = np.random.RandomState(6)
    A, B = rng.randint(-4, 5, (16, 16)).astype(np.float16), rng.randint(-4, 5, (16, 8)).astype(np.float16)
    words = np.zeros((8, 32), np.uint32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for q, (row, col) in enumerate([(g, 2 * t), (g + 8, 2 * t), (g, 2 * t + 8), (g + 8, 2 * t + 8)]):
            words[q, lane] = A[row, col : col + 2].view(np.uint32)[0]
        for q, k in enumerate([2 * t, 2 * t + 8]):
            words[4 + q, lane] = np.ascontiguousarray(B[k : k + 2, g]).view(np.uint32)[0]
    load = "add.s64 %rd4, %rd0, %rd2;" + "".join(f"ld.global.b32 %r{10 + q}, [%rd4 + {128 * q}];" for q in range(6))
    store = "".join(f"st.global.f32 [%rd3 + {128 * q}], %f{q};" for q in range(4))
    zero = "".join(f"mov.f32 %f{q}, 0f3F800000;" for q in range(4))
    _, out = execute(
        f"{load}{zero} mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%f0,%f1,%f2,%f3}}, {{%r10,%r11,%r12,%r13}}, {{%r14,%r15}}, {{%f0,%f1,%f2,%f3}};{store}",
        threads=32,
        data=words.reshape(-1),
    )
    got, want = out[:128].view(np.float32).reshape(4, 32), A.astype(float) @ B.astype(float) + 1
    for lane in range(32):
        g, t = lane // 4, lane % 4
        assert [got[q, lane] for q in range(4)] == [
            want[g, 2 * t],
            want[g, 2 * t + 1],
            want[g + 8, 2 * t],
            want[g + 8, 2 * t + 1],
        ]


@pytest.mark.parametrize("kind", ["s8", "u8"])
def test_wgmma_with_bytes_in_registers(kind):
    """m64n8k32, A's fragments as the manual lays them out, against a matrix product; the accumulators start at 7."""
    rng, dtype = np.random.RandomState(8), {"s8": np.int8, "u8": np.uint8}[kind]
    A, B = (
        rng.randint(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype) for shape in ((64, 32), (8, 32))
    )
    words = np.zeros((4, 128), np.uint32)
    for thread in range(128):
        row, k = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 4
        for q, (r, c) in enumerate([(row, k), (row + 8, k), (row, k + 16), (row + 8, k + 16)]):
            words[q, thread] = A[r, c : c + 4].view(np.uint32)[0]
    shared = np.concatenate([B[:, :16], B[:, 16:]]).view(np.uint32).reshape(-1)  # two core matrices, 128 bytes apart
    load = "add.s64 %rd4, %rd0, %rd2;" + "".join(f"ld.global.b32 %r{10 + q}, [%rd4 + {512 * q}];" for q in range(4))
    body = [
        load,
        "setp.lt.u32 %p1, %r0, 64; @%p1 ld.global.b32 %r14, [%rd4 + 2048]; @%p1 st.shared.b32 [%r5], %r14; fence.proxy.async.shared::cta; bar.sync 0;",
        "shr.u32 %r20, %r3, 4; or.b32 %r20, %r20, 0x80000; mov.b32 %r21, 0x10; mov.b64 %rd4, {%r20, %r21};",
        "".join(f"mov.b32 %r{15 + q}, 7;" for q in range(4)),
        f"wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k32.s32.{kind}.{kind} {{%r15, %r16, %r17, %r18}}, {{%r10, %r11, %r12, %r13}}, %rd4, 1;",
        "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        "".join(f"st.global.b32 [%rd3 + {512 * q}], %r{15 + q};" for q in range(4)),
    ]
    found, out = execute(" ".join(body), threads=128, data=np.concatenate([words.reshape(-1), shared]))
    assert not found.findings, str(found)
    got, want = out[:512].view(np.int32).reshape(4, 128), A.astype(int) @ B.astype(int).T + 7
    for thread in range(128):
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        assert list(got[:, thread]) == [
            want[row, column],
            want[row, column + 1],
            want[row + 8, column],
            want[row + 8, column + 1],
        ]


def test_random_schedules_are_functions_of_their_seed():
    body = "st.shared.b32 [%r5], %r0; bar.sync 0; xor.b32 %r6, %r5, 128; ld.shared.b32 %r7, [%r6]; st.global.b32 [%rd3], %r7; mov.u32 %r8, %clock; st.global.b32 [%rd3 + 1024], %r8;"
    a, b, c = (execute(body, mode="random", seed=s)[0] for s in (1, 1, 2))
    assert a.insts == b.insts and not c.findings


def test_tensor_map_bits():
    raw = bytearray(128)
    w = [0x1000, (1 << 4) | (3 << 13) | (64 // 16 << 32), 0, 0, 31 | (7 << 32), 0, (63 << 56), 3]
    for i, x in enumerate(w):
        raw[8 * i : 8 * i + 8] = x.to_bytes(8, "little")
    t = tensor_map.decode(bytes(raw))
    assert (t.base, t.bits, t.swizzle, t.dims, t.strides, t.box) == (0x1000, 8, 3, [32, 8], [64], [64, 4])
    with pytest.raises(ValueError, match="not simulated"):
        tensor_map.decode(bytes(raw[:52]) + b"\1" + bytes(raw[53:]))  # every second element


H200 = {  # (dtype, dims, strides, box, swizzle, l2_promotion) -> words 0 to 9 of what the driver of an H200 writes for address 0x7F0000101000
    (
        "u8",
        (64, 128, 80),
        (64, 8192),
        (64, 128, 1),
        "64",
        "128",
    ): "7f0000101000 400044020 200 0 7f0000003f 4f 3f00000000000000 7f 2000 200",
    (
        "u8",
        (64, 344, 4),
        (256, 64),
        (64, 128, 1),
        "64",
        "128",
    ): "7f0000101000 1000044020 4 0 1570000003f 3 3f00000000000000 7f 2000 200",
    (
        "u16",
        (256, 2, 80),
        (512, 1024),
        (256, 2, 1),
        "none",
        "128",
    ): "7f0000101000 20000400a0 40 0 1000000ff 4f ff00000000000000 1 400 10",
    (
        "bf16",
        (64, 64),
        (128,),
        (32, 8),
        "none",
        "none",
    ): "7f0000101000 800000510 0 0 3f0000003f 0 1f00000000000000 7 200 10",
    (
        "f32",
        (64, 64),
        (256,),
        (32, 8),
        "none",
        "none",
    ): "7f0000101000 1000000390 0 0 3f0000003f 0 1f00000000000000 7 400 10",
    ("u8", (256, 64), (256,), (16, 8), "32", "64"): "7f0000101000 1000022010 0 0 3f000000ff 0 f00000000000000 7 80 100",
    (
        "u8",
        (256, 64),
        (256,),
        (16, 8),
        "128",
        "64",
    ): "7f0000101000 1000026010 0 0 3f000000ff 0 f00000000000000 7 80 400",
    (
        "u8",
        (256, 64),
        (256,),
        (16, 8),
        "none",
        "256",
    ): "7f0000101000 1000060010 0 0 3f000000ff 0 f00000000000000 7 80 10",
    ("u8", (131072,), (), (256,), "none", "none"): "7f0000101000 0 0 0 1ffff 0 ff00000000000000 0 100 10",
    (
        "u8",
        (64, 2, 2, 2, 2),
        (3 << 36, 5 << 36, 6 << 36, 7 << 36),
        (64, 1, 1, 1, 1),
        "none",
        "none",
    ): "7f0000101000 40 0 765300000000 10000003f 100000001 3f00000000000001 0 40 10",
    (
        "u8",
        (1 << 32, 4),
        (1 << 33,),
        (64, 1),
        "none",
        "none",
    ): "7f0000101000 2000000000000010 0 0 3ffffffff 0 3f00000000000000 0 40 10",
}


def recipe(key):
    return {"buffer": "k", **dict(zip(("dtype", "dims", "strides", "box", "swizzle", "l2_promotion"), key))}


@pytest.mark.parametrize("key", H200)
def test_tensor_maps_are_those_of_the_driver(key):
    words = np.frombuffer(tensor_map.encode(recipe(key), {}, 0x7F0000101000), np.uint64)
    assert " ".join(f"{int(x):x}" for x in words[:10]) == H200[key] and not words[10:].any()
    t = tensor_map.decode(words.tobytes())
    assert (t.dims, t.strides, t.box) == (list(key[1]), list(key[2]), list(key[3]))


def test_tensor_maps_and_the_dsl():
    """The DSL's own maps for sm_100a differ in two bits of word 1 (1, and 21 in tensors of 128 KiB and more); scales of a page pool."""
    scales = dict(
        buffer="k_scale",
        dtype="u16",
        dims=[256, 2, "pages*heads"],
        strides=[512, 1024],
        box=[256, 2, 1],
        swizzle="none",
        l2_promotion="128",
    )
    words = np.frombuffer(tensor_map.encode(scales, dict(pages=40, heads=2), 0x7F0000301000), np.uint64)
    assert [int(x) for x in words[:8]] == [
        0x7F0000301000,
        0x20000400A2 & ~2,
        0x40,
        0,
        0x1000000FF,
        0x4F,
        0xFF00000000000000,
        1,
    ]
    assert tensor_map.encode(scales, dict(pages=0, heads=2), 0x7F0000101000) == bytes(128)


@pytest.mark.parametrize(
    "change",
    [
        dict(box=(8, 8)),
        dict(box=(128, 8), swizzle="64"),
        dict(strides=(264,)),
        dict(strides=(1 << 40,)),
        dict(box=(16, 257)),
    ],
)
def test_tensor_maps_that_the_driver_refuses(change):
    with pytest.raises(ValueError, match="refuses"):
        tensor_map.encode({**recipe(("u8", (256, 64), (256,), (16, 8), "none", "none")), **change}, {}, 0x7F0000101000)
