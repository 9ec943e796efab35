"""What each op is, as data: `OPS` holds the spec of every op by name. Imports neither JAX nor the kernel compiler.

The list of ops is in registry.py, which is loaded when `OPS` is asked of this package: a kernel depends on the spec of
its own op, so that a new op makes no other kernel out of date. (The build finds what a kernel depends on by its import
statements; test_specs.py holds it to that.)
"""

import importlib
from typing import Any

from .spec import OpSpec

__all__ = ["OPS", "OpSpec"]


def __getattr__(name: str) -> Any:
    if name == "OPS":
        return importlib.import_module(".registry", __name__).OPS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
