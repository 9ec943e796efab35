"""Fuzzed cases on the kernels' PTX in the simulator, which sees every access. JFI_PTXSIM=all (`make test-all`) runs many more, on every variant."""

import os

from fuzz import simulated
from harness import registry
from simulated import selection

WHOLE = os.environ.get("JFI_PTXSIM") == "all"


def test_kernels_in_the_simulator():
    variants = (
        selection.all_variants("block_scores") if WHOLE else selection.quick_variants(registry.op("block_scores"))
    )
    counts, failures = simulated.sweep(
        1, range(600 if WHOLE else 40), variants, ("eager", "lazy", "random:7") if WHOLE else ("eager", "random:7")
    )
    assert not failures, "\n".join(failures[:5])
    assert counts["invalid"] > counts["cases"] // 4
