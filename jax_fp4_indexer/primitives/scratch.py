"""How much scratch a call requests, and how many pages it then processes in one pass."""

from __future__ import annotations

from typing import Any

import jax.export

from ..configs.block_scores import DEFAULT_SCRATCH_LIMIT, is_direct, pages_per_pass, scratch_bytes

# These stand for sizes that an exported program leaves open.
UNKNOWN = {"tokens": 2**21, "num_seqs": 2**12, "num_indices": 2**31 - 1}


def scratch_plan(
    path: str,
    fp4_format: str,
    max_seqlen_q: int,
    num_seqs: Any,
    tokens: Any,
    heads_q: int,
    heads_kv: int,
    num_indices: Any,
    max_scratch_bytes: int = DEFAULT_SCRATCH_LIMIT,
) -> tuple[int, Any]:
    """(pages of a pass, bytes of scratch) of a call. num_seqs, tokens and num_indices may be symbolic: a list of
    unknown length gets as much scratch as the longest would."""
    if path == "decode":
        return 0, 16
    sizes = {"num_seqs": num_seqs, "tokens": tokens, "num_indices": num_indices}
    known = {name: UNKNOWN[name] if jax.export.is_symbolic_dim(size) else size for name, size in sizes.items()}
    pages = pages_per_pass(
        fp4_format, known["num_seqs"], known["tokens"], heads_kv, known["num_indices"], max_scratch_bytes
    )
    if jax.export.is_symbolic_dim(num_indices):
        return pages, scratch_bytes(fp4_format, num_seqs, tokens, heads_kv, pages, 0)
    direct = is_direct(fp4_format, max_seqlen_q, heads_q // heads_kv)
    return pages, scratch_bytes(fp4_format, num_seqs, tokens, heads_kv, None if direct else pages, num_indices)
