"""Bank conflicts of accesses that are known, classes of instructions, roles of warps, and that counting changes nothing."""

import pathlib

import numpy as np
import pytest

from ptxsim import stats
from ptxsim.ptx_text import execute, program


def report(body, threads=32, shared="16384", **how):
    result, _ = execute(body, threads, shared=shared, statistics=True, **how)
    assert not [f for f in result.faults if not f.kind.startswith("uninit")], str(result)
    return stats.Report(program(body, shared), result.statistics)


def banks(body, **how):
    """(accesses, wavefronts, fewest) of the one access of shared memory in `body`."""
    used = report(body, **how).banks
    assert (used > 0).any(1).sum() == 1
    return tuple(used.sum(0))


def lanes(stride, width="b32", operands="%r7"):
    """Lane i reads at stride * i."""
    return f"mad.lo.u32 %r6, %r2, {stride}, %r3; ld.shared.{width} {operands}, [%r6];"


V4, V2 = "{%r10, %r11, %r12, %r13}", "{%r10, %r11}"


@pytest.mark.parametrize(
    "body, wavefronts, fewest",
    [
        (lanes(4), 1, 1),  # a word a lane, one after another
        (lanes(8), 2, 1),  # every other word
        (lanes(16), 4, 1),
        (lanes(128), 32, 1),  # one bank
        (lanes(132), 1, 1),  # rows of 32 words with one word of padding
        (lanes(0), 1, 1),  # one word for all
        (
            "and.b32 %r6, %r2, 1; mad.lo.u32 %r6, %r6, 128, %r3; ld.shared.b32 %r7, [%r6];",
            2,
            1,
        ),  # two words of one bank
        (lanes(1, "u8"), 1, 1),  # four lanes a word
        (lanes(2, "b16", "%h1"), 1, 1),
        (lanes(128, "u8"), 32, 1),
        (lanes(8, "v2.b32", V2), 2, 2),  # half the warp at a time
        (lanes(8, "b64", "%rd5"), 2, 2),
        (lanes(16, "v2.b32", V2), 4, 2),
        (lanes(136, "v2.b32", V2), 2, 2),
        (lanes(256, "b64", "%rd5"), 32, 2),
        (lanes(16, "v4.b32", V4), 4, 4),  # a quarter at a time
        (lanes(0, "v4.b32", V4), 4, 4),
        (lanes(32, "v4.b32", V4), 8, 4),
        (lanes(128, "v4.b32", V4), 32, 4),
        (lanes(144, "v4.b32", V4), 4, 4),
        (lanes(16, "v2.b64", "{%rd5, %rd6}"), 4, 4),
        (
            "shr.u32 %r6, %r2, 2; and.b32 %r7, %r2, 3; shl.b32 %r7, %r7, 11; mad.lo.u32 %r6, %r6, 16, %r3; add.s32 %r6, %r6, %r7; ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r6];",
            16,
            4,
        ),
        (
            "setp.lt.u32 %p1, %r2, 8; @%p1 mad.lo.u32 %r6, %r2, 16, %r3; @%p1 ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r6];",
            1,
            1,
        ),  # a quarter alone
        ("setp.eq.u32 %p1, %r2, 31; @%p1 mad.lo.u32 %r6, %r2, 128, %r3; @%p1 ld.shared.b32 %r7, [%r6];", 1, 1),
        ("mad.lo.u32 %r6, %r2, 8, %r3; st.shared.b32 [%r6], %r0;", 2, 1),
        ("mad.lo.u32 %r6, %r2, 64, %r3; st.shared.v4.b32 [%r6], {%r0, %r0, %r0, %r0};", 16, 4),
        (
            "cvt.u64.u32 %rd4, %r3; cvta.shared.u64 %rd4, %rd4; mul.wide.u32 %rd5, %r2, 8; add.s64 %rd4, %rd4, %rd5; ld.b32 %r7, [%rd4];",
            2,
            1,
        ),  # a generic address
        (
            "mad.lo.u32 %r6, %r2, 16, %r3; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r6];",
            4,
            4,
        ),
        (
            "mad.lo.u32 %r6, %r2, 128, %r3; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r6];",
            32,
            4,
        ),
        ("mad.lo.u32 %r6, %r2, 80, %r3; ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r10, %r11}, [%r6];", 2, 2),
        (
            "and.b32 %r6, %r2, 7; shl.b32 %r7, %r6, 4; mad.lo.u32 %r6, %r6, 128, %r3; xor.b32 %r6, %r6, %r7; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r6];",
            1,
            1,
        ),  # swizzled
        ("mad.lo.u32 %r6, %r2, 32, %r3; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r0};", 2, 1),
    ],
)
def test_wavefronts(body, wavefronts, fewest):
    assert banks(body) == (1, wavefronts, fewest)


def test_each_warp_and_each_fragment_of_a_warp_is_an_access():
    assert banks("ld.shared.b32 %r7, [%r5];", threads=96) == (3, 3, 3)
    diverged = report(
        "setp.lt.u32 %p1, %r2, 16; @%p1 bra LOW; mad.lo.u32 %r6, %r2, 8, %r3; ld.shared.b32 %r7, [%r6]; bra END; LOW: ld.shared.b32 %r7, [%r5]; END: bar.warp.sync -1;"
    )
    assert sorted(tuple(x) for x in diverged.banks[diverged.banks[:, 0] > 0]) == [(1, 1, 1), (1, 1, 1)]


def test_global_and_local_memory_have_no_banks():
    assert not report(
        "ld.global.v4.b32 {%r7, %r8, %r9, %r10}, [%rd0]; st.global.b32 [%rd3], %r7; cvta.to.global.u64 %rd5, %rd0; ld.b32 %r8, [%rd0];"
    ).banks.any()


def test_worst_conflicts_come_first():
    found = report(lanes(8) + lanes(128) + lanes(4) + lanes(32)).conflicts()
    assert [f[:3] for f in found] == [(1, 32, 1), (1, 8, 1), (1, 2, 1)]
    assert "ld.shared.b32 %r7, [%r6]" in found[0][3] and "line " in found[0][3]


@pytest.mark.parametrize(
    "opcode, name",
    [
        ("xor.b32", "logic"),
        ("lop3.b32", "logic"),
        ("shf.l.wrap.b32", "logic"),
        ("and.pred", "comparisons"),
        ("setp.lt.f32", "comparisons"),
        ("add.s32", "integers"),
        ("mad.wide.u32", "integers"),
        ("min.u16", "integers"),
        ("fma.rn.f32", "fp32"),
        ("max.NaN.f32", "fp32"),
        ("fma.rn.f32x2", "fp32"),
        ("mul.rn.bf16x2", "f16"),
        ("fma.rn.f16", "f16"),
        ("cvt.rn.f16x2.f32", "conversions"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "matrix"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "matrix"),
        ("wgmma.fence.sync.aligned", "order"),
        ("tcgen05.mma.cta_group::1.kind::f16", "matrix"),
        ("tcgen05.ld.red.sync.aligned.32x32b.x32.max.f32", "tensor memory"),
        ("tcgen05.fence::before_thread_sync", "order"),
        ("tcgen05.cp.cta_group::1.128x128b", "copies"),
        ("ld.shared.v4.b32", "shared loads"),
        ("ld.volatile.shared.b32", "shared loads"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "shared loads"),
        ("st.shared::cta.b32", "shared stores"),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16", "shared stores"),
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", "copies"),
        ("ld.global.nc.v4.b32", "global loads"),
        ("st.global.f32", "global stores"),
        ("ld.param.b64", "moves"),
        ("ld.local.b32", "other memory"),
        ("atom.global.add.u32", "other memory"),
        ("cp.async.bulk.commit_group", "copies"),
        ("mbarrier.try_wait.parity.shared::cta.b64", "order"),
        ("bar.sync", "order"),
        ("shfl.sync.bfly.b32", "across lanes"),
        ("bra.uni", "branches"),
        ("add.f64", "fp64"),
        ("mov.b64", "moves"),
    ],
)
def test_classes(opcode, name):
    assert stats.class_of(opcode) == name


ROLES = """setp.lt.u32 %p1, %r1, 1; @%p1 bra FIRST;
    mul.lo.u32 %r7, %r0, 3; add.u32 %r7, %r7, 5; mul.lo.u32 %r7, %r7, 7; add.u32 %r7, %r7, 5; mul.lo.u32 %r7, %r7, 7; add.u32 %r7, %r7, 5; mul.lo.u32 %r7, %r7, 7; add.u32 %r7, %r7, 5; mul.lo.u32 %r7, %r7, 7;
    and.b32 %r8, %r7, 3; and.b32 %r8, %r7, 3; and.b32 %r8, %r7, 3; and.b32 %r8, %r7, 3; and.b32 %r8, %r7, 3; and.b32 %r8, %r7, 3; bra END;
    FIRST: cvt.rn.f32.u32 %f0, %r0; add.f32 %f1, %f0, %f0; add.f32 %f1, %f0, %f0; add.f32 %f1, %f0, %f0; add.f32 %f1, %f0, %f0; add.f32 %f1, %f0, %f0; END: bar.sync 0;"""


def test_roles_and_classes_of_a_kernel():
    found = report(ROLES, 128)
    assert found.roles == [[0], [1, 2, 3]]
    classes = found.classes()
    assert (
        list(classes["fp32"]) == [5, 0] and list(classes["conversions"]) == [1, 0] and list(classes["order"]) == [1, 3]
    )
    prologue = 2  # `and` and `shr` of the head of the text, and a shl
    assert list(classes["logic"]) == [prologue + 1, 3 * (prologue + 1 + 6)]
    assert list(found.hits.sum(1)) == [sum(c[0] for c in classes.values()), sum(c[1] for c in classes.values())]
    text = str(found)
    assert "warp 0" in text and "warps 1-3" in text and "0 accesses" in text


def test_counts_add_up_and_change_nothing():
    plain, out = execute(ROLES + "st.global.b32 [%rd3], %r0;", 128, grid=1)
    counted, same = execute(ROLES + "st.global.b32 [%rd3], %r0;", 128, grid=1, statistics=True)
    np.testing.assert_array_equal(plain.hits, counted.hits)
    np.testing.assert_array_equal(counted.statistics.by_warp.sum(0), plain.hits)
    np.testing.assert_array_equal(out, same)
    assert plain.statistics is None and plain.insts == counted.insts == counted.hits.sum()
    twice = counted.statistics + counted.statistics
    assert (twice.by_warp == 2 * counted.statistics.by_warp).all()


def test_spans():
    assert stats.spans([0]) == "0" and stats.spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


def test_functions_of_lines():
    assert stats.function_at("ptxsim/toys.py:1") == "toys.py"
    source = stats.__file__
    line = next(
        i for i, text in enumerate(pathlib.Path(source).read_text().splitlines(), 1) if "append([w, w])" in text
    )
    assert stats.function_at(f"ptxsim/stats.py:{line}") == "stats.py spans"
    assert stats.function_at("") == "-"
