"""The launch that plans a prefill (kernels/block_scores/prefill_schedule.py) alone: header, entries and the pages of tokens, against a plain model of them.

It is a part of three kernels: the portable plan, the first launch of a staged prefill, which widens pages as well, and that of the direct one. Of the pages and flags that they write beside the
plan only the scores of the case table tell.
"""

import bisect
import dataclasses
import functools

import numpy as np

from jax_fp4_indexer.configs.block_scores import PAGE, Scratch

from . import prepass

KERNELS = ("block_scores.portable_plan.", "block_scores.prepare.", "block_scores.plan.")
NO_LIMIT = 2**31 - 1
MULTIPROCESSORS = 3


def _clamp(x, low, high):
    return min(max(x, low), high)


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Sums of queries, keys and pages of a batch, and the sizes of a call. plan_only: too long for kernels that do more than plan."""

    name: str
    reason: str
    cu_q: tuple
    cu_k: tuple
    cu_p: tuple
    tokens: int
    num_indices: int
    heads_q: int = 2
    heads_kv: int = 1
    k_tiles: int = 1 << 24
    mask: int = 1
    offsets: tuple = ()
    first_page: int = 0
    room: int = 0  # pages of a pass; 0: all
    plan_only: bool = False

    @property
    def sizes(self):
        return dict(
            num_seqs=len(self.cu_q) - 1,
            tokens=self.tokens,
            heads_kv=self.heads_kv,
            heads_q=self.heads_q,
            num_indices=self.num_indices,
            num_pages=0,
            k_tiles=self.k_tiles,
            mask=self.mask,
            first_page=self.first_page,
            pages_per_pass=self.room or self.num_indices,
        )

    @property
    def layout(self):
        s = self.sizes
        return Scratch.layout(s["num_seqs"], s["tokens"], s["heads_kv"], s["pages_per_pass"])

    @property
    def falls(self):
        return any(b < a for sums in (self.cu_q, self.cu_p) for a, b in zip(sums, sums[1:]))

    def sequence(self, b):
        q0 = _clamp(self.cu_q[b], 0, self.tokens)
        q_len = _clamp(self.cu_q[b + 1], q0, self.tokens) - q0
        k_len = _clamp(self.cu_k[b + 1] - self.cu_k[b], 0, NO_LIMIT)
        p0 = _clamp(self.cu_p[b], 0, self.num_indices)
        n = min(_clamp(self.cu_p[b + 1], p0, self.num_indices) - p0, -(-k_len // PAGE), self.k_tiles)
        return q0, q_len, k_len, p0, n, (NO_LIMIT, k_len - q_len, self.offsets[b] if self.offsets else 0)[self.mask]

    def width(self, q_len, rows_log2):
        """(log2 of the tile width, head groups) of a sequence."""
        ratio = self.heads_q // self.heads_kv
        most = rows_log2 - (ratio > 1)
        if q_len:
            most = _clamp((q_len - 1).bit_length(), 3, most)
        groups = {log2: -(-ratio // (1 << (rows_log2 - log2))) for log2 in range(3, most + 1)}
        best = min(groups, key=lambda log2: (-(-q_len >> log2) * groups[log2], -log2))
        return best, groups[best]

    @functools.cache
    def plan(self, rows_log2):
        """(steps, entries as rows of 16 words, pages of each token)."""
        done, entries, token_pages = 0, [], [0] * self.tokens
        count = len(self.cu_q) - 1
        for b in range(count):
            q0, q_len, k_len, p0, n, offset = self.sequence(b)
            log2, groups = self.width(q_len, rows_log2)
            tiles = -(-q_len >> log2)
            seen = lambda tile: _clamp((((tile + 1) << log2) - 1 + offset >> 7) + 1, 0, n)
            low = max(self.first_page - p0, 0)
            high = self.first_page - p0 + self.sizes["pages_per_pass"]
            for second in range((tiles + 1) // 2):
                first = tiles - 1 - second
                pages = [max(min(seen(tile), high) - low, 0) for tile in (first, second)]
                pages[1] *= first != second
                steps = self.heads_kv * groups * sum(pages)
                keys = [_clamp((tile << log2) + offset, -(2**31), 2**31 - 1) for tile in (first, second)]
                if steps:
                    entries.append(
                        [
                            done & 0xFFFFFFFF,
                            done >> 32,
                            q0 + (first << log2),
                            q0 + (second << log2),
                            q0 + q_len,
                            low,
                            *pages,
                            p0,
                            k_len,
                            *keys,
                            log2,
                            groups,
                            b,
                            0,
                        ]
                    )
                done += steps
        for t in range(self.tokens if count else 0):
            b = max(bisect.bisect_right(self.cu_q, t, 0, count) - 1, 0)
            q0, q_len, k_len, p0, n, offset = self.sequence(b)
            if q0 <= t < q0 + q_len:
                log2, _ = self.width(q_len, rows_log2)
                token_pages[t] = _clamp((((t - q0 >> log2) + 1 << log2) - 1 + offset >> 7) + 1, 0, n)
        return done, np.array(entries, np.int64).reshape(-1, 16) & 0xFFFFFFFF, np.array(token_pages, np.int64)

    def run(self, kernel, schedule, max_insts=10**7):
        only, layout, s = kernel.name.startswith(KERNELS[0]), self.layout, self.sizes
        seed, size = (
            int(schedule.partition(":")[2] or 0),
            layout.page_flags if only else layout.size(kernel.name.split(".")[2]),
        )
        given, want = ([prepass.Area(0, size, seed)] for _ in range(2))
        self._expect(
            want[0],
            int(kernel.name.rpartition("rows")[2]).bit_length() - 1 if only else 8,
            only or self.first_page == 0,
        )
        if not only:  # page flags and pages
            want[0].ignore(8, 4)
            want[0].ignore(layout.page_flags, size - layout.page_flags)
        arrays = {
            name: np.array(x, np.int32)
            for name, x in (
                ("cu_seqlens_q", self.cu_q),
                ("cu_seqlens_k", self.cu_k),
                ("cu_page_offsets", self.cu_p),
                ("qo_offset", self.offsets or [0] * s["num_seqs"] or [0]),
            )
        }
        if not only:
            rows = -(-self.tokens // 128) * 128 * self.heads_q if self.first_page == 0 else 1
            arrays |= {
                "kv_indices": np.full(self.num_indices, -1, np.int32),
                "q_scale": np.full(rows * 8, 127, np.uint8),
                "q": np.zeros(rows * 64, np.uint8),
            }
        return prepass.run(kernel, given, want, s, arrays, schedule, MULTIPROCESSORS, max_insts)

    def _expect(self, scratch, rows_log2, paged):
        """Puts what the launch has to write into scratch; paged: with the pages of tokens. After a fall nobody looks at entries and pages."""
        layout, chunks = self.layout, -(-self.tokens // 128)
        steps, entries, token_pages = (0, np.zeros((0, 16)), None) if self.falls else self.plan(rows_log2)
        scratch.put(0, steps, np.uint64)
        scratch.put(12, len(entries))
        scratch.put(Scratch.FALLS, int(self.falls))
        scratch.put(layout.entries, entries)
        if self.falls:
            scratch.ignore(layout.entries, layout.token_pages - layout.entries)
        if paged and self.falls:
            scratch.ignore(layout.token_pages, layout.page_flags - layout.token_pages)
        elif paged:
            scratch.put(layout.token_pages, token_pages)
            parts = [token_pages[128 * c : 128 * c + 128] for c in range(chunks)]
            scratch.put(layout.chunk_min, [min(x) for x in parts])
            scratch.put(layout.chunk_max, [max(x) for x in parts])


# ---------------------------------------------------------------- problems
def _sums(lengths):
    return tuple(int(x) for x in np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def _batch(name, reason, seed, count, most_q, most_pages, *, pad=0, share=0.8, **how):
    """Random lengths, a fifth of queries and more of pages 0 (share: pages that are not); lists shorter or longer than the keys need."""
    rng = np.random.RandomState(seed)
    some = lambda most, share: rng.randint(0, most + 1, count) * (rng.rand(count) < share)
    q, pages = some(most_q, 0.8), some(most_pages, share)
    keys = np.maximum(pages * PAGE - rng.randint(0, 2 * PAGE, count) + (rng.rand(count) < 0.2) * PAGE, 0)
    how.setdefault("offsets", tuple(int(x) for x in rng.randint(-most_pages * PAGE, most_pages * PAGE * 2, count)))
    return Problem(
        name, reason, _sums(q), _sums(keys), _sums(pages), int(q.sum()) + pad, int(pages.sum()) + pad % 8, **how
    )


def _edges(name, heads):
    """Lengths around powers of two, and offsets with which the last key that a tile sees is near a page's end: another width of tile sees another page."""
    rng = np.random.RandomState(heads)
    q = np.array([(1 << i % 9) + i // 9 % 3 - 1 for i in range(80)])
    q[40:] = rng.randint(8, 34, 40)
    offsets = tuple(int(PAGE * rng.randint(1, 3) - rng.randint(0, 2 * max(n, 8))) for n in q)
    return Problem(
        name,
        "tiles that end near the end of a page",
        _sums(q),
        _sums([3 * PAGE] * 80),
        _sums([3] * 80),
        int(q.sum()),
        240,
        heads_q=heads,
        mask=2,
        offsets=offsets,
        plan_only=heads not in (2, 4, 24),
    )


def _problems():
    yield Problem("none", "no sequence", (0,), (0,), (0,), 5, 2)
    for count in (1, 2, 33, 255, 256, 257, 520):
        yield _batch(
            f"sequences_{count}",
            "one chunk of 256 sequences or several",
            count,
            count,
            9,
            2,
            share=20 / (20 + count),
            pad=count % 3,
            mask=count % 3,
        )
    yield Problem(
        "every_sequence",
        "a page and a pair of tiles of each of 300 sequences",
        tuple(range(0, 903, 3)),
        tuple(range(0, 301 * PAGE, PAGE)),
        tuple(range(301)),
        900,
        300,
    )
    for seed, (hq, hkv) in enumerate(((1, 1), (3, 3), (4, 1), (6, 2), (16, 1), (17, 1), (24, 2))):
        for mask in range(3):
            yield _batch(
                f"widths_{hq}_{hkv}_{mask}",
                "every width of tile",
                40 + 3 * seed + mask,
                12,
                300,
                6,
                heads_q=hq,
                heads_kv=hkv,
                mask=mask,
                pad=130,
                plan_only=mask != seed % 3,
            )
    for heads in (1, 2, 3, 4, 16, 24):
        yield _edges(f"edges_{heads}", heads)
    yield _batch(
        "many_pairs", "more than 256 pairs of tiles of one chunk, twice", 70, 300, 60, 3, mask=2, plan_only=True
    )
    q = [600 + i for i in range(100)]
    yield Problem(
        "many_wide_pairs",
        "the same of tiles of 128 tokens",
        _sums(q),
        _sums([PAGE] * 100),
        _sums([1] * 100),
        sum(q),
        100,
        heads_q=16,
        first_page=40,
        room=30,
        mask=0,
    )
    yield _batch(
        "one_long", "hundreds of pairs of one sequence", 71, 1, 30000, 90, share=1, heads_q=1, mask=1, plan_only=True
    )
    for first, room in ((0, 7), (7, 7), (21, 7), (40, 64), (1000, 7)):
        yield _batch(
            f"pass_{first}_{room}",
            "a pass",
            72,
            30,
            150,
            6,
            heads_q=6,
            heads_kv=2,
            first_page=first,
            room=room,
            mask=first % 3,
            plan_only=room > 7,
        )
    for mask in range(3):
        yield _batch(
            f"steps_{mask}",
            "more than 2^32 steps",
            75 + mask,
            34,
            40,
            40,
            heads_q=1 << 30,
            first_page=1,
            room=300,
            mask=mask,
            plan_only=mask != 1,
        )
    yield _batch(
        "far_offsets",
        "offsets at the ends of the type",
        80,
        40,
        70,
        4,
        mask=2,
        offsets=tuple((-(2**31), 2**31 - 1, -1, 0)[i % 4] for i in range(40)),
    )
    yield Problem(
        "far_keys",
        "2^31 - 1 keys, more than are listed; more listed than tiles",
        (0, 3, 300, 420),
        (0, 5, 6, 2**31 - 1),
        (0, 3, 6, 12),
        430,
        12,
        mask=1,
        k_tiles=5,
    )
    yield Problem(
        "far_sums",
        "sums beyond what exists, and below 0",
        (-9, 3, 300, 2**31 - 1),
        (-(2**31), -7, 900, 2**31 - 1),
        (-(2**31), 2, 5, 2**31 - 1),
        420,
        9,
        mask=1,
        heads_q=3,
    )
    for i, at in enumerate((0, 15, 23, 27, 29, 30, 31, 32, 255, 256, 300)):
        name = ("cu_q", "cu_p")[i % 2]
        made = _batch(f"falls_{name}_{at}", "a sum falls there, and nowhere else", 90 + at, 301, 3, 2, share=0.05)
        sums = list(getattr(made, name))
        sums[at + 1] = sums[at] - 1
        sums[at + 2 :] = [s - sums[at + 2] + sums[at] for s in sums[at + 2 :]]
        yield dataclasses.replace(made, **{name: tuple(sums)})


PROBLEMS = list(_problems())


def problems(kernel):
    """Those that the kernel is asked."""
    if not kernel.name.startswith(KERNELS):
        return []
    return [p for p in PROBLEMS if kernel.name.startswith(KERNELS[0]) or not p.plan_only]
