"""The library by itself: what it exports and needs, and that it loads where there is no driver."""

import ctypes
import re
import subprocess
import sys

import pytest

from jax_fp4_indexer.primitives import runtime


@pytest.fixture
def library(built):
    return ctypes.CDLL(str(built / runtime.LIBRARY))


def test_loads_and_answers_without_a_driver(built):
    """In a fresh process whose driver cannot be opened; the first real use says so."""
    script = (
        "import ctypes, sys\n"
        "lib = ctypes.CDLL(sys.argv[1])\n"
        "lib.jfi_set_cubin_dir.restype = ctypes.c_char_p\n"
        "assert lib.jfi_set_cubin_dir(b'/nowhere') is None\n"
        "text = ctypes.create_string_buffer(500)\n"
        "assert lib.jfi_choose_variant(b'block_scores', b'', b'auto', 9, 0, ctypes.c_longlong(1), text, ctypes.c_size_t(500)) == 1\n"
        "assert b'cannot read /nowhere/manifest.json; reinstall' in text.value, text.value\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(built / runtime.LIBRARY)], check=True, timeout=60)


def test_needs_no_cuda_library_and_exports_its_own_symbols_only(built):
    dynamic = subprocess.run(
        ["readelf", "-d", "--dyn-syms", "-W", built / runtime.LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"NEEDED.*(cuda|cudart)", dynamic)
    exported = {
        line.split()[-1] for line in dynamic.splitlines() if re.search(r" (GLOBAL|WEAK|UNIQUE)\s+DEFAULT\s+\d+ ", line)
    }
    assert exported == {
        "jfi_ffi_api_version",
        "jfi_set_cubin_dir",
        "jfi_choose_variant",
        *(
            "jfi_" + n
            for n in (
                "instantiate",
                "prepare",
                "execute",
                "execute_on_host",
                "state_type_id",
                "state_type_info",
                "executions",
            )
        ),
        *("jfi_clock_" + n for n in ("prepare", "execute", "execute_on_host")),
    }


def test_api_version_is_that_of_the_headers(library, ffi_headers):
    assert library.jfi_ffi_api_version() == runtime.api_version(ffi_headers)
    runtime.check_version(library.jfi_ffi_api_version(), runtime.runtime_api_version())


def test_registers_for_cuda_on_a_machine_without_a_gpu(built):
    """Queued until a CUDA backend appears; the CPU backend is unharmed."""
    script = (
        "import ctypes, sys, jax, jax.numpy as jnp\n"
        "from jax_fp4_indexer.primitives import runtime\n"
        "library = ctypes.CDLL(sys.argv[1]); runtime._declare(library)\n"
        "runtime.register(library=library)\n"
        "assert float(jax.jit(lambda x: x + 1)(jnp.float32(1))) == 2\n"
    )
    subprocess.run([sys.executable, "-c", script, str(built / runtime.LIBRARY)], check=True, timeout=120)
