"""What the tests of every op do not ask of the batched GEMV's kernels: the same bits however the rows are shared out,
in both scale layouts, alone, in a batch.
"""

import numpy as np
import pytest

from harness import registry
from ptxsim import kernels
from simulated import selection
from simulated.launches import run_variant

XDIST_GROUP = "gemv"
TESTS = registry.op("batched_gemv")
ROWS = ("k1024_shared", "n2", "n8_tiles", "k2064", "n3_any_k", "k16400", "tiles_of_rows")


def variants(case, arch):
    names = {
        key: value
        for key, value in TESTS.operands(case, {"scale_layout": "public"}).attributes.items()
        if key in ("columns", "k_multiple")
    }
    return [v for v in selection.all_variants("batched_gemv") if v.arch == arch and names.items() <= v.choices.items()]


def result(variant, case, ctas, schedule="eager"):
    outcome = run_variant(
        kernels.load(variant.launches),
        variant,
        TESTS.operands(case, variant.choices),
        multiprocessors=ctas,
        mode=schedule,
    )
    assert not outcome.problems(), outcome.problems()
    assert not TESTS.compare(case, outcome.results).problems
    return outcome.results["y"].view(np.uint32)


@pytest.mark.parametrize("arch", ("sm_90a", "sm_80"))
@pytest.mark.parametrize("name", ROWS)
def test_bits_do_not_depend_on_who_adds_them(name, arch):
    (case,) = (c for c in TESTS.cases() if c.name == name)
    public, tiled = variants(case, arch)
    want = result(public, case, 1)
    for ctas in (2, 5):
        np.testing.assert_array_equal(result(public, case, ctas, "lazy"), want)
    if arch == "sm_90a":  # pieces of K have other lengths where shared memory is small and scales are tiled
        np.testing.assert_array_equal(result(tiled, case, 3), want)
    for part, where in TESTS.parts(case):
        index, own = where["y"]
        np.testing.assert_array_equal(result(public, part, 2)[own], want[index])


def test_the_padding_of_tiled_scales_plays_no_part():
    (case,) = (c for c in TESTS.cases() if c.name == "tiles_of_rows")
    _, tiled = variants(case, "sm_90a")
    np.testing.assert_array_equal(result(tiled, TESTS.scrambled(case, 3), 2), result(tiled, case, 2))
