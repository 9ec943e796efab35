"""The registry of ops: one name for each, which is that of its file in every layer."""

import importlib

from .spec import OpSpec

NAMES = (
    "block_scores",
    "batched_gemv",
)
OPS: dict[str, OpSpec] = {name: importlib.import_module(f".{name}", __package__).SPEC for name in NAMES}
