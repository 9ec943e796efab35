"""Launches probes on a GPU through its driver alone."""

import ctypes as C
import os
import subprocess
import sys

import numpy as np

from ptxsim import tensor_map

_LOG = 8192


class CardError(RuntimeError):
    """The driver's answer to a call: its name and number."""


class Card:
    def __init__(self):
        self.cuda = C.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, self.context, name, major = C.c_int(), C.c_void_p(), C.create_string_buffer(100), C.c_int()
        self("cuDeviceGet", C.byref(device), 0)
        self("cuDeviceGetName", name, 100, device)
        self("cuDeviceGetAttribute", C.byref(major), 75, device)
        self.name = name.value.decode()
        if major.value != 9:
            raise CardError(
                f"{self.name} has compute capability {major.value}.x; the probes are sm_90a PTX and need 9.0"
            )
        self("cuDevicePrimaryCtxRetain", C.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)

    def __call__(self, function, *args):
        code = getattr(self.cuda, function)(*args)
        if code:
            text = C.c_char_p()
            self.cuda.cuGetErrorName(code, C.byref(text))
            raise CardError(f"{function}: {(text.value or b'?').decode()} ({code})")

    def _function(self, ptx):
        module, function, log = C.c_void_p(), C.c_void_p(), C.create_string_buffer(_LOG)
        options, values = (C.c_int * 2)(5, 6), (C.c_void_p * 2)(C.addressof(log), _LOG)  # error log and its size
        try:
            self("cuModuleLoadDataEx", C.byref(module), ptx.encode() + b"\0", 2, options, values)
        except CardError as e:
            raise CardError(f"{e}: {log.value.decode(errors='replace')}") from None
        self("cuModuleGetFunction", C.byref(function), module, b"probe")
        return module, function

    def run(self, launch):
        """uint32 [launch.words]. CardError if the kernel faults; the process can launch nothing after that."""
        module, function = self._function(launch.ptx)
        out = np.full(launch.words, launch.fill, np.uint32)
        addresses = []
        for array in (launch.data, out):
            address = C.c_uint64()
            self("cuMemAlloc_v2", C.byref(address), C.c_size_t(max(array.nbytes, 16)))
            self("cuMemcpyHtoD_v2", address, array.ctypes.data_as(C.c_void_p), C.c_size_t(array.nbytes))
            addresses.append(address)
        params = [C.cast(C.byref(a), C.c_void_p) for a in addresses]
        if launch.map:
            raw = tensor_map.encode(launch.map, {}, addresses[launch.map["buffer"] == "out"].value, driver=self.cuda)
            room = C.create_string_buffer(256)
            at = (C.addressof(room) + 127) & -128
            C.memmove(at, raw, 128)
            params.append(C.c_void_p(at))
        self(
            "cuLaunchKernel",
            function,
            launch.grid,
            1,
            1,
            launch.threads,
            1,
            1,
            0,
            None,
            (C.c_void_p * len(params))(*params),
            None,
        )
        self("cuCtxSynchronize")
        self("cuMemcpyDtoH_v2", out.ctypes.data_as(C.c_void_p), addresses[1], C.c_size_t(out.nbytes))
        for address in addresses:
            self("cuMemFree_v2", address)
        self("cuModuleUnload", module)
        return out


def run_all(launches, seconds=20):
    """{name: words, or the text of what went wrong}. Launches that may fault or hang have a process each, all at a time; the others share this one."""
    command = [sys.executable, "-m", "ptxsim.probes", "one"]
    started = {
        x.name: subprocess.Popen(
            [*command, x.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
        )
        for x in launches
        if x.alone
    }
    found, card = {}, Card()
    print(card.name, flush=True)
    for x in launches:
        if x.alone:
            continue
        try:
            found[x.name] = card.run(x)
        except (CardError, ValueError) as e:
            found[x.name] = str(e)
            print(x.name, e, flush=True)
    for name, process in started.items():
        try:
            out, problem = process.communicate(timeout=seconds)
            found[name] = (
                np.frombuffer(out, np.uint32)
                if process.returncode == 0
                else problem.decode(errors="replace").strip().splitlines()[-1]
            )
        except subprocess.TimeoutExpired:
            process.kill()
            found[name] = f"no answer in {seconds} s"
    return found
