"""The FFI library and its cubins: finding, loading, registering with JAX, and whether this machine's GPU has kernels.

Nothing happens at import. The library is loaded when a CUDA program is about to be compiled where a CUDA backend
exists, when `unsupported_reason` is called on a GPU, or by `register()`; a program for CUDA can be lowered without it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import re
import struct
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.export

from ..specs import OPS
from . import sharding

LIBRARY = "libjax_fp4_indexer_ffi.so"
STATE = "jax_fp4_indexer.OpState"  # the type of the handler's state
TARGETS = tuple(op.target for op in OPS.values())

REINSTALL = (
    "reinstall jax_fp4_indexer (pip install --force-reinstall --no-deps jax-fp4-indexer), "
    'or pass implementation="reference"'
)
_lock = threading.RLock()
_state: dict[str, Any] = {}  # "library": the loaded CDLL; "registered": platforms done


def find(name: str, roots: Sequence[Any] | None = None) -> pathlib.Path | None:
    """The first `<root>/<name>` that exists, or None. Roots are the package's folders: an editable install has two,
    sources and built files."""
    if roots is None:
        import jax_fp4_indexer

        roots = jax_fp4_indexer.__path__
    return next((p for p in (pathlib.Path(root) / name for root in roots) if p.exists()), None)


def runtime_api_version() -> int:
    """1000 * major + minor of the FFI API that the installed jaxlib serves. JAX says it nowhere but in its headers."""
    return api_version(jax.ffi.include_dir())


def api_version(include_dir: str) -> int:
    """The same of the headers in a folder."""
    header = pathlib.Path(include_dir, "xla", "ffi", "api", "c_api.h").read_text()
    numbers = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    return 1000 * int(numbers["MAJOR"]) + int(numbers["MINOR"])


def check_version(built: int, runtime: int) -> None:
    """Raises ImportError if a library built against FFI API `built` cannot serve a jaxlib of API `runtime`.

    A runtime refuses newer handlers, and does so with an error about an unregistered target: say it before.
    """
    if built > runtime:
        dotted = "{}.{}".format
        raise ImportError(
            f"jax_fp4_indexer: {LIBRARY} was built for XLA FFI API {dotted(*divmod(built, 1000))}, "
            f"but jaxlib {jax.lib.__version__} serves "
            f"{dotted(*divmod(runtime, 1000))}; upgrade jax and jaxlib, or build jax_fp4_indexer with this jaxlib's headers."
        )


def load(roots: Sequence[Any] | None = None) -> ctypes.CDLL:
    """The library, loaded once a process. Raises ImportError, with a remedy, if it or its cubins are missing or it is
    too new for jaxlib."""
    with _lock:
        if "library" in _state:
            return _state["library"]
        path, manifest = find(f"_lib/{LIBRARY}", roots), find("cubins/manifest.json", roots)
        if path is None:
            raise ImportError(f"jax_fp4_indexer: {LIBRARY} is not in this installation; {REINSTALL}.")
        if manifest is None:
            raise ImportError(
                "jax_fp4_indexer: cubins/manifest.json is not in this installation; build the cubins "
                f"(python -m jax_fp4_indexer.aot build), or {REINSTALL}."
            )
        try:
            _refuse_truncated(path)
            library = ctypes.CDLL(str(path))
            library.jfi_ffi_api_version, library.jfi_set_cubin_dir
        except (OSError, AttributeError) as e:
            raise ImportError(f"jax_fp4_indexer: {path} does not load ({e}); {REINSTALL}.") from e
        check_version(library.jfi_ffi_api_version(), runtime_api_version())
        _declare(library)
        refused = library.jfi_set_cubin_dir(os.fsencode(manifest.parent))
        if refused is not None:
            raise ImportError(os.fsdecode(refused))
        _state["library"] = library
        return library


def _refuse_truncated(path: pathlib.Path) -> None:
    """OSError for an ELF file that ends before what it says it holds: the loader maps it all the same, and the process
    dies of SIGBUS."""
    with open(path, "rb") as file:
        head, size = file.read(64), path.stat().st_size
        if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
            return  # the loader says what is wrong with it
        offset, sections = struct.unpack_from("<QQ", head, 32)
        entry, count, section, section_count = struct.unpack_from("<HHHH", head, 54)
        file.seek(offset)
        table = file.read(entry * count)
    ends = (
        [sum(struct.unpack_from("<Q16xQ", table, i + 8)) for i in range(0, len(table) - entry + 1, entry)]
        if entry >= 56
        else []
    )
    if len(ends) < count or max([*ends, sections + section * section_count]) > size:
        raise OSError(f"{path}: {size} bytes are not the whole file")


def _declare(library: ctypes.CDLL) -> None:
    library.jfi_set_cubin_dir.restype, library.jfi_set_cubin_dir.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    library.jfi_choose_variant.argtypes = (
        [ctypes.c_char_p] * 3 + [ctypes.c_int] * 2 + [ctypes.c_longlong, ctypes.c_char_p, ctypes.c_size_t]
    )
    library.jfi_executions.restype, library.jfi_executions.argtypes = ctypes.c_int64, [ctypes.c_char_p]
    library.jfi_state_type_id.restype = library.jfi_state_type_info.restype = ctypes.c_void_p


def register(platform: str = "CUDA", library: Any = None) -> None:
    """Registers the FFI targets with JAX, once. Raises ImportError as `load` does, and where another copy of this
    package has registered its own.

    Lowering a program for a CUDA backend of this process does it by itself. A process that only runs programs exported
    elsewhere calls it first. It may come before or after JAX has found its devices. `platform` (of XLA) and `library`
    (a loaded CDLL; None: the package's) have other values in tests only, which register the handlers of a stand-in
    driver on the host.
    """
    with _lock:
        done = _state.setdefault("registered", set())
        if platform in done:
            return
        library = library or load()
        _refuse_second_copy(platform, library)
        capsule = jax.ffi.pycapsule
        # JAX wants the type of a handler's state before the handler.
        jax.ffi.register_ffi_type(
            STATE,
            {"type_id": capsule(library.jfi_state_type_id()), "type_info": capsule(library.jfi_state_type_info())},
            platform=platform,
        )
        for target in TARGETS:  # one handler serves every op: the call says which it is
            jax.ffi.register_ffi_target(
                target,
                {
                    "instantiate": capsule(library.jfi_instantiate),
                    "prepare": capsule(library.jfi_prepare),
                    "execute": capsule(library.jfi_execute),
                },
                platform=platform,
            )
            sharding.register(target, platform)
        done.add(platform)


def _refuse_second_copy(platform: str, library: Any) -> None:
    """XLA knows a handler by its name. A second library under the same names is an error there, which before JAX has
    found its devices costs the whole backend."""
    path = getattr(library, "_name", None)
    # Kept where it outlives this module: a copy of the package is a module of its own.
    owner = jax.ffi.__dict__.setdefault("_jax_fp4_indexer_registered", {}).setdefault(platform, path)
    if owner != path and None not in (owner, path):
        raise ImportError(
            f"jax_fp4_indexer: {owner} serves this process already, {path} would be a second copy; "
            "keep one installation of jax_fp4_indexer "
            "on sys.path, and start a new process."
        )


def register_if_cuda() -> None:
    """Called while a program is lowered for CUDA: registers where this process has a CUDA backend; elsewhere the
    program can only be looked at or exported, and needs no library."""
    try:
        jax.devices("cuda")
    except RuntimeError:
        return
    register()


def choose_variant(
    capability: tuple[int, int], op: str, *, implementation: str = "auto", bound: int = 1, **select: str
) -> tuple[str, str, list[str]]:
    """What the handler would run for `op` (a name of `specs.OPS`) on a GPU of compute capability (major, minor):
    ("sm_90a", "native", [kernel names]).

    `select`: values of choices that the op's spec selects kernels by; one that is left out may have any value. `bound`:
    the value of the spec's `bound` for the call. Raises LookupError, with what is shipped and a remedy, if there is no
    such kernel, ImportError if there is no library. Needs no GPU.
    """
    text = ctypes.create_string_buffer(4096)
    chosen = ";".join(f"{name}={value}" for name, value in select.items())
    if (
        load().jfi_choose_variant(
            op.encode(), chosen.encode(), implementation.encode(), *capability, bound, text, len(text)
        )
        != 0
    ):
        raise LookupError(text.value.decode())
    arch, kind, *kernels = text.value.decode().split()
    return arch, kind, kernels


def capability_of(device: Any) -> tuple[int, int] | None:
    """(major, minor) of a CUDA device of JAX, None for any other device."""
    match = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
    return (int(match[1]), int(match[2])) if match else None


def executions(op: str) -> int:
    """How often XLA has run the handler's execute stage for `op` in this process: once a call, except where it replays
    a captured graph.

    Loads the library.
    """
    return load().jfi_executions(op.encode())


def unsupported_reason(op: str) -> str | None:
    """One sentence that says why no kernel of `op` can run on the default backend's GPU, and what to do; None if one
    can, or if there is no CUDA GPU.

    Where there is no CUDA GPU the reference runs, which is nothing to report.
    """
    if jax.default_backend() != "gpu":
        return None
    capability = capability_of(jax.local_devices()[0])
    return None if capability is None else _unsupported(capability, op)


@functools.lru_cache(maxsize=None)
def _unsupported(capability: tuple[int, int], op: str) -> str | None:
    try:
        choose_variant(capability, op)
    except (LookupError, ImportError) as e:
        return _sentence(str(e))
    return None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def export_disabled_checks() -> tuple[jax.export.DisabledSafetyCheck, ...]:
    """For `jax.export.export(..., disabled_checks=...)`: JAX refuses to serialise custom calls whose stability is not
    guaranteed.

    This package guarantees it: what a target's operands and attributes mean never changes; a change is a new target.
    The process that runs such an artifact on a GPU calls `register()` first.
    To serialise an artifact and to load it, `jax.export` needs the package flatbuffers (pip install flatbuffers).
    """
    return tuple(jax.export.DisabledSafetyCheck.custom_call(target) for target in TARGETS)
