"""Which kernels exist, for which arch, and how launches combine into variants: a module for each op, named as the op, with VARIANTS.

A new op adds its module here; nothing else lists them.
"""

import importlib
import pkgutil

from ..table import Kernel, Variant, kernels_of

__all__ = ["KERNELS", "VARIANTS", "Kernel", "Variant", "kernels_of"]


def _modules() -> list:
    return [
        importlib.import_module(f"{__name__}.{m.name}")
        for m in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name)
    ]


VARIANTS: tuple[Variant, ...] = tuple(v for module in _modules() for v in module.VARIANTS)
KERNELS: tuple[Kernel, ...] = kernels_of(VARIANTS)
