"""The kernels of the tree, compiled to PTX and run in the simulator: right scores, no report, every slot written, in every schedule.

`make test` runs one scale layout of every kernel form over the rows of runs.QUICK, eager and in one random order.
JFI_PTXSIM=all (`make test-all`) runs every variant over the whole list, eager, lazy and in three random orders.
A variant whose kernels have the text of one that has run (portable kernels of several archs) is not run again: its result is the other's.
"""
import os

import pytest

from ptxsim import kernels, runs

WHOLE = os.environ.get("JFI_PTXSIM") == "all"
VARIANTS = runs.all_variants() if WHOLE else runs.quick_variants()
SCHEDULES = runs.SCHEDULES if WHOLE else ("eager", "random:7")
COVERAGE = 0.95         # share of the static instructions of a kernel that the whole list has to execute


@pytest.fixture(scope="session")
def compiled():
    """All kernels at once: one compiler process an arch."""
    wanted = list(dict.fromkeys(k for v in VARIANTS for k in v.launches))
    return dict(zip(wanted, kernels.load(wanted)))


_same = {}


def same_text(compiled, variant):
    """The kernels to run for `variant`: those of the first variant with the same texts."""
    chosen = [compiled[k] for k in variant.launches]
    key = (variant.path, variant.format, variant.scale_layout, *(k.text for k in chosen))
    return _same.setdefault(key, (chosen, {}))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("variant", VARIANTS, ids=runs.label)
def test_variant(compiled, variant, schedule):
    chosen, results = same_text(compiled, variant)
    if schedule not in results:
        results[schedule] = sweep(chosen, variant, schedule)
    problems, slots = results[schedule]
    assert not problems, f"{len(problems)} problems, the first of them:\n" + "\n".join(problems[:5])
    assert slots > 1000


def sweep(chosen, variant, schedule):
    problems, slots = [], 0
    for case, outcome, found in runs.sweep(chosen, variant, schedule, "" if WHOLE else runs.QUICK):
        slots += outcome.scores.size if outcome else 0
        problems += [f"{case.name}: {p}" for p in found]
    return problems, slots


RING = 3                # phases that every mbarrier completes in some CTA of the whole list: its ring has gone around twice

if WHOLE:       # the quick rows are not meant to reach every instruction
    @pytest.mark.parametrize("variant", VARIANTS, ids=runs.label)
    def test_coverage(compiled, variant):
        """After test_variant in all schedules: instructions that ran, and mbarriers that have gone around twice."""
        for kernel in same_text(compiled, variant)[0]:
            assert min(kernel.phases.values(), default=RING) >= RING, f"{kernel.name}: phases an mbarrier at an offset has completed: {kernel.phases}"
            assert kernel.coverage >= COVERAGE, f"{kernel.name}: {kernel.coverage:.1%} executed; not:\n" + "\n".join(kernel.not_executed()[:20])
