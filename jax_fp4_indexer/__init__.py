"""Block scores of an FP4 indexer in JAX. Importing needs neither a GPU, nor its driver, nor the kernel compiler.

The op      fp4_indexer_block_scores; fp4_indexer_reorder_scales_for_mma gives its scales in tensor-core order
Definition  reference (a module): the same op in plain jnp, for comparisons
Formats     quantize_nvfp4, quantize_mxfp4, dequantize, pack_e2m1, unpack_e2m1, to_blocked, from_blocked
Sharding    shard_metadata splits a batch on the host (ShardedMetadata); token_range_metadata and block_range_metadata give a device's part inside jit
Checks      validate_metadata on the host, check_metadata inside jit; UnsupportedError is raised where a GPU has no kernel
Export      export_disabled_checks, register
"""
from . import reference
from .errors import UnsupportedError
from .ops.block_scores import fp4_indexer_block_scores, fp4_indexer_reorder_scales_for_mma
from .ops.formats import dequantize, from_blocked, pack_e2m1, quantize_mxfp4, quantize_nvfp4, to_blocked, unpack_e2m1
from .ops.metadata import check_metadata, validate_metadata
from .ops.sharding import ShardedMetadata, block_range_metadata, shard_metadata, token_range_metadata
from .primitives.runtime import export_disabled_checks, register
from .version import __version__ as __version__

__all__ = [
    "ShardedMetadata", "UnsupportedError", "block_range_metadata", "check_metadata", "dequantize", "export_disabled_checks", "fp4_indexer_block_scores",
    "fp4_indexer_reorder_scales_for_mma", "from_blocked", "pack_e2m1", "quantize_mxfp4", "quantize_nvfp4", "reference", "register", "shard_metadata", "to_blocked",
    "token_range_metadata", "unpack_e2m1", "validate_metadata",
]
