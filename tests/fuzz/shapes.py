"""The static shapes of the fuzzer. One bucket is one compiled program; everything else of a case varies inside it.

Shapes are small, so that a case costs launches and no time: what they differ in is what kernels differ in (columns of a decode, tiles and
head groups of a prefill, sizes of 0 and 1, more sequences than a CTA has a table for).
"""

import dataclasses

from support.calls import IMPLEMENTATIONS, LAYOUTS

# name -> Tq, Hq, Hkv, pages of the pool, sequences, entries of kv_indices, K tiles, max_seqlen_q
SHAPES = {
    "decode_4_1": (32, 4, 1, 24, 8, 40, 6, 4),
    "decode_8_2": (24, 8, 2, 20, 6, 24, 5, 8),
    "columns_32": (13, 16, 1, 16, 3, 20, 8, 2),
    "columns_64": (40, 16, 2, 24, 5, 30, 7, 8),
    "one_query_each": (33, 6, 3, 32, 33, 48, 3, 1),
    "one_long": (4, 4, 1, 40, 2, 64, 64, 4),
    "many_sequences": (48, 2, 1, 30, 40, 64, 2, 3),
    "past_the_table": (40, 1, 1, 12, 540, 64, 2, 2),
    "ratio_17": (21, 17, 1, 12, 3, 16, 4, 9),
    "prefill_4_2": (130, 4, 2, 24, 4, 24, 8, 130),
    "prefill_2_1": (257, 2, 1, 16, 3, 20, 7, 257),
    "prefill_24_1": (96, 24, 1, 12, 5, 16, 4, 60),
    "prefill_ragged": (300, 1, 1, 30, 12, 40, 4, 300),
    "prefill_heads_64": (70, 64, 4, 8, 2, 8, 3, 70),
    "all_of_size_1": (1, 1, 1, 1, 1, 1, 1, 1),
    "two_queries": (2, 3, 3, 2, 2, 3, 2, 2),
    "no_pages": (6, 2, 1, 0, 3, 5, 2, 2),
    "no_list": (6, 2, 2, 3, 3, 0, 2, 2),
    "no_sequences": (5, 4, 2, 3, 0, 4, 2, 2),
    "no_tokens": (0, 2, 1, 3, 2, 4, 2, 1),
    "no_tiles": (6, 2, 1, 3, 2, 4, 0, 2),
    "long_list": (16, 4, 2, 6, 4, 3000, 3, 4),
    "wide_pool": (16, 4, 4, 300, 4, 32, 8, 4),
}


@dataclasses.dataclass(frozen=True)
class Bucket:
    """mask: 0 none, 1 causal with offset k_len - q_len, 2 causal with qo_offset."""

    shape: str
    fmt: str
    mask: int
    tokens: int
    heads_q: int
    heads_kv: int
    pages: int
    seqs: int
    indices: int
    tiles: int
    max_seqlen_q: int

    @property
    def name(self):
        return f"{self.shape}-{self.fmt}-mask{self.mask}"

    @property
    def max_seqlen_k(self):
        """Not always a multiple of the page."""
        return max(self.tiles * 128 - (self.mask * 37 if self.tiles > 1 else 0), 0)

    def layout(self, implementation):
        """Each kernel gets one of the two scale layouts, by turns over the buckets."""
        turn = (
            list(SHAPES).index(self.shape) + self.mask + (self.fmt == "mxfp4") + IMPLEMENTATIONS.index(implementation)
            if implementation in IMPLEMENTATIONS
            else self.mask
        )
        return LAYOUTS[turn % 2]


def buckets(match=""):
    """All of them, in order; `match`: parts of names, separated by commas."""
    everything = [
        Bucket(shape, fmt, mask, *sizes)
        for shape, sizes in SHAPES.items()
        for fmt in ("nvfp4", "mxfp4")
        for mask in (0, 1, 2)
    ]
    return [b for b in everything if any(part in b.name for part in match.split(","))]
