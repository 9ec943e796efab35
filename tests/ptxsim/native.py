"""Builds C sources with the compiler of the machine, and describes the core's structures to ctypes.

JFI_PTXSIM_MARCH     the value of -march; default: native
JFI_PTXSIM_WERROR=1  a warning of the compiler is an error (.ci/run); without it warnings are not shown
"""

import ctypes as C
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess

from . import cache

FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-shared", "-fPIC"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
MAX_REPORTS = 400


class DoesNotBuild(RuntimeError):
    """The C sources do not compile on this machine: no test of the simulator can pass."""


class Buffer(C.Structure):
    _fields_ = [
        ("base", C.c_uint64),
        ("size", C.c_uint64),
        ("p", C.c_void_p),
        ("name", C.c_char_p),
        ("owner", C.c_void_p),
        ("init", C.c_void_p),
        ("clock", C.c_void_p),
        ("writer", C.c_void_p),
    ]


class TensorMap(C.Structure):
    _fields_ = [
        ("base", C.c_uint64),
        ("rank", C.c_int64),
        ("bits", C.c_int64),
        ("swizzle", C.c_int64),
        ("integer32", C.c_int64),
        ("dims", C.c_int64 * 5),
        ("strides", C.c_int64 * 5),
        ("box", C.c_int64 * 5),
    ]


class Report(C.Structure):
    _fields_ = [("kind", C.c_int32), ("pc", C.c_int32), ("count", C.c_int64), ("text", C.c_char * 240)]


class Sim(C.Structure):
    """The part of struct Sim (core/sim.h) that both sides know."""

    _fields_ = [
        ("code", C.c_void_p),
        *((n, C.c_int32) for n in ("npc", "nreg", "npred", "nconst", "nbuf", "nmaps")),
        ("pool", C.c_void_p),
        ("const_value", C.c_void_p),
        ("const_kind", C.c_void_p),
        ("buf", C.c_void_p),
        ("maps", C.c_void_p),
        ("map_address", C.c_void_p),
        *((n, C.c_uint32 * 3) for n in ("grid", "block", "cluster")),
        *((n, C.c_int32) for n in ("smem", "mode", "races", "elect_last")),
        ("rng", C.c_uint64),
        ("max_insts", C.c_uint64),
        ("local", C.c_int64),
        ("coverage", C.c_void_p),
        ("reports", C.c_void_p),
        ("nreports", C.c_int32),
        ("max_reports", C.c_int32),
        ("err", C.c_char * 6000),
        ("errpc", C.c_int32),
        ("cta_index", C.c_int32),
        *((n, C.c_uint64) for n in ("insts", "bulk_bytes", "wgmmas", "mmas", "ummas")),
        ("registers", C.c_int32),
        ("bank_use", C.c_void_p),
        ("by_warp", C.c_int32),
        ("phases", C.c_void_p),
    ]


def _machine():
    """What -march=native depends on: a cache that moves to another machine must not be believed."""
    try:
        with open("/proc/cpuinfo") as f:
            text = f.read()
    except OSError:
        return platform.processor()
    return "".join(sorted(set(re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.M))))


def flags():
    """Options of the compiler, as the environment chooses them."""
    return [
        *FLAGS,
        f"-march={os.environ.get('JFI_PTXSIM_MARCH') or 'native'}",
        *(WARNINGS if os.environ.get("JFI_PTXSIM_WERROR") == "1" else []),
    ]


_failures = {}


def build(name, folder):
    """Path of the shared library made of the C files of `folder`, built once for each content, compiler and flags.

    DoesNotBuild with the compiler's words if it does not compile; asked again, this process raises the same error without another attempt.
    """
    files = sorted((cache.HERE / folder).glob("*.[ch]"))
    compiler, options = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc"), flags()
    if not compiler:
        raise DoesNotBuild(
            "the simulator needs a C compiler: none of $CC, gcc, cc was found; install one, e.g. apt-get install gcc"
        )
    digest = hashlib.sha256("\0".join([compiler, _machine(), *options]).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    path = cache.folder() / f"{name}.{digest.hexdigest()[:16]}.so"

    def compile_to(out):
        sources = [str(f) for f in files if f.suffix == ".c"]
        command = [*compiler.split(), *options, "-o", str(out), *sources, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            _failures[path] = (
                f"tests/ptxsim/{folder} does not build on this machine. Command: {' '.join(command)}\n{done.stderr}"
            )
            raise DoesNotBuild(_failures[path])

    if path in _failures:
        raise DoesNotBuild(_failures[path])
    if not path.exists():
        with cache.locked(name):
            if not path.exists():
                cache.replace(path, compile_to)
    return path


@functools.cache
def load():
    """The interpreter's core as a ctypes library."""
    library = C.CDLL(str(build("core", "core")))
    library.sim_shared_bytes.restype = C.c_size_t
    if library.sim_shared_bytes() != C.sizeof(Sim):
        raise RuntimeError(
            f"native.Sim has {C.sizeof(Sim)} bytes, struct Sim {library.sim_shared_bytes()}: their fields differ"
        )
    return library
