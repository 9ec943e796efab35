"""Checks that every op shares: arguments that must be known while tracing, and arrays by dtype, shape and place.

Each raises TypeError or ValueError with a message of one grammar (errors.py), and reads no array's contents, so that
traced and concrete arguments take the same path.
"""

from __future__ import annotations

import functools
import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import describe, message

INT32_MAX = 2**31 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT32_TINY = float(np.finfo(np.float32).tiny)  # XLA:CPU computes with zero in place of anything smaller

Array = jax.Array | np.ndarray | np.generic


def choice(op: str, argument: str, value: Any, allowed: Sequence[str | None]) -> str | None:
    """`value` if it is one of `allowed`."""
    if not isinstance(value, (str, type(None))) or value not in allowed:
        names = ", ".join(map(repr, allowed))
        raise ValueError(message(op, argument, repr(value), f"one of {names}", f"Pass one of these for {argument}."))
    return value


def static_int(op: str, argument: str, value: Any, least: int, remedy: str, bits: int = 31) -> int:
    """A Python int from an int, a NumPy integer or a concrete 0-d integer array; a traced value or a float is a
    TypeError.

    `remedy` says what to do about a number outside [least, 2**bits - 1].
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except Exception:  # JAX raises errors of its own for traced values; all of them mean the same here
        remedy = "It fixes shapes, so it must be known while tracing: pass a Python int, or list it in static_argnames of jax.jit."
        raise TypeError(message(op, argument, _kind(value), "a Python int", remedy)) from None
    if not least <= number < 2**bits:
        raise ValueError(message(op, argument, str(number), f"an int in [{least}, 2**{bits} - 1]", remedy))
    return number


def static_bool(op: str, argument: str, value: Any) -> bool:
    """A Python bool from a bool, a NumPy bool or a concrete 0-d array of bool."""
    is_array = isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer)
    if is_array and value.shape == () and value.dtype == bool:
        value = bool(value)
    if not isinstance(value, (bool, np.bool_)):
        remedy = "It selects the program, so it must be known while tracing: pass True or False."
        raise TypeError(message(op, argument, _kind(value), "a Python bool", remedy))
    return bool(value)


def number(op: str, argument: str, value: numbers.Real, positive: bool = False) -> np.float32:
    """np.float32 of a real number (see `is_number`) that is a normal float32, or zero unless `positive`; NaN passes."""
    try:
        wide = float(value)
    except OverflowError:
        wide = np.inf
    if abs(wide) > FLOAT32_MAX or 0 < abs(wide) < FLOAT32_TINY or positive and wide <= 0:
        expected = f"a {'positive ' if positive else ''}number from {FLOAT32_TINY:.6g} to {FLOAT32_MAX:.6g}"
        expected += "" if positive else ", zero, or the negative of one"
        raise ValueError(message(op, argument, value, expected, "Pass a factor that float32 can hold."))
    return np.float32(wide)


def is_number(value: Any) -> bool:
    """Whether `value` is a real number of Python or NumPy, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def _kind(value: Any) -> str:
    """What a message calls a value that should have been a Python int or bool."""
    return f"a traced {describe(value)}" if isinstance(value, jax.core.Tracer) else describe(value)


def array(op: str, argument: str, x: Any, dtypes: Sequence[str], remedy: str) -> tuple[int, ...]:
    """Checks that `x` is an array of one of `dtypes` (names); returns its shape."""
    is_array(op, argument, x, f"an array of {' or '.join(dtypes)}")
    if name_of(x.dtype) not in dtypes or not getattr(x.dtype, "isnative", True):  # keys have a dtype of JAX's own
        raise TypeError(message(op, argument, x, f"dtype {' or '.join(dtypes)}", remedy))
    return tuple(x.shape)


@functools.lru_cache(maxsize=256)
def name_of(dtype: Any) -> str:
    """The dtype's name, which NumPy composes again at every request: a quarter of the time of an eager call's
    checks."""
    return dtype.name


def is_array(op: str, argument: str, x: Any, expected: str) -> None:
    """Checks that JAX takes `x` as an array: no list, no ShapeDtypeStruct, no array of another library, none that is
    masked or deleted."""
    jax_0_9_constant = type(x).__name__ == "TypedNdArray"
    if not isinstance(x, (jax.Array, np.ndarray, np.generic)) and not jax_0_9_constant:
        got = f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")
        raise TypeError(
            message(op, argument, got, expected, "Pass a JAX or NumPy array (jnp.asarray, jax.dlpack.from_dlpack).")
        )
    if isinstance(x, np.ma.MaskedArray):
        remedy = "The mask would be ignored: fill the array first (x.filled(value))."
        raise TypeError(message(op, argument, f"a masked {describe(x)}", expected, remedy))
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.is_deleted():
        remedy = "It was deleted, or donated (donate_argnums) to a call: pass what that call returned."
        raise ValueError(message(op, argument, f"a deleted {describe(x)}", "an array that is alive", remedy))


def one_place(op: str, arrays: Mapping[str, Any]) -> None:
    """Checks that arrays lie in device memory and, where all are concrete, that those placed by the caller lie on the
    same devices."""
    first, all_concrete, elsewhere = None, True, None
    for name, x in arrays.items():
        if not isinstance(x, jax.Array):
            continue
        if x.aval.memory_space == jax.memory.Space.Host:
            remedy = "Copy it first: jax.device_put(x, jax.memory.Space.Device)."
            raise ValueError(message(op, name, f"{describe(x)} in host memory", "an array in device memory", remedy))
        if isinstance(x, jax.core.Tracer):
            all_concrete = False
        elif x.committed:
            first = first or (name, x)
            same = x.sharding is first[1].sharding or elsewhere is not None
            if not same and x.sharding.device_set != first[1].sharding.device_set:
                elsewhere = name, x
    if elsewhere and all_concrete:
        (name, x), (where, there) = elsewhere, first
        got, expected = f"{describe(x)} on {_devices(x)}", f"{_devices(there)}, where {where} is"
        raise ValueError(
            message(op, name, got, expected, "Place all arrays of a call on the same devices (jax.device_put).")
        )


def _devices(x: jax.Array) -> str:
    devices = x.sharding.device_set
    if len(devices) == 1:
        return str(*devices)
    return f"{len(devices)} devices ({min(d.id for d in devices)} to {max(d.id for d in devices)})"


def shape(op: str, argument: str, x: Array, expected: Sequence[Any], names: str, remedy: str) -> None:
    """Checks the shape of `x`. `expected` has an int per axis, or None where any size is right; `names` spells it for
    the message."""
    if len(x.shape) != len(expected) or any(e is not None and e != n for e, n in zip(expected, x.shape)):
        sizes = ", ".join("any" if e is None else str(e) for e in expected)
        raise ValueError(message(op, argument, x, f"shape {names} = [{sizes}]", remedy))


def int32_vector(op: str, argument: str, x: Any, length: Any, names: str, remedy: str) -> None:
    """Checks that `x` is an int32 vector of `length` entries (None: any)."""
    cast = (
        "Cast it with .astype(jnp.int32) after checking that its values fit: 64-bit metadata is refused, not truncated."
    )
    array(op, argument, x, ("int32",), cast)
    shape(op, argument, x, (length,), names, remedy)
