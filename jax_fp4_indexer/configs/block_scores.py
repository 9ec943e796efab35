"""Block scores: which path a call takes, how much scratch it needs, and where everything lies in it.

Plain integer arithmetic only: the same functions run on the host (Python ints) and while tracing a kernel (DSL integers).
"""

import dataclasses

PAGE = 128  # keys of a page = keys of a score block
HEAD_DIM = 128
CODE_BYTES = HEAD_DIM // 2  # bytes of packed E2M1 codes a row
GROUPS = {"nvfp4": 8, "mxfp4": 4}  # scale groups a row
DECODE_MAX_SEQLEN_Q = 8
DECODE_MAX_GQA_RATIO = 16

WIDE_PAGE_BYTES = PAGE * HEAD_DIM * 2  # one page of one KV head, widened to bf16
NARROW_PAGE_BYTES = PAGE * HEAD_DIM  # the same in int8 (MXFP4 only)
DEFAULT_SCRATCH_LIMIT = 256 * 2**20  # bytes of scratch of a call

# Query rows of a KV head (max_seqlen_q * Hq/Hkv) up to which a prefill widens key pages where they are used, and needs no scratch for them
DIRECT_COLUMNS = {"nvfp4": 1024, "mxfp4": 512}

# E8M0 bytes (first, last) that the bf16 form of the staged MXFP4 kernel holds exactly. 255 (NaN) is held too.
KEY_WINDOW = (64, 191)
QUERY_WINDOW = (96, 159)
INT8_SPAN = (
    3  # binades that the exponents of a page, or of a query row, may span in the int8 form: 12 << 3 still fits a byte
)
QUERY_CHUNK = 8  # tokens of one word of query_flags
QUERY_FLAG_HEADS = 31  # KV heads that a word of query_flags tells apart (more of them share bits)


def choose_path(max_seqlen_q, gqa_ratio):
    """The seed's dispatch rule: "decode" (packed queries) or "prefill" (staged). It reads shapes only, never device data."""
    return "decode" if max_seqlen_q <= DECODE_MAX_SEQLEN_Q and gqa_ratio <= DECODE_MAX_GQA_RATIO else "prefill"


def page_bytes(fmt):
    """Scratch that a page of one KV head takes: MXFP4 pages are held in bf16 and in int8."""
    return WIDE_PAGE_BYTES + (NARROW_PAGE_BYTES if fmt == "mxfp4" else 0)


def is_direct(fmt, max_seqlen_q, gqa_ratio):
    """Whether a prefill call is one that widens pages where they are used."""
    return max_seqlen_q * gqa_ratio <= DIRECT_COLUMNS[fmt]


def pages_per_pass(fmt, num_seqs, tokens, heads_kv, num_indices, limit=DEFAULT_SCRATCH_LIMIT):
    """Pages of the list worked in one pass of a staged prefill, so that its scratch stays within `limit` bytes; at least one.

    The rest of the scratch is the plan, about 9 bytes a token, 64 a sequence and 4 a page and KV head (MXFP4: 4 more a token and KV head)."""
    size = lambda pages: Scratch.layout(num_seqs, tokens, heads_kv, pages).size(fmt)
    pages = max(1, min(max(num_indices, 1), (limit - size(0)) // (page_bytes(fmt) * heads_kv)))
    while pages > 1 and size(pages) > limit:
        pages -= 1 + (size(pages) - limit) // (2 * page_bytes(fmt) * heads_kv)
    return pages


def _align(x, to):
    return (x + to - 1) // to * to


@dataclasses.dataclass(frozen=True)
class Scratch:
    """Byte offsets of the prefill scratch (fields are ints, or DSL Int64 inside a kernel).

    header       int64 total steps of this pass; int32 at byte 8: 1 if a page, 2 if a query row (3: both) needs the exact-exponent fixup; int32 at
                 byte 12: number of entries; int64 at byte 16 and 24: steps in int8 and in bf16 (bytes 8 and 16..31: MXFP4, written by kernels/block_scores/sm90_choose_precision.py);
                 int32 at byte FALLS: 1 where a sum of queries or pages decreases, so that every slot is NaN
    entries      64 bytes each, see kernels/block_scores/prefill_schedule.py
    token_pages  int32 [tokens]; chunk_min, chunk_max int32 [ceil(tokens/128)]
    page_flags   int32 [pages_per_pass * heads_kv]: 128 - the first counted row of the page that has an exponent outside KEY_WINDOW, 0 if none does
    query_flags  int32 [ceil(tokens/QUERY_CHUNK)]: bit 0 where a query row of these tokens has an exponent outside QUERY_WINDOW; bit 1 + kv % QUERY_FLAG_HEADS
                 where int8 does not hold a row of KV head kv
                 (both for MXFP4 only, and every word written by the prepare launch: nothing depends on what scratch held)
    wide         pages in bf16, WIDE_PAGE_BYTES each, [pages_per_pass, heads_kv]; NVFP4 ends here

    MXFP4 goes on (kernels/block_scores/sm90_choose_precision.py says what the tables mean):

    exponents    int32 [pages_per_pass, heads_kv]: the page's exponent byte where int8 holds the page, 0 where it does not
    ranks        int32 [heads_kv, pages_per_pass + 1]: pages in int8 before this one
    lists        int32 [3, heads_kv, pages_per_pass]: pages in int8, the other pages, all pages
    head_steps   64 bytes for each (entry, KV head)
    narrow       pages in int8, NARROW_PAGE_BYTES each, [pages_per_pass, heads_kv]
    """

    ENTRY_BYTES = 64
    HEADER_BYTES = 64
    FALLS = 32

    entries: object
    max_entries: object
    token_pages: object
    chunk_min: object
    chunk_max: object
    page_flags: object
    query_flags: object
    wide: object
    exponents: object
    ranks: object
    lists: object
    head_steps: object
    narrow: object
    total: object

    @classmethod
    def layout(cls, num_seqs, tokens, heads_kv, pages):
        chunks, units = (tokens + 127) // 128, pages * heads_kv
        max_entries = tokens // 16 + num_seqs
        entries = cls.HEADER_BYTES
        token_pages = entries + max_entries * cls.ENTRY_BYTES
        chunk_min = token_pages + chunks * 512
        chunk_max = chunk_min + _align(chunks * 4, 64)
        page_flags = chunk_max + _align(chunks * 4, 64)
        query_flags = page_flags + _align(units * 4, 64)
        wide = _align(query_flags + (tokens + QUERY_CHUNK - 1) // QUERY_CHUNK * 4, 1024)
        exponents = wide + units * WIDE_PAGE_BYTES
        ranks = exponents + _align(units * 4, 64)
        lists = ranks + _align((units + heads_kv) * 4, 64)
        head_steps = lists + _align(units * 12, 64)
        narrow = _align(head_steps + max_entries * heads_kv * 64, 1024)
        return cls(
            entries,
            max_entries,
            token_pages,
            chunk_min,
            chunk_max,
            page_flags,
            query_flags,
            wide,
            exponents,
            ranks,
            lists,
            head_steps,
            narrow,
            narrow + units * NARROW_PAGE_BYTES,
        )

    def size(self, fmt):
        """Bytes that a format needs."""
        return self.total if fmt == "mxfp4" else self.exponents


def scratch_bytes(fmt, num_seqs, tokens, heads_kv, staged_pages, listed_pages):
    """Size of the hidden scratch result of a prefill; independent of the architecture, so that exported programs stay portable. num_seqs and tokens may be symbolic.

    It serves a staged prefill that widens `staged_pages` pages a pass (None: a direct call needs none), and the forms that take a list of `listed_pages`
    pages in one pass.
    """
    once = lambda *sizes: Scratch.layout(*sizes, heads_kv, max(listed_pages, 1)).wide
    if staged_pages is None:
        return once(num_seqs, tokens)
    staged = lambda *sizes: Scratch.layout(*sizes, heads_kv, staged_pages).size(fmt)
    return (staged if staged(0, 0) >= once(0, 0) else once)(num_seqs, tokens)  # the plan adds the same to both
