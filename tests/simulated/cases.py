"""Which cases the kernels run in the simulator: the small rows of tests/support/cases.py, and rows that exist for the machinery.

Rows of the second kind make every ring wrap several times, every worker change sequence in the middle, and prefills take several passes.
"""

import dataclasses
import itertools

import numpy as np

from support import case_families, cases
from support.inputs import PAGE, batch


@dataclasses.dataclass(frozen=True)
class Case:
    """`table`: a row of tests/support. passes_of: pages of a pass of a prefill (None: one pass). paths: where it is run."""

    table: cases.Case
    passes_of: int | None = None
    paths: tuple = ("decode", "prefill")

    @property
    def name(self):
        return self.table.name

    @property
    def tags(self):
        return self.table.tags


def _bad_pages(inp, at):
    wrong = [inp.k.shape[0], -1, 2**30, -(2**31), 2**31 - 1]
    for i, entry in enumerate(at):
        inp.kv_indices[entry] = wrong[i % len(wrong)]
    return inp


def _nan_rows(inp, keys, queries):
    for entry, row in keys:
        inp.k_scale[inp.kv_indices[entry], :, row, (entry + row) % inp.k_scale.shape[-1]] = 0xFF
    for token, head in queries:
        inp.q_scale[token, head, token % inp.q_scale.shape[-1]] = 0xFF
    return inp


def _shuffled_ranges(inp):
    """Page ranges of the list in random order: falling and overlapping, but inside it."""
    order = np.random.RandomState(3).permutation(len(inp.cu_p))
    return dataclasses.replace(inp, cu_p=inp.cu_p[order].copy())


def _falls_late(inp, name):
    """The sum falls by one, at its last entry."""
    sums = getattr(inp, name).copy()
    sums[-1] = sums[-2] - 1
    return dataclasses.replace(inp, **{name: sums})


def _other_lengths(inp):
    """Of sequences that have keys every other one has 300 more than its pages hold, the others 150 less than that, or one."""
    lengths = np.diff(inp.cu_k)
    some = np.nonzero(lengths)[0]
    lengths[some[::2]] += 300
    lengths[some[1::2]] = np.maximum(lengths[some[1::2]] - 150, 1)
    return dataclasses.replace(
        inp, cu_k=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), max_seqlen_k=int(lengths.max())
    )


def _wide_last_query(inp):
    """Exponents of the last token that no common factor brings into bf16's range."""
    inp.q_scale[-1, :, 0], inp.q_scale[-1, :, 1:] = 1, 190
    return inp


def _wide_key(inp, entry):
    """The same of one key, of one page of the list."""
    row = inp.k_scale[inp.kv_indices[entry], 0, 3]
    row[0], row[1:] = 1, 190
    return inp


def _balanced(inp):
    """Exponents of queries and of keys far apart, but not those of their products: every group of a row counts in the score."""
    base = np.array([60, 120, 127, 180])
    for scale, centre in ((inp.q_scale, base), (inp.k_scale, 254 - base)):
        scale[:] = np.where(scale < 255, centre + scale % 3, 255)
    return inp


def _negative(inp):
    """No positive code in a key, no negative one in every other query head."""
    inp.q[:, ::2] &= 0x77
    inp.k |= 0x88
    return inp


def _low_key(inp):
    """A group of one key of every page far below all else: the page is not held in bf16, and any of its keys may have the maximum."""
    first = inp.k_scale[:, :, 5, 0]
    first[first < 255] = 1
    return inp


def _high_queries(inp):
    """Every third token's exponents far up, all of them."""
    rows = inp.q_scale[1::3]
    rows[rows < 255] += 85
    return inp


def _some_wide(inp):
    """Every third page far apart in its exponents, and some rows far from the others of theirs."""
    for page in range(0, inp.k.shape[0], 3):
        counted = inp.k_scale[page] < 255
        inp.k_scale[page][counted] -= (np.arange(counted.size).reshape(counted.shape)[counted] % 7 * 9).astype(np.uint8)
    inp.k_scale[1::3][inp.k_scale[1::3] < 255] += 90
    return inp


# Of the rows below, those for one thing each that goes wrong alone: long walks, NaN, prefix sums that decrease, passes, signs, precisions.
QUICK = {
    "many_pages",
    "nan_long",
    "lie_late_512_cu_p",
    "lie_late_517_cu_q",
    "lie_late_passes",
    "skewed",
    "passes",
    "passes_exact",
    "passes_of_one",
    "deep_prefill",
    "negative",
    "negative_exact",
    "forms_passes",
    "wide_passes",
}
MASKS = {"causal": {}, "offsets": dict(qo_offset=np.array([126, -1, 250, 7, 0], np.int32)), "all": dict(causal=False)}


def _machinery(fmt):
    b = lambda *lengths, **how: lambda f: batch(f, *lengths, **how)
    rows = [
        (
            "many_pages",
            "101 pages for 3 workers: rings wrap many times",
            b([4, 4], [70 * PAGE, 31 * PAGE + 5], 4, seed=200),
            {},
        ),
        (
            "many_pages_exact",
            "the same with equal bits asked for, two KV heads",
            b([2, 3], [40 * PAGE - 1, 21 * PAGE + 5], 8, 2, seed=201, kind="exact"),
            dict(exact=True),
        ),
        (
            "bad_pages_long",
            "page ids outside the pool in full rings",
            lambda f: _bad_pages(batch(f, [4, 3], [45 * PAGE, 30 * PAGE + 9], 4, seed=202), (0, 3, 5, 17, 31, 50, 60)),
            {},
        ),
        (
            "bad_pages_one_sequence",
            "the same where no change of sequence brings fences of its own",
            lambda f: _bad_pages(batch(f, [4], [90 * PAGE - 3], 4, seed=214), (1, 8, 9, 17, 40, 41, 77)),
            {},
        ),
        (
            "bad_pages_often",
            "every fifth page, so that they also come late in the walk of a worker; 24 columns",
            lambda f: _bad_pages(batch(f, [3], [240 * PAGE - 9], 8, seed=218), range(2, 240, 5)),
            {},
        ),
        (
            "bad_pages_many_sequences",
            "every third page, in short sequences: the next page of a warp's is a bad one of another sequence",
            lambda f: _bad_pages(
                batch(f, [i % 3 + 1 for i in range(24)], [140 + 41 * i for i in range(24)], 4, seed=223),
                range(0, 126, 3),
            ),
            {},
        ),
        (
            "bad_pages_one_by_one",
            "bad pages, and queries that see little of a long sequence: the wide decode makes a segment of every page",
            lambda f: _bad_pages(
                batch(f, [4], [90 * PAGE - 3], 4, seed=228, qo_offset=np.array([300], np.int32)), range(0, 90, 3)
            ),
            {},
        ),
        (
            "one_token_offsets",
            "sequences of one token, which sees a part of its keys",
            lambda f: batch(
                f,
                [1] * 24,
                [140 + 41 * i for i in range(24)],
                4,
                seed=238,
                qo_offset=np.arange(24, dtype=np.int32) * 30,
            ),
            {},
        ),
        (
            "kv_heads_8",
            "as many KV heads as a CTA has warps where a warp takes a head",
            b([5], [300], 8, 8, seed=231),
            {},
        ),
        (
            "nan_long",
            "NaN keys and queries deep in a walk",
            lambda f: _nan_rows(
                batch(f, [4, 4], [20 * PAGE, 30 * PAGE + 9], 4, seed=203),
                [(2, 17), (19, 127), (33, 0)],
                [(1, 2), (6, 0)],
            ),
            {},
        ),
        (
            "many_sequences",
            "70 sequences: every worker changes sequence many times",
            b([1] * 70, [10 + 13 * i for i in range(70)], 2, seed=204),
            {},
        ),
        (
            "many_sequences_600",
            "more sequences than a CTA holds a table for",
            b([(i * 7) % 4 for i in range(600)], [(i * 97) % 261 for i in range(600)], 2, seed=212),
            {},
        ),
        (
            "many_sequences_600_heads",
            "the same with two KV heads",
            b([(i * 5) % 3 for i in range(600)], [(i * 89) % 390 for i in range(600)], 4, 2, seed=215),
            {},
        ),
        (
            "other_lengths",
            "more or fewer keys than the pages of a sequence hold",
            lambda f: _other_lengths(batch(f, [2] * 20, [100 + 43 * i for i in range(20)], 4, seed=226)),
            {},
        ),
        (
            "other_lengths_600",
            "more sequences than a table holds, with more or fewer keys than their pages hold",
            lambda f: _other_lengths(
                batch(
                    f,
                    [(i + 1) % 3 for i in range(600)],
                    [(i * 97) % 261 if i % 9 == 0 else 0 for i in range(600)],
                    4,
                    2,
                    seed=224,
                )
            ),
            {},
        ),
        (
            "many_sequences_516",
            "one more than the table of the wide decode holds",
            b([1] * 516, [(i * 97) % 261 if i % 9 == 0 else 0 for i in range(516)], 2, seed=227),
            {},
        ),
        (
            "many_sequences_450",
            "a table searched four rounds at a time",
            b([1] * 450, [(i * 97) % 261 if i % 5 == 0 else 0 for i in range(450)], 2, seed=228),
            {},
        ),
        (
            "fill_behind",
            "a result so large that its -inf are written behind the pages",
            b([1] * 64, [100 * PAGE - 3] + [90 + i for i in range(63)], 16, seed=229),
            {},
        ),
        (
            "many_sequences_300",
            "a table searched in three rounds",
            b([1] * 300, [(i * 97) % 261 if i % 3 == 0 else 0 for i in range(300)], 2, seed=225),
            {},
        ),
        (
            "many_tokens",
            "more groups of 32 tokens than the grid has warps",
            b([3], [200], 1, seed=229, pad_tokens=2500),
            {},
        ),
        (
            "lie_page_ranges",
            "page ranges in random order, two KV heads",
            lambda f: _shuffled_ranges(batch(f, [2] * 40, [40 + 19 * i for i in range(40)], 4, 2, seed=216)),
            {},
        ),
        (
            "lie_page_ranges_600",
            "the same with more sequences than a table holds",
            lambda f: _shuffled_ranges(batch(f, [1] * 600, [(i * 89) % 390 for i in range(600)], 4, 2, seed=217)),
            {},
        ),
        *(
            (
                f"lie_late_{count}_{name}",
                "one fall, at the last of so many sequences: around the sizes of tables, past a plan's chunk and past a round of the load's loop",
                lambda f, c=count, n=name: _falls_late(
                    batch(f, [i % 2 for i in range(c)], [(i * 53) % 140 for i in range(c)], 2, seed=220), n
                ),
                {},
            )
            for count, name in (
                (511, "cu_q"),
                (512, "cu_p"),
                (515, "cu_q"),
                (516, "cu_p"),
                (517, "cu_q"),
                (2100, "cu_p"),
            )
        ),
        *(
            (
                f"lie_late_{count}_{name}",
                "the same in each of the places that a thread of a decode kernel looks at in one round",
                lambda f, c=count, n=name: _falls_late(
                    batch(f, [i % 2 for i in range(c)], [(i * 53) % 140 for i in range(c)], 2, seed=220), n
                ),
                dict(paths=("decode",)),
            )
            for count in (900, 1400)
            for name in ("cu_q", "cu_p")
        ),
        (
            "lie_late_passes",
            "a fall at the last sequence, three pages a pass",
            lambda f: _falls_late(batch(f, [70, 33, 5], [700, 200, 900], 4, 2, seed=221), "cu_p"),
            dict(passes_of=3, paths=("prefill",)),
        ),
        (
            "lie_wide_rows",
            "a fall, and rows of 200 tokens",
            lambda f: _falls_late(
                batch(f, [130, 60, 10], [300, 200, 900], 4, 2, seed=222, kind="narrow" if f == "mxfp4" else "ordinary"),
                "cu_q",
            ),
            dict(paths=("prefill",)),
        ),
        ("skewed", "one long sequence behind 29 short ones", b([2] * 30, [5] * 29 + [6000], 2, seed=205), {}),
        (
            "passes",
            "three pages a pass",
            b([70, 33, 5], [700, 200, 900], 4, 2, seed=206, pad_tokens=140),
            dict(passes_of=3, paths=("prefill",)),
        ),
        (
            "passes_exact",
            "four pages a pass, two tiles of queries",
            b([130, 40], [300, 900], 4, seed=207, kind="exact"),
            dict(passes_of=4, paths=("prefill",), exact=True),
        ),
        ("passes_of_one", "a pass a page", b([20, 9], [500, 300], 2, seed=208), dict(passes_of=1, paths=("prefill",))),
        (
            "deep_prefill",
            "13 and 22 pages under several tiles",
            b([130, 60], [1700, 2800], 4, 2, seed=209),
            dict(paths=("prefill",)),
        ),
        (
            "negative",
            "heads all of whose scores are negative beside others, whole pages and the diagonal",
            lambda f: _negative(batch(f, [130, 40], [700, 900], 4, 2, seed=238)),
            dict(paths=("prefill",)),
        ),
        (
            "negative_exact",
            "the same with equal bits asked for, in passes, and pages of NaN",
            lambda f: _bad_pages(_negative(batch(f, [70, 33], [900, 620], 4, seed=239, kind="exact")), (2, 9)),
            dict(passes_of=3, paths=("prefill",), exact=True),
        ),
        (
            "many_tiles",
            "more than 256 pairs of tiles of 32 tokens: the plan's loop over pairs goes around",
            b([129] * 130, [1 + i % 40 for i in range(130)], 1, seed=219, causal=False),
            dict(paths=("prefill",)),
        ),
        (
            "prefill_ratio_17",
            "17 heads a KV head: padded groups",
            b([40], [900], 17, seed=210),
            dict(paths=("prefill",)),
        ),
    ]
    for i, (R, (mask, how)) in enumerate(itertools.product((1, 2, 4, 6, 16, 17, 24), MASKS.items())):
        rows.append(
            (
                f"ragged_r{R}_{mask}",
                "every number of heads a KV head under every mask, ragged",
                b(
                    [3, 9, 1, 0, 5],
                    [300, 129, 257, 40, 128],
                    R * (1 + i % 2),
                    1 + i % 2,
                    seed=220 + i,
                    kind=("exact", "ordinary")[i // 2 % 2],
                    pad_tokens=i % 3,
                    **how,
                ),
                dict(exact=i // 2 % 2 == 0),
            )
        )
    if fmt == "mxfp4":
        rows.append(
            (
                "wide_long",
                "exponents outside the window in full rings: the general form of a page between regular ones",
                lambda f: _some_wide(batch(f, [4, 3], [20 * PAGE, 11 * PAGE + 9], 8, 2, seed=213, kind="ordinary")),
                {},
            )
        )
        forms = lambda seed, lengths: lambda f: case_families.mixed(batch(f, *lengths, seed=seed, kind="narrow"))
        rows.append(
            (
                "forms_deep",
                "both forms in full rings",
                forms(215, ([130, 60], [1700, 2800], 6, 2)),
                dict(exact=True, paths=("prefill",)),
            )
        )
        rows.append(
            (
                "forms_passes",
                "both forms, three pages a pass",
                forms(216, ([140, 33, 60], [900, 200, 700], 4, 2)),
                dict(exact=True, passes_of=3, paths=("prefill",)),
            )
        )
        for room, pages in ((110, 190), (170, 310), (250, 390)):
            rows.append(
                (
                    f"forms_counts_{room}",
                    "both forms, passes that end in the middle of a round over the pages",
                    lambda f, n=pages: case_families.far_keys(
                        batch(f, [9], [n * PAGE - 5], 2, seed=230, kind="narrow"), 5
                    ),
                    dict(passes_of=room, paths=("prefill",)),
                )
            )
        rows.append(
            (
                "wide_query_behind_8192",
                "more tokens than one round over the flags of the queries, a flag in the last word",
                lambda f: _wide_last_query(batch(f, [8200], [120], 1, seed=232, kind="narrow", causal=False)),
                dict(paths=("prefill",)),
            )
        )
        rows.append(
            (
                "wide_balanced",
                "groups far apart in queries and in keys, and every product counts",
                lambda f: _balanced(batch(f, [11, 3], [400, 145], 4, 2, seed=234, causal=False)),
                {},
            )
        )
        rows.append(
            (
                "wide_low_keys",
                "pages for the fixup whose maxima are anywhere",
                lambda f: _low_key(batch(f, [11, 3], [1200, 905], 4, 2, seed=235, kind="narrow")),
                {},
            )
        )
        rows.append(
            (
                "high_queries",
                "queries for the fixup beside others, over pages in its plain form",
                lambda f: _high_queries(batch(f, [11, 3], [1200, 905], 4, 2, seed=236, kind="narrow")),
                {},
            )
        )
        rows.append(
            (
                "high_queries_bad_pages",
                "the same over pages that do not exist, one of them the first behind the pool",
                lambda f: _bad_pages(
                    _high_queries(batch(f, [11, 3], [1200, 905], 4, 2, seed=237, kind="narrow")), (3, 7, 8, 12)
                ),
                {},
            )
        )
        rows.append(
            (
                "wide_page_70",
                "one page in a hundred for the fixup: the flags of one warp's share alone",
                lambda f: _wide_key(batch(f, [3], [100 * PAGE], 1, seed=233, kind="narrow"), 70),
                dict(paths=("prefill",)),
            )
        )
        rows.append(
            (
                "forms_many",
                "many short sequences: records without a step of one form between others",
                lambda f: case_families.far_keys(
                    batch(
                        f,
                        [9 + i % 20 for i in range(24)],
                        [100 + 37 * i for i in range(24)],
                        2,
                        seed=217,
                        kind="narrow",
                    ),
                    5,
                ),
                dict(exact=True, paths=("prefill",)),
            )
        )
        rows.append(
            (
                "wide_passes",
                "exponents outside the window, in several passes",
                b([70, 20], [900, 500], 4, 2, seed=211, kind="wide"),
                dict(passes_of=3, paths=("prefill",)),
            )
        )
    for name, reason, make, how in rows:
        yield Case(
            cases.Case(
                f"sim_{name}-{fmt}",
                reason,
                fmt,
                make,
                exact=how.pop("exact", False),
                tags=frozenset({"quick"} if name in QUICK else ()),
            ),
            **how,
        )


def of(path, fmt, match="", tag=None):
    """Cases of a path and format; `match`: parts of names, separated by commas; tag: of those that have it."""
    parts = match.split(",")
    everything = [Case(row) for row in cases.table("small", fmt)] + list(_machinery(fmt))
    return [
        c
        for c in everything
        if path in c.paths and any(p in c.name for p in parts) and (tag is None or tag in c.table.tags)
    ]
