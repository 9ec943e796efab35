"""The primitive of an op, made from its spec: its type, how it lowers, how it batches.

On CUDA it is one custom call, `spec.target`; on every other platform the definition. The call names no architecture, so
that a program lowered on any host runs on any GPU that has a kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import PartitionSpec as P

from ..calls.varying import same_varying_axes
from ..errors import message
from ..specs import OpSpec
from ..specs.spec import IMPLEMENTATIONS, Choice
from . import runtime, sharding, wire
from .explicit import over_explicit_axes
from .splits import Cut

OWN = "Pass the operands of the custom call."
Scratch = Callable[[Mapping[str, Any], Mapping[str, Any], int], tuple[dict[str, Any], Any]]
Batch = Callable[["KernelCall", Sequence[jax.Array], Sequence[int | None], Any, str], tuple[jax.Array, int] | None]


class KernelCall:
    """An op as JAX sees it. Calling it with operands as in the spec gives the result.

    spec           the op's custom call; it has one result, and a hidden one for scratch where the spec says so
    operands       (static, arrays by argument) -> the operands, from checked arrays: calls/<op>.py
    definition     (static, *operands) -> the result in plain jnp
    no_derivative  the message of the NotImplementedError that differentiation raises
    scratch        (attributes, sizes, limit in bytes) -> (further attributes, bytes of the hidden result); sizes may be
                   symbolic
    cuts           how a device of a mesh makes its own operands where the spec alone does not say it:
                   primitives/splits.py
    reshard        operands that are brought to the placement of the others instead of being refused: small ones
    batch          (call, operands, mapped axes, static, implementation) -> (result, its mapped axis), or None for the
                   general rule: one call after another over the mapped axis, in which operands without it are shared

    `static` is a frozen dataclass: attributes of the spec by their names (those that `scratch` gives are left out),
    sizes that results alone have, and, where there is scratch, max_scratch_bytes. `implementation` is "auto" (native
    before portable kernels), "portable", or "reference" (the definition on every platform).
    """

    def __init__(
        self,
        spec: OpSpec,
        operands: Callable[[Any, Mapping[str, Any]], tuple[jax.Array, ...]],
        definition: Callable[..., jax.Array],
        *,
        no_derivative: str,
        scratch: Scratch | None = None,
        cuts: tuple[Cut, ...] = (),
        reshard: tuple[str, ...] = (),
        batch: Batch | None = None,
    ) -> None:
        if len(spec.results) != 1 or spec.scratch != (scratch is not None):
            raise ValueError(
                f"{spec.name}: expected one result, and a scratch planner if and only if the spec has scratch"
            )
        self.spec, self.operands, self.definition = spec, operands, definition
        self.no_derivative, self.scratch, self.cuts, self.reshard, self.batch = (
            no_derivative,
            scratch,
            cuts,
            reshard,
            batch,
        )
        self.primitive = Primitive(spec.api)
        self.primitive.def_impl(functools.partial(xla.apply_primitive, self.primitive))
        self.primitive.def_abstract_eval(self.type_of_result)
        self._lower_definition = mlir.lower_fun(self._define, multiple_results=False)
        mlir.register_lowering(self.primitive, self._lower_definition)
        mlir.register_lowering(self.primitive, self.lower_cuda, platform="cuda")
        batching.primitive_batchers[self.primitive] = self._batch
        ad.primitive_jvps[self.primitive] = self._refuse_derivative
        sharding.declare(self)

    def __call__(self, operands: Sequence[jax.Array], *, static: Any, implementation: str = "auto") -> jax.Array:
        """The result for normalised operands.

        Raises TypeError if shapes or dtypes do not fit, NotImplementedError when differentiated, ImportError when
        compiled for a CUDA GPU without the library.
        """
        operands = same_varying_axes(*operands)
        result = over_explicit_axes(self, operands, static, implementation)
        return self.bind(operands, static=static, implementation=implementation) if result is None else result

    def bind(self, operands: Sequence[jax.Array], *, static: Any, implementation: str) -> jax.Array:
        """The primitive on operands that are split over no Explicit axis."""
        return self.primitive.bind(*operands, static=static, implementation=implementation)

    def choices(self, static: Any) -> dict[str, str]:
        """The string attributes, which select shapes and dtypes."""
        return {a.name: getattr(static, a.name) for a in self.spec.attributes if isinstance(a, Choice)}

    def attributes(self, static: Any) -> dict[str, Any]:
        """Every attribute but those that `scratch` gives."""
        return {a.name: getattr(static, a.name) for a in self.spec.attributes if hasattr(static, a.name)}

    def sizes(self, static: Any, shapes: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Every size of the spec by name."""
        return self.spec.bind(
            self.choices(static), shapes, {name: getattr(static, name) for name in self.spec.result_sizes()}
        )

    def planned(
        self, attributes: Mapping[str, Any], sizes: Mapping[str, Any], limit: int
    ) -> tuple[dict[str, Any], list[tuple[Any]]]:
        """(all attributes, shapes of hidden results)."""
        if self.scratch is None:
            return dict(attributes), []
        further, size = self.scratch(attributes, sizes, limit)
        return {**attributes, **further}, [(size,)]

    def type_of_result(self, *operands: Any, static: Any, implementation: str) -> Any:
        """The abstract value of the result. It varies over the manual mesh axes over which the operands vary."""
        spec, api = self.spec, self.spec.api
        self._check_attributes(static, implementation)
        choices = self.choices(static)
        for buffer, aval in zip(spec.operands, operands, strict=True):
            if aval.ndim != len(buffer.shape_of(choices)):
                raise TypeError(message(api, buffer.name, aval, f"rank {len(buffer.shape_of(choices))}", OWN))
        sizes = self.sizes(static, [aval.shape for aval in operands])
        for (name, (dtype, shape)), aval in zip(spec.operand_types(choices, sizes).items(), operands, strict=True):
            if aval.dtype != jnp.dtype(dtype) or tuple(aval.shape) != shape:
                raise TypeError(message(api, name, aval, f"{dtype}[{', '.join(map(str, shape))}]", OWN))
            if any(axis is not None for axis in aval.sharding.spec):
                raise TypeError(
                    message(
                        api,
                        name,
                        f"sharding {aval.sharding.spec} over explicit mesh axes",
                        "an unsharded array",
                        f"Split {', '.join(spec.split)} only, or call the op inside jax.shard_map: docs/sharding.md.",
                    )
                )
        for condition in spec.conditions:
            if not _holds(condition.zero, sizes):
                aval = operands[spec.operand_names.index(condition.argument)]
                raise TypeError(
                    message(api, condition.argument, aval, condition.expected, "Check the shapes of the operands.")
                )
        ((dtype, shape),) = spec.result_types(choices, sizes).values()
        unsplit = operands[0].sharding.update(spec=P(*(None,) * len(shape)))
        return operands[0].update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False, sharding=unsplit)

    def _check_attributes(self, static: Any, implementation: str) -> None:
        allowed = (*IMPLEMENTATIONS, "reference")
        rows = [("implementation", implementation, implementation in allowed, f"one of {allowed}")]
        for a in self.spec.attributes:
            value = getattr(static, a.name, None)
            if isinstance(a, Choice):
                rows.append((a.name, value, value in a.values, f"one of {a.values}"))
            elif value is not None:
                rows.append((a.name, value, a.low <= value <= a.high, f"an int in [{a.low}, {a.high}]"))
        for name, value, right, expected in rows:
            if not right:
                raise ValueError(message(self.spec.api, name, repr(value), expected, f"Pass one of these for {name}."))

    def lower_cuda(
        self, ctx: mlir.LoweringRuleContext, *operands: Any, static: Any, implementation: str
    ) -> Sequence[Any]:
        """The custom call, or the definition if `implementation` is "reference"."""
        if implementation == "reference":
            return self._lower_definition(ctx, *operands, static=static, implementation=implementation)
        runtime.register_if_cuda()
        sizes = self.sizes(static, [aval.shape for aval in ctx.avals_in])
        attributes, hidden = self.planned(self.attributes(static), sizes, getattr(static, "max_scratch_bytes", 0))
        # XLA plans the memory of a hidden result, so that the call allocates nothing and may be part of a CUDA graph.
        results = [*ctx.avals_out, *(jax.core.ShapedArray(shape, np.dtype("uint8")) for shape in hidden)]
        named = wire.attributes(self.spec, attributes, implementation)
        return sharding.lower(self, ctx.replace(avals_out=results), operands, sizes, named)[:1]

    def _define(self, *operands: jax.Array, static: Any, implementation: str) -> jax.Array:
        return self.definition(static, *operands)

    def _batch(
        self, operands: Sequence[jax.Array], axes: Sequence[int | None], *, static: Any, implementation: str
    ) -> tuple[jax.Array, int]:
        if self.batch is not None:
            done = self.batch(self, operands, axes, static, implementation)
            if done is not None:
                return done
        mapped = tuple(jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes) if axis is not None)

        def one(slices: tuple[jax.Array, ...]) -> jax.Array:
            rest = iter(slices)
            own = tuple(x if axis is None else next(rest) for x, axis in zip(operands, axes))
            return self.bind(own, static=static, implementation=implementation)

        return lax.map(one, mapped), 0

    def _refuse_derivative(self, primals: Any, tangents: Any, **params: Any) -> Any:
        raise NotImplementedError(self.no_derivative)


def calls() -> Mapping[str, KernelCall]:
    """Every op that has been imported, by the name of its spec."""
    return {call.spec.name: call for call in sharding.declared()}


def _holds(zero: Any, sizes: Mapping[str, Any]) -> bool:
    """Whether an expression is 0, or may be: of symbolic sizes nothing is known."""
    try:
        value = zero.value(sizes)
    except ZeroDivisionError:
        return False
    return jax.export.is_symbolic_dim(value) or value == 0
