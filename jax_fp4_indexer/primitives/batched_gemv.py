"""The primitive of the batched GEMV, and what vmap makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..calls.batched_gemv import MAX_COLUMNS, NO_DERIVATIVE, Static, columns_choice, operands
from ..reference.batched_gemv import definition
from ..specs.batched_gemv import SPEC
from .kernel_call import KernelCall


def batch(
    call: KernelCall, args: Sequence[jax.Array], axes: Sequence[int | None], static: Static, implementation: str
) -> tuple[jax.Array, int] | None:
    """One call where the mapped axis can become part of another one without a copy of `a`: of L if `a` is mapped and
    whole operands are, of N if `a` is shared and there are few enough columns. None for one call after another.
    """
    shared = [axis is None for axis in axes]
    size = next(x.shape[axis] for x, axis in zip(args, axes) if axis is not None)
    args = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(args, axes)]
    if not any(shared[:4]):
        return _into_batch(call, args, shared, size, static, implementation), 0
    columns = args[1].shape[2] if not shared[1] else 0
    if (
        shared == [True, False, True, False, True, True]
        and static.scale_layout == "public"
        and size * columns <= MAX_COLUMNS
    ):
        a, b, a_scale, b_scale, *global_scales = args
        b, b_scale = (jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, x.shape[3]) for x in (b, b_scale))
        static = dataclasses.replace(static, columns=columns_choice(size * columns))
        y = call.bind((a, b, a_scale, b_scale, *global_scales), static=static, implementation=implementation)
        return y.reshape(*y.shape[:2], size, columns), 2
    return None


def _into_batch(
    call: KernelCall, args: Sequence[jax.Array], shared: Sequence[bool], size: int, static: Static, implementation: str
) -> jax.Array:
    """The mapped axis and L as one."""
    length = args[0].shape[1]
    merged = [x.reshape(size * length, *x.shape[2:]) for x in args[:4]]
    for x, is_shared, name in zip(args[4:], shared[4:], ("a_global", "b_global")):
        one = getattr(static, name) == "one"
        if one and is_shared:
            merged.append(x)
            continue
        static = dataclasses.replace(static, **{name: "batch"})
        merged.append(jnp.broadcast_to(x if not is_shared else x[None], (size, length)).reshape(-1))
    y = call.bind(merged, static=static, implementation=implementation)
    return y.reshape(size, length, *y.shape[1:])


CALL = KernelCall(
    SPEC, operands, definition, no_derivative=NO_DERIVATIVE, reshard=("a_global_scale", "b_global_scale"), batch=batch
)
