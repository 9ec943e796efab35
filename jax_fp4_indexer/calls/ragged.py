"""Arithmetic of a ragged batch that several devices share: int32 throughout, and no overflow for any offset."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..configs.block_scores import PAGE

INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)


def causal_offset(cu_seqlens_q: jax.Array, cu_seqlens_k: jax.Array) -> jax.Array:
    """int32 [B]: k_len - q_len, what causal masking uses where no qo_offset is given."""
    return (cu_seqlens_k[1:] - cu_seqlens_k[:-1]) - (cu_seqlens_q[1:] - cu_seqlens_q[:-1])


def token_range(
    cu_seqlens_q: jax.Array, offset: jax.Array, first: jax.Array, tokens: int
) -> tuple[jax.Array, jax.Array]:
    """(cu_seqlens_q, offset) under which rows 0 .. tokens - 1 of a device are rows first .. first + tokens - 1 of the
    batch."""
    before = first - cu_seqlens_q[:-1]
    skipped = jnp.clip(
        before, 0, jnp.maximum(cu_seqlens_q[1:] - cu_seqlens_q[:-1], 0)
    )  # rows of the sequence before the range
    own = jnp.clip(cu_seqlens_q, first, first + tokens) - first
    return _decreasing_where(cu_seqlens_q, own), offset + jnp.minimum(skipped, INT32_MAX - jnp.maximum(offset, 0))


def block_range(
    cu_seqlens_k: jax.Array, cu_page_offsets: jax.Array, offset: jax.Array, first: jax.Array, blocks: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(cu_seqlens_k, cu_page_offsets, offset) under which blocks 0 .. blocks - 1 of a device are blocks first .. first
    + blocks - 1 of every sequence."""
    first = jnp.minimum(first, INT32_MAX // PAGE)
    before = first * PAGE  # keys of a sequence before the range
    lengths = jnp.clip(cu_seqlens_k[1:] - cu_seqlens_k[:-1] - before, 0, min(blocks * PAGE, INT32_MAX))
    cu_seqlens_k = jnp.concatenate([jnp.zeros_like(cu_seqlens_k[:1]), jnp.cumsum(lengths, dtype=jnp.int32)])
    own_pages = cu_page_offsets + jnp.minimum(first, INT32_MAX - jnp.maximum(cu_page_offsets, 0))
    return cu_seqlens_k, _decreasing_where(cu_page_offsets, own_pages), jnp.maximum(offset, INT32_MIN + before) - before


def decreases(prefix_sum: jax.Array) -> jax.Array:
    """Whether a prefix sum decreases anywhere: bool scalar. Of queries or pages it makes every score NaN."""
    return (prefix_sum[1:] < prefix_sum[:-1]).any()


def _decreasing_where(whole: jax.Array, own: jax.Array) -> jax.Array:
    """The prefix sum `own` of a device; one that decreases if that of the whole batch does, which clipping may have
    hidden."""
    return jnp.where(decreases(whole), -jnp.arange(own.shape[0], dtype=own.dtype), own)
