"""Checks that every op shares: arguments that must be known while tracing, and arrays by dtype and shape."""
import numbers
import operator

import jax
import numpy as np

from ..errors import describe, message

INT32_MAX = 2**31 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)


def choice(op, argument, value, allowed):
    if not isinstance(value, (str, type(None))) or value not in allowed:
        names = ", ".join(map(repr, allowed))
        raise ValueError(message(op, argument, repr(value), f"one of {names}", f"Pass one of these for {argument}."))
    return value


def static_int(op, argument, value, least, remedy):
    """A Python int from an int, a NumPy integer or a concrete 0-d integer array; a traced value or a float is a TypeError.

    `remedy` says what to do about a number outside [least, 2**31 - 1].
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except Exception:           # JAX raises errors of its own for traced values; all of them mean the same here
        raise TypeError(message(op, argument, _kind(value), "a Python int", "It fixes shapes, so it must be known while tracing: pass a Python int, or list it in static_argnames of jax.jit.")) from None
    if not least <= number <= INT32_MAX:
        raise ValueError(message(op, argument, str(number), f"an int in [{least}, 2**31 - 1]", remedy))
    return number


def static_bool(op, argument, value):
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool:
        value = value.item()
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(message(op, argument, _kind(value), "a Python bool", "It selects the program, so it must be known while tracing: pass True or False."))
    return bool(value)


def number(op, argument, value, positive=False):
    """np.float32 of a real number (see `is_number`) that must be in float32's range, and above zero if `positive`; NaN passes."""
    try:
        wide = float(value)
    except OverflowError:
        wide = np.inf
    if abs(wide) > FLOAT32_MAX or positive and wide <= 0:
        raise ValueError(message(op, argument, value, f"a {'positive ' if positive else ''}number of at most {FLOAT32_MAX:.6g}", "Pass a factor that float32 can hold."))
    return np.float32(wide)


def is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def _kind(value):
    """What a message calls a value that should have been a Python int or bool."""
    return f"a traced {describe(value)}" if isinstance(value, jax.core.Tracer) else describe(value)


def array(op, argument, x, dtypes, remedy):
    """Checks that `x` is an array of one of `dtypes` (names); returns its shape."""
    is_array(op, argument, x, f"an array of {' or '.join(dtypes)}")
    if x.dtype.name not in dtypes or not getattr(x.dtype, "isnative", True):            # keys have a dtype of JAX's own
        raise TypeError(message(op, argument, x, f"dtype {' or '.join(dtypes)}", remedy))
    return tuple(x.shape)


def is_array(op, argument, x, expected):
    """Checks that JAX takes `x` as an array: not a list, not a ShapeDtypeStruct, not an array of another library."""
    if not isinstance(x, (jax.Array, np.ndarray, np.generic)) and type(x).__name__ != "TypedNdArray":      # a constant of a trace in jax 0.9
        raise TypeError(message(op, argument, f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins."), expected,
                                "Pass a JAX or NumPy array (jnp.asarray, jax.dlpack.from_dlpack)."))


def shape(op, argument, x, expected, names, remedy):
    """Checks the shape of `x`. `expected` has an int per axis, or None where any size is right; `names` spells it for the message."""
    if len(x.shape) != len(expected) or any(e is not None and e != n for e, n in zip(expected, x.shape)):
        sizes = ", ".join("any" if e is None else str(e) for e in expected)
        raise ValueError(message(op, argument, x, f"shape {names} = [{sizes}]", remedy))


def int32_vector(op, argument, x, length, names, remedy):
    array(op, argument, x, ("int32",), "Cast it with .astype(jnp.int32) after checking that its values fit: 64-bit metadata is refused, not truncated.")
    shape(op, argument, x, (length,), names, remedy)
