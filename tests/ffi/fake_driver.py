"""The stand-in driver of ffi/tests/fake_libcuda.c, from Python: what it recorded of launches, and what it shall report."""

import ctypes

MAX_PARAMS, PARAM_BYTES = 32, 128


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("num_attributes", ctypes.c_uint),
        ("cluster", ctypes.c_uint * 3),
        ("attribute_id", ctypes.c_int),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("params", (ctypes.c_ubyte * PARAM_BYTES) * MAX_PARAMS),
    ]


class FakeDriver:
    def __init__(self, path):
        self.path = str(path)
        self._so = ctypes.CDLL(self.path)
        self._so.fake_launch.restype = ctypes.POINTER(_Launch)
        self._so.fake_symbol_of.restype, self._so.fake_symbol_of.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        self._so.fake_fail.argtypes = [ctypes.c_char_p, ctypes.c_int]
        self._sizes = []

    def device(self, ordinal, capability, multiprocessors=132):
        self._so.fake_set_device(ordinal, *capability, multiprocessors)

    def fail(self, call, code):
        self._so.fake_fail(call.encode(), code)

    def param_sizes(self, sizes):
        """Sizes of the kernels' parameters, which the real driver has from the cubin."""
        self._sizes = list(sizes)
        self._so.fake_param_sizes((ctypes.c_int * len(sizes))(*sizes), len(sizes))

    def forget_launches(self):
        """Kernels stay loaded."""
        self._so.fake_forget_launches()

    def launches(self):
        """[(symbol, grid, device, [parameter as int])] since the last forget_launches."""
        out = []
        for i in range(self._so.fake_num_launches()):
            launch = self._so.fake_launch(i).contents
            params = [int.from_bytes(bytes(p)[:n], "little", signed=True) for p, n in zip(launch.params, self._sizes)]
            out.append((self._so.fake_symbol_of(launch.kernel).decode(), tuple(launch.grid), launch.device, params))
        return out
