"""What an op's custom call is, as data: operands, results, attributes, sizes. Every layer reads it, none restates it.

Readers: the primitive (abstract evaluation, attributes, sharding rule), the kernels (argument dataclass, parameter list), the manifest
and through it the C++ handler (shape checks, scalars, scratch, passes), the stand-in driver of the tests, the operand tables of the docs.

A size has a name. The first buffer (operands, then results) in whose shape it stands alone, or as "name + constant", sets its value;
everywhere else it is checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from . import expr
from .expr import Expr

DTYPES = ("uint8", "int32", "float32", "float16", "bfloat16", "float8_e4m3fn")
PREFIX = "jax_fp4_indexer"
IMPLEMENTATIONS = (
    "auto",
    "portable",
)  # the attribute that every call has; "auto" takes native kernels before portable ones


@dataclasses.dataclass(frozen=True)
class Cases:
    """A value that depends on the choice made for attribute `by`."""

    by: str
    cases: tuple[tuple[str, Any], ...]

    def of(self, choices: Mapping[str, Any]) -> Any:
        return dict(self.cases)[choices[self.by]]


def cases(by: str, **values: Any) -> Cases:
    return Cases(by, tuple((key, _shape(v) if isinstance(v, (list, tuple)) else v) for key, v in values.items()))


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An operand or a result. `align`: bytes that the address is a multiple of; the handler checks it, kernels rely on it."""

    name: str
    dtype: str | Cases
    shape: tuple[Expr, ...] | Cases
    align: int

    def dtype_of(self, choices: Mapping[str, Any]) -> str:
        return self.dtype.of(choices) if isinstance(self.dtype, Cases) else self.dtype

    def shape_of(self, choices: Mapping[str, Any]) -> tuple[Expr, ...]:
        return self.shape.of(choices) if isinstance(self.shape, Cases) else self.shape


def buffer(name: str, dtype: str | Cases, shape: Sequence[Expr | int] | Cases, align: int) -> Buffer:
    return Buffer(name, dtype, shape if isinstance(shape, Cases) else _shape(shape), align)


def _shape(dims: Sequence[Expr | int]) -> tuple[Expr, ...]:
    return tuple(expr.of(d) for d in dims)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A string attribute of the call. As a scalar of kernels and expressions it is the index of its value in `values`."""

    name: str
    values: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Integer:
    """An int64 attribute of the call; a scalar that kernels and expressions may name."""

    name: str
    low: int
    high: int = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Condition:
    """`zero` must be 0 for the sizes of a call; a division by zero counts as a violation. `argument` and `expected` are for the message."""

    argument: str
    zero: Expr
    expected: str


@dataclasses.dataclass(frozen=True)
class Loop:
    """A variant that repeats launches once for each `scalar` = 0, step, 2 * step, ... < stop. In a variant that does not repeat, everything
    is one pass: `scalar` is 0 and the scalar named `step` is `stop`."""

    scalar: str
    stop: Expr
    step: str


@dataclasses.dataclass(frozen=True)
class OpSpec:
    """One op.

    name        of its files in every layer, and of its variants
    api         the public function: what messages call the op
    version     of the custom call; a change of operands or attributes is a new version
    operands    in the order of the custom call
    results     likewise, without the hidden scratch
    attributes  Choice or Integer, in order; `implementation` is there besides, for every op
    select      names of the choices that a variant is made for
    derived     sizes that a choice fixes: ((name, Cases of ints), ...)
    conditions  what must hold of the sizes beyond equality
    bound       the number that picks a variant by its `bound`: kernels for few or many columns
    scalars     int32 parameters of every kernel, in order: sizes, integer attributes, choices (by the index of their value), the loop's scalar
    scratch     whether the call has a hidden result uint8 [n], 128-byte aligned, last
    loop        how some variants work in passes, or None
    split       sizes that may be split over the devices of a mesh
    """

    name: str
    api: str
    version: int
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    attributes: tuple[Choice | Integer, ...]
    select: tuple[str, ...]
    derived: tuple[tuple[str, Cases], ...] = ()
    conditions: tuple[Condition, ...] = ()
    bound: Expr = expr.of(1)
    scalars: tuple[str, ...] = ()
    scratch: bool = False
    loop: Loop | None = None
    split: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        faults = [f"{name} twice" for name in _repeated([b.name for b in self.buffers])]
        faults += [f"select names {s!r}, which is no Choice" for s in self.select if s not in self.choices()]
        faults += [
            f"{b.name} has dtype {d!r}"
            for b in self.operands + self.results
            for d in _alternatives(b.dtype)
            if d not in DTYPES
        ]
        known = self.scalar_names()
        faults += [f"scalar {s!r} is no size, attribute or loop scalar" for s in self.scalars if s not in known]
        read = self.bound.names() | frozenset().union(
            *(c.zero.names() for c in self.conditions), self.loop.stop.names() if self.loop else ()
        )
        faults += [f"an expression reads {name!r}, which nothing sets" for name in sorted(read - known)]
        if faults:
            raise ValueError(f"spec of {self.name}: " + "; ".join(faults))

    @property
    def target(self) -> str:
        """Name of the custom call."""
        return f"{PREFIX}.{self.name}.v{self.version}"

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Operands, results, scratch: what kernels have pointers to, in this order."""
        scratch = (Buffer("scratch", "uint8", (expr.sizes("scratch_bytes")), 128),) if self.scratch else ()
        return (*self.operands, *self.results, *scratch)

    @property
    def operand_names(self) -> tuple[str, ...]:
        return tuple(b.name for b in self.operands)

    def choices(self) -> dict[str, tuple[str, ...]]:
        """The values of every Choice, by its name."""
        return {a.name: a.values for a in self.attributes if isinstance(a, Choice)}

    def scalar_names(self) -> frozenset[str]:
        """What kernel parameters and expressions may name: sizes, attributes, the loop's scalar."""
        return self.size_names() | {a.name for a in self.attributes} | ({self.loop.scalar} if self.loop else set())

    def size_names(self) -> frozenset[str]:
        """Every size that operands, results or a choice set."""
        shapes = [s for b in self.operands + self.results for s in _alternatives(b.shape)]
        return frozenset().union(*(d.names() for s in shapes for d in s)) | {name for name, _ in self.derived}

    def result_sizes(self) -> tuple[str, ...]:
        """Sizes that stand in results alone: the caller gives them."""
        derived = {name for name, _ in self.derived}
        of_operands = frozenset().union(*(d.names() for b in self.operands for s in _alternatives(b.shape) for d in s))
        alone = (n for b in self.results for s in _alternatives(b.shape) for d in s for n in sorted(d.names()))
        return tuple(dict.fromkeys(n for n in alone if n not in of_operands | derived))

    def fixed(self, choices: Mapping[str, Any]) -> dict[str, int]:
        """Values of the derived sizes."""
        return {name: value.of(choices) for name, value in self.derived}

    def bind(
        self, choices: Mapping[str, Any], shapes: Sequence[Sequence[Any]], given: Mapping[str, Any] = {}
    ) -> dict[str, Any]:
        """Size values from the operands' shapes, which may hold symbolic dimensions. Checks nothing: compare with `operand_types`.

        given: sizes that the caller gives (see `result_sizes`).
        """
        values: dict[str, Any] = {**self.fixed(choices), **given}
        for operand, shape in zip(self.operands, shapes, strict=True):
            for dim, n in zip(operand.shape_of(choices), shape):
                bound = solve(dim, n)
                if bound is not None and bound[0] not in values:
                    values[bound[0]] = bound[1]
        return values

    def operand_types(self, choices: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, tuple[str, tuple]]:
        """(dtype, shape) of every operand by name."""
        return {b.name: _type(b, choices, values) for b in self.operands}

    def result_types(self, choices: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, tuple[str, tuple]]:
        """(dtype, shape) of every result by name, without scratch."""
        return {b.name: _type(b, choices, values) for b in self.results}

    def to_json(self) -> dict[str, Any]:
        """The entry of the manifest's "ops"."""

        def attribute(a: Choice | Integer) -> dict[str, Any]:
            return (
                {"name": a.name, "values": list(a.values)}
                if isinstance(a, Choice)
                else {"name": a.name, "low": a.low, "high": a.high}
            )

        out: dict[str, Any] = {
            "op": self.name,
            "api": self.api,
            "version": self.version,
            "select": list(self.select),
            "scratch": self.scratch,
            "attributes": [attribute(a) for a in self.attributes],
            "derived": {name: _json(value) for name, value in self.derived},
            "operands": [_buffer_json(b) for b in self.operands],
            "results": [_buffer_json(b) for b in self.results],
            "conditions": [
                {"argument": c.argument, "zero": str(c.zero), "expected": c.expected} for c in self.conditions
            ],
            "bound": str(self.bound),
        }
        if self.loop:
            out["loop"] = {"scalar": self.loop.scalar, "stop": str(self.loop.stop), "step": self.loop.step}
        return out


def solve(dim: Expr, n: Any) -> tuple[str, Any] | None:
    """(name, value) if `dim` is a size alone, or a size plus a constant, and equals n."""
    if dim.op == "size":
        return dim.args[0], n
    if dim.op == "+" and dim.args[0].op == "size" and dim.args[1].op == "int":
        return dim.args[0].args[0], n - dim.args[1].args[0]
    return None


def _type(b: Buffer, choices: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, tuple]:
    return b.dtype_of(choices), tuple(d.value(values) for d in b.shape_of(choices))


def _alternatives(x: Any) -> list[Any]:
    return [v for _, v in x.cases] if isinstance(x, Cases) else [x]


def _json(x: Any) -> Any:
    if isinstance(x, Cases):
        return {"by": x.by, "cases": {key: _json(v) for key, v in x.cases}}
    return [str(d) for d in x] if isinstance(x, tuple) else x


def _buffer_json(b: Buffer) -> dict[str, Any]:
    return {"name": b.name, "dtype": _json(b.dtype), "shape": _json(b.shape), "align": b.align}


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({n for n in names if names.count(n) > 1})
