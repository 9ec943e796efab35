"""Which sizes of an op may be split over the devices of a mesh, and where they are in its operands and results: read
off the spec.

A size of `spec.split` may be split if it is an axis of its own in every operand that has it. An op whose operands have
it in another way (in a product, in a number of tiles, or in prefix sums over it) says with a `Cut` how a
device makes its own operands out of whole ones.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..specs import OpSpec
from ..specs.expr import Expr
from ..specs.spec import Buffer

Operands = dict[str, jax.Array]
Apply = Callable[[Operands, Mapping[str, Any], Any], tuple[Operands, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Cut:
    """What a device does to operands that it gets whole when a size is split.

    size      the split size
    apply     (operands of the device by name, attributes of the whole call by name, first) -> (operands to replace,
              attributes to replace), where the device has `size` from `first` (an int32 scalar) on
    operands  operands in which `size` is not an axis of its own, and which `apply` replaces where that is so
    """

    size: str
    apply: Apply
    operands: tuple[str, ...] = ()


def name_of(dim: Expr) -> str | None:
    """The size that `dim` is alone, or None."""
    return dim.args[0] if dim.op == "size" else None


def axes(spec: OpSpec, buffer: Buffer, choices: Mapping[str, Any]) -> tuple[str | None, ...]:
    """For each axis of a buffer the size of `spec.split` that it is, or None."""
    names = map(name_of, buffer.shape_of(choices))
    return tuple(name if name in spec.split else None for name in names)


def first_axis(spec: OpSpec, size: str, choices: Mapping[str, Any]) -> tuple[int, int]:
    """(operand, axis) that says how `size` is split."""
    return next(
        (i, axis)
        for i, operand in enumerate(spec.operands)
        for axis, name in enumerate(axes(spec, operand, choices))
        if name == size
    )


def may_split(spec: OpSpec, cuts: tuple[Cut, ...], choices: Mapping[str, Any]) -> tuple[str, ...]:
    """The sizes of `spec.split` that may be split with these choices, in the order of the spec."""
    handled = {(cut.size, name) for cut in cuts for name in cut.operands}

    def free(size: str) -> bool:
        return all(
            name_of(dim) == size or size not in dim.names() or (size, operand.name) in handled
            for operand in spec.operands
            for dim in operand.shape_of(choices)
        )

    return tuple(size for size in spec.split if free(size))


@functools.cache
def multiples(spec: OpSpec) -> dict[str, str]:
    """{many: few} for sizes of which one is a multiple of the other, as a condition of the spec says: query heads and
    KV heads."""
    pairs = [tuple(map(name_of, c.zero.args)) for c in spec.conditions if c.zero.op == "%"]
    return {many: few for many, few in pairs if many in spec.split and few in spec.split}
