"""Builds C sources with the compiler of the machine, and describes the core's structures to ctypes."""
import ctypes as C
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess

from . import cache

FLAGS = ["-std=gnu11", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
MAX_REPORTS = 400


class Buffer(C.Structure):
    _fields_ = [("base", C.c_uint64), ("size", C.c_uint64), ("p", C.c_void_p), ("name", C.c_char_p), ("owner", C.c_void_p), ("init", C.c_void_p),
                ("clock", C.c_void_p), ("writer", C.c_void_p)]


class TensorMap(C.Structure):
    _fields_ = [("base", C.c_uint64), ("rank", C.c_int64), ("bits", C.c_int64), ("swizzle", C.c_int64), ("integer32", C.c_int64), ("dims", C.c_int64 * 5), ("strides", C.c_int64 * 5),
                ("box", C.c_int64 * 5)]


class Report(C.Structure):
    _fields_ = [("kind", C.c_int32), ("pc", C.c_int32), ("count", C.c_int64), ("text", C.c_char * 240)]


class Sim(C.Structure):
    """The part of struct Sim (core/sim.h) that both sides know."""
    _fields_ = [("code", C.c_void_p), *((n, C.c_int32) for n in ("npc", "nreg", "npred", "nconst", "nbuf", "nmaps")), ("pool", C.c_void_p),
                ("const_value", C.c_void_p), ("const_kind", C.c_void_p), ("buf", C.c_void_p), ("maps", C.c_void_p), ("map_address", C.c_void_p),
                *((n, C.c_uint32 * 3) for n in ("grid", "block", "cluster")), *((n, C.c_int32) for n in ("smem", "mode", "races", "elect_last")),
                ("rng", C.c_uint64), ("max_insts", C.c_uint64), ("local", C.c_int64), ("coverage", C.c_void_p), ("reports", C.c_void_p),
                ("nreports", C.c_int32), ("max_reports", C.c_int32), ("err", C.c_char * 6000), ("errpc", C.c_int32), ("cta_index", C.c_int32),
                *((n, C.c_uint64) for n in ("insts", "bulk_bytes", "wgmmas", "mmas", "ummas")), ("registers", C.c_int32), ("bank_use", C.c_void_p), ("by_warp", C.c_int32), ("phases", C.c_void_p)]


def _machine():
    """What -march=native depends on: a cache that moves to another machine must not be believed."""
    try:
        with open("/proc/cpuinfo") as f:
            text = f.read()
    except OSError:
        return platform.processor()
    return "".join(sorted(set(re.findall(r"^(?:model name|flags|Features)\s*:.*$", text, re.M))))


def build(name, folder):
    """Path of the shared library made of the C files of `folder`, built once a content. RuntimeError with the compiler's words if it does not build."""
    files = sorted((cache.HERE / folder).glob("*.[ch]"))
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        raise RuntimeError("the simulator needs a C compiler: none of $CC, gcc, cc is there; e.g. apt-get install gcc")
    digest = hashlib.sha256("\0".join([compiler, _machine(), *FLAGS]).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    path = cache.folder() / f"{name}.{digest.hexdigest()[:16]}.so"

    def compile_to(out):
        sources = [str(f) for f in files if f.suffix == ".c"]
        done = subprocess.run([*compiler.split(), *FLAGS, "-o", str(out), *sources, "-lm"], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"tests/ptxsim/{folder} does not build:\n{done.stderr}")
    if not path.exists():
        cache.replace(path, compile_to)
    return path


@functools.cache
def load():
    """The interpreter's core as a ctypes library."""
    library = C.CDLL(str(build("core", "core")))
    library.sim_shared_bytes.restype = C.c_size_t
    if library.sim_shared_bytes() != C.sizeof(Sim):
        raise RuntimeError(f"native.Sim has {C.sizeof(Sim)} bytes, struct Sim {library.sim_shared_bytes()}: their fields differ")
    return library
