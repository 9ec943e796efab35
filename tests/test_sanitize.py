"""tests/parity/sanitize.py with a stand-in for compute-sanitizer: a process that dies is narrowed down to its case, errors are not lost."""
import json
import os
import subprocess
import sys
from pathlib import Path

from jax_fp4_indexer.primitives import runtime

SCRIPT = Path(__file__).parent / "parity" / "sanitize.py"
sys.path.insert(0, str(SCRIPT.parent))
import sanitize  # noqa: E402
TOOL = """#!/bin/sh
case "$*" in
  *tail_after_65-nvfp4*) exit 139;;
  *k_len_0_beside_5-mxfp4*) echo "0 failures"; echo "========= ERROR SUMMARY: 2 errors"; exit 0;;
esac
echo "decode.public 2/2 cases"; echo "0 failures, 0 cases not run"; echo "========= ERROR SUMMARY: 0 errors"
"""


CLEAN = TOOL.replace("exit 139", "true").replace("2 errors", "0 errors")


def stand_in(folder, text):
    tool = folder / "compute-sanitizer"
    tool.write_text(text)
    tool.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_variant_rows_launch_every_kernel_of_a_hopper(tmp_path):
    out = tmp_path / "out.json"
    result = subprocess.run([sys.executable, str(SCRIPT), "--tool", "racecheck", "--rows", "variants", "--capability", "9.0", "--json", str(out)],
                            env=stand_in(tmp_path, CLEAN), capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(out.read_text())
    manifest = json.loads(runtime.find("cubins/manifest.json").read_text())
    hopper = {k for v in manifest["variants"] if v["arch"] == "sm_90a" for k in v["launches"]}
    assert set(found["kernels"]) == hopper and min(found["kernels"].values()) >= 3, found["kernels"]
    assert {name.rpartition("-")[0] for name in found["clean"]} == set(sanitize.VARIANT_ROWS)


def test_hazards_of_racecheck_are_errors(tmp_path):
    hazard = CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)")
    result = subprocess.run([sys.executable, str(SCRIPT), "--tool", "racecheck", "--rows", "variants"], env=stand_in(tmp_path, hazard), capture_output=True, text=True)
    assert result.returncode == 1 and "1 x ========= RACECHECK SUMMARY: 3 hazards" in result.stdout, result.stdout + result.stderr


def test_a_death_is_narrowed_down_and_errors_are_kept(tmp_path):
    env = stand_in(tmp_path, TOOL)
    out = tmp_path / "out.json"

    def run(*args):
        return subprocess.run([sys.executable, str(SCRIPT), "--rows", "small", "--capability", "9.0", "--json", str(out), *args], env=env, capture_output=True, text=True)

    result = run()
    assert result.returncode == 1, result.stderr
    found = json.loads(out.read_text())
    assert found["died"] == ["tail_after_65-nvfp4"]
    assert [("k_len_0_beside_5-mxfp4" in e["cases"]) for e in found["errors"]] == [True]
    everything = len(found["clean"]) + 1 + len(found["errors"][0]["cases"])
    assert everything > 300 and not found["not_run"]

    earlier = tmp_path / "earlier.json"
    out.rename(earlier)
    assert run("--done", str(earlier)).returncode == 1
    assert len(json.loads(out.read_text())["clean"]) + len(found["clean"]) < everything          # what was clean is not run again

    assert run("--time-limit", "0").returncode == 3
