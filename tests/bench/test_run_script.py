"""benchmarks/run.py as it runs on a machine that has JAX and NumPy alone."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = """
import runpy, sys
for name in ("click", "rich", "matplotlib", "cutlass", "cuda"):
    sys.modules[name] = None
sys.argv = ["run.py", *sys.argv[1:]]
sys.path.insert(0, "benchmarks")
runpy.run_path("benchmarks/run.py", run_name="__main__")
"""


def script(*args):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *args], cwd=ROOT, capture_output=True, text=True, timeout=300, env=env
    )


def test_it_needs_neither_click_nor_rich_nor_matplotlib(tmp_path):
    out = tmp_path / "rows" / "cpu.json"
    done = script("cpu_decode", "--quick", "--iters", "1", "--repeats", "1", "--formats", "nvfp4", "--out", str(out))
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(out.read_text())
    assert (row["case"], row["format"], row["scale_layout"], row["op"]) == (
        "cpu_decode",
        "nvfp4",
        "preordered_mma",
        "block_scores",
    )
    assert (
        "1 rows in" in done.stdout
        and "left out: none" in done.stdout
        and "cpu_decode" in done.stdout
        and "XLA's bf16 GEMM" in done.stdout
    )


@pytest.mark.parametrize(
    "args, part",
    [
        (("no_such",), "got the case 'no_such', expected one of "),
        (("--op", "no_such"), "invalid choice: 'no_such'"),
    ],
)
def test_it_says_what_is_wrong(args, part):
    done = script(*args)
    assert done.returncode != 0 and part in done.stderr
