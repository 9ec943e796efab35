"""The definition of every op in plain jnp, with the signatures of the public ops. Runs on any platform JAX runs on."""
from .block_scores import fp4_indexer_block_scores

__all__ = ["fp4_indexer_block_scores"]
