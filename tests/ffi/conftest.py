"""Builds ffi/ once a session: the library, its C++ tests, the stand-in driver.

The headers are the installed JAX's, or those of XLA_FFI_INCLUDE_DIR (set it to an older jaxlib's to test a release build on a newer JAX).
"""
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import pytest

FFI = pathlib.Path(__file__).resolve().parents[2] / "ffi"


def _tool(name):
    """A tool of this environment (PyPI's cmake and ninja put it beside Python), or of the system."""
    return shutil.which(name, path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")]))


@pytest.fixture(scope="session")
def ffi_headers():
    return os.environ.get("XLA_FFI_INCLUDE_DIR") or jax.ffi.include_dir()


@pytest.fixture(scope="session")
def built(tmp_path_factory, ffi_headers):
    """Build folder: libjax_fp4_indexer_ffi.so, tests/test_*, tests/libfake_cuda.so."""
    cmake, ninja = _tool("cmake"), _tool("ninja")
    if cmake is None or not (shutil.which("c++") or shutil.which("g++")):
        pytest.fail("the tests of ffi/ need cmake and a C++17 compiler: pip install cmake, and e.g. apt-get install g++")
    build = tmp_path_factory.mktemp("ffi")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    for command in ([cmake, "-S", FFI, "-B", build, *generator, "-DJFI_BUILD_TESTS=ON", "-DCMAKE_BUILD_TYPE=Debug", f"-DXLA_FFI_INCLUDE_DIR={ffi_headers}"],
                    [cmake, "--build", build, "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning:" not in done.stdout + done.stderr, done.stdout + done.stderr
    return build
