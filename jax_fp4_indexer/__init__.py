"""FP4 indexer ops in JAX. Importing needs neither a GPU, nor its driver, nor the kernel compiler.

Definition  reference (a module): every op in plain jnp, for comparisons
Scales      fp4_indexer_reorder_scales_for_mma: scales of block scores in tensor-core order
Formats     quantize_nvfp4, quantize_mxfp4, dequantize, pack_e2m1, unpack_e2m1, to_blocked, from_blocked
Batches     ragged (a module): checks of a batch's metadata, and its parts for several devices
Errors      UnsupportedError is raised where a GPU has no kernel
Export      export_disabled_checks, register
"""

from . import ragged, reference
from .errors import UnsupportedError
from .ops.batched_gemv import nvfp4_batched_gemv as nvfp4_batched_gemv
from .ops.block_scores import fp4_indexer_block_scores as fp4_indexer_block_scores
from .ops.block_scores import fp4_indexer_reorder_scales_for_mma
from .ops.formats import dequantize, from_blocked, pack_e2m1, quantize_mxfp4, quantize_nvfp4, to_blocked, unpack_e2m1
from .primitives.runtime import export_disabled_checks, register
from .specs import OPS as _OPS
from .version import __version__ as __version__

__all__ = [
    "UnsupportedError",
    "dequantize",
    "export_disabled_checks",
    "fp4_indexer_reorder_scales_for_mma",
    "from_blocked",
    "pack_e2m1",
    "quantize_mxfp4",
    "quantize_nvfp4",
    "ragged",
    "reference",
    "register",
    "to_blocked",
    "unpack_e2m1",
    *(spec.api for spec in _OPS.values()),
]
__doc__ += "Ops         " + ", ".join(spec.api for spec in _OPS.values()) + "\n"
