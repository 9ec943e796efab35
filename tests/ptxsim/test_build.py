"""The C core on processors of several generations, and what happens where it does not build."""

import os
import pathlib
import platform
import re
import subprocess
import sys

import pytest

from ptxsim import cache, native

# Generations of x86-64 processors and the features of /proc/cpuinfo without which a machine cannot run their code.
LEVELS = (
    {"x86-64-v2": {"sse4_2", "ssse3", "popcnt"}, "x86-64-v3": {"avx2", "bmi2", "fma"}}
    if platform.machine() == "x86_64"
    else {}
)

# Sums of the tensor core, halves, shuffles and barriers: the answers to the probes, as a digest for each probe.
ANSWERS = """
import hashlib
from ptxsim.probes import here
from ptxsim.probes.__main__ import launches
for launch in launches():
    if launch.name.split(".")[0] in ("rounding", "instructions", "approximate", "lanes", "product_swizzle"):
        out, result = here.run_one(launch)
        assert result is not None and not result.faults, (launch.name, out, result)
        print(launch.name, hashlib.sha256(out.tobytes()).hexdigest())
"""


def python(source, level):
    """The completed process of `source` in an interpreter of its own, whose core is compiled for `level`."""
    paths = os.pathsep.join([str(cache.HERE.parents[1]), str(cache.HERE.parent)])
    return subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        cwd=cache.HERE.parents[1],
        env={**os.environ, "PYTHONPATH": paths, "JFI_PTXSIM_MARCH": level},
    )


@pytest.fixture(scope="module")
def of_this_processor():
    done = python(ANSWERS, "native")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 10
    return done.stdout


@pytest.mark.parametrize("level", LEVELS)
def test_every_processor_has_the_same_bits(level, of_this_processor):
    flags = next(
        (
            set(line.split())
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("flags")
        ),
        set(),
    )
    if not LEVELS[level] <= flags:  # compiled only: this processor is of an older generation
        done = python("from ptxsim import native; native.build('core', 'core')", level)
        assert done.returncode == 0, done.stderr
        return
    done = python(ANSWERS, level)
    assert done.returncode == 0, done.stderr
    assert done.stdout == of_this_processor


def test_flags_choose_the_library(monkeypatch, tmp_path):
    monkeypatch.setenv("JFI_PTXSIM_CACHE", str(tmp_path))
    monkeypatch.delenv("JFI_PTXSIM_WERROR", raising=False)
    paths = set()
    for level in ("native", *LEVELS):
        monkeypatch.setenv("JFI_PTXSIM_MARCH", level)
        assert f"-march={level}" in native.flags() and "-Werror" not in native.flags()
        paths.add(native.build("libcuda", "driver"))
    assert len(paths) == 1 + len(LEVELS)
    monkeypatch.setenv("JFI_PTXSIM_WERROR", "1")
    assert "-Werror" in native.flags()


def test_a_failure_is_remembered(monkeypatch, tmp_path):
    compiler, calls = tmp_path / "cc", tmp_path / "calls"
    compiler.write_text(f"#!/bin/sh\necho called >> {calls}\necho 'error: no such instruction' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("JFI_PTXSIM_CACHE", str(tmp_path / "cache"))
    for _ in range(3):
        with pytest.raises(native.DoesNotBuild, match="no such instruction"):
            native.build("core", "core")
    assert calls.read_text() == "called\n"


@pytest.mark.parametrize("processes", (0, 2))
def test_a_core_that_does_not_build_ends_the_session_with_one_message(processes, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'error: no such instruction' >&2\nexit 1\n")
    compiler.chmod(0o755)
    files = [str(cache.HERE / name) for name in ("test_instructions.py", "test_tensor.py", "test_stats.py")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"CC": str(compiler), "JFI_PTXSIM_CACHE": str(tmp_path / "cache")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *["-n", "2", "--dist", "loadgroup"] * bool(processes),
        *files,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cache.HERE.parents[1], env=environment)
    assert done.returncode != 0
    closing = done.stdout.splitlines()
    assert sum("does not build on this machine" in line and line.startswith("!") for line in closing) == 1, done.stdout
    assert int(re.search(r"(\d+) failed", closing[-1])[1]) <= max(processes, 1), done.stdout
