"""Builds ffi/ once a session: the library, its C++ tests, the stand-in driver.

The headers are the installed JAX's, or those of XLA_FFI_INCLUDE_DIR (set it to an older jaxlib's to test a release build on a newer JAX).
"""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import pytest
from fake_driver import FakeDriver

from jax_fp4_indexer.primitives import runtime

FFI = pathlib.Path(__file__).resolve().parents[2] / "ffi"


def _tool(name):
    """A tool of this environment (PyPI's cmake and ninja put it beside Python), or of the system."""
    return shutil.which(
        name, path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    )


@pytest.fixture(scope="session")
def ffi_headers():
    return os.environ.get("XLA_FFI_INCLUDE_DIR") or jax.ffi.include_dir()


@pytest.fixture(scope="session")
def built(tmp_path_factory, ffi_headers):
    """Build folder: libjax_fp4_indexer_ffi.so, tests/test_*, tests/libfake_cuda.so."""
    cmake, ninja = _tool("cmake"), _tool("ninja")
    if cmake is None or not (shutil.which("c++") or shutil.which("g++")):
        pytest.fail(
            "the tests of ffi/ need cmake and a C++17 compiler: pip install cmake, and e.g. apt-get install g++"
        )
    build = tmp_path_factory.mktemp("ffi")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    for command in (
        [
            cmake,
            "-S",
            FFI,
            "-B",
            build,
            *generator,
            "-DJFI_BUILD_TESTS=ON",
            "-DCMAKE_BUILD_TYPE=Debug",
            f"-DXLA_FFI_INCLUDE_DIR={ffi_headers}",
        ],
        [cmake, "--build", build, "--parallel", "2"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning:" not in done.stdout + done.stderr, done.stdout + done.stderr
    return build


@pytest.fixture(scope="session")
def serve(built, tmp_path_factory):
    """serve(name, manifest, targets) -> FakeDriver: registers a copy of the library of its own (the folder and the driver are choices of a
    process) for XLA:CPU under the names `targets`, with text in place of every cubin of `manifest`."""
    before = os.environ.get("JFI_LIBCUDA")

    def served(name, manifest, targets):
        folder = tmp_path_factory.mktemp(name)
        for kernel in manifest["kernels"]:
            path = folder / kernel["cubin"]
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"cubin of " + kernel["name"].encode())
        (folder / "manifest.json").write_text(json.dumps(manifest))
        library = ctypes.CDLL(str(shutil.copy(built / runtime.LIBRARY, folder / "library.so")))
        runtime._declare(library)
        assert library.jfi_set_cubin_dir(str(folder).encode()) is None
        os.environ["JFI_LIBCUDA"] = str(built / "tests" / "libfake_cuda.so")
        jax.devices()  # XLA:CPU wants its backend up before it hears of a handler with state
        capsule = jax.ffi.pycapsule
        state = {"type_id": capsule(library.jfi_state_type_id()), "type_info": capsule(library.jfi_state_type_info())}
        jax.ffi.register_ffi_type(f"jax_fp4_indexer_test.{name}.State", state, platform="cpu")
        for target in targets:
            stages = {"instantiate": capsule(library.jfi_instantiate), "execute": capsule(library.jfi_execute_on_host)}
            jax.ffi.register_ffi_target(target, stages, platform="cpu")
        fake = FakeDriver(os.environ["JFI_LIBCUDA"])
        fake.library = library
        return fake

    yield served
    if before is None:
        os.environ.pop("JFI_LIBCUDA", None)
    else:
        os.environ["JFI_LIBCUDA"] = before
