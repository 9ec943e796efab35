"""The parameters of an op's kernels, from its spec: a pointer for each buffer, then an int32 for each scalar, in the
spec's order.

The kernels, the manifest (and through it the launcher) and the simulator all read the order, the types and the
alignments from here.
"""

import dataclasses
import functools

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.runtime import make_ptr

from ...specs.spec import Cases, OpSpec

_ELEMENTS = {
    "uint8": cutlass.Uint8,
    "int32": cutlass.Int32,
    "float32": cutlass.Float32,
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "float8_e4m3fn": cutlass.Float8E4M3FN,
}


@functools.cache
def args_of(spec: OpSpec) -> type:
    """The dataclass that a kernel of the op gets, named after it: `BlockScoresArgs` of "block_scores".

    A buffer whose dtype depends on an attribute is a pointer to bytes: one kernel may serve several dtypes.
    """
    name = "".join(word.capitalize() for word in spec.name.split("_")) + "Args"
    fields = [(buffer.name, cute.Pointer) for buffer in spec.buffers] + [(scalar, Int32) for scalar in spec.scalars]
    return dataclasses.make_dataclass(name, fields, frozen=True)


def example_args(spec: OpSpec):
    """Arguments to compile with: the types and alignments of the spec, without memory."""
    pointers = {
        buffer.name: make_ptr(_element(buffer.dtype), 0, cute.AddressSpace.gmem, assumed_align=buffer.align)
        for buffer in spec.buffers
    }
    return args_of(spec)(**pointers, **{scalar: Int32(1) for scalar in spec.scalars})


def params_of(spec: OpSpec) -> list[dict[str, str]]:
    """The manifest's `params` list of a kernel that takes `args_of(spec)` alone."""
    return [{"buffer": buffer.name} for buffer in spec.buffers] + [{"i32": scalar} for scalar in spec.scalars]


def alignments_of(spec: OpSpec) -> dict[str, int]:
    """{buffer: bytes that its address is a multiple of}."""
    return {buffer.name: buffer.align for buffer in spec.buffers}


def _element(dtype: str | Cases) -> type:
    """The DSL's type of a buffer's elements."""
    return cutlass.Uint8 if isinstance(dtype, Cases) else _ELEMENTS[dtype]
