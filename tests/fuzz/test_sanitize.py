"""sanitize.py with a stand-in for compute-sanitizer: every case runs once, and a process that dies is narrowed down to its case."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TOOL = """#!/bin/sh
case "$*" in
  *,37,*|*" 37,"*|*,37|*" 37") exit 139;;
esac
echo "  decode 2/2 cases"; echo "0 failures, 0 cases not run"; echo "========= ERROR SUMMARY: 0 errors"
"""


def test_a_death_is_narrowed_down(tmp_path):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), *(p for p in sys.path if p)]),
        "JAX_PLATFORMS": "cpu",
    }
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.sanitize", "--cases", "160", "--processes", "4", "--jobs", "2", "--json", out],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(out.read_text())
    assert found["died"] == ["37"] and not found["errors"] and not found["not_run"]
    assert sorted(map(int, found["clean"])) == [i for i in range(160) if i != 37]
