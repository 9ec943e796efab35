"""Each check of the simulator on a small kernel with one fault, and on the same kernel without it."""
import pytest

from ptxsim.launch import Deadlock, SimError
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
    shr.u32 %r20, %r3, 4; or.b32 %r20, %r20, 0x80000; mov.b32 %r21, 0x10;"""      # leading 128 bytes, stride 256
ZERO = "mov.f32 %f0, 0f00000000; mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f00000000;"
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd4, %rd4, 1, 1, 1, 0, 0;"
FENCE, COMMIT, WAIT0 = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"
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
    assert set(out[:128].view("f4")) == {16.0}       # K = 16 products of one


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
    assert "mbarrier-init" in kinds(right([INIT, FENCE_INIT, "setp.eq.s32 %p0, %r0, 32;", "nanosleep.u32 0;", "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r10];"]))


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
    found = kinds(right(["mov.b32 %r21, 0x10; add.s32 %r20, %r3, 0; shr.u32 %r20, %r20, 4; or.b32 %r20, %r20, 0x80000;", *PRODUCT[1:]]), threads=128)
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
    assert kinds("and.b32 %r7, %r40, 0; cvt.u64.u32 %rd5, %r7; add.s64 %rd5, %rd0, %rd5; ld.global.b32 %r7, [%rd5];") == {"uninit-address"}


@pytest.mark.parametrize("body, words", [
    ("ld.global.b32 %r7, [%rd0 + 4096];", ["outside every buffer", "'in' of 4096 bytes, at its byte 4096", "ld.global.b32"]),
    ("ld.global.b32 %r7, [%rd0 + -4];", ["'in'", "byte -4"]),
    ("st.global.b32 [%rd0], %r0;", ["store into the input 'in'"]),
    ("ld.global.v4.b32 {%r7, %r8, %r9, %r10}, [%rd0 + 4];", ["misaligned"]),
    ("ld.shared.b32 %r7, [%r3 + 4096];", ["shared offset 4096", "4096 bytes"]),
    ("st.shared.b64 [%r3 + 4], %rd0;", ["misaligned shared store"]),
    ("mbarrier.arrive.shared::cta.b64 _, [%r3];", ["no mbarrier at shared offset 0"]),
    (right([INIT, "bar.sync 0;", "add.s32 %r5, %r10, 4;", STORE]), ["over the mbarrier at shared offset 2048"]),
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], 8, [%r3];", ["multiples of 16"]),
    ("setp.lt.s32 %p1, %r2, 16; @%p1 shfl.sync.bfly.b32 %r7, %r0, 16, 31, 0xffff;", ["does not take part"]),
    ("shl.b32 %r6, %r2, 3; add.s32 %r6, %r6, %r3; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r0};", ["stmatrix: row at shared offset 8 is not 16-byte aligned"]),
    ("mad.lo.u32 %r6, %r2, 256, %r3; stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r6], {%r0, %r0, %r0, %r0};", ["stmatrix: 16 bytes at shared offset 4096"]),
    (right([INIT, "bar.sync 0;", "shl.b32 %r6, %r2, 4; add.s32 %r6, %r6, %r3; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6 + 2048], {%r0};"]), ["over the mbarrier at shared offset 2048"]),
    ("trap;", ["trap executed"]),
    ("bar.sync 16;", ["named barrier 16"]),
    ("bar.sync 0, 128;", ["128 threads", "has 64"]),
])
def test_what_ends_a_launch(body, words):
    with pytest.raises(SimError) as e:
        execute(body)
    for word in [*words, "line "]:
        assert word in str(e.value)


def test_over_arrival():
    with pytest.raises(SimError, match="over-arrival: 1 arrivals on the mbarrier at shared offset 2048, 0 pending of 1"):
        execute(right([INIT, "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 16;", "bar.sync 0;", "mbarrier.arrive.shared::cta.b64 _, [%r10];"]))


@pytest.mark.parametrize("mode", ANY)
def test_deadlock_says_who_waits_for_what(mode):
    with pytest.raises(Deadlock) as e:
        execute(right([INIT, FENCE_INIT, "bar.sync 0;", WAIT]), mode=mode)
    text = str(e.value)
    assert "warp 0" in text and "warp 1" in text and "mbarrier at shared offset 2048 (count 1, pending 1" in text and "mbarrier.try_wait" in text
    with pytest.raises(Deadlock, match="named barrier 3 .32 of 64 threads arrived"):
        execute("setp.eq.s32 %p1, %r1, 0; @%p1 bar.sync 3, 64;", mode=mode)


def test_bytes_that_never_come():
    with pytest.raises(Deadlock, match="bytes outstanding 16"):
        execute(right([INIT, FENCE_INIT, "bar.sync 0;", FETCH.replace("_, [%r10], 256", "_, [%r10], 272"), WAIT]))


def test_livelock():
    with pytest.raises(SimError, match="livelock"):
        execute("AGAIN: bra AGAIN;")


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
    other = [place, "setp.ne.u32 %p1, %r1, 0; @%p1 bra OVER;", store, "OVER:", "bar.sync 0;", "setp.eq.u32 %p1, %r1, 0; @%p1 bra END;", read, "END:"]
    assert "race" in kinds(without(other, "bar.sync 0;"))
    assert kinds(right(other)) == set()
    copied = [INIT, FENCE_INIT, place, store, PROXY, "bar.sync 0;", FETCH, WAIT, READ]
    assert "proxy-fence" in kinds(without(copied, PROXY), threads=32)
    assert kinds(right(copied), threads=32) == set()


def test_arrival_that_does_not_cover_the_other_lanes():
    body = [INIT, FENCE_INIT, "bar.sync 0;", STORE, "setp.eq.s32 %p2, %r0, 0;", "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r10];"]
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


@pytest.mark.parametrize("body, words", [
    ("frobnicate.b32 %r7, %r0;", "unknown opcode frobnicate.b32"),
    ("add.s32.wrong %r7, %r0, 1;", "unknown opcode add.s32.wrong"),
    ("tcgen05.shift.cta_group::1.down [%r7];", "unknown opcode tcgen05.shift"),
    ("tcgen05.mma.cta_group::2.kind::f16 [%r7], %rd5, %rd6, %r8, %p1;", "unknown opcode tcgen05.mma.cta_group::2"),
    ("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [%r7], %rd5, %rd6, %r8, [%r9], [%r9], %p1;", "no size of a scale vector"),
    ("tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r7}, [%r8];", "unknown opcode tcgen05.ld.sync.aligned.16x64b"),
    ("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r3], {%r0};", "1 registers"),
    ("stmatrix.sync.aligned.m8n8.x3.shared.b16 [%r3], {%r0, %r0, %r0};", "unknown opcode stmatrix.sync.aligned.m8n8.x3"),
    ("stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r3], {%r0};", "unknown opcode stmatrix.sync.aligned.m16n8"),
    ("redux.sync.add.f32 %r7, %r0, -1;", "unknown opcode redux.sync.add.f32"),
    ("tcgen05.cp.cta_group::1.4x256b.warpx4 [%r7], %rd5;", "unknown opcode tcgen05.cp.cta_group::1.4x256b.warpx4"),
    ("tcgen05.cp.cta_group::1.64x128b [%r7], %rd5;", "unknown opcode tcgen05.cp.cta_group::1.64x128b"),
    ("ld.global.b32 {%r7, %r8}, [%rd0];", "2 registers for 1 values"),
    ("mov.b32 %r7, %r99;", "undeclared register %r99"),
    ("bra NOWHERE;", "no label NOWHERE"),
])
def test_what_is_not_simulated_is_an_error_when_decoded(body, words):
    with pytest.raises(PtxError) as e:
        program(body)
    assert words in str(e.value) and "line " in str(e.value)
