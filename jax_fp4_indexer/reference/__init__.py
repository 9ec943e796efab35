"""The definition of every op in plain jnp, with the signatures of the public ops. Runs on any platform JAX runs on.

`reference.<public name of the op>` is in the module that is named as the op's spec is; it is imported when it is first
read.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..specs import OPS

__all__ = [spec.api for spec in OPS.values()]


def __getattr__(name: str) -> Any:
    for spec in OPS.values():
        if spec.api == name:
            return getattr(importlib.import_module(f".{spec.name}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has the ops {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
