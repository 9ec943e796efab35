"""Ragged batches, addressed by prefix sums and page lists (`cu_seqlens_q`, `cu_seqlens_k`, `cu_page_offsets`,
`kv_indices`): checks and parts of them.

Checks   validate on the host, check inside jit
Parts    shard splits a batch by sequences on the host (ShardedMetadata); token_range and block_range give a device's
         part inside jit

docs/sharding.md has a recipe for each part.
"""

from .ops.ragged_checks import check, validate
from .ops.ragged_shards import ShardedMetadata, block_range, shard, token_range

__all__ = ["ShardedMetadata", "block_range", "check", "shard", "token_range", "validate"]
