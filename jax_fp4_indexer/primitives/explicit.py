"""Meshes with Explicit axes: the types of the operands say how they are split. The call becomes a `shard_map` over
those axes, without communication.

The sizes that `splits.may_split` names may be split; the result is split alike. Anything else is an error that names
the operand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ..errors import message
from ..specs.spec import Choice
from . import splits

if TYPE_CHECKING:
    from .kernel_call import KernelCall


def over_explicit_axes(
    call: KernelCall, operands: Sequence[jax.Array], static: Any, implementation: str
) -> jax.Array | None:
    """The result of the call, or None if no operand is split over an Explicit axis."""
    shardings = [jax.typeof(x).sharding for x in operands]
    split = [s for s in shardings if any(_names(axis) for axis in s.spec)]
    if not split:
        return None
    spec, mesh, choices = call.spec, split[0].mesh, call.choices(static)
    sizes = spec.bind(choices, [x.shape for x in operands])
    over = {}  # size -> mesh axes
    for size in spec.split:
        operand, axis = splits.first_axis(spec, size, choices)
        over[size] = _names(shardings[operand].spec[axis]) if axis < len(shardings[operand].spec) else ()
    for many, few in splits.multiples(spec).items():
        _check_multiples(call, choices, mesh, (many, over[many]), (few, over[few]), sizes[few])
    for size in spec.split:
        if over[size] and size not in splits.may_split(spec, call.cuts, choices):
            raise TypeError(_not_split(call, size, over[size], choices))

    want = {b.name: _partition_spec(over, splits.axes(spec, b, choices)) for b in spec.operands}
    given = dict(zip(spec.operand_names, operands, strict=True))
    for name in call.reshard:  # a few numbers, often made by the op itself
        given[name] = jax.sharding.reshard(given[name], NamedSharding(mesh, want[name]))
    for name, x in given.items():
        got = tuple(map(_names, jax.typeof(x).sharding.spec))
        if got != tuple(map(_names, want[name])) + ((),) * (x.ndim - len(want[name])):
            raise TypeError(
                message(
                    spec.api,
                    name,
                    f"sharding {jax.typeof(x).sharding.spec} over explicit mesh axes",
                    f"{want[name]}, as the other operands are split",
                    f"Reshard it (jax.sharding.reshard(x, {want[name]})), or call the op inside jax.shard_map: docs/sharding.md.",
                )
            )

    def local(*operands: jax.Array) -> jax.Array:
        own, changed = dict(zip(spec.operand_names, operands, strict=True)), {}
        for cut in call.cuts:
            if over[cut.size]:
                operand, axis = splits.first_axis(spec, cut.size, choices)
                first = lax.axis_index(over[cut.size]) * operands[operand].shape[axis]
                replaced, attributes = cut.apply(own, {**call.attributes(static), **changed}, first)
                own |= replaced
                changed |= attributes
        return call.bind(
            tuple(own.values()), static=dataclasses.replace(static, **changed), implementation=implementation
        )

    manual = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    out = _partition_spec(over, splits.axes(spec, spec.results[0], choices))
    return jax.shard_map(local, mesh=mesh, in_specs=tuple(want.values()), out_specs=out, axis_names=manual)(
        *given.values()
    )


def _names(axis: Any) -> tuple[str, ...]:
    """Mesh axes of one entry of a PartitionSpec."""
    return () if axis is None else axis if isinstance(axis, tuple) else (axis,)


def _partition_spec(over: Mapping[str, tuple[str, ...]], axes: Sequence[str | None]) -> P:
    """The PartitionSpec of a buffer whose axes are the sizes `axes`, without trailing None."""
    entries = [over.get(size) or None for size in axes]
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def _check_multiples(
    call: KernelCall,
    choices: Mapping[str, Any],
    mesh: Any,
    many: tuple[str, tuple[str, ...]],
    few: tuple[str, tuple[str, ...]],
    count: int,
) -> None:
    """A device's part of `many` must belong to its part of `few`: its query heads to its KV heads."""
    alone = math.prod(mesh.shape[name] for name in few[1]) == count
    if many[1] == few[1] or (alone and many[1][: len(few[1])] == few[1]):
        return
    operand, _ = splits.first_axis(call.spec, few[0], choices)
    raise TypeError(
        message(
            call.spec.api,
            call.spec.operand_names[operand],
            f"{count} {few[0]} split over {few[1]}, {many[0]} split over {many[1]}",
            f"{many[0]} and {few[0]} split over the same mesh axes",
            f"Reshard all operands that have {few[0]} (jax.sharding.reshard), or store them split. {many[0]} may be split further only where "
            f"one of {few[0]} is left on a device.",
        )
    )


def _not_split(call: KernelCall, size: str, over: tuple[str, ...], choices: Mapping[str, Any]) -> str:
    operand, _ = splits.first_axis(call.spec, size, choices)
    remedies = [
        f"pass {a.name}={value!r}"
        for a in call.spec.attributes
        if isinstance(a, Choice)
        for value in a.values
        if size in splits.may_split(call.spec, call.cuts, {**choices, a.name: value})
    ]
    given = ", ".join(f"{name}={value!r}" for name, value in choices.items())
    name = call.spec.operand_names[operand]
    return message(
        call.spec.api,
        name,
        f"{size} split over {over} with {given}",
        f"all {size} on every device",
        " or ".join([f"Reshard {name} (jax.sharding.reshard)", *remedies]) + ".",
    )
