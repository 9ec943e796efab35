"""Operands of the primitive for tests/primitives and tests/ffi."""
import jax.numpy as jnp
import numpy as np

from jax_fp4_indexer.primitives.block_scores import operand_types

STATIC = dict(path="decode", fp4_format="nvfp4", scale_layout="public", mask=1, max_seqlen_q=2, k_tiles=3)


def operands(tokens=4, heads_q=4, heads_kv=2, num_pages=3, num_indices=6, fp4_format="nvfp4", scale_layout="public", seed=0):
    """A list of operands: two sequences that share the tokens, 200 and 230 keys, random codes, scales around 1."""
    rng = np.random.default_rng(seed)
    types = operand_types((tokens, heads_q, 64), (num_pages, heads_kv, 128, 64), num_indices, 2, fp4_format, scale_layout)
    low, high = (0x30, 0x40) if fp4_format == "nvfp4" else (120, 134)
    made = {
        "q_scale": lambda shape: rng.integers(low, high, shape), "k_scale": lambda shape: rng.integers(low, high, shape),
        "kv_indices": lambda shape: rng.integers(0, num_pages, shape), "cu_seqlens_q": lambda shape: [0, tokens // 2, tokens],
        "cu_seqlens_k": lambda shape: [0, 200, 430], "cu_page_offsets": lambda shape: [0, 2, 4], "qo_offset": lambda shape: [100, 200],
        "head_scale": lambda shape: rng.uniform(0.5, 2, shape),
    }
    return [jnp.asarray(np.asarray(made.get(name, lambda shape: rng.integers(0, 256, shape))(shape)).astype(dtype)) for name, (dtype, shape) in types.items()]
