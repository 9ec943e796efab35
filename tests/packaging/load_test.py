"""Loads the built FFI library without JAX and without a driver: python load_test.py path/to/libjax_fp4_indexer_ffi.so"""

import ctypes
import subprocess
import sys

SYMBOLS = (
    "jfi_ffi_api_version",
    "jfi_set_cubin_dir",
    "jfi_choose_variant",
    "jfi_instantiate",
    "jfi_prepare",
    "jfi_execute",
    "jfi_executions",
    "jfi_clock_prepare",
    "jfi_clock_execute",
)


def check(path):
    library = ctypes.CDLL(path)
    missing = [name for name in SYMBOLS if not hasattr(library, name)]
    assert not missing, f"{path}: no symbols {missing}"
    version = library.jfi_ffi_api_version()
    assert 0 < version < 1000, f"{path}: FFI API version {version}, expected 0.x as 1000 * major + minor"
    library.jfi_set_cubin_dir.restype, library.jfi_set_cubin_dir.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    library.jfi_choose_variant.argtypes = (
        [ctypes.c_char_p] * 3 + [ctypes.c_int] * 2 + [ctypes.c_longlong, ctypes.c_char_p, ctypes.c_size_t]
    )
    text = ctypes.create_string_buffer(4096)
    refused = library.jfi_set_cubin_dir(b"/nonexistent") or (
        library.jfi_choose_variant(b"block_scores", b"", b"auto", 9, 0, 1, text, len(text)) and text.value
    )
    assert refused and b"/nonexistent" in refused, (
        f"{path}: an absent folder of cubins was not refused by name, but {refused!r}"
    )
    needed = dynamic_needs(path)
    assert not [n for n in needed if "cuda" in n or "nv" in n], (
        f"{path}: linked against {needed}; the driver is opened at run time"
    )


def dynamic_needs(path):
    """Names of the shared libraries that `path` asks the loader for; empty where there is no readelf."""
    try:
        text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        return []
    return [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]


if __name__ == "__main__":
    check(sys.argv[1])
    print("loaded", sys.argv[1])
