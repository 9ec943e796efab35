"""Asynchronous copies: the copy engine (cp.async.bulk), and cp.async of single lanes.

Functions named `_elected` are called by a whole warp; one lane, chosen in the same piece of assembly, issues the
copy. ptxas then issues it once a warp, where after a branch on the lane it writes a loop over the lanes that take it.
"""

from .ptx import asm


# ---- copy engine
def bulk_load(dst, src, nbytes, bar, policy):
    """Copy engine: nbytes from global src to shared dst, completing on bar."""
    asm(
        f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], {nbytes}, [$2], $3;",
        [],
        [dst, src, bar, policy],
        "r,l,r,l",
    )


def bulk_load_shared_often(dst, src, nbytes, bar):
    """Copy engine: nbytes from global src to shared dst, completing on bar; no cache hint, for what other CTAs read
    too."""
    asm(
        f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], {nbytes}, [$2];",
        [],
        [dst, src, bar],
        "r,l,r",
    )


def bulk_load_elected(dst, src, nbytes, bar, policy):
    """bulk_load by one lane."""
    asm(
        f"{{ .reg .pred p; elect.sync _|p, 0xffffffff; @p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], {nbytes}, [$2], $3; }}",
        [],
        [dst, src, bar, policy],
        "r,l,r,l",
    )


def bulk_prefetch(src, nbytes):
    """Copy engine: nbytes from global src on their way to L2."""
    asm(f"cp.async.bulk.prefetch.L2.global [$0], {nbytes};", [], [src], "l")


def bulk_store(dst, src, nbytes):
    """Copy engine: nbytes (a multiple of 16) from shared src to global dst; part of the thread's open group."""
    asm("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", [], [dst, src, nbytes], "l,r,r")


def bulk_stores_commit():
    """Close the thread's open group of bulk stores."""
    asm("cp.async.bulk.commit_group;", [], [], "")


def bulk_stores_have_read():
    """Until all of this thread's bulk stores are done with shared memory."""
    asm("cp.async.bulk.wait_group.read 0;", [], [], "")


# ---- copies of a lane
def copy16(dst, src):
    """16 bytes from global src to shared dst, in flight until `copies_arrive`."""
    asm("cp.async.cg.shared.global [$0], [$1], 16;", [], [dst, src], "r,l")


def copy4(dst, src):
    """The same with four bytes."""
    asm("cp.async.ca.shared.global [$0], [$1], 4;", [], [dst, src], "r,l")


def copies_arrive(bar):
    """Every lane arrives once its copies so far have landed; the barrier counts lanes."""
    asm("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", [], [bar], "r")
