"""The registry of ops: one import and one entry for each. Imports neither JAX nor the kernel compiler."""
from . import block_scores
from .spec import OpSpec

OPS: dict[str, OpSpec] = {module.SPEC.name: module.SPEC for module in (block_scores,)}
