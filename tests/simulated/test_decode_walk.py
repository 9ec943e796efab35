"""The walk of the sm_90a decode kernel for up to 16 packed rows where its warps go on from one thing to the next: batches of page ids, runs, tables of sequences."""

import dataclasses

import numpy as np
import pytest

from simulated import cases as rows
from simulated import selection
from simulated.cases import Case
from support import cases
from support.inputs import PAGE, batch

BATCH = (
    4 * 31
)  # units of a warpgroup whose page ids a warp's lanes look up together (kernels/block_scores/sm90_decode_ring.py)
MOST = 511  # sequences whose prefix sums a CTA holds (kernels/block_scores/sm90_decode_runs.py)
LONG = 4 * BATCH  # on one multiprocessor a warpgroup has a fourth of all units


def _sequences(count):
    return lambda f: batch(
        f,
        [1] * count,
        [(i * 97) % 261 if i % 7 == 0 or i > count - 3 else 0 for i in range(count)],
        2,
        seed=400 + count,
    )


def _last_of(inp, keys):
    """The last sequence has so many keys; its pages stay in the list."""
    cu_k = np.append(inp.cu_k[:-1], inp.cu_k[-2] + keys).astype(np.int32)
    return dataclasses.replace(inp, cu_k=cu_k, max_seqlen_k=int(np.diff(cu_k).max()))


# Name -> inputs
ROWS = {
    # a batch ends where the share does, a unit before it, behind it
    **{f"share_{d:+d}": lambda f, d=d: batch(f, [1], [(LONG + 4 * d) * PAGE - 5], 2, seed=410 + d) for d in (-1, 0, 1)},
    "two_batches": lambda f: batch(f, [2, 1], [(LONG + 300) * PAGE, (LONG + 100) * PAGE - 77], 1, seed=420),
    # ids looked up in one run serve in later ones; with two KV heads they do not
    "many_runs": lambda f: batch(f, [1] * 90, [(1 + 37 * i % 11) * PAGE - i for i in range(90)], 2, seed=421),
    "many_runs_heads": lambda f: batch(f, [1] * 60, [(1 + 37 * i % 11) * PAGE - i for i in range(60)], 4, 2, seed=422),
    "runs_of_one": lambda f: batch(f, [1] * 130, [90] * 130, 3, seed=423),
    "gaps": lambda f: rows._other_lengths(
        batch(f, [1] * 70, [(1 + 29 * i % 13) * PAGE for i in range(70)], 2, seed=424)
    ),
    # the list goes on behind the last key: a page, more than a share
    "behind_1": lambda f: _last_of(batch(f, [1] * 3, [20 * PAGE, 11 * PAGE, 8 * PAGE], 2, seed=427), 7 * PAGE - 3),
    "behind_share": lambda f: _last_of(batch(f, [1] * 2, [10 * PAGE, 300 * PAGE], 2, seed=428), PAGE + 1),
    "bad_pages": lambda f: rows._bad_pages(
        batch(f, [1] * 3, [(LONG + 2) * PAGE, 40 * PAGE, 300], 2, seed=425),
        (0, 5, BATCH - 1, BATCH, BATCH + 1, LONG - 1, LONG, LONG + 1, LONG + 2, LONG + 6),
    ),
    # more than 16 rows: each page against every tile, in runs that end anywhere
    "tiles": lambda f: batch(f, [9] * 7, [(3 + 5 * i) * PAGE - 31 * i for i in range(7)], 4, seed=426),
    **{f"sequences_{count}": _sequences(count) for count in (MOST - 1, MOST, MOST + 1, MOST + 2)},
}
VARIANTS = selection.narrow_decodes(("nvfp4", "preordered_mma"), ("mxfp4", "public"))


@pytest.fixture(scope="module")
def compiled():
    return selection.compile_all(VARIANTS)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("variant", VARIANTS, ids=selection.label)
def test_every_slot(compiled, variant, name):
    row = Case(cases.Case(f"walk_{name}-{variant.format}", name, variant.format, ROWS[name]))
    for schedule in ("eager", "random:1"):
        _, problems = selection.run([compiled[k] for k in variant.launches], variant, row, schedule, multiprocessors=1)
        assert not problems, f"{schedule}: " + "\n".join(problems[:3])
