"""The launch that the host function of a compiled kernel makes: grid, block, and the bytes of every parameter, tensor maps included, as it builds them.

A host object of the DSL needs nothing but the calls of its runtime library; linked with shim.c it tells what it would launch.
"""

import ctypes as C
import dataclasses
import os
import re
import subprocess

from ptxsim import cache

CLUSTER = 4  # number of the launch attribute
ATTRIBUTE_BYTES = 72


class _Config(C.Structure):
    _fields_ = [
        ("grid", C.c_uint32 * 3),
        ("block", C.c_uint32 * 3),
        ("shared", C.c_uint64),
        ("stream", C.c_void_p),
        ("attributes", C.c_void_p),
        ("count", C.c_uint32),
    ]


@dataclasses.dataclass
class Launch:
    grid: tuple
    block: tuple
    dynamic_shared_bytes: int
    cluster: tuple
    params: list  # bytes of each


def link(path):
    """Path of the shared library made of the host object at `path` and the shim."""
    library = path.with_suffix(".so")
    if not library.is_file() or library.stat().st_mtime < path.stat().st_mtime:

        def build(to):
            # -Bsymbolic: else the DSL's own runtime library answers, where it is loaded
            done = subprocess.run(
                [
                    os.environ.get("CC", "gcc"),
                    "-shared",
                    "-fPIC",
                    "-O1",
                    "-Wl,-Bsymbolic",
                    "-o",
                    str(to),
                    str(cache.HERE / "anchors" / "shim.c"),
                    str(path),
                    "-lm",
                ],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise RuntimeError(f"{path.name} does not link with the shim:\n{done.stderr}")

        cache.replace(library, build)
    return library


def capture(path, sizes, arguments):
    """Call the host function in the object at `path` with ctypes values; `sizes` are those of the kernel's parameters. Returns the Launch that it made."""
    library, found = C.CDLL(str(link(path))), []
    names = re.findall(
        r" T (_mlir_\w*?_mlir_ciface_\w+)",
        subprocess.run(
            ["nm", "-D", "--defined-only", str(link(path))], capture_output=True, text=True, check=True
        ).stdout,
    )
    if len(names) != 1:
        raise RuntimeError(f"{path.name}: one host function expected, found {names}")

    @C.CFUNCTYPE(C.c_int, C.POINTER(_Config), C.c_void_p, C.POINTER(C.c_void_p))
    def launched(config, _, params):
        c, cluster = config.contents, (1, 1, 1)
        for i in range(c.count):
            raw = C.string_at(c.attributes + ATTRIBUTE_BYTES * i, 20)
            if int.from_bytes(raw[:4], "little") == CLUSTER:
                cluster = tuple(int.from_bytes(raw[8 + 4 * j : 12 + 4 * j], "little") for j in range(3))
        found.append(
            Launch(
                tuple(c.grid),
                tuple(c.block),
                c.shared,
                cluster,
                [C.string_at(params[i], n) for i, n in enumerate(sizes)],
            )
        )
        return 0

    library.set_launch(launched)
    answer = C.c_int32(-1)
    values = [*arguments, answer]
    getattr(library, names[0])((C.c_void_p * len(values))(*(C.addressof(v) for v in values)))
    if answer.value or len(found) != 1:
        raise RuntimeError(f"{path.name}: the host function answers {answer.value} after {len(found)} launches")
    return found[0]
