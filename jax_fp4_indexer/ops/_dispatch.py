"""From a checked call to its result: which implementation runs, and one compiled program for equal eager calls."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import jax

from ..errors import UnsupportedError, message
from ..primitives import runtime
from ..primitives.kernel_call import KernelCall
from ..specs import OpSpec

_warned: set[tuple[str, str]] = set()  # (op, reason)


def run(call: KernelCall, static: Any, arrays: Mapping[str, Any], named: str | None) -> jax.Array:
    """The result of a checked call. `named` is the caller's `implementation`: None for the best, "reference",
    "portable", or a path of the op.

    Raises UnsupportedError if a named implementation has no kernel for this GPU. Where None was passed the definition
    runs instead, with a warning once a process and op.
    """
    return _called(arrays, call=call, static=static, implementation=_implementation(call.spec, named))


def _implementation(spec: OpSpec, named: str | None) -> str:
    """The primitive's "auto", "portable" or "reference". Reads the platform, never device data."""
    if named == "reference":
        return "reference"
    op, reason = spec.api, runtime.unsupported_reason(spec.name)
    if reason is None:
        return "portable" if named == "portable" else "auto"
    if named is not None:
        raise UnsupportedError(
            message(
                op,
                "implementation",
                repr(named),
                "a kernel for this GPU",
                f'{reason} Pass implementation=None or "reference".',
            )
        )
    if (op, reason) not in _warned:
        _warned.add((op, reason))
        warnings.warn(
            f"{op}: {reason} Running the plain-jnp reference, which is much slower. "
            'Pass implementation="reference" to choose it without this warning.',
            stacklevel=4,
        )
    return "reference"


@functools.partial(jax.jit, static_argnames=("call", "static", "implementation"), inline=True)
def _called(arrays: Mapping[str, Any], *, call: KernelCall, static: Any, implementation: str) -> jax.Array:
    return call(call.operands(static, arrays), static=static, implementation=implementation)
