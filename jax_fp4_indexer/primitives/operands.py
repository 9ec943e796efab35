"""The operands and attributes of the block-score call: numbers, names, types; and those of a device's part of a call."""
import numpy as np
from jax import lax

from ..calls.ragged import causal_offset, token_range
from ..configs.block_scores import CODE_BYTES, GROUPS, PAGE
from ..formats import scale_layout as layouts

OP = "fp4_indexer_block_scores"
NAMES = ("q", "k", "q_scale", "k_scale", "kv_indices", "cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets", "qo_offset", "head_scale")
Q, K, Q_SCALE, K_SCALE, KV_INDICES, CU_Q, CU_K, CU_PAGES, QO_OFFSET, HEAD_SCALE = range(10)
DTYPES = ("uint8",) * 4 + ("int32",) * 5 + ("float32",)


def operand_types(q_shape, k_shape, num_indices, num_seqs, fp4_format, scale_layout):
    """(dtype, shape) of every operand, by its name."""
    tokens, heads_q, _ = q_shape
    num_pages, heads_kv = k_shape[:2]
    groups = GROUPS[fp4_format]
    scales = layouts.q_scale_shape(scale_layout, tokens, heads_q, groups), layouts.k_scale_shape(scale_layout, num_pages, heads_kv, groups, PAGE)
    shapes = ((tokens, heads_q, CODE_BYTES), (num_pages, heads_kv, PAGE, CODE_BYTES), *scales, (num_indices,), *((num_seqs + 1,),) * 3, (num_seqs,), (heads_q,))
    return dict(zip(NAMES, zip(DTYPES, shapes, strict=True), strict=True))


def attributes(path, fp4_format, scale_layout, mask, max_seqlen_q, pages, implementation):
    """The attributes of the custom call, with the types that the handler reads: str and int64. pages: of a pass, 0 for decode."""
    return {
        "op": "block_scores",
        "path": path,
        "format": fp4_format,
        "scale_layout": scale_layout,
        "mask": np.int64(mask),
        "max_seqlen_q": np.int64(max_seqlen_q),
        "pages_per_pass": np.int64(pages),
        "implementation": implementation,
    }


def own_heads(operands, first):
    """In place of the MMA-ordered k scales of all heads (pages and heads are one axis there) those of a device's KV heads. `first`: the first of the heads that k holds."""
    num_pages, own = operands[K].shape[:2]
    by_head = operands[K_SCALE].reshape(num_pages, -1, *operands[K_SCALE].shape[1:])
    operands[K_SCALE] = lax.dynamic_slice_in_dim(by_head, first, own, 1).reshape(num_pages * own, *by_head.shape[2:])


def own_tokens(operands, first, mask):
    """In place of the metadata of all tokens that of the tokens of q, which begins at token `first`; returns the mask that goes with it."""
    offset = operands[QO_OFFSET] if mask == 2 else causal_offset(operands[CU_Q], operands[CU_K])
    operands[CU_Q], offset = token_range(operands[CU_Q], offset, first, operands[Q].shape[0])
    if mask:
        operands[QO_OFFSET] = offset
    return 2 if mask else 0
