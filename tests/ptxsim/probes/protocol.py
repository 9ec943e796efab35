"""Addresses in a cluster, lanes that issue a copy, the states of an mbarrier."""

import numpy as np

from .common import NOTHING, Launch, lines

CLUSTER_WORDS = 16


def addresses():
    """Words of a CTA: rank; its own shared address; mapa to ranks 0 to 3; mapa to them of the next rank's address; what lies at (own offset | rank << 24), ranks 0 to 3;
    the generic address of rank 0's minus that of rank 0's first byte of the window, in halves."""
    for n in (0, 1, 2, 4, 8):
        size = max(n, 1)
        body = [
            "mov.u32 %r10, %cluster_ctarank;",
            "add.u32 %r11, %r10, 700;",
            "setp.eq.u32 %p1, %r2, 0;",
            "@%p1 st.shared.u32 [%r3], %r11;",
            f"mad.lo.u32 %r12, %r1, {4 * CLUSTER_WORDS}, 0;",
            "cvt.u64.u32 %rd4, %r12;",
            "add.s64 %rd5, %rd1, %rd4;",
        ]
        if n:
            body += ["barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;"]
        body += ["st.global.u32 [%rd5], %r10;", "st.global.u32 [%rd5 + 4], %r3;"]
        if n:
            body += [
                f"add.u32 %r13, %r10, 1;  rem.u32 %r13, %r13, {size};",
                "mapa.shared::cluster.u32 %r14, %r3, %r13;",
            ]
            for r in range(min(n, 4)):
                body += [
                    f"mapa.shared::cluster.u32 %r15, %r3, {r};",
                    f"st.global.u32 [%rd5 + {8 + 4 * r}], %r15;",
                    f"mapa.shared::cluster.u32 %r16, %r14, {r};",
                    f"st.global.u32 [%rd5 + {24 + 4 * r}], %r16;",
                    "and.b32 %r17, %r3, 0xffffff;",
                    f"or.b32 %r17, %r17, {r << 24};",
                    "ld.shared::cluster.u32 %r18, [%r17];",
                    f"st.global.u32 [%rd5 + {40 + 4 * r}], %r18;",
                ]
            body += [
                "cvt.u64.u32 %rd6, %r14;",
                "cvta.shared::cluster.u64 %rd6, %rd6;",
                "cvt.u64.u32 %rd7, %r3;",
                "cvta.shared::cluster.u64 %rd7, %rd7;",
                "sub.s64 %rd8, %rd6, %rd7;",
                "st.global.u64 [%rd5 + 56], %rd8;",
                "barrier.cluster.arrive.aligned;",
                "barrier.cluster.wait.aligned;",
            ]
        yield Launch(
            f"addresses.cluster{n}",
            lines(*body),
            NOTHING,
            CLUSTER_WORDS * 2 * size,
            threads=32,
            grid=2 * size,
            cluster=n,
        )


LANES = {"1": 1, "5": 5, "32": 32, "unguarded": 32}


def _guarded(which, instruction):
    return [instruction] if which == "unguarded" else [f"setp.lt.u32 %p1, %r2, {which};", f"@%p1 {instruction}"]


_OUT = dict(buffer="out", dtype="u32", dims=[1024], strides=[], box=[4], swizzle="none", l2_promotion="none")


def lanes_store():
    """16 bytes out of shared memory by 1, 5 or all lanes at once, the last with a predicate and without. Adding: every word of the destination counts how often; storing: the value is the lane + 1 whose source it was."""
    fill = [
        "mov.u32 %r10, 0;",
        "FILL: shl.b32 %r11, %r10, 7;",
        "add.u32 %r11, %r11, %r3;",
        "shl.b32 %r12, %r2, 2;",
        "add.u32 %r11, %r11, %r12;",
    ]
    for op in ("tensor_add", "tensor_store", "bulk_add"):
        for lanes in LANES:
            for spread in (0, 1):
                value = "mov.u32 %r13, 1;" if "add" in op else "add.u32 %r13, %r10, 1;"
                body = [
                    *fill,
                    value,
                    "st.shared.u32 [%r11], %r13;",
                    "add.u32 %r10, %r10, 1;",
                    "setp.lt.u32 %p2, %r10, 32;",
                    "@%p2 bra FILL;",
                    "fence.proxy.async.shared::cta;",
                    "bar.warp.sync -1;",
                    f"mul.lo.u32 %r14, %r2, {8 * spread};",
                    f"mad.lo.u32 %r15, %r2, {128 * spread}, %r3;",
                    "mul.wide.u32 %rd6, %r14, 4;",
                    "add.s64 %rd6, %rd1, %rd6;",
                ]
                body += _guarded(
                    lanes,
                    {
                        "tensor_add": "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%rd2, {%r14}], [%r15];",
                        "tensor_store": "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd2, {%r14}], [%r15];",
                        "bulk_add": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd6], [%r15], 16;",
                    }[op],
                )
                body += ["cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0;"]
                yield Launch(
                    f"lanes.{op}.{lanes}.{'spread' if spread else 'same'}",
                    lines(*body),
                    NOTHING,
                    1024,
                    map=_OUT if "tensor" in op else None,
                    fill=0,
                )


def lanes_load(raw):
    """16 bytes into shared memory by 1, 5 or all lanes at once, with the mbarrier told to expect as many bytes as lanes copy. Words: phase completed; then its raw state."""
    for op in ("tensor_load", "bulk_load"):
        for lanes in LANES:
            for spread in (0, 1):
                body = [
                    "setp.eq.u32 %p3, %r2, 0;",
                    "@%p3 mbarrier.init.shared.b64 [%r3], 1;",
                    "fence.mbarrier_init.release.cluster;",
                    "fence.proxy.async.shared::cta;",
                    "bar.warp.sync -1;",
                    f"@%p3 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], {16 * LANES[lanes]};",
                    "bar.warp.sync -1;",
                    f"mul.lo.u32 %r14, %r2, {4 * spread};",
                    f"mad.lo.u32 %r15, %r2, {128 * spread}, %r3;",
                    "add.u32 %r15, %r15, 1024;",
                    "mul.wide.u32 %rd6, %r14, 4;",
                    "add.s64 %rd6, %rd0, %rd6;",
                ]
                body += _guarded(
                    lanes,
                    {
                        "tensor_load": "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r15], [%rd2, {%r14}], [%r3];",
                        "bulk_load": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r15], [%rd6], 16, [%r3];",
                    }[op],
                )
                body += [
                    "mov.u32 %r20, 0;",
                    "AGAIN: mbarrier.test_wait.parity.shared.b64 %p4, [%r3], 0;",
                    "add.u32 %r20, %r20, 1;",
                    "setp.lt.u32 %p5, %r20, 20000;",
                    "not.pred %p6, %p4;",
                    "and.pred %p5, %p5, %p6;",
                    "@%p5 bra AGAIN;",
                    "selp.u32 %r21, 1, 0, %p4;",
                    "@%p3 st.global.u32 [%rd1], %r21;",
                ]
                if raw:
                    body += ["ld.volatile.shared.b64 %rd10, [%r3];", "@%p3 st.global.u64 [%rd1 + 8], %rd10;"]
                yield Launch(
                    f"lanes.{op}.{lanes}.{'spread' if spread else 'same'}",
                    lines(*body),
                    np.arange(256, dtype=np.uint32),
                    4,
                    map={**_OUT, "buffer": "in", "dims": [256]} if op == "tensor_load" else None,
                )


STATES = {
    "turns": (0, [("init", 1), ("arrive", 1), ("arrive", 1), ("arrive", 1)]),
    "two": (0, [("init", 2), ("arrive", 1), ("arrive", 1), ("arrive", 2)]),
    "at_once": (1, [("init", 1), ("arrive", 2), ("arrive", 1)]),
    "one_too_many": (1, [("init", 2), ("arrive", 1), ("arrive", 2), ("arrive", 1), ("arrive", 1)]),
    "many_too_many": (1, [("init", 3), ("arrive", 5), ("arrive", 1), ("arrive", 1), ("arrive", 1)]),
    "bytes_open": (1, [("init", 1), ("expect", 64), ("arrive", 1), ("arrive", 1), ("complete", 64), ("arrive", 1)]),
    "bytes_open_two": (1, [("init", 2), ("expect", 64), ("arrive", 2), ("arrive", 1), ("complete", 64), ("arrive", 1)]),
    "bytes_early": (1, [("init", 1), ("complete", 64), ("arrive_expect", 64)]),
    "bytes_early_arrival": (1, [("init", 1), ("complete", 64), ("arrive", 1), ("expect", 64)]),
    "bytes_before_arrival": (0, [("init", 1), ("expect", 64), ("complete", 64), ("arrive", 1)]),
    "bytes_most": (
        1,
        [
            ("init", 1),
            ("expect", (1 << 20) - 1),
            ("expect", 1),
            ("arrive", 1),
            ("complete", 1),
            ("complete", (1 << 20) - 1),
        ],
    ),
    "count_most": (0, [("init", (1 << 20) - 1), ("arrive", (1 << 20) - 2), ("arrive", 1)]),
}
_STEPS = {
    "init": "mbarrier.init.shared.b64 [%r3], {};",
    "arrive": "mbarrier.arrive.shared.b64 %rd9, [%r3], {};",
    "expect": "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r3], {};",
    "arrive_expect": "mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], {};",
    "complete": "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r3], {};",
}


def states(raw):
    """After every step of one thread: is the phase of parity 0 completed, that of parity 1, and the 64 bits of the mbarrier."""
    for name, (alone, steps) in STATES.items():
        body = ["setp.ne.u32 %p7, %r2, 0;", "@%p7 exit;"]
        for i, (step, n) in enumerate(steps):
            body.append(_STEPS[step].format(n))
            for parity in (0, 1):
                body += [
                    f"mbarrier.test_wait.parity.shared.b64 %p1, [%r3], {parity};",
                    "selp.u32 %r10, 1, 0, %p1;",
                    f"st.global.u32 [%rd1 + {16 * i + 4 * parity}], %r10;",
                ]
            if raw:
                body += ["ld.volatile.shared.b64 %rd10, [%r3];", f"st.global.u64 [%rd1 + {16 * i + 8}], %rd10;"]
        yield Launch(f"mbarrier.{name}", lines(*body), NOTHING, 4 * len(steps), alone=bool(alone))
