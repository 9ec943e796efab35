"""Block scores of an FP4 indexer in JAX. Importing needs neither a GPU, nor its driver, nor the kernel compiler."""
from . import reference
from .errors import UnsupportedError
from .ops.block_scores import fp4_indexer_block_scores, fp4_indexer_reorder_scales_for_mma
from .ops.formats import dequantize, from_blocked, pack_e2m1, quantize_mxfp4, quantize_nvfp4, to_blocked, unpack_e2m1
from .ops.metadata import check_metadata, validate_metadata
from .primitives.runtime import export_disabled_checks, register

__all__ = [
    "UnsupportedError", "check_metadata", "dequantize", "export_disabled_checks", "fp4_indexer_block_scores", "fp4_indexer_reorder_scales_for_mma", "from_blocked", "pack_e2m1",
    "quantize_mxfp4", "quantize_nvfp4", "reference", "register", "to_blocked", "unpack_e2m1", "validate_metadata",
]
