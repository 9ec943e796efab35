"""Families of rows of the case table that come from sweeps: lengths, head ratios, dispatch edges, and the big ones."""
import itertools

import numpy as np

from .inputs import base, batch

K_LENGTHS = (0, 1, 2, 31, 63, 64, 65, 126, 127, 128, 129, 130, 191, 192, 193, 255, 256, 257, 383, 384, 385, 513)


def sweeps(add):
    for causal in (True, False):
        word = "causal" if causal else "all"
        add(f"k_lengths_{word}", "every K length around page and half-page edges in one batch", lambda f, c=causal:
            batch(f, [1] * len(K_LENGTHS), K_LENGTHS, Hq=4, seed=40, causal=c))
        add(f"k_lengths_{word}_q9", "the same with 9 queries each", lambda f, c=causal: batch(f, [9] * len(K_LENGTHS), K_LENGTHS, Hq=2, seed=41, causal=c))
        add(f"q_lengths_{word}", "every query length 0..9 in one batch", lambda f, c=causal:
            batch(f, list(range(10)), [300, 129, 128, 64, 1, 257, 0, 200, 130, 65], Hq=4, Hkv=2, seed=42, causal=c))
        add(f"q_lengths_{word}_long", "127, 128, 129 and 200 queries beside short ones", lambda f, c=causal:
            batch(f, [127, 1, 128, 0, 129, 3, 200], [200, 300, 128, 40, 129, 257, 640], Hq=2, seed=43, causal=c))
    for kl in (1, 64, 127, 128, 129, 257):
        add(f"k_len_{kl}_alone", "a batch of one", lambda f, n=kl: batch(f, [1], [n], Hq=4, seed=44 + n, kind="exact"), exact=True)
    for ql in (7, 8, 16, 17, 31, 33, 63, 64, 65, 96, 127, 128, 129, 200, 255, 256, 257):
        add(f"q_len_{ql}_alone", "query tiles: one row short of, at and past every tile width", lambda f, n=ql:
            batch(f, [n], [max(n, 130) + 5], Hq=2, seed=45 + n, kind="exact"), exact=True, size="small" if ql in (7, 17, 129) else "large")
    for seed in range(24):
        add(f"ragged_{seed}", "random batches: lengths, heads, offsets, padding", lambda f, s=seed: _ragged(f, s, decode=s % 2 == 0),
            size="small" if seed < 4 else "large")


def _ragged(fmt, seed, decode):
    rng = np.random.RandomState(seed + 900)
    B, Hkv = int(rng.randint(1, 9)), int(rng.choice([1, 2, 3]))
    R = int(rng.choice([1, 2, 4, 6, 16] if decode else [1, 2, 4, 16, 17, 24]))
    ql = rng.randint(0, 9, B) if decode else rng.choice([0, 1, 9, 40, 127, 128, 129, 200], B)
    kl = rng.choice([0, 1, 63, 64, 65, 127, 128, 129, 257, 300, 640, 777, 1500], B)
    causal = bool(rng.randint(0, 4))
    offsets = rng.randint(-150, 900, B).astype(np.int32) if causal and rng.randint(0, 2) else None
    return batch(fmt, [int(x) for x in ql], [int(x) for x in kl], R * Hkv, Hkv, seed=seed, causal=causal, qo_offset=offsets,
                 pad_tokens=int(rng.randint(0, 20)), pad_indices=int(rng.randint(0, 9)), kind=("ordinary", "normal", "exact")[seed % 3])


def dispatch(add):
    for (R, Hkv), (name, ql) in itertools.product(itertools.product((1, 2, 4, 6, 16, 17, 24, 64), (1, 2, 3)), (("short", [1, 4, 8, 2]), ("long", [9, 130, 1]))):
        exact = (R + Hkv) % 2 == 0
        add(f"ratio_{R}_{Hkv}_{name}", "every GQA ratio and number of KV heads, queries on both sides of the dispatch edge", lambda f, r=R, h=Hkv, q=ql, e=exact:
            batch(f, q, [300, 129, 1, 256][:len(q)], r * h, h, seed=60 + r + h, kind="exact" if e else "ordinary"), exact=exact,
            size="small" if (R, Hkv) in ((1, 1), (6, 2), (16, 3), (17, 1)) and name == "short" else "large")
    for (ql, R), causal in itertools.product(itertools.product((8, 9), (16, 17)), (True, False)):
        add(f"edge_q{ql}_r{R}_{'causal' if causal else 'all'}", "8/9 queries, 16/17 heads a KV head: equal bits on both sides", lambda f, q=ql, r=R, c=causal:
            batch(f, [q, q - 3], [300, 257], r, 1, seed=70, kind="exact", causal=c), exact=True)


def big(add):
    """GPU only. Rows whose oracle would be too large to ship are judged by their -inf slots and by random slots."""
    big_ = lambda name, reason, make, **how: add(name, reason, make, size="large", **how)
    for R, ql in ((4, 1), (16, 8)):
        big_(f"decode_5000_pages_r{R}", "5,000 pages of one sequence: many pages a worker, whatever the split", lambda f, r=R, q=ql:
             batch(f, [q], [5000 * 128 - 77], r, 1, seed=80, spare_pages=11), compare="full" if R == 4 else "sampled")
    big_("decode_5000_pages_exact", "the same on the exact grid", lambda f: batch(f, [2], [5000 * 128 - 1], 2, 1, seed=81, kind="exact"), exact=True)
    big_("decode_skewed", "one long sequence among 63 short ones", lambda f: batch(f, [4] * 64, [65536] + [130 + 7 * i for i in range(63)], 4, 1, seed=82), compare="sampled")
    big_("decode_64k_x8", "8 x 64k keys, 2 KV heads", lambda f: batch(f, [4] * 8, [65536 - 100 * i for i in range(8)], 8, 2, seed=83, causal=False), compare="sampled")
    for B in (33, 128, 512, 515, 516, 600):
        big_(f"batch_{B}", "more sequences than any table held in a CTA", lambda f, n=B:
             batch(f, [(i * 7) % 4 for i in range(n)], [(i * 97) % 401 for i in range(n)], 2, 1, seed=84 + n))
    big_("batch_600_prefill", "600 sequences of 0..19 queries", lambda f: batch(f, [(i * 7) % 20 for i in range(600)], [(i * 97) % 301 for i in range(600)], 2, 1, seed=90))
    big_("batch_65536_rows", "B * Hq = 65536: past the limit of a grid's second dimension", lambda f: base([1] * 1024, [1] * 1024, 64, 1, fmt=f), exact=True,
         expected=np.full((64, 1, 1024), 128, np.float32))
    big_("tokens_65536", "one CTA a token would pass a grid limit", lambda f: base([65536], [200], fmt=f, causal=False), exact=True)
    big_("tokens_65537_causal", "65537 queries over 130 keys: nearly all rows see nothing", lambda f: base([65537], [130], fmt=f), exact=True)
    big_("prefill_2k", "2k x 2k causal", lambda f: batch(f, [2048], [2048], 4, 1, seed=91))
    big_("prefill_2k_exact", "2k x 2k causal on the exact grid, ragged lengths", lambda f: batch(f, [2000, 77], [2048, 1999], 6, 3, seed=92, kind="exact"), exact=True)
    big_("prefill_chunk", "the last 1,000 of 9,000 keys", lambda f: batch(f, [1000], [9000], 16, 1, seed=93), compare="sampled")
    big_("prefill_8k", "the headline shape: 64/4 heads, 8k x 8k causal", lambda f: batch(f, [8192], [8192], 64, 4, seed=94, kind="normal"), compare="sampled")
    big_("prefill_many_passes", "a list of 6,000 indices of which 40 are used", lambda f: batch(f, [300, 200], [5000, 100], 4, 1, seed=95, pad_indices=6000))
    big_("prefill_wide", "MXFP4 over the whole byte range at size", lambda f: batch(f, [700, 130], [1500, 900], 8, 2, seed=96, kind="wide"), formats=("mxfp4",))
    big_("prefill_one_wide_page", "one page far outside the others' exponents", lambda f: _one_wide_page(batch(f, [300], [1400], 8, 2, seed=97, kind="exact")),
         formats=("mxfp4",), exact=True)


def _one_wide_page(inp):
    """Page 4 of the list lies 2^60 above the rest in its KV head 1: rows stay exact because a block holds one page."""
    page = inp.kv_indices[4]
    inp.k_scale[page, 1] += 60
    return inp
