"""Operands whose memory starts anywhere: buffers of other programs, passed through DLPack.

    PYTHONPATH=.:tests python -m fuzz.alignment

JAX may copy such a buffer into memory of its own; where it does not, the handler looks at the address. Either way a call gives the right
scores or an error that names the operand, and the next call is right.
"""

import ctypes as C
import re
import sys

import jax
import numpy as np

from . import cases, expected, shapes
from .programs import Program

OFFSETS = (4, 16, 32, 64)  # bytes past an aligned address
CPU, CUDA = 1, 2  # DLPack's device types


class _Tensor(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("device_type", C.c_int32),
        ("device_id", C.c_int32),
        ("ndim", C.c_int32),
        ("code", C.c_uint8),
        ("bits", C.c_uint8),
        ("lanes", C.c_uint16),
        ("shape", C.POINTER(C.c_int64)),
        ("strides", C.c_void_p),
        ("byte_offset", C.c_uint64),
    ]


_Deleter = C.CFUNCTYPE(None, C.c_void_p)


class _Managed(C.Structure):
    _fields_ = [("tensor", _Tensor), ("context", C.c_void_p), ("deleter", _Deleter)]


_capsule = C.PyDLL(None).PyCapsule_New  # not pythonapi's: others set its argument types
_capsule.restype, _capsule.argtypes = C.py_object, [C.c_void_p, C.c_char_p, C.c_void_p]
_nothing = _Deleter(lambda _: None)
_kept = []  # whatever a consumer may still look at


class Shifted:
    """A DLPack producer: the bytes of `array` in memory that starts `offset` bytes past where an allocation does."""

    def __init__(self, array, offset):
        self.array = np.ascontiguousarray(array)
        padded = np.zeros(-(-(self.array.nbytes + offset) // 256) * 256 + 256, np.uint8)
        if jax.default_backend() == "gpu":
            padded[offset : offset + self.array.nbytes] = self.array.reshape(-1).view(np.uint8)
            self.memory = jax.block_until_ready(jax.device_put(padded))
            self.device, self.address = (CUDA, 0), self.memory.unsafe_buffer_pointer() + offset
        else:
            start = -padded.ctypes.data % 128 + offset
            padded[start : start + self.array.nbytes] = self.array.reshape(-1).view(np.uint8)
            self.memory, self.device, self.address = padded, (CPU, 0), padded.ctypes.data + start

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        shape = (C.c_int64 * self.array.ndim)(*self.array.shape)
        code = {"u": 1, "i": 0, "f": 2}[self.array.dtype.kind]
        managed = _Managed(
            _Tensor(self.address, *self.device, self.array.ndim, code, self.array.itemsize * 8, 1, shape, None, 0),
            None,
            _nothing,
        )
        _kept.append((managed, shape, self.memory))
        return _capsule(C.addressof(managed), b"dltensor", None)


def run(implementations, seed=1):
    """(what, outcome, problem or "") of every operand at every offset. Outcomes: shared (the shifted memory itself), copied, refused by jax, by XLA, by the op."""
    bucket = shapes.buckets("decode_8_2-nvfp4-mask2")[0]
    case = cases.make(seed, 0, [bucket], cases.Pools(seed))
    truth = expected.expect(case.pool, case.metadata)
    for name in implementations:
        program = Program(bucket, case.pool, [name])
        right = program(case.pool, case.metadata)[name]
        yield f"{name} aligned", "shared", expected.judge(right, case.pool, truth)
        arrays, scales = program._split(case.pool.inp)
        arrays = arrays | case.metadata.arrays()
        layout = bucket.layout(name)
        operands = arrays | dict(zip(("q_scale", "k_scale"), scales[layout]))
        for operand, array in operands.items():
            for offset in OFFSETS:
                if offset % array.itemsize:
                    continue
                outcome, problem = _one(program, case, truth, name, layout, operands, operand, Shifted(array, offset))
                again = expected.judge(program(case.pool, case.metadata)[name], case.pool, truth)
                yield f"{name} {operand} + {offset}", outcome, problem or (again and f"the next call: {again}")


def _one(program, case, truth, name, layout, operands, operand, shifted):
    try:
        array = jax.dlpack.from_dlpack(shifted)
    except Exception as error:  # its own rules; it says so, and nothing was passed on
        return f"refused by jax: {str(error).splitlines()[0][:120]}", ""
    outcome = "shared" if array.unsafe_buffer_pointer() == shifted.address else "copied"
    given = {n: jax.device_put(x) for n, x in operands.items()} | {operand: array}
    scales = {layout: (given.pop("q_scale"), given.pop("k_scale"))}
    try:
        outs = program.compiled(given, scales, program.poison())
        out = np.asarray(jax.device_get(outs)[0])
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        if re.search(
            r"Address of buffer \d+ must be a multiple of", text
        ):  # XLA looks before it starts anything, at the arguments of some programs
            return "refused by XLA", ""
        named = "past a multiple of" in text and "INVALID_ARGUMENT" in text
        return "refused by the op", "" if named else f"the error is not about alignment: {text[:300]}"
    return outcome, expected.judge(out, case.pool, truth)


def main():
    from support.calls import IMPLEMENTATIONS

    bad, outcomes = 0, {}
    for what, outcome, problem in run(IMPLEMENTATIONS if jax.default_backend() == "gpu" else ["reference"]):
        outcomes.setdefault(outcome, []).append(what)
        bad += bool(problem)
        if problem:
            print(f"FAIL {what}: {problem}")
    for outcome, those in outcomes.items():
        print(f"{outcome}: {len(those)}, e.g. {those[0]}")
    print(f"{bad} failures")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
