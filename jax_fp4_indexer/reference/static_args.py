"""Checks that every op shares: arguments that must be known while tracing, and arrays by dtype and shape."""
import operator

import numpy as np

from ..errors import message

INT32_MAX = 2**31 - 1


def choice(op, argument, value, allowed):
    if not isinstance(value, (str, type(None))) or value not in allowed:
        names = ", ".join(map(repr, allowed))
        raise ValueError(message(op, argument, repr(value), f"one of {names}", f"Pass one of these for {argument}."))
    return value


def static_int(op, argument, value, least):
    """A Python int from an int, a NumPy integer or a concrete 0-d integer array; a traced value or a float is a TypeError."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except Exception:           # JAX raises errors of its own for traced values; all of them mean the same here
        raise TypeError(message(op, argument, type(value).__name__ + f" {value!r}", "a Python int",
                                "It fixes shapes, so it must be known while tracing: pass a Python int, or list it in static_argnames of jax.jit.")) from None
    if not least <= number <= INT32_MAX:
        raise ValueError(message(op, argument, str(number), f"an int in [{least}, 2**31 - 1]", f"Pass the largest length of the batch, at least {least}."))
    return number


def static_bool(op, argument, value):
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool:
        value = value.item()
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(message(op, argument, type(value).__name__ + f" {value!r}", "a Python bool", "It selects the program, so it must be known while tracing."))
    return bool(value)


def array(op, argument, x, dtypes, remedy):
    """Checks that `x` is an array of one of `dtypes` (names); returns its shape."""
    if getattr(x, "shape", None) is None or getattr(x, "dtype", None) is None:
        raise TypeError(message(op, argument, type(x).__name__, f"an array of {' or '.join(dtypes)}", "Pass a JAX or NumPy array."))
    if np.dtype(x.dtype).name not in dtypes:
        raise TypeError(message(op, argument, x, f"dtype {' or '.join(dtypes)}", remedy))
    return tuple(x.shape)


def shape(op, argument, x, expected, names, remedy):
    """Checks the shape of `x`. `expected` has an int per axis, or None where any size is right; `names` spells it for the message."""
    if len(x.shape) != len(expected) or any(e is not None and e != n for e, n in zip(expected, x.shape)):
        sizes = ", ".join("any" if e is None else str(e) for e in expected)
        raise ValueError(message(op, argument, x, f"shape {names} = [{sizes}]", remedy))


def int32_vector(op, argument, x, length, names, remedy):
    array(op, argument, x, ("int32",), "Cast it with .astype(jnp.int32) after checking that its values fit: 64-bit metadata is refused, not truncated.")
    shape(op, argument, x, (length,), names, remedy)
