"""jax.jit on the CPU through lowering, the C++ handler, the choice of variant, parameter packing and simulated kernels, for pretended GPUs.

Each GPU in a process of its own (stand_in.py says why). JFI_PTXSIM=all runs more of the case table.
"""
import json
import os
import subprocess
import sys

import pytest

from ptxsim import cache

XDIST_GROUP = ""            # every test is a process of its own in any case
WHOLE = os.environ.get("JFI_PTXSIM") == "all"
CASES = ["--tag", "quick"] if WHOLE else ["--cases", "k_lengths_causal-,ragged_1-,wide_0,sim_passes-"]


@pytest.mark.parametrize("capability, arch, native", [("8.0", "sm_80", False), ("8.6", "sm_80", False), ("9.0", "sm_90a", True), ("10.0", "sm_100a", True),
                                                     ("10.3", "sm_103a", True), ("12.0", "sm_120a", False)])
def test_the_op_on_a_pretended_gpu(capability, arch, native):
    calls = stand_in(capability, *(CASES if capability != "8.6" else ["--cases", "k_lengths_causal-"]))      # 8.6 runs the kernels of 8.0
    assert {c["implementation"] for c in calls} == {"decode", "prefill", "portable"}
    for call in calls:
        assert call["launches"] and all(name.startswith(arch + ":") for name in call["launches"]), call
        assert ("portable" in call["launches"][-1]) == (not native or call["implementation"] == "portable" or "fixup" in call["launches"][-1]), call


def test_a_tensor_map_that_the_launcher_encodes():
    calls = stand_in("10.0", "--toys")
    assert [c["launches"] for c in calls] == [["sm_100a:toy.page_maxima.nvfp4"], ["sm_100a:toy.page_maxima.mxfp4"]]


def stand_in(capability, *options):
    """The calls that a process of stand_in.py made, all of them right."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([str(cache.HERE.parent), *(p for p in sys.path if p)])}
    done = subprocess.run([sys.executable, "-m", "simulated.stand_in", capability, *options], env=environment, capture_output=True, text=True)
    calls = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wrong = [c for c in calls if c["problems"]]
    assert not wrong, f"{len(wrong)} of {len(calls)} calls, the first: {json.dumps(wrong[0], indent=1)}"
    assert done.returncode == 0, done.stderr[-3000:]
    return calls
