"""Each check of the simulator on a small kernel with one fault, and on the same kernel without it."""

import struct

import numpy as np
import pytest

from ptxsim import tensor_map
from ptxsim.decode import Program
from ptxsim.launch import Deadlock, Memory, SimError, run
from ptxsim.parse import PtxError
from ptxsim.ptx_text import execute, program

ANY = ("eager", "lazy", "random")
STORE = "st.shared.b32 [%r5], %r0;"
# Warp w reads what the other warp wrote.
SWAP = "xor.b32 %r6, %r5, 128; ld.shared.b32 %r7, [%r6]; st.global.b32 [%rd3], %r7;"

# One thread fetches 256 bytes onto an mbarrier at smem + 2048; everybody waits, thread 0 of warp 0 being the one that may issue.
INIT = "add.s32 %r10, %r3, 2048; setp.eq.s32 %p0, %r0, 0; @%p0 mbarrier.init.shared::cta.b64 [%r10], 1;"
FENCE_INIT = "@%p0 fence.mbarrier_init.release.cluster;"
FETCH = """@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 256;
    @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], 256, [%r10];"""
WAIT = """WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], 0; @!%p1 bra WAIT;"""
READ = "ld.shared.b32 %r7, [%r5]; st.global.b32 [%rd3], %r7;"
FETCHED = [INIT, FENCE_INIT, "bar.sync 0;", FETCH, WAIT, READ]

# wgmma m64n8k16 of operands made by ordinary stores; four accumulators.
DESC = "mov.b64 %rd4, {%r20, %r21};"
MAKE = """mov.b32 %r20, 0; shl.b32 %r8, %r0, 4; add.s32 %r8, %r3, %r8; mov.b32 %r9, 0x3c003c00;
    st.shared.v4.b32 [%r8], {%r9, %r9, %r9, %r9}; add.s32 %r8, %r8, 2048; st.shared.v4.b32 [%r8], {%r9, %r9, %r9, %r9};
    shr.u32 %r20, %r3, 4; or.b32 %r20, %r20, 0x80000; mov.b32 %r21, 0x10;"""  # leading 128 bytes, stride 256
ZERO = "mov.f32 %f0, 0f00000000; mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f00000000;"
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd4, %rd4, 1, 1, 1, 0, 0;"
FENCE, COMMIT, WAIT0 = (
    "wgmma.fence.sync.aligned;",
    "wgmma.commit_group.sync.aligned;",
    "wgmma.wait_group.sync.aligned 0;",
)
PROXY = "fence.proxy.async.shared::cta;"
PRODUCT = [MAKE, DESC, PROXY, "bar.sync 0;", ZERO, FENCE, MULTIPLY, COMMIT, WAIT0, "st.global.f32 [%rd3], %f0;"]


def without(steps, step):
    assert step in steps
    return "\n    ".join(s for s in steps if s != step)


def kinds(body, mode="eager", **how):
    result, _ = execute(body, mode=mode, seed=3, **how)
    return {f.kind for f in result.faults}


def right(steps):
    return "\n    ".join(steps)


@pytest.mark.parametrize("mode", ANY)
def test_right_kernels_have_no_report(mode):
    result, out = execute(right([STORE, "bar.sync 0;", SWAP]), mode=mode)
    assert not result.findings and list(out[:64]) == [*range(32, 64), *range(32)]
    result, out = execute(right(FETCHED), mode=mode)
    assert not result.findings and list(out[:64]) == list(range(64)) and result.bulk_bytes == 256
    result, out = execute(right(PRODUCT), threads=128, mode=mode)
    assert not result.findings and result.wgmmas == 4
    assert set(out[:128].view("f4")) == {16.0}  # K = 16 products of one


@pytest.mark.parametrize("mode", ANY)
def test_missing_barrier_is_a_race(mode):
    assert kinds(without([STORE, "bar.sync 0;", SWAP], "bar.sync 0;"), mode) >= {"race"}


def test_barrier_of_too_few_warps_is_a_race():
    assert "race" in kinds(right([STORE, "bar.arrive 1, 64;", SWAP]))


@pytest.mark.parametrize("mode", ANY)
def test_missing_wait_is_a_race_with_the_copy(mode):
    found = kinds(without(FETCHED, WAIT), mode)
    assert "race" in found


def test_missing_order_after_mbarrier_init():
    assert "mbarrier-init" in kinds(
        right(
            [
                INIT,
                FENCE_INIT,
                "setp.eq.s32 %p0, %r0, 32;",
                "nanosleep.u32 0;",
                "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10];",
            ]
        )
    )


def test_missing_init_fence():
    assert kinds(without(FETCHED, FENCE_INIT)) == {"proxy-fence"}


def test_missing_proxy_fence_before_wgmma():
    assert kinds(without(PRODUCT, PROXY), threads=128) == {"proxy-fence"}


def test_missing_proxy_fence_before_a_copy_over_stores():
    assert "proxy-fence" in kinds(right([INIT, FENCE_INIT, STORE, "bar.sync 0;", FETCH, WAIT, READ]))


@pytest.mark.parametrize("mode", ANY)
def test_accumulator_read_in_flight(mode):
    assert kinds(without(PRODUCT, WAIT0), mode, threads=128) == {"wgmma-read", "exit"}


def test_accumulator_written_in_flight():
    assert "wgmma-write" in kinds(right(PRODUCT[:-2] + ["mov.f32 %f1, 0f00000000;", WAIT0]), threads=128)


def test_missing_wgmma_fence():
    assert kinds(without(PRODUCT, FENCE), threads=128) == {"wgmma-fence"}
    moved = [s for s in PRODUCT if s != FENCE]
    moved.insert(moved.index(ZERO), FENCE)
    assert kinds(right(moved), threads=128) == {"wgmma-fence"}


def test_warps_that_multiply_different_numbers_of_times():
    some = ["setp.eq.s32 %p0, %r1, 3;", "@%p0 bra DONE;", *PRODUCT[4:], "DONE:"]
    assert "wgmma-count" in kinds(right([*PRODUCT[:4], *some]), threads=128)


def test_operand_of_undefined_memory():
    found = kinds(
        right(
            [
                "mov.b32 %r21, 0x10; add.s32 %r20, %r3, 0; shr.u32 %r20, %r20, 4; or.b32 %r20, %r20, 0x80000;",
                *PRODUCT[1:],
            ]
        ),
        threads=128,
    )
    assert found == {"uninit-store"}


@pytest.mark.parametrize("mode", ANY)
def test_stores_of_undefined_data(mode):
    assert kinds("st.global.b32 [%rd3], %r40;", mode) == {"uninit-store"}
    assert kinds("ld.shared.b32 %r7, [%r5]; add.s32 %r7, %r7, 1; st.global.b32 [%rd3], %r7;", mode) == {"uninit-store"}


def test_undefined_data_that_is_deselected_is_fine():
    assert kinds("setp.ge.s32 %p1, %r0, 0; selp.b32 %r7, %r0, %r40, %p1; st.global.b32 [%rd3], %r7;") == set()
    assert kinds("setp.ge.s32 %p1, %r0, 0; setp.eq.or.b32 %p2, %r40, 0, %p1; @%p2 st.global.b32 [%rd3], %r0;") == set()


def test_undefined_branch_and_address():
    assert kinds("setp.eq.s32 %p1, %r40, 0; @%p1 bra OVER; OVER:") == {"uninit-branch"}
    assert kinds(
        "and.b32 %r7, %r40, 0; cvt.u64.u32 %rd5, %r7; add.s64 %rd5, %rd0, %rd5; ld.global.b32 %r7, [%rd5];"
    ) == {"uninit-address"}


@pytest.mark.parametrize(
    "body, words",
    [
        (
            "ld.global.b32 %r7, [%rd0 + 4096];",
            ["outside every buffer", "'in' of 4096 bytes, at its byte 4096", "ld.global.b32"],
        ),
        ("ld.global.b32 %r7, [%rd0 + -4];", ["'in'", "byte -4"]),
        ("st.global.b32 [%rd0], %r0;", ["store into the input 'in'"]),
        ("ld.global.v4.b32 {%r7, %r8, %r9, %r10}, [%rd0 + 4];", ["misaligned global load", "for 16 bytes", "('in')"]),
        ("ld.global.v4.b32 {%r7, %r8, %r9, %r10}, [%rd0 + 4092];", ["misaligned global load", "('in')"]),
        ("st.global.b64 [%rd1 + 12], %rd0;", ["misaligned global store", "for 8 bytes", "('out')"]),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0 + 4096], 16, [%r3];",
            ["no mbarrier"],
        ),
        ("ld.shared.b32 %r7, [%r3 + 4096];", ["shared offset 4096", "4096 bytes"]),
        ("st.shared.b64 [%r3 + 4], %rd0;", ["misaligned shared store"]),
        ("mbarrier.arrive.shared::cta.b64 _, [%r3];", ["no mbarrier at shared offset 0"]),
        (right([INIT, "bar.sync 0;", "add.s32 %r5, %r10, 4;", STORE]), ["over the mbarrier at shared offset 2048"]),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], 8, [%r3];",
            ["multiples of 16"],
        ),
        ("setp.lt.s32 %p1, %r2, 16; @%p1 shfl.sync.bfly.b32 %r7, %r0, 16, 31, 0xffff;", ["does not take part"]),
        (
            "shl.b32 %r6, %r2, 3; add.s32 %r6, %r6, %r3; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r0};",
            ["stmatrix: row at shared offset 8 is not 16-byte aligned"],
        ),
        (
            "mad.lo.u32 %r6, %r2, 256, %r3; stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r6], {%r0, %r0, %r0, %r0};",
            ["stmatrix: 16 bytes at shared offset 4096"],
        ),
        (
            right(
                [
                    INIT,
                    "bar.sync 0;",
                    "shl.b32 %r6, %r2, 4; add.s32 %r6, %r6, %r3; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6 + 2048], {%r0};",
                ]
            ),
            ["over the mbarrier at shared offset 2048"],
        ),
        ("trap;", ["trap executed"]),
        ("bar.sync 16;", ["named barrier 16"]),
        ("bar.sync 0, 128;", ["128 threads", "has 64"]),
    ],
)
def test_what_ends_a_launch(body, words):
    with pytest.raises(SimError) as e:
        execute(body)
    for word in [*words, "line "]:
        assert word in str(e.value)


@pytest.mark.parametrize(
    "body",
    [
        "setp.eq.u32 %p1, %r1, 0; @%p1 bra A; bar.sync 2, 64; bra B; A: bar.sync 2, 96; B:",
        "setp.eq.u32 %p1, %r1, 0; @%p1 bar.arrive 2, 96; @!%p1 bar.sync 2, 64;",
    ],
)
def test_warps_that_expect_different_counts_at_a_barrier(body):
    with pytest.raises(SimError, match="named barrier 2: 64 threads expected here, 96 by the warps already there"):
        execute(body, threads=96)


def test_counts_of_mbarriers():
    with pytest.raises(SimError, match="mbarrier.init with count 0"):
        execute(INIT.replace("], 1", "], 0"))
    with pytest.raises(Deadlock, match="count 2, pending 1"):
        execute(right([INIT.replace("], 1", "], 2"), FENCE_INIT, "bar.sync 0;", FETCH, WAIT]))
    with pytest.raises(
        SimError, match="over-arrival: 2 arrivals on the mbarrier at shared offset 2048, 1 pending of 1"
    ):
        execute(right([INIT, "bar.sync 0;", "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10], 2;"]))
    assert kinds(right([INIT, "bar.sync 0;", INIT])) == {"mbarrier-twice"}


def test_undefined_parity():
    assert "uninit-sync" in kinds(
        right(
            [
                INIT,
                FENCE_INIT,
                "bar.sync 0;",
                FETCH,
                WAIT.replace("[%r10], 0", "[%r10], %r40").replace("WAIT: ", "and.b32 %r40, %r40, 0; WAIT: "),
            ]
        )
    )


def test_try_wait_may_give_up():
    """A wait without a loop is right only where the first try succeeds: the schedules other than eager let it fail."""
    once = WAIT.replace("@!%p1 bra WAIT;", "")
    found = set()
    for mode, seed in (("lazy", 0), *(("random", s) for s in range(6))):
        try:
            found |= {
                f.kind
                for f in execute(right([INIT, FENCE_INIT, "bar.sync 0;", FETCH, once, READ]), mode=mode, seed=seed)[
                    0
                ].faults
            }
        except SimError as e:
            found |= {f.kind for f in e.reports}
    assert "race" in found
    assert kinds(right([INIT, FENCE_INIT, "bar.sync 0;", FETCH, once, READ])) == set()


def test_a_leader_that_is_taken_for_lane_0():
    """elect.sync may choose any lane; the arrival by lane 0 then comes on behalf of a lane that did not issue the copy."""
    issue = "elect.sync _|%p2, -1; setp.eq.s32 %p3, %r2, 0; and.pred %p4, %p2, %p3;"
    body = right(
        [
            INIT,
            FENCE_INIT,
            "bar.sync 0; setp.ne.u32 %p5, %r1, 0; @%p5 bra OVER;",
            issue,
            FETCH.replace("@%p0 cp", "@%p4 cp"),
            "OVER: bar.sync 0;",
            WAIT,
            READ,
        ]
    )
    assert kinds(body) == set()
    with pytest.raises(Deadlock, match="bytes outstanding 256"):
        execute(body, elect_last=True)


# ---- tensor maps: the box 16 x 4 words at (%r11, %r12) of a map over `k`, 16 x 8 words, comes to smem and goes out again
MAP = """
.version 8.6
.target sm_90a
.address_size 64
.shared .align 1024 .b8 smem[4096];
.visible .entry kernel(.param .align 64 .b8 map[128], .param .u64 out)
{
    .reg .pred %p<8>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    mov.b64 %rd2, map;
    mov.u32 %r0, %tid.x;
    mov.u32 %r3, smem;
    shl.b32 %r4, %r0, 2;
    add.s32 %r5, %r3, %r4;
    add.s32 %r10, %r3, 2048;
    setp.eq.s32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r10], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
    mov.b32 %r11, {x};
    mov.b32 %r12, {y};
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 256;
    @%p0 {copy}
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r10], 0;
    @!%p1 bra WAIT;
    ld.shared.b32 %r7, [%r5];
    ld.shared.b32 %r8, [%r5 + 128];
    mul.wide.u32 %rd3, %r0, 4;
    add.s64 %rd3, %rd1, %rd3;
    st.global.b32 [%rd3], %r7;
    st.global.b32 [%rd3 + 128], %r8;
    {then}
    ret;
}
"""
TENSOR = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2, {%r11, %r12}], [%r10];"
)
TENSOR_BACK = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r11, %r12}], [%r3];"


def through_map(x=0, y=0, copy=TENSOR, then="", rows=8, given_rows=8, write=False, mode="eager"):
    """given_rows: what the map says; rows: what the buffer has."""
    memory, k, out = Memory(), np.arange(16 * rows, dtype=np.uint32), np.zeros(64, np.uint32)
    raw = tensor_map.encode(
        dict(
            buffer="k",
            dtype="u32",
            dims=[16, given_rows],
            strides=[64],
            box=[16, 4],
            swizzle="none",
            l2_promotion="none",
        ),
        {},
        memory.add("k", k, 128, write=write),
    )
    params = [raw, struct.pack("<Q", memory.add("out", out, 16, write=True))]
    text = MAP.replace("{x}", str(x)).replace("{y}", str(y)).replace("{copy}", copy).replace("{then}", then)
    return run(Program(text), memory, params, mode=mode), out.reshape(4, 16), k.reshape(rows, 16)


@pytest.mark.parametrize("mode", ANY)
def test_tensor_copies(mode):
    """What lies outside of the tensor is zero, on either side, and not stored."""
    for x, y in ((0, 0), (0, 4), (5, 6), (-3, -2)):
        result, out, k = through_map(x, y, mode=mode)
        padded = np.zeros((24, 48), np.uint32)
        padded[8:16, 16:32] = k
        assert not result.findings
        np.testing.assert_array_equal(out, padded[8 + y : 12 + y, 16 + x : 32 + x])
    result, out, k = through_map(
        0, 2, then="mov.b32 %r11, 4; mov.b32 %r12, 6; @%p0 " + TENSOR_BACK, write=True, mode=mode
    )
    want = np.arange(128, dtype=np.uint32).reshape(8, 16)
    want[6:, 4:] = want[2:4, :12].copy()
    assert not result.findings
    np.testing.assert_array_equal(k, want)


@pytest.mark.parametrize(
    "how, words",
    [
        (
            dict(y=4, rows=7),
            [
                "tensor load: 1 bytes at global address",
                "outside every buffer; the nearest is 'k' of 448 bytes, at its byte 448",
            ],
        ),  # a map that is larger than the buffer
        (dict(y=4, rows=7, write=True, copy=TENSOR, then="mov.b32 %r12, 5; @%p0 " + TENSOR_BACK), ["tensor load"]),
        (
            dict(rows=7, write=True, then="mov.b32 %r12, 4; @%p0 " + TENSOR_BACK),
            ["tensor store: 16 bytes at global address", "'k' of 448 bytes, at its byte 448"],
        ),
        (dict(then="@%p0 " + TENSOR_BACK), ["tensor store into the input 'k'"]),
        (dict(copy=TENSOR.replace("[%r3]", "[%r3 + 64]")), ["tensor load: shared offset 64 is not a multiple of 128"]),
        (
            dict(copy=TENSOR.replace("[%r3]", "[%r3 + 3968]")),
            ["tensor load: 256 bytes at shared offset 3968: the CTA has 4096 bytes"],
        ),
        (dict(copy=TENSOR.replace("[%r3]", "[%r3 + 1920]")), ["bulk copy over the mbarrier at shared offset 2048"]),
        (
            dict(then="@%p0 " + TENSOR_BACK.replace("[%r3]", "[%r3 + 16]"), write=True),
            ["tensor store: shared offset 16 is not a multiple of 128"],
        ),
        (dict(copy=TENSOR.replace("[%rd2, ", "[%rd1, ")), ["no tensor map at"]),
        (dict(copy=TENSOR.replace("2d", "3d").replace("%r12}", "%r12, %r0}")), ["tensor map of rank 2, 3 coordinates"]),
    ],
)
def test_faults_inside_tensor_maps(how, words):
    with pytest.raises(SimError) as e:
        through_map(**how)
    for word in [*words, "line "]:
        assert word in str(e.value)


def test_proxies_around_tensor_copies():
    """An ordinary store before a copy over it, and before a copy of it, wants fence.proxy.async."""
    store = "st.shared.b32 [%r5], %r0; bar.warp.sync -1; "
    assert {f.kind for f in through_map(then=store + "@%p0 " + TENSOR_BACK, write=True)[0].faults} == {"proxy-fence"}
    assert not through_map(then=store + PROXY + " bar.warp.sync -1; @%p0 " + TENSOR_BACK, write=True)[0].faults


def test_over_arrival():
    with pytest.raises(
        SimError, match="over-arrival: 1 arrivals on the mbarrier at shared offset 2048, 0 pending of 1"
    ):
        execute(
            right(
                [
                    INIT,
                    "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 16;",
                    "bar.sync 0;",
                    "mbarrier.arrive.shared::cta.b64 _, [%r10];",
                ]
            )
        )


@pytest.mark.parametrize("mode", ANY)
def test_deadlock_says_who_waits_for_what(mode):
    with pytest.raises(Deadlock) as e:
        execute(right([INIT, FENCE_INIT, "bar.sync 0;", WAIT]), mode=mode)
    text = str(e.value)
    assert (
        "warp 0" in text
        and "warp 1" in text
        and "mbarrier at shared offset 2048 (count 1, pending 1" in text
        and "mbarrier.try_wait" in text
    )
    with pytest.raises(Deadlock, match="named barrier 3 .32 of 64 threads arrived"):
        execute("setp.eq.s32 %p1, %r1, 0; @%p1 bar.sync 3, 64;", mode=mode)


def test_bytes_that_never_come():
    with pytest.raises(Deadlock, match="bytes outstanding 16"):
        execute(right([INIT, FENCE_INIT, "bar.sync 0;", FETCH.replace("_, [%r10], 256", "_, [%r10], 272"), WAIT]))


@pytest.mark.parametrize("mode", ANY)
def test_livelock_says_who_runs_where_and_who_waits_for_what(mode):
    """Warp 1 polls an mbarrier that lacks an arrival; warp 0 waits for warp 1."""
    body = [
        INIT.replace("], 1", "], 2"),
        FENCE_INIT,
        "bar.sync 0; @%p0 mbarrier.arrive.shared::cta.b64 _, [%r10];",
        "setp.eq.u32 %p2, %r1, 0; @%p2 bra OVER;",
        "POLL: mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r10], 0; @!%p1 bra POLL;",
        "OVER: bar.sync 1;",
    ]
    with pytest.raises(SimError) as e:
        execute(right(body), mode=mode)
    text = str(e.value)
    assert "livelock? 200000 warp instructions" in text and not isinstance(e.value, Deadlock)
    assert "warp 0, 32 lanes at line " in text and "waits at named barrier 1 (32 of 64 threads arrived)" in text
    assert (
        "warp 1, 32 lanes at line " in text
        and ": runs" in text
        and "mbarrier at shared offset 2048: count 2, pending 1" in text
    )


def test_warp_barrier_that_half_the_warp_never_reaches():
    with pytest.raises(Deadlock, match="reconvergence"):
        execute("setp.lt.s32 %p1, %r2, 16; @%p1 bra SKIP; bar.warp.sync 0xffffffff; SKIP: bar.sync 0;")


def test_lanes_of_a_warp():
    cross = "xor.b32 %r6, %r5, 4; ld.shared.b32 %r7, [%r6]; st.global.b32 [%rd3], %r7;"
    assert kinds(right([STORE, cross])) == {"lane-race"}
    assert kinds(right([STORE, "bar.warp.sync 0xffffffff;", cross])) == set()


def test_matrices_between_warps_and_lanes():
    """stmatrix is an ordinary store of 16 bytes a row."""
    place = "shl.b32 %r6, %r2, 4; add.s32 %r6, %r6, %r3; "
    store = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r6], {%r0, %r0, %r0, %r0};"
    read = "xor.b32 %r7, %r6, 64; ld.shared.b32 %r7, [%r7]; st.global.b32 [%rd3], %r7;"
    assert kinds(place + store + read, threads=32) == {"lane-race"}
    assert kinds(place + store + "bar.warp.sync -1;" + read, threads=32) == set()
    other = [
        place,
        "setp.ne.u32 %p1, %r1, 0; @%p1 bra OVER;",
        store,
        "OVER:",
        "bar.sync 0;",
        "setp.eq.u32 %p1, %r1, 0; @%p1 bra END;",
        read,
        "END:",
    ]
    assert "race" in kinds(without(other, "bar.sync 0;"))
    assert kinds(right(other)) == set()
    copied = [INIT, FENCE_INIT, place, store, PROXY, "bar.sync 0;", FETCH, WAIT, READ]
    assert "proxy-fence" in kinds(without(copied, PROXY), threads=32)
    assert kinds(right(copied), threads=32) == set()


def test_arrival_that_does_not_cover_the_other_lanes():
    body = [
        INIT,
        FENCE_INIT,
        "bar.sync 0;",
        STORE,
        "setp.eq.s32 %p2, %r0, 0;",
        "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];",
    ]
    assert kinds(right(body), threads=32) == {"lane-race"}
    assert kinds(right([*body[:4], "bar.warp.sync 0xffffffff;", *body[4:]]), threads=32) == set()


def test_global_memory_between_ctas_and_warps():
    assert kinds("st.global.b32 [%rd3], %r0;", grid=2) == {"global-race"}
    other = "xor.b32 %r6, %r0, 32; mul.wide.u32 %rd4, %r6, 4; add.s64 %rd4, %rd1, %rd4;"
    read = "ld.global.b32 %r7, [%rd4]; add.s32 %r7, %r7, 0; st.shared.b32 [%r5], %r7;"
    assert kinds(right([other, "st.global.b32 [%rd3], %r0;", read])) == {"global-race"}
    assert kinds(right([other, "st.global.b32 [%rd3], %r0;", "bar.sync 0;", read])) == set()


def test_cp_async():
    copy = "cvt.u64.u32 %rd5, %r4; add.s64 %rd5, %rd0, %rd5; cp.async.ca.shared.global [%r5], [%rd5], 4;"
    done = ["cp.async.commit_group;", "cp.async.wait_group 0;"]
    for mode in ANY:
        assert kinds(right([copy, *done, "bar.sync 0;", SWAP]), mode) == set()
        assert "race" in kinds(right([copy, done[0], "cp.async.wait_group 1;", "bar.sync 0;", SWAP]), mode)
    assert "exit" in kinds(copy)


@pytest.mark.parametrize("given, taken, ends", [(64, 104, True), (72, 104, False)])
def test_registers_move_within_a_cta(given, taken, ends):
    """640 threads start with 96 registers each. On an H200 the second pair of numbers hangs."""
    body = f"setp.lt.u32 %p1, %r1, 4; @%p1 bra FEW; setmaxnreg.inc.sync.aligned.u32 {taken}; bra DONE; FEW: setmaxnreg.dec.sync.aligned.u32 {given}; DONE: bar.sync 0;"
    if ends:
        assert kinds(body, threads=640) == set()
    else:
        with pytest.raises(Deadlock, match="waits for 104 registers a thread"):
            execute(body, threads=640)


def test_barrier_left_behind():
    assert kinds("setp.eq.s32 %p1, %r1, 0; @%p1 bar.arrive 5, 64;") == {"barrier-left"}


@pytest.mark.parametrize(
    "body, words",
    [
        ("frobnicate.b32 %r7, %r0;", "unknown opcode frobnicate.b32"),
        ("add.s32.wrong %r7, %r0, 1;", "unknown opcode add.s32.wrong"),
        ("tcgen05.shift.cta_group::1.down [%r7];", "unknown opcode tcgen05.shift"),
        ("tcgen05.mma.cta_group::2.kind::f16 [%r7], %rd5, %rd6, %r8, %p1;", "unknown opcode tcgen05.mma.cta_group::2"),
        (
            "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [%r7], %rd5, %rd6, %r8, [%r9], [%r9], %p1;",
            "no size of a scale vector",
        ),
        ("tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r7}, [%r8];", "unknown opcode tcgen05.ld.sync.aligned.16x64b"),
        ("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r3], {%r0};", "1 registers"),
        (
            "stmatrix.sync.aligned.m8n8.x3.shared.b16 [%r3], {%r0, %r0, %r0};",
            "unknown opcode stmatrix.sync.aligned.m8n8.x3",
        ),
        ("stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r3], {%r0};", "unknown opcode stmatrix.sync.aligned.m16n8"),
        ("redux.sync.add.f32 %r7, %r0, -1;", "unknown opcode redux.sync.add.f32"),
        ("tcgen05.cp.cta_group::1.4x256b.warpx4 [%r7], %rd5;", "unknown opcode tcgen05.cp.cta_group::1.4x256b.warpx4"),
        ("tcgen05.cp.cta_group::1.64x128b [%r7], %rd5;", "unknown opcode tcgen05.cp.cta_group::1.64x128b"),
        ("ld.global.b32 {%r7, %r8}, [%rd0];", "2 registers for 1 values"),
        ("add.s32 %rd5, %rd0, 1;", "register %rd5 of 64 bits as an operand of 32"),
        ("add.s32 %r7, %r0, %rd0;", "register %rd0 of 64 bits as an operand of 32"),
        ("add.s64 %r7, %rd0, 1;", "register %r7 of 32 bits as an operand of 64"),
        ("cvt.u64.u32 %r7, %r0;", "register %r7 of 32 bits as an operand of 64"),
        ("ld.global.b64 %r7, [%rd0];", "register %r7 of 32 bits as an operand of 64"),
        ("ld.global.b32 %r7, [%r0];", "register %r0 of 32 bits as an operand of 64"),
        ("ld.shared.b32 %r7, [%rd0];", "register %rd0 of 64 bits as an operand of 32"),
        ("mov.b64 %rd5, {%r0, %h1};", "register %h1 of 16 bits as an operand of 32"),
        ("mul.wide.u32 %r7, %r0, %r1;", "register %r7 of 32 bits as an operand of 64"),
        ("{ .reg .b32 inner; mov.b32 inner, 1; } mov.b32 %r7, inner;", "operand Symbol(name='inner')"),
        ("mov.b32 %r7, %r99;", "undeclared register %r99"),
        ("bra NOWHERE;", "no label NOWHERE"),
    ],
)
def test_what_is_not_simulated_is_an_error_when_decoded(body, words):
    with pytest.raises(PtxError) as e:
        program(body)
    assert words in str(e.value) and "line " in str(e.value)
