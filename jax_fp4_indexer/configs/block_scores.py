"""Block scores: which path a call takes, how much scratch it needs, and where everything lies in it.

Plain integer arithmetic only: the same functions run on the host (Python ints) and while tracing a kernel (DSL integers).
"""
import dataclasses

PAGE = 128                      # keys of a page = keys of a score block
HEAD_DIM = 128
CODE_BYTES = HEAD_DIM // 2      # bytes of packed E2M1 codes a row
GROUPS = {"nvfp4": 8, "mxfp4": 4}       # scale groups a row
DECODE_MAX_SEQLEN_Q = 8
DECODE_MAX_GQA_RATIO = 16

WIDE_PAGE_BYTES = PAGE * HEAD_DIM * 2   # one page of one KV head, widened to 16 bits
DEFAULT_SCRATCH_LIMIT = 256 * 2**20     # bytes of widened pages a call may hold at once

# E8M0 bytes (first, last) that the bf16 form of the staged MXFP4 kernel holds exactly. 255 (NaN) is held too.
KEY_WINDOW = (64, 191)
QUERY_WINDOW = (96, 159)


def choose_path(max_seqlen_q, gqa_ratio):
    """The seed's dispatch rule: "decode" (packed queries) or "prefill" (staged). It reads shapes only, never device data."""
    return "decode" if max_seqlen_q <= DECODE_MAX_SEQLEN_Q and gqa_ratio <= DECODE_MAX_GQA_RATIO else "prefill"


def pages_per_pass(num_indices, heads_kv, limit=DEFAULT_SCRATCH_LIMIT):
    """Pages of the list worked in one pass so that the widened pages stay within `limit` bytes."""
    return max(1, min(max(num_indices, 1), limit // (WIDE_PAGE_BYTES * heads_kv)))


def _align(x, to):
    return (x + to - 1) // to * to


@dataclasses.dataclass(frozen=True)
class Scratch:
    """Byte offsets of the prefill scratch (fields are ints, or DSL Int64 inside a kernel).

    header       int64 total steps of this pass; int32 at byte 8: 1 if a page, 2 if a query row (3: both) needs the exact-exponent fixup,
                 written by the main kernel from the flags below; int32 at byte 12: number of entries
    entries      64 bytes each, see kernels/common/plan.py
    token_pages  int32 [tokens]; chunk_min, chunk_max int32 [ceil(tokens/128)]
    page_flags   int32 [pages_per_pass * heads_kv]: 128 - the first counted row of the page that has an exponent outside KEY_WINDOW, 0 if none does
    query_flags  int32 [ceil(tokens/16)]: nonzero where a query row of these 16 tokens has an exponent outside QUERY_WINDOW
                 (both for MXFP4 only, and every word written by the prepare launch: nothing depends on what scratch held)
    wide         widened pages, WIDE_PAGE_BYTES each, [pages_per_pass, heads_kv]
    """
    ENTRY_BYTES = 64
    HEADER_BYTES = 64

    entries: object
    max_entries: object
    token_pages: object
    chunk_min: object
    chunk_max: object
    page_flags: object
    query_flags: object
    wide: object
    total: object

    @classmethod
    def layout(cls, num_seqs, tokens, heads_kv, pages):
        chunks = (tokens + 127) // 128
        max_entries = tokens // 16 + num_seqs
        entries = cls.HEADER_BYTES
        token_pages = entries + max_entries * cls.ENTRY_BYTES
        chunk_min = token_pages + chunks * 512
        chunk_max = chunk_min + _align(chunks * 4, 64)
        page_flags = chunk_max + _align(chunks * 4, 64)
        query_flags = page_flags + _align(pages * heads_kv * 4, 64)
        wide = _align(query_flags + (tokens + 15) // 16 * 4, 1024)
        return cls(entries, max_entries, token_pages, chunk_min, chunk_max, page_flags, query_flags, wide, wide + pages * heads_kv * WIDE_PAGE_BYTES)


def scratch_bytes(path, num_seqs, tokens, heads_kv, num_indices, limit=DEFAULT_SCRATCH_LIMIT):
    """Size of the hidden scratch result. Independent of the architecture, so that exported programs stay portable."""
    if path == "decode":
        return 16
    return Scratch.layout(num_seqs, tokens, heads_kv, pages_per_pass(num_indices, heads_kv, limit)).total
