"""Barriers: mbarriers in shared memory (addresses are Int32), named barriers of a CTA, and fences."""

from cutlass import Int32

from .ptx import asm


# ---- mbarriers
def mbarrier_init(bar, arrivals):
    """A barrier of `arrivals` arrivals a phase (a constant), for one thread to make."""
    asm(f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", [], [bar], "r")


def mbarrier_expect_tx(bar, nbytes):
    """Arrive once and announce nbytes."""
    asm(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {nbytes};", [], [bar], "r")


def mbarrier_arrive(bar):
    """One arrival."""
    asm("mbarrier.arrive.shared::cta.b64 _, [$0];", [], [bar], "r")


def mbarrier_wait(bar, phase):
    """Wait until the phase of parity `phase` is complete."""
    asm(
        "{ .reg .pred p; L${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @!p bra L${:uid}; }",
        [],
        [bar, phase],
        "r,r",
    )


def mbarrier_passed(bar, phase):
    """1 if a wait for that phase would return at once, else 0."""
    return asm(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2; selp.b32 $0, 1, 0, p; }",
        [Int32],
        [bar, phase],
        "=r,r,r",
        pure=False,
    )


def expect_elected(bar, nbytes):
    """mbarrier_expect_tx by one lane."""
    asm(
        f"{{ .reg .pred p; elect.sync _|p, 0xffffffff; @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {nbytes}; }}",
        [],
        [bar],
        "r",
    )


# ---- fences
def fence_mbarrier_init():
    """Barriers made by this thread can be seen by the cluster and by the copy engine."""
    asm("fence.mbarrier_init.release.cluster;", [], [], "")


def fence_async_shared():
    """Orders this thread's ordinary shared-memory accesses before later ones of the copy engine and the tensor cores."""
    asm("fence.proxy.async.shared::cta;", [], [], "")


# ---- named barriers
def bar_sync(index, threads):
    """Named barrier: arrive and wait, `threads` threads in all (a constant)."""
    asm(f"bar.sync $0, {threads};", [], [index], "r")


def bar_arrive(index, threads):
    """Named barrier: arrive without waiting."""
    asm(f"bar.arrive $0, {threads};", [], [index], "r")
