"""The one table of named cases of `fp4_indexer_block_scores`. Every implementation runs all of it.

A row is data: a name, the reason it exists, a builder, and how its result is judged.

size     small: also run by the reference on CPU in CI. large: GPU only (the reference would take too long).
compare  full: every slot against the float64 oracle. sampled: all -inf slots, and random slots against the oracle.
exact    the fp32 result is exact in any order of summation: equal bits are asked for.
expected full fp32 output known without an oracle, where the case was first stated with its answer.
tags     "quick": a row for each thing that goes wrong alone, few enough that every kernel runs them in `make test`.
"""

import dataclasses
import functools

import numpy as np

from . import case_families
from .inputs import GROUPS, INT32_MAX, INT32_MIN, NAN_BYTES, PAGE, RAMP_START, base, batch, power_of_two_byte, ramp

INF, NAN = np.inf, np.nan
BOTH = ("nvfp4", "mxfp4")
MX = ("mxfp4",)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    reason: str
    fmt: str
    make: object
    exact: bool = False
    size: str = "small"
    compare: str = "full"
    expected: object = None
    tags: frozenset = frozenset()

    def build(self):
        return self.make(self.fmt)


QUICK = frozenset({"quick"})
_TABLE = {}


def add(name, reason, make, *, formats=BOTH, **how):
    """One row per format. `expected` may be an array-like or a function of the format."""
    for fmt in formats:
        row = {**how, "tags": frozenset(how.get("tags", ()))}
        if callable(row.get("expected")):
            row["expected"] = row["expected"](fmt)
        full = f"{name}-{fmt}"
        if full in _TABLE:
            raise ValueError(f"case {full!r} is already in the table")
        _TABLE[full] = Case(full, reason, fmt, make, **row)


def table(size=None, fmt=None, match=""):
    """Cases in order, narrowed by size, format and a part of the name (or several, separated by commas)."""
    parts = match.split(",")
    return [c for c in _all() if size in (None, c.size) and fmt in (None, c.fmt) and any(p in c.name for p in parts)]


@functools.cache
def _all():
    _nothing_to_do()
    _numbers()
    _must_not_count()
    _masks()
    _heads_and_pages()
    _metadata()
    for family in (case_families.sweeps, case_families.dispatch, case_families.forms, case_families.big):
        family(add)
    return list(_TABLE.values())


def _set(inp, **edits):
    """In place: whole arrays or (index, value) pairs."""
    for name, edit in edits.items():
        index, value = edit
        getattr(inp, name)[index] = value
    return inp


def _one_head(rows):
    return np.array([rows], np.float32)


def _nothing_to_do():
    x = [-INF, 128.0]
    add(
        "k_len_0_beside_5",
        "an empty sequence beside a short one",
        lambda f: base([1, 1], [0, 5], fmt=f),
        exact=True,
        expected=_one_head([x]),
        tags=QUICK,
    )
    for n in (1, 32, 33):
        add(
            f"all_empty_{n}",
            "warm-up batch: every length 0, and a multiple of the warp size; one dummy page",
            lambda f, n=n: base([1] * n, [0] * n, fmt=f, max_seqlen_k=200),
            exact=True,
            expected=np.full((1, 2, n), -INF, np.float32),
        )
    add(
        "all_empty_no_pages",
        "a pool of no pages at all: zero-size K, non-empty output",
        lambda f: _no_pool(base([1] * 3, [0] * 3, fmt=f, max_seqlen_k=128)),
        exact=True,
        expected=np.full((1, 1, 3), -INF, np.float32),
    )
    add(
        "empty_around_300",
        "one sequence with work among empty ones",
        lambda f: base([1] * 4, [0, 0, 300, 0], fmt=f),
        exact=True,
        expected=_one_head([[-INF, -INF, 128, -INF]] * 3),
    )
    add(
        "q_len_0_between",
        "a sequence without queries in the middle",
        lambda f: base([2, 0, 2], [5, 200, 130], fmt=f),
        exact=True,
        expected=_one_head([[128, 128, 128, 128], [-INF, -INF, 128, 128]]),
    )
    add(
        "q_len_0_first_and_last",
        "sequences without queries at both ends",
        lambda f: base([0, 3, 0], [64, 129, 64], fmt=f),
        exact=True,
    )
    add(
        "no_queries_at_all",
        "Tq of 4, all of it padding",
        lambda f: batch(f, [0, 0], [100, 300], pad_tokens=4),
        exact=True,
        expected=np.full((1, 3, 4), -INF, np.float32),
    )
    add(
        "batch_0_padded",
        "B = 0 with padded tokens: the output is not empty and must be written",
        lambda f: batch(f, [], [], pad_tokens=5, max_seqlen_k=300, pad_indices=2),
        exact=True,
        expected=np.full((1, 3, 5), -INF, np.float32),
        tags=QUICK,
    )
    add("batch_0", "B = 0, Tq = 0: an output of size 0", lambda f: batch(f, [], [], max_seqlen_k=128), exact=True)
    add("max_seqlen_k_0", "no K tiles: an output of size 0", lambda f: base([2, 3], [0, 0], fmt=f), exact=True)


def _no_pool(inp):
    return dataclasses.replace(inp, k=inp.k[:0], k_scale=inp.k_scale[:0])


def _numbers():
    for qb, kb, code, want in (
        (0, 254, 0x22, 128),
        (254, 0, 0x77, 768),
        (0, 127, 0x22, 2.0**-120),
        (134, 127, 0x22, 16384),
        (254, 254, 0x22, INF),
        (1, 253, 0x22, 128),
        (1, 127, 0x22, 2.0**-119),
        (253, 1, 0x22, 128),
        (127, 134, 0x22, 16384),
        (254, 1, 0x77, 1536),
        (254, 127, 0x22, INF),
        (247, 127, 0x22, 2.0**127),
        (127, 0, 0x77, 768 * 2.0**-127),
    ):
        add(
            f"e8m0_{qb}_{kb}_{code:02x}",
            "E8M0 ends: 0 is 2^-127, 254 is 2^127; the scales combine before they overflow or flush",
            lambda f, q=qb, k=kb, c=code: _set(base([1], [1], fmt=f), q_scale=(..., q), k_scale=(..., k), q=(..., c)),
            formats=MX,
            exact=True,
            expected=np.full((1, 1, 1), want, np.float32),
        )
    add(
        "e8m0_every_byte_q",
        "every finite scale byte in Q against its complement in K: 254 sequences of one key",
        lambda f: _every_e8m0(),
        formats=MX,
        exact=True,
        expected=np.full((1, 1, 255), 128, np.float32),
    )
    add(
        "e8m0_cancel_per_group",
        "2^-100 x 2^100 in one group beside 2^90 x 2^-90 in another, in every row",
        lambda f: _set(
            base([3], [130], Hq=2, fmt=f),
            q_scale=(..., np.array([27, 227, 127, 37])),
            k_scale=(..., np.array([227, 27, 127, 217])),
        ),
        formats=MX,
        exact=True,
    )
    for side in ("q", "k"):
        for low in (0, 1, 2, 5):
            add(
                f"e8m0_ends_in_{side}_{low}",
                f"exponent extremes in {side}: bytes {low}.. against their complements, all codes",
                lambda f, s=side, b=low: _ends(batch(f, [2, 11], [200, 129], Hq=4, Hkv=2, seed=b, kind="exact"), s, b),
                formats=MX,
                exact=True,
            )
    for seed in range(4):
        add(
            f"wide_{seed}",
            "groups of one row anywhere in the byte range, complementary in K",
            lambda f, s=seed: batch(f, [3, 20, 1], [300, 64, 129], Hq=4, Hkv=2, seed=s, kind="wide"),
            formats=MX,
            tags=QUICK if seed == 0 else (),
        )
    add(
        "e8m0_negative_overflow",
        "every visible key below -fp32max: the computed maximum is -inf",
        lambda f: _set(base([1], [3], fmt=f), q_scale=(..., 250), k_scale=(..., 200), k=(..., 0xAA)),
        formats=MX,
        exact=True,
        expected=np.full((1, 1, 1), -INF, np.float32),
    )
    add(
        "e2m1_products",
        "all 256 products of two codes, every lane in turn: 16 one-lane queries x 16 blocks of one-lane keys",
        lambda f: _code_products(f, range(0, 128, 9)),
        exact=True,
    )
    for lane in (0, 1, 63, 127):
        add(
            f"e2m1_values_lane_{lane}",
            "code c against 1.0 in one lane",
            lambda f, n=lane: _codes_in_lane(f, n),
            exact=True,
            expected=_one_head([[0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]]),
        )
    add(
        "scale_group_edges_q",
        "one-hot element d against ones, group g scaled by 2^g: 128 tokens",
        lambda f: _one_hot(f, "q"),
        exact=True,
        expected=lambda f: _one_head([2.0 ** (np.arange(128) * GROUPS[f] // 128)]),
    )
    add(
        "scale_group_edges_k",
        "the same with the scales in K",
        lambda f: _one_hot(f, "k"),
        exact=True,
        expected=lambda f: _one_head([2.0 ** (np.arange(128) * GROUPS[f] // 128)]),
    )
    add(
        "scale_bytes_q",
        "every scale byte in Q, NaN and sign bit included: one token each",
        lambda f: _every_scale(f, "q"),
        exact=True,
    )
    add(
        "scale_bytes_k",
        "every scale byte in K: one sequence of one key each",
        lambda f: _every_scale(f, "k"),
        exact=True,
    )
    add(
        "scale_zero_times_six",
        "scale 0 with code 7 is exactly 0, not NaN",
        lambda f: _set(base([1], [9], fmt=f), q=(..., 0x77), k=(..., 0xFF), k_scale=(..., 0)),
        formats=("nvfp4",),
        exact=True,
        expected=np.zeros((1, 1, 1), np.float32),
    )
    add(
        "all_codes_zero",
        "zero codes of both signs: 0 compares equal to -0",
        lambda f: _set(base([2], [130], fmt=f), q=(..., 0x80), k=(..., 0x08)),
        exact=True,
        expected=np.zeros((1, 2, 2), np.float32),
    )
    for kind in ("exact", "exact_low", "exact_high"):
        add(
            f"grid_{kind}",
            "powers of two within 2^9: bits equal in any order",
            lambda f, k=kind: batch(f, [1, 4, 17], [300, 129, 257], Hq=6, Hkv=3, seed=3, kind=k),
            exact=True,
        )


def _every_e8m0():
    inp = base([1] * 255, [1] * 255, fmt="mxfp4")
    inp.q_scale[:] = np.arange(255, dtype=np.uint8)[:, None, None]
    inp.k_scale[:] = (254 - np.arange(255)).astype(np.uint8)[:, None, None, None]
    return inp


def _ends(inp, side, low):
    """Exact-grid bytes moved so that `side` starts at `low` and the other side complements it."""
    up, down = (inp.q_scale, inp.k_scale) if side == "q" else (inp.k_scale, inp.q_scale)
    counts_up, counts_down = up < 255, down < 255  # what is poisoned stays so
    up[counts_up] = up[counts_up] - 124 + low
    down[counts_down] = down[counts_down] - 124 + 245 - low
    return inp


def _pack(codes):
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def _code_products(fmt, lanes):
    lanes = list(lanes)
    inp = base([16] * len(lanes), [16 * PAGE] * len(lanes), fmt=fmt, causal=False)
    for b, lane in enumerate(lanes):
        q = np.zeros((16, 128), np.uint8)
        q[:, lane] = np.arange(16)
        inp.q[16 * b : 16 * b + 16, 0] = _pack(q)
        inp.k[16 * b : 16 * b + 16] = _pack(q)[:, None, None]
    return inp


def _codes_in_lane(fmt, lane):
    inp = base([16], [1], fmt=fmt, causal=False)
    q = np.zeros((16, 128), np.uint8)
    q[:, lane] = np.arange(16)
    k = np.zeros(128, np.uint8)
    k[lane] = 2
    return _set(inp, q=(np.s_[:, 0], _pack(q)), k=(..., _pack(k)))


def _one_hot(fmt, side):
    inp = base([128], [PAGE], fmt=fmt, causal=False)
    inp.q[:, 0] = _pack(np.eye(128, dtype=np.uint8) * 2)
    scales = inp.q_scale if side == "q" else inp.k_scale
    scales[:] = power_of_two_byte(fmt, np.arange(GROUPS[fmt]))
    return inp


def _every_scale(fmt, side):
    every = np.arange(256, dtype=np.uint8)
    if side == "q":
        return _set(base([256], [1], fmt=fmt, causal=False), q_scale=(..., every[:, None, None]))
    return _set(base([1] * 256, [1] * 256, fmt=fmt), k_scale=(..., every[:, None, None, None]))


def _must_not_count():
    for byte in (0x7E, 0x7F, 0xFF):
        add(
            f"tail_scale_{byte:02x}",
            "stale bytes behind k_len: large, then NaN of both signs",
            lambda f, s=byte: _set(base([1], [129], fmt=f), k=(np.s_[1, :, 1:], 0x77), k_scale=(np.s_[1, :, 1:], s)),
            exact=True,
            expected=np.full((1, 2, 1), 128, np.float32),
        )
    add(
        "tail_zero_keys_lose",
        "scores of -128 before a tail of zeros: an unmasked zero row would win",
        lambda f: _set(
            base([1], [129], fmt=f, k=np.repeat(np.uint8([[[[0xAA]] * 128]] * 2), 64, -1)), k=(np.s_[1, :, 1:], 0)
        ),
        exact=True,
        expected=np.full((1, 2, 1), -128, np.float32),
    )
    for kl in (1, 63, 65, 127):
        add(
            f"tail_after_{kl}",
            "negative scores, tail of +6 with NaN scales right behind the last key",
            lambda f, n=kl: _set(
                _set(base([2], [n], fmt=f, causal=False), k=(..., 0xAA)),
                k=(np.s_[0, :, n:], 0x77),
                k_scale=(np.s_[0, :, n:], NAN_BYTES[f][0]),
            ),
            exact=True,
            expected=np.full((1, 1, 2), -128, np.float32),
        )
    for group in range(8):
        add(
            f"nan_key_group_{group}",
            "one counted key with a NaN scale in one group: its block is NaN, the other is not",
            lambda f, g=group: _set(
                base([1], [256], Hq=2, Hkv=2, fmt=f),
                k_scale=((0, 1, 77, g % GROUPS[f]), NAN_BYTES[f][g // 4 % len(NAN_BYTES[f])]),
            ),
            exact=True,
            expected=np.array([[[128]] * 2, [[NAN], [128]]], np.float32),
        )
    for key in (0, 63, 64, 126):
        add(
            f"nan_key_{key}_causal",
            "a NaN key is seen by exactly the queries at or behind it",
            lambda f, n=key: _set(base([128], [128], fmt=f), k_scale=((0, 0, n, 0), NAN_BYTES[f][0])),
            exact=True,
            expected=_one_head([np.where(np.arange(128) >= key, NAN, 128)]),
        )
    add(
        "nan_last_key_and_tail",
        "NaN in the last counted key of one sequence, in the first key behind the other",
        lambda f: _set(base([1, 1], [100, 100], fmt=f), k_scale=(([0, 1], 0, [99, 100], 0), NAN_BYTES[f][0])),
        exact=True,
        expected=_one_head([[NAN, 128]]),
    )
    add(
        "nan_with_zero_codes",
        "a NaN scale over zero codes is still NaN",
        lambda f: _set(base([9], [64], fmt=f, causal=False), k=((0, 0, 5), 0), k_scale=((0, 0, 5), NAN_BYTES[f][0])),
        exact=True,
        expected=np.full((1, 1, 9), NAN, np.float32),
    )
    add(
        "nan_query",
        "a NaN scale in Q makes the visible blocks of that row and head NaN, nothing else",
        lambda f: _set(base([12], [300], Hq=4, Hkv=2, fmt=f), q_scale=((5, 2, 1), NAN_BYTES[f][-1])),
        exact=True,
    )
    add(
        "nan_query_nothing_visible",
        "a NaN query that sees no key stays -inf",
        lambda f: _set(base([4], [2], fmt=f), q_scale=((0, 0, 0), NAN_BYTES[f][0])),
        exact=True,
        expected=_one_head([[-INF, -INF, 128, 128]]),
    )
    for tq in (1, 31, 33, 127, 129):
        add(
            f"scale_padding_{tq}",
            "tiled scales with 0xFF in the padding rows",
            lambda f, n=tq: batch(f, [n], [200], Hq=2, seed=n, kind="exact"),
            exact=True,
        )
    for tq in (1, 33, 127, 128, 129):
        add(
            f"scale_order_{tq}",
            "a different scale at every (row, group): any permutation shows",
            lambda f, n=tq: batch(f, [n], [257], Hq=3, Hkv=3, seed=100 + n, causal=False),
        )
    add(
        "padded_tokens",
        "Tq beyond cu_seqlens_q[-1]: rows of NaN queries come out -inf",
        lambda f: batch(f, [3, 5], [129, 40], Hq=2, pad_tokens=130, seed=5),
        tags=QUICK,
    )
    add(
        "padded_indices",
        "kv_indices longer than the pages in use, pool larger than the list",
        lambda f: batch(f, [3, 12], [700, 129], Hq=2, pad_indices=50, spare_pages=20, seed=6),
    )


def _masks():
    t = lambda f, *exponents: 128 * 2.0 ** (np.array(exponents) + RAMP_START[f])
    two = lambda f: t(f, 7, 7, 7)
    add(
        "ramp_bottom_right",
        "default offset k_len - q_len",
        lambda f: ramp([3], [288], fmt=f),
        exact=True,
        expected=lambda f: _one_head([two(f), t(f, 15, 15, 15), t(f, 17, 17, 17)]),
    )
    add(
        "ramp_289",
        "the third row sees one key more: the next 16-group",
        lambda f: ramp([3], [289], fmt=f),
        formats=MX,
        exact=True,
        expected=lambda f: _one_head([two(f), t(f, 15, 15, 15), t(f, 17, 17, 18)]),
    )
    add(
        "ramp_offset_126",
        "crosses the page on the third row",
        lambda f: ramp([3], [288], fmt=f, qo_offset=np.array([126], np.int32)),
        exact=True,
        expected=lambda f: _one_head([two(f), [-INF, -INF, t(f, 8)[0]], [-INF] * 3]),
    )
    add(
        "ramp_offset_minus_1",
        "the first row sees nothing",
        lambda f: ramp([3], [288], fmt=f, qo_offset=np.array([-1], np.int32)),
        exact=True,
        expected=lambda f: _one_head([[-INF, *t(f, 0, 0)], [-INF] * 3, [-INF] * 3]),
    )
    for offset in (10**6, INT32_MAX, INT32_MAX - 1, INT32_MIN, INT32_MIN + 1, -3, -2, 0, 287):
        add(
            f"ramp_offset_{offset}",
            "offsets far outside: no overflow in query + offset",
            lambda f, o=offset: ramp([3], [288], fmt=f, qo_offset=np.array([o], np.int32)),
            exact=True,
        )
    add(
        "ramp_two_offsets",
        "k_len 288 and 17 in one batch: two different default offsets",
        lambda f: ramp([3, 3], [288, 17], fmt=f),
        exact=True,
    )
    add(
        "ramp_own_offsets",
        "each sequence its own offset, one at each int32 end",
        lambda f: ramp(
            [3, 9, 2, 4], [288, 130, 17, 200], fmt=f, qo_offset=np.array([INT32_MAX, 120, INT32_MIN, -2], np.int32)
        ),
        exact=True,
        tags=QUICK,
    )
    add(
        "ramp_every_key",
        "288 queries over 288 keys: every position of the mask",
        lambda f: ramp([288], [288], fmt=f),
        exact=True,
    )
    add("ramp_not_causal", "no mask but k_len", lambda f: ramp([3, 10], [288, 40], fmt=f, causal=False), exact=True)
    add(
        "q_longer_than_k",
        "rows before the first key see nothing",
        lambda f: base([4], [2], fmt=f),
        exact=True,
        expected=_one_head([[-INF, -INF, 128, 128]]),
    )
    add(
        "q_longer_than_k_tiles",
        "whole tiles of rows that see nothing must still be written",
        lambda f: batch(f, [400], [3], Hq=2, seed=8),
        exact=False,
    )
    add(
        "q_much_longer_than_k",
        "200 rows, one key, beside a full sequence",
        lambda f: batch(f, [200, 2], [1, 300], Hq=4, seed=9),
    )
    add("chunk_of_prefill", "rows 64..127 as a chunk with qo_offset", lambda f: _chunk(f), exact=True)
    for kmax in (1, 127, 128, 129):
        add(
            f"max_seqlen_k_{kmax}",
            "maximum length not a multiple of the page",
            lambda f, n=kmax: base([1, 2], [n, 1], fmt=f),
            exact=True,
        )
    add(
        "max_seqlen_k_larger",
        "extra tiles beyond every sequence are -inf",
        lambda f: batch(f, [2, 9], [129, 300], seed=10, max_seqlen_k=1000),
    )
    add(
        "max_seqlen_k_smaller",
        "blocks past max_seqlen_k do not exist; the mask still uses k_len",
        lambda f: batch(f, [3, 20], [700, 129], Hq=2, seed=11, max_seqlen_k=300),
    )
    add(
        "max_seqlen_k_smaller_prefill",
        "the same with rows whose whole view is cut off",
        lambda f: batch(f, [200], [900], seed=12, max_seqlen_k=129),
    )
    add(
        "max_seqlen_q_too_small",
        "max_seqlen_q chooses the kernel, nothing else",
        lambda f: batch(f, [9, 40, 1], [300, 200, 129], Hq=2, seed=13, max_seqlen_q=4),
    )
    add(
        "max_seqlen_q_too_large",
        "the same the other way",
        lambda f: batch(f, [1, 2], [300, 200], Hq=2, seed=14, max_seqlen_q=100),
    )


def _chunk(fmt):
    whole = batch(fmt, [128], [300], Hq=2, seed=15, kind="exact", qo_offset=np.array([172], np.int32))
    return dataclasses.replace(
        whole,
        q=whole.q[64:],
        q_scale=whole.q_scale[64:],
        cu_q=np.array([0, 64], np.int32),
        max_seqlen_q=64,
        qo_offset=np.array([236], np.int32),
    )


def _heads_and_pages():
    for Hq, Hkv in ((1, 1), (4, 2), (6, 2), (6, 3), (48, 2), (17, 1), (32, 2), (34, 2), (6, 6), (64, 1)):
        for ql in ([2], [9]):
            add(
                f"heads_{Hq}_{Hkv}_q{ql[0]}",
                "each KV head has its own scale: a head that reads another's keys shows",
                lambda f, a=Hq, b=Hkv, q=ql: _set(
                    base(q, [130], a, b, fmt=f), k_scale=(..., power_of_two_byte(f, np.arange(b))[:, None, None])
                ),
                exact=True,
                tags=QUICK if (Hq, Hkv, ql) == (6, 3, [9]) else (),
            )
    page = lambda f, ids, **kw: _set(
        base([1], [300], fmt=f, kv_indices=np.array(ids, np.int32), **kw),
        k_scale=(..., power_of_two_byte(f, np.arange(3))[:, None, None, None]),
    )
    add(
        "pages_permuted",
        "each block shows its own page's scale",
        lambda f: page(f, [2, 0, 1]),
        exact=True,
        expected=_one_head([[512], [128], [256]]),
    )
    add(
        "pages_shared",
        "one page three times (prefix cache)",
        lambda f: page(f, [1, 1, 1]),
        exact=True,
        expected=np.full((1, 3, 1), 256, np.float32),
    )
    add(
        "pages_ragged",
        "1 + 3 + 1 + 3 pages, shuffled",
        lambda f: batch(f, [1, 2, 1, 3], [1, 300, 1, 257], Hq=2, seed=20),
    )
    for bad in (-1, 3, 2**24, INT32_MAX, INT32_MIN):
        add(
            f"page_id_{bad}",
            "an id outside the pool makes that block NaN: never another page, never an access",
            lambda f, i=bad: page(f, [0, i, 2]),
            exact=True,
            expected=_one_head([[128], [NAN], [512]]),
        )
    add(
        "page_id_bad_prefill",
        "bad ids where only some rows see the block",
        lambda f: _bad_pages(batch(f, [200, 5], [300, 290], Hq=4, Hkv=2, seed=21)),
        tags=QUICK,
    )
    add(
        "page_id_bad_unseen",
        "a bad id in a block that no row sees stays -inf",
        lambda f: page(f, [0, 1, -7], qo_offset=np.array([140], np.int32)),
        exact=True,
        expected=_one_head([[128], [256], [-INF]]),
    )
    for name, q, k in (
        ("scalar", np.float32(0.25), np.float32(8)),
        ("heads", np.float32([1, 2, 0.5, 4]), np.float32([0.125, 16])),
        ("one", np.float32(3), None),
        ("negative", np.float32([1, -2, 0.5, -1]), None),
        ("zero", np.float32([0, 1, 0, 2]), np.float32(1)),
        ("nan", None, np.float32([NAN, 1])),
    ):
        add(
            f"global_{name}",
            "global scales multiply the block maximum, and never an invisible block",
            lambda f, a=q, b=k: batch(f, [2, 9], [129, 300], 4, 2, seed=22, q_global=a, k_global=b),
            formats=("nvfp4",),
        )
    add(
        "global_exact",
        "powers of two keep exact inputs exact",
        lambda f: batch(
            f,
            [2, 9],
            [129, 300],
            4,
            2,
            seed=23,
            kind="exact",
            q_global=np.float32([1, 2, 0.5, 4]),
            k_global=np.float32([0.125, 16]),
        ),
        formats=("nvfp4",),
        exact=True,
    )


def _bad_pages(inp):
    inp.kv_indices[1], inp.kv_indices[4] = -1, inp.k.shape[0]
    return inp


def _metadata():
    """Metadata that contradicts itself. The clamping rules decide what every slot holds; NaN everywhere where the sum of queries or of pages falls."""
    edit = lambda f, seed=30, causal=True, **edits: _set(
        batch(f, [3, 12, 2], [300, 129, 200], Hq=4, Hkv=2, seed=seed, causal=causal), **edits
    )
    add("lie_cu_q_past_tokens", "the last sequence claims rows past Tq", lambda f: edit(f, cu_q=(3, 40)))
    add(
        "lie_cu_p_past_list", "page ranges past kv_indices: those blocks do not exist", lambda f: edit(f, cu_p=(3, 100))
    )
    add("lie_cu_p_decreasing", "a page range that ends before it starts", lambda f: edit(f, cu_p=(1, -4)))
    add(
        "lie_k_len_longer_than_pages",
        "k_len needs more pages than the list gives",
        lambda f: edit(f, cu_k=(slice(1, None), np.array([1000, 1129, 9000]))),
    )
    add("lie_k_len_negative", "a negative length is 0", lambda f: edit(f, cu_k=(1, -50)))
    add("lie_k_len_huge", "a length near 2^31 with few pages", lambda f: edit(f, cu_k=(3, INT32_MAX)))
    add(
        "lie_cu_k_high",
        "prefix sums near 2^31 whose differences are right",
        lambda f: edit(f, cu_k=(slice(None), np.array([0, 300, 429, 629]) + INT32_MAX - 629)),
    )
    extremes = np.array([INT32_MIN, INT32_MAX, -1, INT32_MIN], np.int64).astype(np.int32)
    for name in ("cu_q", "cu_k", "cu_p"):
        add(f"lie_{name}_extremes", "int32 ends in a prefix sum", lambda f, n=name: edit(f, **{n: (..., extremes)}))
        add(f"lie_{name}_reversed", "a falling prefix sum", lambda f, n=name: _reversed(edit(f), n))
        add(
            f"lie_{name}_falls_once",
            "by one, between two sequences",
            lambda f, n=name: _falls_once(edit(f), n),
            tags=QUICK if name == "cu_q" else (),
        )
    add(
        "lie_everything",
        "every prefix sum random over int32, page ids random",
        lambda f: _random_metadata(edit(f)),
        tags=QUICK,
    )


def _reversed(inp, name):
    return dataclasses.replace(inp, **{name: getattr(inp, name)[::-1].copy()})


def _falls_once(inp, name):
    sums = getattr(inp, name).copy()
    sums[1] = sums[2] + 1
    return dataclasses.replace(inp, **{name: sums})


def _random_metadata(inp):
    rng = np.random.RandomState(77)
    wild = lambda x: rng.randint(INT32_MIN, INT32_MAX, x.shape).astype(np.int32)
    return dataclasses.replace(
        inp, cu_q=wild(inp.cu_q), cu_k=wild(inp.cu_k), cu_p=wild(inp.cu_p), kv_indices=wild(inp.kv_indices)
    )
