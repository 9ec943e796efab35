"""What the roles of a kernel of the tree execute."""

import os
import subprocess
import sys

from ptxsim import cache, kernels
from simulated import cases, selection


def test_a_kernel_of_the_tree():
    """Roles by name, and as many instructions as a run without statistics."""
    label, row = "sm_90a.native.prefill.nvfp4.public.n0", "k_lengths_causal-"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cache.HERE.parent), *(p for p in sys.path if p)])}
    done = subprocess.run(
        [sys.executable, "-m", "simulated", "stats", label, "--cases", row],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "block_scores.prepare.nvfp4.public" in done.stdout and "wrong:" not in done.stdout
    assert (
        "  warps 4-11: " in done.stdout
        and "sm90_prefill_staged.py load" in done.stdout
        and "shared stores" in done.stdout
        and "wavefronts" in done.stdout
    )
    variant = next(v for v in selection.all_variants() if selection.label(v) == label)
    compiled = kernels.load(variant.launches)
    case = next(iter(cases.of(variant.path, variant.format, row)))
    outcome, problems = selection.run(compiled, variant, case, "eager")
    (name, kernel, _, wrong), (_, other, _, _) = selection.statistics(compiled, variant, [case], "eager")
    assert not problems and not wrong and name == case.name
    assert outcome.insts >= kernel.statistics.by_warp.sum() + other.statistics.by_warp.sum() > 0.9 * outcome.insts
