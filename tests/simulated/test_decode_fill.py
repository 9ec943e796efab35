"""The -inf of the sm_90a decode kernel for up to 16 packed rows on both sides of the size of a result from which they are written behind the pages, not before them."""

import dataclasses

import numpy as np
import pytest

from simulated import selection
from simulated.cases import Case
from support import cases
from support.inputs import PAGE, batch

STORES_BEFORE = 64  # kernels/block_scores/sm90_decode.py


def _shifted(inp):
    """Five tokens of no sequence before the first, five less in the last."""
    cu_q = inp.cu_q.copy()
    cu_q[:-1] += 5
    return dataclasses.replace(inp, cu_q=np.minimum(cu_q, cu_q[-1]))


def _falling(inp, name):
    sums = getattr(inp, name).copy()
    sums[-1] = sums[-2] - 1
    return dataclasses.replace(inp, **{name: sums})


# Threads of the grid times STORES_BEFORE are 32,768 on one multiprocessor. Name -> (whether the result is larger, inputs)
ROWS = {
    "one_long": (
        True,
        lambda f: batch(f, [4] * 12, [60 * PAGE - 3] + [100 + 30 * i for i in range(11)], 16, 2, seed=301),
    ),
    "one_long_less": (
        False,
        lambda f: batch(f, [4] * 12, [60 * PAGE - 3] + [100 + 30 * i for i in range(11)], 4, seed=301),
    ),
    "mixed_lengths_padding": (
        True,
        lambda f: batch(
            f, [i % 4 for i in range(40)], [(977 * i) % 7000 + 1 for i in range(40)], 16, 2, seed=302, pad_tokens=3
        ),
    ),
    "few_tokens": (True, lambda f: batch(f, [1], [200 * PAGE], 16, seed=305, pad_tokens=11)),
    "other_tokens": (
        True,
        lambda f: _shifted(
            batch(f, [4] * 12, [60 * PAGE - 3] + [100 + 30 * i for i in range(11)], 16, 2, seed=307, pad_tokens=8)
        ),
    ),
    "falls_queries": (True, lambda f: _falling(batch(f, [4] * 12, [60 * PAGE] + [100] * 11, 16, 2, seed=308), "cu_q")),
    "falls_pages_less": (
        False,
        lambda f: _falling(batch(f, [3] * 13, [20 * PAGE] + [100] * 12, 16, 2, seed=309), "cu_p"),
    ),
    "more_groups_than_warps": (
        True,
        lambda f: batch(f, [2] * 300, [60 * PAGE] + [(53 * i) % 90 for i in range(299)], 1, seed=310),
    ),
    "uniform": (True, lambda f: batch(f, [4] * 2, [70 * PAGE] * 2, 64, 16, seed=312, causal=False)),
}
VARIANTS = selection.narrow_decodes(("nvfp4", "public"), ("mxfp4", "preordered_mma"))


@pytest.fixture(scope="module")
def compiled():
    return selection.compile_all(VARIANTS)


@pytest.mark.parametrize("schedule", ("eager", "lazy", "random:1"))
@pytest.mark.parametrize("variant", VARIANTS, ids=selection.label)
def test_every_slot(compiled, variant, schedule):
    for name in list(ROWS) if schedule == "eager" else ("one_long", "falls_queries"):
        larger, make = ROWS[name]
        row = Case(cases.Case(f"fill_{name}-{variant.format}", name, variant.format, make))
        outcome, problems = selection.run(
            [compiled[k] for k in variant.launches], variant, row, schedule, multiprocessors=1
        )
        assert not problems, f"{name}: " + "\n".join(problems[:3])
        assert (outcome.scores.size > 512 * STORES_BEFORE) == larger, name
