"""jax.jit on the CPU through lowering, the C++ handler, the choice of variant, parameter packing and simulated kernels, for pretended GPUs.

Each GPU in a process of its own (stand_in.py says why). JFI_PTXSIM=all runs more of the case table.
"""

import json
import os
import subprocess
import sys

import pytest

from harness import registry
from jax_fp4_indexer.configs.arch import runs_on
from ptxsim import cache
from simulated import selection

XDIST_GROUP = ""  # every test is a process of its own in any case
WHOLE = os.environ.get("JFI_PTXSIM") == "all"


@pytest.mark.parametrize("op", [tests.spec.name for tests in registry.chosen()])
@pytest.mark.parametrize("capability", ["8.0", "8.6", "9.0", "10.0", "10.3", "12.0"])
def test_the_op_on_a_pretended_gpu(capability, op):
    tests, major_minor = registry.op(op), tuple(int(x) for x in capability.split("."))
    rows = getattr(tests, "through_the_driver", None)
    chosen = ["--cases", rows] if rows and not WHOLE else ["--tag", "quick"]
    calls = stand_in(
        capability, *(chosen if capability != "8.6" or not rows else ["--cases", rows.partition(",")[0]]), op=op
    )  # 8.6 runs the kernels of 8.0
    assert {c["implementation"] for c in calls} == set(tests.implementations()) and {c["op"] for c in calls} == {op}
    here = [v for v in selection.all_variants(op) if runs_on(v.arch, major_minor)]
    native = any(v.implementation == "native" for v in here)
    for call in calls:
        assert call["launches"] and {name.partition(":")[0] for name in call["launches"]} <= {v.arch for v in here}, (
            call
        )
        assert call["taken"] == (["native"] if native and call["implementation"] != "portable" else ["portable"]), call


def test_a_tensor_map_that_the_launcher_encodes():
    calls = stand_in("10.0", "--toys")
    assert [c["launches"] for c in calls] == [["sm_100a:toy.page_maxima.nvfp4"], ["sm_100a:toy.page_maxima.mxfp4"]]


def stand_in(capability, *options, op="block_scores"):
    """The calls that a process of stand_in.py made, all of them right."""
    environment = {
        **os.environ,
        "JFI_OP": op,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(cache.HERE.parent), *(p for p in sys.path if p)]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "simulated.stand_in", capability, *options],
        env=environment,
        capture_output=True,
        text=True,
    )
    calls = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wrong = [c for c in calls if c["problems"]]
    assert not wrong, f"{len(wrong)} of {len(calls)} calls, the first: {json.dumps(wrong[0], indent=1)}"
    assert done.returncode == 0, done.stderr[-3000:]
    return calls
