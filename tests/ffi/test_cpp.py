"""Runs the C++ tests of ffi/ (no GPU, no FFI headers)."""

import subprocess

import pytest


@pytest.mark.parametrize("name", ["json", "expr", "spec", "manifest", "launch", "op_call"])
def test_cpp(built, name, tmp_path):
    arguments = [built / "tests" / "libfake_cuda.so", tmp_path / "cubins"] if name in ("launch", "op_call") else []
    done = subprocess.run([built / "tests" / f"test_{name}", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
