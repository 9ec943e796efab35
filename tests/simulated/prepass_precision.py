"""The second launch of the staged MXFP4 prefill (kernels/block_scores/sm90_choose_precision.py) alone: the tables that it writes, against a plain model of them.

It reads what the launch before it left in scratch, exponents, flags and the entries of the plan, and nothing else: they are stated here without keys or queries.
"""

import dataclasses

import numpy as np

from jax_fp4_indexer.configs.block_scores import QUERY_CHUNK, QUERY_FLAG_HEADS, Scratch

from . import prepass

KERNEL = "block_scores.forms.mxfp4"
INT8, BF16, ALL = range(3)


@dataclasses.dataclass(frozen=True)
class Pair:
    """An entry of the plan, as far as it counts here: `page` is the first page of either tile in the list of all passes."""

    page: int
    pages: tuple  # of either tile
    tokens: tuple  # first of either tile
    token_end: int
    log2: int
    groups: int


@dataclasses.dataclass(frozen=True)
class Table:
    """exponents: [pages of this pass, KV heads], a byte or 0. page_flags, query_flags: {place: word}, all others zero. room: pages that a pass has room for."""

    name: str
    reason: str
    exponents: np.ndarray
    pairs: tuple
    tokens: int
    page_flags: dict = dataclasses.field(default_factory=dict)
    query_flags: dict = dataclasses.field(default_factory=dict)
    first_page: int = 0
    room: int = 0

    @property
    def sizes(self):
        """The arguments that the kernel looks at."""
        pages, heads = self.exponents.shape
        return dict(
            num_seqs=len(self.pairs),
            tokens=self.tokens,
            heads_kv=heads,
            heads_q=heads,
            num_indices=self.first_page + pages,
            first_page=self.first_page,
            pages_per_pass=max(self.room, pages),
            num_pages=1,
            k_tiles=1,
            mask=1,
        )

    @property
    def layout(self):
        s = self.sizes
        return Scratch.layout(s["num_seqs"], s["tokens"], s["heads_kv"], s["pages_per_pass"])

    def run(self, kernel, schedule, max_insts=10**7):
        seed = int(schedule.partition(":")[2] or 0)
        given, want = _given(self, seed), _given(self, seed)
        _expect(self, want)
        return prepass.run(kernel, given, want, self.sizes, {}, schedule, 1, max_insts)


def _given(table, seed):
    """Scratch below the widened pages, and between them and the narrow ones, as the first launch leaves it."""
    layout, s = table.layout, table.sizes
    head, tables = (
        prepass.Area(0, layout.wide, seed),
        prepass.Area(layout.exponents, layout.narrow - layout.exponents, seed),
    )
    head.put(12, len(table.pairs))
    entries = np.random.default_rng(seed).integers(
        0, 2**31, (len(table.pairs), 16)
    )  # words that do not count are anything
    for words, p in zip(entries, table.pairs):
        words[2:9] = *p.tokens, p.token_end, 3, *p.pages, p.page - 3
        words[12:14] = p.log2, p.groups
    head.put(layout.entries, entries)
    for at, count, flags in (
        (layout.page_flags, s["pages_per_pass"] * s["heads_kv"], table.page_flags),
        (layout.query_flags, -(-table.tokens // QUERY_CHUNK), table.query_flags),
    ):
        words = np.zeros(count, np.uint32)
        for i, word in flags.items():
            words[i] = word
        head.put(at, words)
    tables.put(layout.exponents, table.exponents)
    return head, tables


def _expect(table, scratch):
    """Puts what the launch has to write into both parts of scratch."""
    head, tables = scratch
    layout, room, heads = table.layout, table.sizes["pages_per_pass"], table.exponents.shape[1]
    counts = range(len(table.exponents))
    ranks = np.concatenate([np.zeros((1, heads), int), np.cumsum(table.exponents > 0, 0)])
    for kv in range(heads):
        tables.put(layout.ranks + kv * (room + 1) * 4, ranks[:, kv])
        held = [p for p in counts if table.exponents[p, kv]]
        for form, pages in ((INT8, held), (BF16, [p for p in counts if p not in set(held)]), (ALL, counts)):
            tables.put(
                layout.lists + (form * heads + kv) * room * 4, [p + (int(table.exponents[p, kv]) << 24) for p in pages]
            )
    done = [0, 0]
    for i, pair in enumerate(table.pairs):
        first = pair.page - table.first_page
        for kv in range(heads):
            words, rank = ([], []), int(ranks[first, kv])
            for token, pages in zip(pair.tokens, pair.pages):
                chunks = range(
                    token // QUERY_CHUNK, (min(token + (1 << pair.log2), pair.token_end) - 1) // QUERY_CHUNK + 1
                )
                odd = any(table.query_flags.get(c, 0) >> (1 + kv % QUERY_FLAG_HEADS) & 1 for c in chunks)
                narrow = 0 if odd else int(ranks[first + pages, kv]) - rank
                words[INT8].extend([kv * room + rank, narrow])
                words[BF16].extend(
                    [
                        (ALL * heads + kv) * room + first if odd else (BF16 * heads + kv) * room + first - rank,
                        pages - narrow,
                    ]
                )
            for form in (INT8, BF16):
                at = layout.head_steps + (i * heads + kv) * 64 + form * 32
                tables.put(at, words[form])
                tables.put(at + 16, [done[form], 0], np.uint64)
                done[form] += (words[form][1] + words[form][3]) * pair.groups
    head.put(16, done, np.uint64)
    head.put(8, any(table.page_flags.values()) + 2 * any(word & 1 for word in table.query_flags.values()))


# ---------------------------------------------------------------- tables
def _exponents(seed, pages, heads, share=0.5):
    """Bytes, those at the ends among them; the last page's is not 0."""
    rng = np.random.RandomState(seed)
    e = np.where(rng.rand(pages, heads) < share, rng.randint(0, 256, (pages, heads)), 0)
    e[::7] = np.where(e[::7] > 0, 1, 0)
    e[-1:] = 65
    return e


def _pairs(seed, count, pages, tokens, first_page=0, groups=5):
    """Ranges of pages anywhere, some of them empty; tiles of 8 to 256 tokens anywhere."""
    rng = np.random.RandomState(seed)
    made = []
    for _ in range(count):
        log2, low = int(rng.randint(3, 9)), int(rng.randint(0, pages))
        ends = np.sort(rng.randint(low, pages + 1, 2))[::-1] if rng.rand() < 0.8 else (low, low)
        a, b = (int(t) for t in rng.randint(0, tokens, 2))
        made.append(
            Pair(
                first_page + low,
                tuple(int(e) - low for e in ends),
                (a, b),
                int(rng.randint(max(a, b) + 1, tokens + 1)),
                log2,
                int(rng.randint(1, groups + 1)),
            )
        )
    return tuple(made)


def _flags(seed, count, share, least=0, most=2**32 - 1):
    rng = np.random.RandomState(seed)
    return {i: int(rng.randint(least, most + 1, dtype=np.int64)) for i in range(count) if rng.rand() < share}


def _tables():
    one = lambda pages: (Pair(0, (pages, 0), (0, 0), 1, 3, 1),)
    for i in range(8):
        pages = 256 * (i % 2) + 32 * i + 5
        yield Table(
            f"pages_{pages}",
            "the pages end in each of the eight places of a round over 256; there is room for more",
            _exponents(i, pages, 1),
            one(pages),
            8,
            room=pages + 3,
        )
    yield Table("pages_512", "they end with a round", _exponents(8, 512, 2), _pairs(8, 5, 512, 64), 64)
    yield Table("no_pages", "no pages, no records", np.zeros((0, 1), int), (), 8, room=1)
    yield Table("no_records", "pages that nobody asks for", _exponents(9, 3, 2), (), 8)
    for records in (1, 33, 255, 256, 257, 520):
        yield Table(
            f"records_{records}",
            "records of one KV head: one round over 256 of them or several",
            _exponents(10, 60, 1),
            _pairs(records, records, 60, 300),
            300,
            query_flags=_flags(records, 38, 0.02),
        )
    for heads in (9, 33):
        yield Table(
            f"heads_{heads}",
            "more KV heads than warps; more than a word of flags tells apart",
            _exponents(heads, 40, heads),
            _pairs(heads, 30, 40, 200, 1000),
            200,
            first_page=1000,
            room=42,
            query_flags=_flags(heads, 25, 0.1),
        )
    for form, share in (("int8", 1.1), ("bf16", -1)):
        yield Table(
            f"steps_{form}",
            "more than 2^32 steps of a form",
            _exponents(11, 50, 2, share),
            _pairs(12, 140, 50, 64, groups=2**31 - 1),
            64,
        )
    for i in range(8):
        place = 1024 * (i // 4) + 256 * (i % 4) + 32 * i + 9 + i
        small = _exponents(13, 3, 8)
        yield Table(
            f"page_flag_{place}",
            "one page for the fixup, seen by one warp",
            small,
            _pairs(13, 2, 3, 8),
            8,
            page_flags={place: 1 + 18 * i},
            room=256,
        )
        yield Table(
            f"query_flag_{place}",
            "one query for the fixup, seen by one warp; flags of other kinds elsewhere",
            small,
            _pairs(14, 2, 3, 9000),
            2048 * QUERY_CHUNK - 3,
            query_flags={(5 * i) % 64: 0xFFFFFFFE, place: 1},
        )
    yield Table(
        "flags_at_ends",
        "the last word of either kind",
        _exponents(15, 5, 3),
        _pairs(15, 9, 5, 41),
        41,
        page_flags={14: 128},
        query_flags={5: 1},
    )
    tile = tuple(
        Pair(0, (20, 7), (5 * (i % 9), 300 + i % 9), 600, 8 - i % 2, 2)
        if i % 4
        else Pair(0, (20, 7), (5 * (i % 9), i % 9), 251 + i % 9, 8, 2)
        for i in range(72)
    )
    for chunk in (0, 3, 5, 20, 31, 32, 33, 34, 37, 53, 54, 69, 70):
        yield Table(
            f"tile_flag_{chunk}",
            "one word of flags near the ends of tiles",
            _exponents(16, 20, 2),
            tile,
            600,
            query_flags={chunk: 6},
        )
    for seed in range(20, 26):
        yield Table(
            f"any_{seed}",
            "anything",
            _exponents(seed, 30 + 13 * seed, 1 + seed % 4),
            _pairs(seed, 11 * seed % 90, 30 + 13 * seed, 500, 77),
            500,
            first_page=77,
            page_flags=_flags(seed, 40, 0.1, 1, 128),
            query_flags=_flags(seed, 63, 0.05),
        )


TABLES = list(_tables())


def problems(kernel):
    return TABLES if kernel.name == KERNEL else []
