"""The source distribution: everything that its own tests and benchmarks read, and nothing that was built."""

import pathlib
import subprocess
import sys
import tarfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Paths in the sdist, below its one folder."""
    out = tmp_path_factory.mktemp("sdist")
    script = f"from scikit_build_core.build import build_sdist; build_sdist({str(out)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, timeout=300)
    (path,) = out.glob("*.tar.gz")
    with tarfile.open(path) as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


def test_what_tests_and_benchmarks_read_is_there(names):
    wanted = [
        path
        for folder in ("tests", "benchmarks", "jax_fp4_indexer", "ffi", "examples", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".json", ".npz", ".cc", ".c", ".h", ".md", ".txt") and path.is_file()
    ]
    built = lambda path: any(
        part in ("cubins", "_lib", "__pycache__", "build", "out") for part in path.relative_to(ROOT).parts
    )
    missing = {path.relative_to(ROOT).as_posix() for path in wanted if not built(path)} - names
    assert not missing
    assert {"Makefile", "pyproject.toml", "CMakeLists.txt", "README.md", "CHANGELOG.md", "LICENSE"} <= names
    assert any(name.startswith("benchmarks/results/h200/") and name.endswith(".json") for name in names)


def test_nothing_that_was_built_is_there(names):
    assert not [
        name
        for name in names
        if name.endswith((".cubin", ".so", ".ptx", ".png", ".o", ".pyc"))
        or name.startswith((".ci/", "build/", "out/", ".venv/"))
    ]
