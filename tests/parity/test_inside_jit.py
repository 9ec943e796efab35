"""First call of a process inside a scan (in a process of its own), and results past 2^31."""

import os
import subprocess
import sys
from pathlib import Path

import past_2_31
import pytest


def test_first_call_inside_a_loop():
    script = Path(__file__).with_name("inside_jit.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("implementation", past_2_31.runner.IMPLEMENTATIONS)
@pytest.mark.parametrize("fmt", ("nvfp4", "mxfp4"))
def test_past_2_31(implementation, fmt):
    problems = [f"{what}: {problem}" for what, problem in past_2_31.run((implementation,), fmt) if problem]
    assert not problems, "\n".join(problems)
