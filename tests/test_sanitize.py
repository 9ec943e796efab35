"""tests/parity/sanitize.py with a stand-in for compute-sanitizer: a process that dies is narrowed down to its case, errors are not lost."""
import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "parity" / "sanitize.py"
TOOL = """#!/bin/sh
case "$*" in
  *tail_after_65-nvfp4*) exit 139;;
  *k_len_0_beside_5-mxfp4*) echo "0 failures"; echo "========= ERROR SUMMARY: 2 errors"; exit 0;;
esac
echo "decode.public 2/2 cases"; echo "0 failures, 0 cases not run"; echo "========= ERROR SUMMARY: 0 errors"
"""


def test_a_death_is_narrowed_down_and_errors_are_kept(tmp_path):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    out = tmp_path / "out.json"

    def run(*args):
        env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run([sys.executable, str(SCRIPT), "--size", "small", "--json", str(out), *args], env=env, capture_output=True, text=True)

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
