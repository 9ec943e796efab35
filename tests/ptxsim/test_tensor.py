"""tcgen05 in the simulator: what it computes against NumPy, and each of its checks on a kernel with one fault.

One small kernel: a bulk copy brings operands and scales into shared memory, thread 0 copies the scales to tensor memory and multiplies, all four
warps load their rows of the 128 x 32 product. Operands lie as 8 x 16-byte core matrices, scales as the device wants them (32 rows of 16 bytes).
"""

import numpy as np
import pytest

from ptxsim.launch import Deadlock, SimError
from ptxsim.ptx_text import execute

ANY = ("eager", "lazy", "random")
M, N = 128, 32
A, B, SFA, SFB, BYTES = 0, 4096, 5120, 5632, 6144  # offsets in shared memory
FULL, DONE, FREE, HOLD = 8192, 8200, 8208, 8216  # mbarriers; where the address in tensor memory goes
D, TA, TB, COLUMNS = 0, 32, 36, 64  # columns: accumulator, scales of A and of B; how many are allocated

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def ue4m3(b):
    b = b & 127
    e, m = b >> 3, b & 7
    return np.where(b == 127, np.nan, np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0)))


def e8m0(b):
    return np.where(b == 255, np.nan, 2.0 ** (b.astype(float) - 127))


def e4m3(b):
    return np.where(b & 128, -1, 1) * ue4m3(b)


def f16(b):
    return np.ascontiguousarray(b).view(np.float16).astype(float)


def core_matrices(x):
    """[rows, 32] bytes -> the bytes of its 8 x 16 core matrices: leading offset 128, stride offset 256."""
    return x.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3).reshape(-1)


def scale_atom(s):
    """[rows, 4] scales -> 512 bytes: row r in 16-byte row r % 32, word r // 32."""
    whole = np.zeros((128, 4), np.uint8)
    whole[: len(s)] = s
    return whole.reshape(4, 32, 4).transpose(1, 0, 2).reshape(-1)


def descriptor(to, offset, leading=128, stride=256, version=1):
    low, high = leading >> 4 << 16, stride >> 4 | version << 14
    return f"add.s32 %r8, %r3, {offset}; shr.u32 %r8, %r8, 4; or.b32 %r8, %r8, {low}; mov.b32 %r9, {high}; mov.b64 {to}, {{%r8, %r9}};"


SHAPE = 1 << 7 | 1 << 10 | N >> 3 << 17 | M >> 4 << 24
MMA = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16.collector::a::discard [%r10], %rd4, %rd5, %r11, [%r10+32], [%r10+36], 0;"
WAIT = "W{0}: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3+{1}], {2}; @!%p2 bra W{0};"
ALLOC = f"@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+{HOLD}], {COLUMNS};"
RELINQUISH = "@%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
START = [
    "setp.eq.s32 %p0, %r0, 0; setp.eq.s32 %p1, %r1, 0;",
    f"@%p0 mbarrier.init.shared::cta.b64 [%r3+{FULL}], 1; @%p0 mbarrier.init.shared::cta.b64 [%r3+{DONE}], 1; @%p0 mbarrier.init.shared::cta.b64 [%r3+{FREE}], 128;",
    "@%p0 fence.mbarrier_init.release.cluster;",
    ALLOC,
    RELINQUISH,
    "bar.sync 0;",
    "tcgen05.fence::after_thread_sync;",
    f"ld.shared.b32 %r10, [%r3+{HOLD}];",
    descriptor("%rd4", A),
    descriptor("%rd5", B),
    descriptor("%rd6", SFA, 0, 128),
    descriptor("%rd7", SFB, 0, 128),
]
FETCH = f"""@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+{FULL}], {BYTES};
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], {BYTES}, [%r3+{FULL}];"""
FETCHED = WAIT.format("FULL", FULL, 0)
COPY = [
    "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r10+32], %rd6;",
    "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r10+36], %rd7;",
]
COMMIT = f"tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3+{DONE}];"
ISSUE = [
    "@!%p0 bra ISSUED;",
    FETCHED,
    "tcgen05.fence::after_thread_sync;",
    *COPY,
    MMA,
    COMMIT,
    "ISSUED: bar.warp.sync 0xffffffff;",
]
AFTER = "tcgen05.fence::after_thread_sync ;"  # of those that wait for the product
FINISHED = WAIT.format("DONE", DONE, 0)
PRODUCT = "{" + ", ".join(f"%r{20 + i}" for i in range(N)) + "}"
LOAD = f"shl.b32 %r12, %r1, 21; add.s32 %r12, %r10, %r12; tcgen05.ld.sync.aligned.32x32b.x32.b32 {PRODUCT}, [%r12];"
LOADED = "tcgen05.wait::ld.sync.aligned;"
STORE = ["mul.wide.u32 %rd8, %r0, 128; add.s64 %rd8, %rd1, %rd8;"] + [
    f"st.global.b32 [%rd8+{4 * i}], %r{20 + i};" for i in range(N)
]
BEFORE = "tcgen05.fence::before_thread_sync;"
DEALLOC = f"@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, {COLUMNS};"
END = [BEFORE, "bar.sync 0;", "tcgen05.fence::after_thread_sync  ;", DEALLOC]
KERNEL = [*START, f"mov.b32 %r11, {SHAPE};", FETCH, *ISSUE, FINISHED, AFTER, LOAD, LOADED, *STORE, *END]


def operands(seed=1, scales=4, low=40, high=72):
    """Random codes of A and B (32 bytes a row) and scales, and the bytes that the kernel fetches."""
    rng = np.random.RandomState(seed)
    a, b = rng.randint(0, 256, (M, 32)).astype(np.uint8), rng.randint(0, 256, (N, 32)).astype(np.uint8)
    sa, sb = (rng.randint(low, high, (n, 4)).astype(np.uint8) for n in (M, N))
    return (
        a,
        b,
        sa,
        sb,
        np.concatenate([core_matrices(a), core_matrices(b), scale_atom(sa), scale_atom(sb)]).view(np.uint32),
    )


def fp4(x):
    return E2M1[np.stack([x & 15, x >> 4], -1).reshape(len(x), 64)]


def run(steps, data, mode="eager", **how):
    result, out = execute(
        "\n    ".join(steps), threads=128, data=data, shared="12288", words=M * N, mode=mode, seed=5, **how
    )
    return result, out.view(np.float32).reshape(M, N)


def replaced(steps, **changes):
    """KERNEL with one step for another: OLD=NEW by the names of this module; None drops it."""
    steps = list(steps)
    for name, new in changes.items():
        at = steps.index(globals()[name])
        steps[at : at + 1] = [] if new is None else [new] if isinstance(new, str) else new
    return steps


def kinds(steps, mode="eager"):
    return {f.kind for f in run(steps, operands()[-1], mode)[0].faults}


def noticed(steps, mode):
    """The kinds of the reports; "error" where the launch ends by one, as it may in schedules that let the fault happen."""
    try:
        return kinds(steps, mode)
    except SimError as e:
        return {"error"} | {f.kind for f in e.reports}


# ---- what it computes
@pytest.mark.parametrize("mode", ANY)
def test_nvfp4(mode):
    a, b, sa, sb, data = operands()
    result, got = run(KERNEL, data, mode)
    want = (fp4(a) * np.repeat(ue4m3(sa), 16, 1)) @ (fp4(b) * np.repeat(ue4m3(sb), 16, 1)).T
    assert not result.findings and result.ummas == 1, str(result)
    np.testing.assert_array_equal(got, want.astype(np.float32))


def test_the_sign_bit_of_a_scale_plays_no_part():
    a, b, sa, sb, data = operands()
    signed = np.concatenate([core_matrices(a), core_matrices(b), scale_atom(sa | 128), scale_atom(sb | 128)]).view(
        np.uint32
    )
    np.testing.assert_array_equal(run(KERNEL, data)[1], run(KERNEL, signed)[1])


@pytest.mark.parametrize("ids", [(0, 0), (2, 0), (0, 2), (2, 2)])
@pytest.mark.parametrize(
    "spelling", ["mxf4nvf4.block_scale.block32", "mxf4nvf4.block_scale.scale_vec::2X", "mxf4.block_scale"]
)
def test_mxfp4(spelling, ids):
    a, b, sa, sb, data = operands(2, low=120, high=134)
    shape = SHAPE | 1 << 23 | ids[0] << 29 | ids[1] << 4
    changed = replaced(KERNEL, MMA=MMA.replace("mxf4nvf4.block_scale.block16", spelling))
    changed[changed.index(f"mov.b32 %r11, {SHAPE};")] = f"mov.b32 %r11, {shape};"
    result, got = run(changed, data)
    sa, sb = (e8m0(s[:, i : i + 2]) for s, i in zip((sa, sb), ids))
    np.testing.assert_array_equal(
        got, ((fp4(a) * np.repeat(sa, 32, 1)) @ (fp4(b) * np.repeat(sb, 32, 1)).T).astype(np.float32)
    )


@pytest.mark.parametrize("scale_id", range(4))
def test_mxfp8(scale_id):
    a, b, sa, sb, _ = operands(3, low=120, high=134)
    a, b = a & 0xBF, b & 0xBF  # no NaN
    data = np.concatenate([core_matrices(a), core_matrices(b), scale_atom(sa), scale_atom(sb)]).view(np.uint32)
    changed = replaced(KERNEL, MMA=MMA.replace("mxf4nvf4.block_scale.block16", "mxf8f6f4.block_scale"))
    changed[changed.index(f"mov.b32 %r11, {SHAPE};")] = (
        f"mov.b32 %r11, {(SHAPE & ~(1 << 7 | 1 << 10)) | 1 << 23 | scale_id << 29 | scale_id << 4};"
    )
    want = (e4m3(a) * e8m0(sa[:, scale_id])[:, None]) @ (e4m3(b) * e8m0(sb[:, scale_id])[:, None]).T
    np.testing.assert_array_equal(run(changed, data)[1], want.astype(np.float32))


@pytest.mark.parametrize("rows", [128, 64])
@pytest.mark.parametrize("kind", ["f16", "f8f6f4"])
def test_dense(kind, rows):
    rng = np.random.RandomState(4)
    if kind == "f16":
        a, b = (np.ascontiguousarray(rng.randint(-8, 9, (n, 16)).astype(np.float16)).view(np.uint8) for n in (M, N))
        value = f16
    else:
        a, b = (rng.randint(0, 120, (n, 32)).astype(np.uint8) for n in (M, N))
        value = e4m3
    data = np.concatenate([core_matrices(a), core_matrices(b), np.zeros(1024, np.uint8)]).view(np.uint32)
    changed = replaced(KERNEL, MMA=f"tcgen05.mma.cta_group::1.kind::{kind} [%r10], %rd4, %rd5, %r11, 0;")
    changed[changed.index(f"mov.b32 %r11, {SHAPE};")] = f"mov.b32 %r11, {1 << 4 | N >> 3 << 17 | rows >> 4 << 24};"
    result, got = run(changed, data)
    want = (value(a) @ value(b).T).astype(np.float32)[:rows]
    if rows == 64:  # row r in lane r % 16 of partition r // 16; the other lanes hold nothing
        assert {f.kind for f in result.faults} == {"uninit-store"}
        got = got.reshape(4, 2, 16, N)[:, 0].reshape(64, N)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", ANY)
def test_accumulation(mode):
    a, b, sa, sb, data = operands()
    result, got = run(replaced(KERNEL, MMA=[MMA, MMA.replace(", 0;", ", 1;"), MMA.replace(", 0;", ", 1;")]), data, mode)
    once = run(KERNEL, data)[1]
    assert not result.findings
    np.testing.assert_array_equal(got, 3 * once)


def test_nan_scales_reach_their_rows_and_columns():
    a, b, sa, sb, _ = operands()
    sa[17, 2] = sb[5, 0] = 127
    got = run(
        KERNEL, np.concatenate([core_matrices(a), core_matrices(b), scale_atom(sa), scale_atom(sb)]).view(np.uint32)
    )[1]
    nan = np.zeros((M, N), bool)
    nan[17], nan[:, 5] = True, True
    np.testing.assert_array_equal(np.isnan(got), nan)


@pytest.mark.parametrize(
    "what, reduce",
    [
        ("max", np.maximum),
        ("min", np.minimum),
        ("max.abs", lambda x, y: np.maximum(abs(x), abs(y))),
        ("max.NaN", np.maximum),
    ],
)
def test_load_and_reduce(what, reduce):
    a, b, sa, sb, _ = operands()
    if what == "max.NaN":
        sa[3, 1] = 127
    data = np.concatenate([core_matrices(a), core_matrices(b), scale_atom(sa), scale_atom(sb)]).view(np.uint32)
    reducing = LOAD.replace("ld.sync.aligned.32x32b.x32.b32", f"ld.red.sync.aligned.32x32b.x32.{what}.f32").replace(
        "}, [", "}, %r60, ["
    )
    result, got = run([*replaced(KERNEL, LOAD=reducing)[: -len(END)], "st.global.b32 [%rd8], %r60;", *END], data)
    plain = run(KERNEL, data)[1]
    assert not result.findings
    np.testing.assert_array_equal(
        got[:, 0], reduce.reduce(plain, axis=1) if isinstance(reduce, np.ufunc) else abs(plain).max(1)
    )


def test_store_and_load():
    body = [
        *START[:8],
        "shl.b32 %r12, %r1, 21; add.s32 %r12, %r10, %r12; add.s32 %r20, %r0, 1000; add.s32 %r21, %r0, 2000;",
        "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r12+3], {%r20, %r21};",
        "tcgen05.wait::st.sync.aligned;",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r22, %r23}, [%r12+3];",
        LOADED,
        "st.global.b32 [%rd3], %r22; st.global.b32 [%rd3+512], %r23;",
        *END,
    ]
    result, out = execute("\n".join(body), threads=128, shared="12288")
    assert not result.findings, str(result)
    np.testing.assert_array_equal(out[:256], np.concatenate([np.arange(128) + 1000, np.arange(128) + 2000]))
    assert {
        f.kind
        for f in execute("\n".join(s for s in body if "wait::st" not in s), threads=128, shared="12288")[0].faults
    } == {"tmem-race"}


def all_lanes(rows, to):
    """[128, 8] words and whether they are written: row r of `rows` ([n, words]) goes to the lanes to(r)."""
    words, written = np.zeros((128, 8), np.uint32), np.zeros((128, 8), bool)
    for r, row in enumerate(rows):
        for lane in to(r):
            words[lane, : row.size], written[lane, : row.size] = row, True
    return words, written


@pytest.mark.parametrize("mode", ANY)
@pytest.mark.parametrize(
    "shape, rows, bits, to",
    [
        ("128x256b", 128, 256, lambda r: [r]),
        ("128x128b", 128, 128, lambda r: [r]),
        ("4x256b", 4, 256, lambda r: [32 * r]),  # the first lane of each warp's part
        ("32x128b.warpx4", 32, 128, lambda r: [r, r + 32, r + 64, r + 96]),
        (
            "64x128b.warpx2::02_13",
            64,
            128,
            lambda r: [r, r + 64],
        ),  # warps 0 and 2 get the first half, 1 and 3 the second
        ("64x128b.warpx2::01_23", 64, 128, lambda r: [r % 32 + 64 * (r // 32), r % 32 + 64 * (r // 32) + 32]),
    ],
)
def test_copies_to_tensor_memory(shape, rows, bits, to, mode):
    """Rows of core matrices (8 x 16 bytes; those beside each other 128 bytes apart, those below 256) to lanes; other lanes stay as they are."""
    given = np.random.RandomState(13).randint(0, 256, (max(rows, 8), 32)).astype(np.uint8)
    data = np.zeros(BYTES, np.uint8)
    data[: given.size] = core_matrices(given)
    words, written = all_lanes(given[:rows, : bits // 8].copy().view(np.uint32), to)
    found = "{" + ", ".join(f"%r{20 + i}" for i in range(8)) + "}"
    zero = (
        "shl.b32 %r12, %r1, 21; add.s32 %r12, %r10, %r12; mov.b32 %r13, 0; tcgen05.st.sync.aligned.32x32b.x8.b32 [%r12+40], {"
        + ", ".join(["%r13"] * 8)
        + "}; tcgen05.wait::st.sync.aligned;"
    )
    copy = [
        "@!%p0 bra ISSUED;",
        FETCHED,
        "tcgen05.fence::after_thread_sync;",
        f"tcgen05.cp.cta_group::1.{shape} [%r10+40], %rd4;",
        COMMIT,
        "ISSUED: bar.warp.sync 0xffffffff;",
    ]
    store = ["mul.wide.u32 %rd8, %r0, 128; add.s64 %rd8, %rd1, %rd8;"] + [
        f"st.global.b32 [%rd8+{4 * i}], %r{20 + i};" for i in range(8)
    ]
    steps = [
        *START,
        zero,
        BEFORE + "    ",
        "bar.sync 0; tcgen05.fence::after_thread_sync;",
        FETCH,
        *copy,
        FINISHED,
        AFTER,
        f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {found}, [%r12+40];",
        LOADED,
        *store,
        *END,
    ]
    result, out = run(steps, data.view(np.uint32), mode)
    assert not result.findings, str(result)
    np.testing.assert_array_equal(out.view(np.uint32)[:, :8], words)
    bare = [s for s in steps if s != zero]
    bare[len(START) : len(START)] = ["shl.b32 %r12, %r1, 21; add.s32 %r12, %r10, %r12;"]
    result, _ = run(bare, data.view(np.uint32), mode)
    assert {f.kind for f in result.faults} == (set() if written.all() else {"uninit-store"})


# ---- what it notices
@pytest.mark.parametrize("mode", ANY)
def test_product_read_before_it_is_finished(mode):
    assert noticed(replaced(KERNEL, FINISHED=None), mode) & {"tmem-race", "error"}
    assert noticed(replaced(KERNEL, COMMIT=f"mbarrier.arrive.shared::cta.b64 _, [%r3+{DONE}];"), mode) & {
        "tmem-race",
        "error",
    }  # a plain arrive says nothing of the product


@pytest.mark.parametrize("mode", ANY)
def test_operands_read_before_they_are_there(mode):
    assert "race" in kinds(replaced(KERNEL, FETCHED=None), mode)


@pytest.mark.parametrize("mode", ANY)
def test_commit_that_never_comes(mode):
    with pytest.raises(Deadlock, match=f"mbarrier at shared offset {DONE}"):
        run(replaced(KERNEL, COMMIT=None), operands()[-1], mode)


# A second round on the same stage and accumulator: the load of the first product, then the release by 128 arrivals.
ARRIVE = f"mbarrier.arrive.shared::cta.b64 _, [%r3+{FREE}];"
RELEASED = WAIT.format("FREE", FREE, 0)
REFETCH = FETCH.replace("[%rd0]", "[%rd0] ")
SECOND = WAIT.format("FULL2", FULL, 1)
AGAIN = [
    "@!%p0 bra OVER;",
    RELEASED,
    REFETCH,
    SECOND,
    "tcgen05.fence::after_thread_sync   ;",
    *[c.replace("%r10", "%r10 ") for c in COPY],
    MMA + " ",
    COMMIT + " ",
    "OVER: bar.warp.sync -1;",
]
ROUNDS = [
    *KERNEL[: -len(STORE) - len(END)],
    BEFORE + " ",
    ARRIVE,
    *AGAIN,
    WAIT.format("DONE2", DONE, 1),
    AFTER + " ",
    LOAD + " ",
    LOADED + " ",
    *STORE,
    *END,
]


@pytest.mark.parametrize("mode", ANY)
def test_two_rounds(mode):
    _, _, _, _, data = operands()
    result, got = run(ROUNDS, data, mode)
    assert not result.findings, str(result)
    np.testing.assert_array_equal(got, run(KERNEL, data)[1])


@pytest.mark.parametrize("mode", ANY)
def test_accumulator_handed_back_without_wait_ld(mode):
    assert "tmem-race" in noticed(replaced(ROUNDS, LOADED=None), mode)


@pytest.mark.parametrize("mode", ANY)
def test_accumulator_overwritten_before_it_is_read(mode):
    assert noticed(replaced(ROUNDS, RELEASED=None), mode) & {"tmem-race", "error"}


@pytest.mark.parametrize("mode", ANY)
def test_stage_refilled_before_its_commit_is_seen(mode):
    """Thread 0 refills the stage knowing only that the product was issued; then knowing that it is finished."""
    early = [*KERNEL[: KERNEL.index(COMMIT) + 1], REFETCH, SECOND, *KERNEL[KERNEL.index(COMMIT) + 1 :]]
    assert "race" in noticed(early, mode)
    waited = [
        *KERNEL[: KERNEL.index(COMMIT) + 1],
        WAIT.format("DONE2", DONE, 0),
        REFETCH,
        SECOND,
        *KERNEL[KERNEL.index(COMMIT) + 1 :],
    ]
    assert kinds(waited, mode) == set()


@pytest.mark.parametrize("mode", ANY)
def test_scales_overwritten_by_a_copy_behind_the_product(mode):
    assert kinds(replaced(KERNEL, MMA=[MMA, COPY[1] + " "]), mode) == {"tmem-race"}


def test_allocation_rules():
    with pytest.raises(SimError, match="48 columns: a power of two"):
        kinds(replaced(KERNEL, ALLOC=ALLOC.replace(f", {COLUMNS};", ", 48;")))
    with pytest.raises(SimError, match="relinquished"):
        kinds(replaced(KERNEL, ALLOC=None, RELINQUISH=[RELINQUISH, ALLOC]))
    with pytest.raises(SimError, match="not inside one allocation"):
        kinds(replaced(KERNEL, ALLOC=ALLOC.replace(f", {COLUMNS};", ", 32;")))
    with pytest.raises(SimError, match="64 were allocated"):
        kinds(replaced(KERNEL, DEALLOC=DEALLOC.replace(f", {COLUMNS};", ", 32;")))
    with pytest.raises(Deadlock, match="waits for 512 columns of tensor memory .64 of 512"):
        kinds(replaced(KERNEL, RELINQUISH=[ALLOC.replace(f", {COLUMNS};", ", 512;"), RELINQUISH]))
    with pytest.raises(SimError, match="after their deallocation by warp 0"):
        kinds([*KERNEL, "bar.sync 0;", LOAD + " "])
    assert kinds(replaced(KERNEL, DEALLOC=None)) == {"tmem-left"}
    assert noticed([*KERNEL[: -len(END)], DEALLOC], "eager") & {
        "tmem-race",
        "error",
    }  # the other warps may still be reading


def test_an_allocation_lies_anywhere():
    """A kernel that takes column 0 for granted works in the eager schedule only."""
    wrong = [s.replace(f"ld.shared.b32 %r10, [%r3+{HOLD}];", "mov.b32 %r10, 0;") for s in KERNEL]
    assert kinds(wrong) == set()
    with pytest.raises(SimError, match="not inside one allocation"):
        kinds(wrong, "lazy")


@pytest.mark.parametrize(
    "change, words",
    [
        (
            dict(LOAD=LOAD.replace("shl.b32 %r12, %r1, 21", "shl.b32 %r12, %r1, 20")),
            "reaches lanes 32 to 63, the address names lane 16",
        ),
        (dict(MMA=MMA.replace("[%r10+32]", "[%r10+30]")), "scales of A in columns of the accumulator"),
        (dict(MMA=MMA.replace("block16", "block32")), "need groups of 16"),
        (dict(MMA="mov.b64 %rd5, 0; " + MMA), "operand B: shared memory descriptor 0 of version 0"),
        (dict(MMA=f"mov.b32 %r11, {SHAPE | 4}; " + MMA), "sparse or transposed"),
        (dict(MMA=f"mov.b32 %r11, {SHAPE ^ (128 >> 4 << 24) ^ (64 >> 4 << 24)}; " + MMA), "M = 64"),
        (dict(MMA=f"mov.b32 %r11, {SHAPE & ~(1 << 7)}; " + MMA), "format 0 of operand A"),
        (dict(MMA=f"mov.b32 %r11, {SHAPE | 2 << 29}; " + MMA), "scale id 2 of A"),
        (dict(MMA="add.s32 %r10, %r10, 0x100000; " + MMA), "accumulator at lane 16"),
    ],
)
def test_what_ends_a_launch(change, words):
    with pytest.raises(SimError) as e:
        kinds(replaced(KERNEL, **change))
    assert words in str(e.value) and "line " in str(e.value)


def test_issued_by_one_lane():
    everyone = [s for s in KERNEL if s != "@!%p0 bra ISSUED;"]
    with pytest.raises(SimError, match="by 32 lanes"):
        kinds([s.replace("ISSUED: ", "") for s in everyone])
    other = replaced(KERNEL, COMMIT=None)
    at = other.index("ISSUED: bar.warp.sync 0xffffffff;") + 1
    other[at:at] = ["setp.eq.s32 %p3, %r0, 1; @!%p3 bra SKIP;", COMMIT, "SKIP: bar.warp.sync -1;"]
    assert "tmem-lane" in kinds(other)


def test_undefined_operands_and_scales():
    some = FETCH.replace(f", {BYTES}", f", {SFB}")
    assert kinds([some if s == FETCH else s for s in KERNEL]) == {"uninit-store"}
    assert kinds([s for s in KERNEL if s != COPY[0]]) == {"uninit-store"}


def test_missing_proxy_fence_before_the_tensor_core():
    touched = replaced(KERNEL, MMA=["mov.b32 %r13, 5; st.shared.b32 [%r3], %r13;", MMA])
    assert "proxy-fence" in kinds(touched)
    assert (
        kinds(
            replaced(KERNEL, MMA=["mov.b32 %r13, 5; st.shared.b32 [%r3], %r13;", "fence.proxy.async.shared::cta;", MMA])
        )
        == set()
    )


def test_commit_that_nobody_waits_for():
    late = replaced(KERNEL, COMMIT=[COMMIT, COMMIT.replace(str(DONE), str(FREE))])
    assert kinds([s.replace(f"[%r3+{FREE}], 128", f"[%r3+{FREE}], 1") for s in late]) == {"late"}


def test_fences_around_synchronisation_are_notes():
    for step in ("AFTER", "BEFORE"):
        result, _ = run(replaced(KERNEL, **{step: None}), operands()[-1])
        assert not result.faults and {f.kind for f in result.findings} == {"tmem-fence"}
    early = replaced(KERNEL, LOAD=[LOAD, "add.s32 %r20, %r20, 0;"])
    result, _ = run(early, operands()[-1])
    assert not result.faults and {f.kind for f in result.findings} == {"tmem-early"}
