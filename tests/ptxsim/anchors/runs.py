"""Compiles the kernels of the wheel and runs one in the simulator over a problem."""

import ctypes as C
import functools
import hashlib
import json
import os
import subprocess
import sys

from ptxsim import cache
from ptxsim.decode import Program
from ptxsim.launch import Memory, run

from . import capture, wheels

WORKER = cache.HERE / "anchors" / "worker.py"
SCALAR_ALIGNED = (
    "table",
    "lens",
    "starts",
    "prefix",
    "alpha",
    "global_scale",
)  # the kernels ask no more than 4 bytes of these


def _dsl():
    from importlib.metadata import version

    return version("nvidia-cutlass-dsl")


@functools.cache
def compiled(jobs):
    """`jobs`: JSON of a list. Folder with <name>.ptx and <name>.o of each, compiled in one process if they are not there."""
    folder = wheels.unpacked()
    out = (
        wheels.FOLDER
        / hashlib.sha256("\0".join([jobs, _dsl(), wheels.SHA256, WORKER.read_text()]).encode()).hexdigest()[:16]
    )
    out.mkdir(exist_ok=True)
    missing = {}
    for job in json.loads(jobs):
        if not (out / f"{job['name']}.ptx").is_file():
            missing.setdefault(job["arch"], []).append(job)
    for arch, of_arch in missing.items():
        done = subprocess.run(
            [sys.executable, str(WORKER), str(folder), str(out), arch],
            input=json.dumps(of_arch),
            capture_output=True,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        if done.returncode:
            raise RuntimeError(f"a kernel of the wheel does not compile:\n{done.stderr[-3000:]}")
    return out


class Kernel:
    def __init__(self, folder, name, edit=lambda ptx: ptx):
        """`edit`: what to change in the PTX before it runs."""
        self.object, self.program = folder / f"{name}.o", Program(edit((folder / f"{name}.ptx").read_text()))

    def __call__(self, problem, **how):
        """Runs on the problem's buffers, in place. Returns the Result; SimError as ptxsim.launch.run."""
        memory = Memory()
        arguments = [
            C.c_void_p(memory.add(name, array, 4 if name in SCALAR_ALIGNED else 128, write=write))
            for name, array, write in problem.buffers
        ]
        launch = capture.capture(
            self.object, [size for _, size in self.program.params], [*arguments, *problem.scalars, C.c_void_p(0)]
        )
        return run(
            self.program,
            memory,
            launch.params,
            launch.grid,
            launch.block,
            launch.dynamic_shared_bytes,
            launch.cluster,
            **how,
        )
