"""The command line in environments that are not a wide colour terminal with every library: what it prints, and how it
ends."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DEMO = ("demo", "--context", "8192")


def command(*args, script=None, **environment):
    """A finished process of `python -m jax_fp4_indexer` (or of `script` instead of the module), with some variables
    changed; None removes one."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *(p for p in sys.path if p)]), **environment}
    start = ["-c", script] if script else ["-m", "jax_fp4_indexer"]
    return subprocess.run(
        [sys.executable, *start, *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={name: value for name, value in env.items() if value is not None},
    )


def test_the_demo_in_a_notebook_and_without_a_home(tmp_path):
    """A notebook sets MPLBACKEND to a backend that is not installed here; a service has no HOME and an ASCII
    terminal."""
    done = command(
        *DEMO,
        "--out",
        str(tmp_path / "out"),
        MPLBACKEND="module://no_such_package.backend_inline",
        HOME=None,
        LC_ALL="C",
        PYTHONIOENCODING="ascii",
        NO_COLOR="1",
        COLUMNS="80",
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "\x1b" not in done.stdout and done.stdout.isascii()
    assert all(
        len(line) <= 80 for line in done.stdout.splitlines() if "pictures:" not in line and str(tmp_path) not in line
    ), done.stdout
    for fmt in ("nvfp4", "mxfp4"):
        assert fmt in done.stdout and (tmp_path / "out" / f"block_scores_{fmt}.png").stat().st_size > 10_000


@pytest.mark.parametrize("args", [("doctor",), ("bench", "--list-cases")])
def test_tables_fit_the_width_that_is_asked_for(args):
    narrow, wide = (command(*args, COLUMNS=str(width), HOME="/proc").stdout for width in (80, 200))
    assert all(len(line) <= 80 for line in narrow.splitlines()), narrow
    frame = "│─┌┬┐├┼┤└┴┘"
    letters = lambda text: sorted(c for c in text if not c.isspace() and c not in frame)
    assert letters(narrow) == letters(wide)  # nothing is cut off


def test_an_output_that_cannot_be_written_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "jax_fp4_indexer", "doctor"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    assert done.returncode == 1
    assert (
        done.stderr.strip().splitlines()[-1]
        == "jax-fp4-indexer: the output cannot be written: No space left on device. "
        "Free some space, or write somewhere else."
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("module", ["click", "rich", "matplotlib"])
def test_a_missing_library_of_the_extra_is_one_sentence(module):
    script = (
        f"import runpy, sys\nsys.modules[{module!r}] = None\n"
        "import importlib.util as u\nfind = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {module!r} else find(name, *rest)\n"
        "sys.argv[0] = 'jax-fp4-indexer'\nrunpy.run_module('jax_fp4_indexer', run_name='__main__')"
    )
    done = command("doctor", script=script)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        f"jax-fp4-indexer: the command line needs {module}, which this Python does not have; "
        'install the extra: pip install "jax-fp4-indexer[cli]"\n'
    )


def test_the_build_command_without_click_is_one_sentence():
    script = (
        "import runpy, sys, importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'click' else find(name, *rest)\n"
        "runpy.run_module('jax_fp4_indexer.aot', run_name='__main__')"
    )
    done = command("build", script=script)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and 'pip install "jax-fp4-indexer[cli]"' in done.stderr


def test_a_command_that_ends_early_is_not_a_traceback():
    """`jax-fp4-indexer doctor | head -1`"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    shell = f"{sys.executable} -m jax_fp4_indexer bench --list-cases | head -1"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, timeout=300, env=env)
    assert "Traceback" not in done.stderr and done.stdout.count("\n") == 1
