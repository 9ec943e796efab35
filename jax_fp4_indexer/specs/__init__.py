"""The registry of ops: one name for each. Imports neither JAX nor the kernel compiler."""
import importlib

from .spec import OpSpec

__all__ = ["OPS", "OpSpec"]

NAMES = (
    "block_scores",
    "batched_gemv",
)
OPS: dict[str, OpSpec] = {name: importlib.import_module(f".{name}", __name__).SPEC for name in NAMES}
