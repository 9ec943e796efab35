"""`validate_metadata`: what only the data of a batch shows, checked on the host."""
import numpy as np

from ..configs.block_scores import PAGE
from ..errors import describe


def validate_metadata(cu_seqlens_q, cu_seqlens_k, cu_page_offsets, kv_indices, *, tokens, num_pages, max_seqlen_q, max_seqlen_k, qo_offset=None):
    """Checks the metadata of a block-score call by value; raises one ValueError that lists everything found.

    Copies the arrays to the host (it waits for the device), so it belongs in tests, loaders and debugging, not in a serving loop. The op itself never reads
    metadata on the host and keeps within its buffers whatever the metadata says.

    Args:
      cu_seqlens_q, cu_seqlens_k, cu_page_offsets: [B+1] int32; kv_indices: [N] int32; qo_offset: [B] int32 or None. As for `fp4_indexer_block_scores`.
      tokens: rows of q_fp4 (Tq). Padding rows past cu_seqlens_q[-1] are allowed.
      num_pages: pages of the pool k_fp4.
      max_seqlen_q, max_seqlen_k: as passed to the op.

    Raises:
      ValueError: any finding: dtypes and shapes, prefix sums that do not start at 0 or fall, tokens past q_fp4, lengths above the maxima, page counts that
        differ from ceil(k_len / 128), pages past kv_indices, page ids in use outside [0, num_pages). Entries of kv_indices not in use are not checked.
    """
    found = []
    host = {name: np.asarray(x) for name, x in
            (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k), ("cu_page_offsets", cu_page_offsets), ("kv_indices", kv_indices))}
    if qo_offset is not None:
        host["qo_offset"] = np.asarray(qo_offset)
    for name, x in host.items():
        if x.dtype != np.int32 or x.ndim != 1:
            found.append(f"{name} is {describe(x)}, expected a vector of int32")
    ends = host["cu_seqlens_q"].shape
    if not found:
        lengths = {"cu_seqlens_k": ends[0], "cu_page_offsets": ends[0], "qo_offset": ends[0] - 1}
        found += [f"{name} has {host[name].size} entries, expected {n} (cu_seqlens_q has {ends[0]})" for name, n in lengths.items()
                  if name in host and host[name].size != n]
        if ends[0] == 0:
            found.append("cu_seqlens_q is empty, expected B + 1 >= 1 entries")
    if not found:
        found = _values({name: x.astype(np.int64) for name, x in host.items()}, tokens, num_pages, max_seqlen_q, max_seqlen_k)
    if found:
        raise ValueError("validate_metadata: " + "; ".join(found) + ". Rebuild the batch's metadata from its lengths and page lists.")


def _values(host, tokens, num_pages, max_seqlen_q, max_seqlen_k):
    found = []
    for name in ("cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets"):
        if host[name][0] != 0:
            found.append(f"{name}[0] is {host[name][0]}, expected 0")
        falls = np.flatnonzero(np.diff(host[name]) < 0)
        if falls.size:
            b = falls[0]
            found.append(f"{name} falls at {_sequences(falls)} ({host[name][b]} to {host[name][b + 1]}), expected a sum that never falls")
    q_lens, k_lens, pages = (np.diff(host[name]) for name in ("cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets"))
    for name, end, limit, what in (("cu_seqlens_q", host["cu_seqlens_q"][-1], tokens, "rows of q_fp4"),
                                   ("cu_page_offsets", host["cu_page_offsets"][-1], host["kv_indices"].size, "entries of kv_indices")):
        if end > limit:
            found.append(f"{name}[-1] is {end}, expected at most the {limit} {what}")
    for name, lens, limit in (("q_len", q_lens, max_seqlen_q), ("k_len", k_lens, max_seqlen_k)):
        over = np.flatnonzero(lens > limit)
        if over.size:
            found.append(f"{name} of {_sequences(over)} is {lens[over[0]]}, expected at most max_seqlen_{name[0]} = {limit}")
    wrong = np.flatnonzero(pages != -(-k_lens // PAGE))
    if wrong.size:
        b = wrong[0]
        found.append(f"{_sequences(wrong)} has {pages[b]} pages for {k_lens[b]} keys, expected ceil({k_lens[b]} / {PAGE}) = {-(-k_lens[b] // PAGE)}")
    used = host["kv_indices"][max(host["cu_page_offsets"][0], 0):max(host["cu_page_offsets"][-1], 0)]
    outside = np.flatnonzero((used < 0) | (used >= num_pages))
    if outside.size:
        found.append(f"kv_indices holds {used[outside[0]]} among the pages in use ({outside.size} ids outside), expected ids in [0, {num_pages})")
    return found


def _sequences(indices):
    more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
    return f"sequence {indices[0]}{more}"
