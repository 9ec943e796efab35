"""Families of rows of the case table that come from sweeps: lengths, head ratios, dispatch edges, and the big ones."""

import itertools

import numpy as np

from .inputs import base, batch

K_LENGTHS = (0, 1, 2, 31, 63, 64, 65, 126, 127, 128, 129, 130, 191, 192, 193, 255, 256, 257, 383, 384, 385, 513)


def sweeps(add):
    for causal in (True, False):
        word, quick = ("causal", ("quick",)) if causal else ("all", ())
        add(
            f"k_lengths_{word}",
            "every K length around page and half-page edges in one batch",
            lambda f, c=causal: batch(f, [1] * len(K_LENGTHS), K_LENGTHS, Hq=4, seed=40, causal=c),
            tags=quick,
        )
        add(
            f"k_lengths_{word}_q9",
            "the same with 9 queries each",
            lambda f, c=causal: batch(f, [9] * len(K_LENGTHS), K_LENGTHS, Hq=2, seed=41, causal=c),
        )
        add(
            f"q_lengths_{word}",
            "every query length 0..9 in one batch",
            lambda f, c=causal: batch(
                f, list(range(10)), [300, 129, 128, 64, 1, 257, 0, 200, 130, 65], Hq=4, Hkv=2, seed=42, causal=c
            ),
            tags=quick,
        )
        add(
            f"q_lengths_{word}_long",
            "127, 128, 129 and 200 queries beside short ones",
            lambda f, c=causal: batch(
                f, [127, 1, 128, 0, 129, 3, 200], [200, 300, 128, 40, 129, 257, 640], Hq=2, seed=43, causal=c
            ),
        )
    for kl in (1, 64, 127, 128, 129, 257):
        add(
            f"k_len_{kl}_alone",
            "a batch of one",
            lambda f, n=kl: batch(f, [1], [n], Hq=4, seed=44 + n, kind="exact"),
            exact=True,
        )
    for ql in (7, 8, 16, 17, 31, 33, 63, 64, 65, 96, 127, 128, 129, 200, 255, 256, 257):
        add(
            f"q_len_{ql}_alone",
            "query tiles: one row short of, at and past every tile width",
            lambda f, n=ql: batch(f, [n], [max(n, 130) + 5], Hq=2, seed=45 + n, kind="exact"),
            exact=True,
            size="small" if ql in (7, 17, 129) else "large",
        )
    for seed in range(24):
        add(
            f"ragged_{seed}",
            "random batches: lengths, heads, offsets, padding",
            lambda f, s=seed: _ragged(f, s, decode=s % 2 == 0),
            size="small" if seed < 4 else "large",
            tags=("quick",) if seed == 1 else (),
        )


def _ragged(fmt, seed, decode):
    rng = np.random.RandomState(seed + 900)
    B, Hkv = int(rng.randint(1, 9)), int(rng.choice([1, 2, 3]))
    R = int(rng.choice([1, 2, 4, 6, 16] if decode else [1, 2, 4, 16, 17, 24]))
    ql = rng.randint(0, 9, B) if decode else rng.choice([0, 1, 9, 40, 127, 128, 129, 200], B)
    kl = rng.choice([0, 1, 63, 64, 65, 127, 128, 129, 257, 300, 640, 777, 1500], B)
    causal = bool(rng.randint(0, 4))
    offsets = rng.randint(-150, 900, B).astype(np.int32) if causal and rng.randint(0, 2) else None
    return batch(
        fmt,
        [int(x) for x in ql],
        [int(x) for x in kl],
        R * Hkv,
        Hkv,
        seed=seed,
        causal=causal,
        qo_offset=offsets,
        pad_tokens=int(rng.randint(0, 20)),
        pad_indices=int(rng.randint(0, 9)),
        kind=("ordinary", "normal", "exact")[seed % 3],
    )


def dispatch(add):
    for (R, Hkv), (name, ql) in itertools.product(
        itertools.product((1, 2, 4, 6, 16, 17, 24, 64), (1, 2, 3)), (("short", [1, 4, 8, 2]), ("long", [9, 130, 1]))
    ):
        exact = (R + Hkv) % 2 == 0
        add(
            f"ratio_{R}_{Hkv}_{name}",
            "every GQA ratio and number of KV heads, queries on both sides of the dispatch edge",
            lambda f, r=R, h=Hkv, q=ql, e=exact: batch(
                f, q, [300, 129, 1, 256][: len(q)], r * h, h, seed=60 + r + h, kind="exact" if e else "ordinary"
            ),
            exact=exact,
            size="small" if (R, Hkv) in ((1, 1), (6, 2), (16, 3), (17, 1)) and name == "short" else "large",
        )
    for (ql, R), causal in itertools.product(itertools.product((8, 9), (16, 17)), (True, False)):
        add(
            f"edge_q{ql}_r{R}_{'causal' if causal else 'all'}",
            "8/9 queries, 16/17 heads a KV head: equal bits on both sides",
            lambda f, q=ql, r=R, c=causal: batch(f, [q, q - 3], [300, 257], r, 1, seed=70, kind="exact", causal=c),
            exact=True,
        )


def forms(add):
    """MXFP4: what a prefill may compute in int8 (pages and query rows within three binades) beside what it may not. Exact: every form has the same bits."""

    def row(name, reason, make, **how):
        add(f"forms_{name}", reason, make, formats=("mxfp4",), exact=True, **how)

    narrow = lambda f, seed, ql=(130, 9, 40), kl=(700, 300, 129), Hq=4, Hkv=2, **how: batch(
        f, list(ql), list(kl), Hq, Hkv, seed=seed, kind="narrow", **how
    )
    row("all_narrow", "every page and query in int8", lambda f: narrow(f, 110))
    row(
        "all_narrow_r1",
        "the same with a tile of 256 queries of one head",
        lambda f: narrow(f, 111, (257, 3), (300, 129), 3, 3, causal=False),
    )
    row("no_page", "no page in int8: one row of each lies 2^8 above the others", lambda f: far_keys(narrow(f, 112), 1))
    row("no_query", "no query in int8", lambda f: far_queries(narrow(f, 113), 1))
    row(
        "some_pages",
        "a third of the pages not in int8, other ones in the other KV head",
        lambda f: far_keys(narrow(f, 114), 3),
    )
    row(
        "some_queries",
        "a few queries of one head not in int8: their tiles run in bf16",
        lambda f: far_queries(narrow(f, 115, (300, 40), (700, 300), 8, 4), 97),
    )
    row(
        "mixed",
        "pages, queries, NaN of both sides and bad page ids",
        lambda f: mixed(narrow(f, 116, (300, 9, 70), (900, 300, 65), 6, 3)),
        tags=("quick",),
    )
    row(
        "mixed_ratio_17",
        "the same with padded groups of heads",
        lambda f: mixed(narrow(f, 117, (40, 200), (600, 384), 34, 2)),
    )
    row(
        "mixed_33_heads",
        "more KV heads than a word of flags tells apart",
        lambda f: mixed(narrow(f, 118, (20,), (300,), 33, 33)),
    )
    row(
        "window_low",
        "the least exponents that the window holds: keys 64..67, queries 96..99",
        lambda f: _moved(narrow(f, 119), -29, -61),
    )
    row("window_high", "the largest: keys 188..191, queries 156..159", lambda f: _moved(narrow(f, 120), 31, 63))
    row("beyond_window", "narrow, but outside the window", lambda f: _moved(narrow(f, 121), -30, 64))
    row(
        "zero_groups",
        "groups of zero codes with any exponent beside others: they do not count",
        lambda f: _zero_groups(narrow(f, 122), (0, 1, 64, 191, 223, 224, 254)),
    )
    row("zero_groups_nan", "but a NaN exponent does", lambda f: _zero_groups(narrow(f, 123), (0, 254, 255)))
    row(
        "zero_pages",
        "pages of nothing but zero codes, their exponents far apart",
        lambda f: _zero_pages(narrow(f, 124)),
    )
    row(
        "large",
        "tiles, pages and queries of either form at size",
        lambda f: mixed(narrow(f, 125, (1500, 700), (2000, 3000), 16, 2)),
        size="large",
    )


def _counted_exponents(scale):
    return scale < 255


def far_keys(inp, every):
    """One row of every `every`-th page 2^8 above the rest, other pages in other KV heads."""
    for kv in range(inp.k.shape[1]):
        for page in range(kv % every, inp.k.shape[0], every):
            row = inp.k_scale[page, kv, 0]
            row[_counted_exponents(row)] += 8
    return inp


def far_queries(inp, every):
    """One exponent of every `every`-th token of one head, a head after the other, 2^5 above the row's least."""
    for i, token in enumerate(range(0, inp.q.shape[0], every)):
        row = inp.q_scale[token, i % inp.q.shape[1]]
        if _counted_exponents(row).all():
            row[:2] = 125, 130
    return inp


def mixed(inp):
    far_queries(far_keys(inp, 4), 111)
    inp.kv_indices[2], inp.kv_indices[-1] = -1, inp.k.shape[0]
    inp.k_scale[inp.kv_indices[1], 0, 5, 1] = 255
    inp.q_scale[3, 1, 2] = 255
    return inp


def _moved(inp, queries, keys):
    """Exponents moved; stored head scales stay, so scores lie 2^(queries + keys) away."""
    for scale, by in ((inp.q_scale, queries), (inp.k_scale, keys)):
        scale[_counted_exponents(scale)] += np.uint8(by % 256)
    return inp


def _zero_groups(inp, exponents):
    """Group 2 of every fifth key row is zero codes of both signs, with these exponents in turn."""
    for i, (page, row) in enumerate(itertools.product(range(inp.k.shape[0]), range(0, 128, 5))):
        counts = _counted_exponents(inp.k_scale[page, :, row, 2])
        inp.k[page, :, row, 32:48] = 0x80 if i % 2 else 0x08
        inp.k_scale[page, counts, row, 2] = exponents[i % len(exponents)]
    return inp


def _zero_pages(inp):
    inp.k[::2] = 0
    for page in range(0, inp.k.shape[0], 2):
        counts = _counted_exponents(inp.k_scale[page])
        inp.k_scale[page][counts] = (np.arange(counts.size).reshape(counts.shape)[counts] % 255).astype(np.uint8)
    return inp


def big(add):
    """GPU only. Rows whose oracle would be too large to ship are judged by their -inf slots and by random slots."""
    big_ = lambda name, reason, make, **how: add(name, reason, make, size="large", **how)
    for R, ql in ((4, 1), (16, 8)):
        big_(
            f"decode_5000_pages_r{R}",
            "5,000 pages of one sequence: many pages a worker, whatever the split",
            lambda f, r=R, q=ql: batch(f, [q], [5000 * 128 - 77], r, 1, seed=80, spare_pages=11),
            compare="full" if R == 4 else "sampled",
        )
    big_(
        "decode_5000_pages_exact",
        "the same on the exact grid",
        lambda f: batch(f, [2], [5000 * 128 - 1], 2, 1, seed=81, kind="exact"),
        exact=True,
    )
    big_(
        "decode_skewed",
        "one long sequence among 63 short ones",
        lambda f: batch(f, [4] * 64, [65536] + [130 + 7 * i for i in range(63)], 4, 1, seed=82),
        compare="sampled",
    )
    big_(
        "decode_64k_x8",
        "8 x 64k keys, 2 KV heads",
        lambda f: batch(f, [4] * 8, [65536 - 100 * i for i in range(8)], 8, 2, seed=83, causal=False),
        compare="sampled",
    )
    for B in (33, 128, 512, 515, 516, 600):
        big_(
            f"batch_{B}",
            "more sequences than any table held in a CTA",
            lambda f, n=B: batch(
                f, [(i * 7) % 4 for i in range(n)], [(i * 97) % 401 for i in range(n)], 2, 1, seed=84 + n
            ),
        )
    big_(
        "batch_600_prefill",
        "600 sequences of 0..19 queries",
        lambda f: batch(f, [(i * 7) % 20 for i in range(600)], [(i * 97) % 301 for i in range(600)], 2, 1, seed=90),
    )
    big_(
        "batch_65536_rows",
        "B * Hq = 65536: past the limit of a grid's second dimension",
        lambda f: base([1] * 1024, [1] * 1024, 64, 1, fmt=f),
        exact=True,
        expected=np.full((64, 1, 1024), 128, np.float32),
    )
    big_(
        "tokens_65536",
        "one CTA a token would pass a grid limit",
        lambda f: base([65536], [200], fmt=f, causal=False),
        exact=True,
    )
    big_(
        "tokens_65537_causal",
        "65537 queries over 130 keys: nearly all rows see nothing",
        lambda f: base([65537], [130], fmt=f),
        exact=True,
    )
    big_("prefill_2k", "2k x 2k causal", lambda f: batch(f, [2048], [2048], 4, 1, seed=91))
    big_(
        "prefill_2k_exact",
        "2k x 2k causal on the exact grid, ragged lengths",
        lambda f: batch(f, [2000, 77], [2048, 1999], 6, 3, seed=92, kind="exact"),
        exact=True,
    )
    big_(
        "prefill_chunk",
        "the last 1,000 of 9,000 keys",
        lambda f: batch(f, [1000], [9000], 16, 1, seed=93),
        compare="sampled",
    )
    big_(
        "prefill_8k",
        "the headline shape: 64/4 heads, 8k x 8k causal",
        lambda f: batch(f, [8192], [8192], 64, 4, seed=94, kind="normal"),
        compare="sampled",
    )
    big_(
        "prefill_many_passes",
        "a list of 6,000 indices of which 40 are used",
        lambda f: batch(f, [300, 200], [5000, 100], 4, 1, seed=95, pad_indices=6000),
    )
    big_(
        "prefill_wide",
        "MXFP4 over the whole byte range at size",
        lambda f: batch(f, [700, 130], [1500, 900], 8, 2, seed=96, kind="wide"),
        formats=("mxfp4",),
    )
    big_(
        "prefill_one_wide_page",
        "one page far outside the others' exponents",
        lambda f: _one_wide_page(batch(f, [300], [1400], 8, 2, seed=97, kind="exact")),
        formats=("mxfp4",),
        exact=True,
    )


def _one_wide_page(inp):
    """Page 4 of the list lies 2^60 above the rest in its KV head 1: rows stay exact because a block holds one page."""
    page = inp.kv_indices[4]
    inp.k_scale[page, 1] += 60
    return inp
