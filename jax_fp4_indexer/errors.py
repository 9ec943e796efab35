"""Errors of the package and how their messages are composed.

A message answers five questions in one order: which op, which argument, what was got, what was expected, what to do
next.
"""

from __future__ import annotations

from typing import Any


class UnsupportedError(RuntimeError):
    """The call is right, but nothing here can run it as requested (no kernel for this GPU, for example)."""


MAX_VALUE = 80  # characters of a value that a message repeats


def describe(x: Any) -> str:
    """How an argument is named in a message: "uint8[4, 8, 64]" for an array, type and value for anything else."""
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is None or dtype is None:
        value = repr(x)
        return f"{type(x).__name__} {value if len(value) <= MAX_VALUE else value[:MAX_VALUE] + '...'}"
    return f"{dtype}[{', '.join(map(str, shape))}]"


def message(op: str, argument: str, got: Any, expected: str, remedy: str) -> str:
    """One message: `op: argument: got ..., expected .... remedy`. `got` may be the offending value itself."""
    got = got if isinstance(got, str) else describe(got)
    return f"{op}: {argument}: got {got}, expected {expected}. {remedy}"
