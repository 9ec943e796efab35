"""`fp4_indexer_block_scores`: its custom call. Meaning of the operands: ops/block_scores.py; of the arrays' bytes: formats/."""

from .expr import ceil_div, max_, sizes
from .spec import Choice, Condition, Integer, Loop, OpSpec, buffer, cases

tokens, heads_q, heads_kv, num_pages, num_indices, num_seqs, k_tiles, groups, max_seqlen_q = sizes(
    "tokens heads_q heads_kv num_pages num_indices num_seqs k_tiles groups max_seqlen_q"
)
words = ceil_div(groups, 4)  # of 4 scale bytes each, in the tiled layout

SPEC = OpSpec(
    name="block_scores",
    api="fp4_indexer_block_scores",
    version=1,
    operands=(
        buffer("q", "uint8", [tokens, heads_q, 64], align=128),
        buffer("k", "uint8", [num_pages, heads_kv, 128, 64], align=128),
        buffer(
            "q_scale",
            "uint8",
            cases(
                "scale_layout",
                public=[tokens, heads_q, groups],
                preordered_mma=[heads_q, ceil_div(tokens, 128), words, 32, 4, 4],
            ),
            align=32,
        ),
        buffer(
            "k_scale",
            "uint8",
            cases(
                "scale_layout",
                public=[num_pages, heads_kv, 128, groups],
                preordered_mma=[num_pages * heads_kv, 1, words, 32, 4, 4],
            ),
            align=32,
        ),
        buffer("kv_indices", "int32", [num_indices], align=4),
        buffer("cu_seqlens_q", "int32", [num_seqs + 1], align=4),
        buffer("cu_seqlens_k", "int32", [num_seqs + 1], align=4),
        buffer("cu_page_offsets", "int32", [num_seqs + 1], align=4),
        buffer("qo_offset", "int32", [num_seqs], align=4),
        buffer("head_scale", "float32", [heads_q], align=4),
    ),
    results=(buffer("scores", "float32", [heads_q, k_tiles, tokens], align=16),),
    attributes=(
        Choice("path", ("decode", "prefill")),
        Choice("format", ("nvfp4", "mxfp4")),
        Choice("scale_layout", ("public", "preordered_mma")),
        Integer("mask", 0, 2),  # 0 none, 1 causal with offset k_len - q_len, 2 causal with qo_offset
        Integer("max_seqlen_q", 0),
        Integer("pages_per_pass", 0),  # of a staged prefill; 0 for decode
    ),
    select=("path", "format", "scale_layout"),
    derived=(("groups", cases("format", nvfp4=8, mxfp4=4)),),
    conditions=(Condition("k", heads_q % heads_kv, "a number of heads that divides q's"),),
    bound=max_seqlen_q * (heads_q // heads_kv),
    scalars=(
        "num_seqs",
        "num_pages",
        "num_indices",
        "tokens",
        "k_tiles",
        "heads_q",
        "heads_kv",
        "mask",
        "first_page",
        "pages_per_pass",
    ),
    scratch=True,
    loop=Loop("first_page", stop=max_(num_indices, 1), step="pages_per_pass"),
    split=("heads_q", "heads_kv", "tokens"),
)
