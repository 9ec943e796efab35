"""Codes and scales of a bucket, and a table from which the scores of any metadata over them are read.

    table[h, t, page, r] = head_scale[h] * max over the keys 0 .. r of the page of q[t, h] . k[page, key]

A block's score is one entry of it, whatever the metadata says: the oracle of a case is a gather. Float64, by the decoding of tests/support/oracle.py.
"""

import dataclasses

import numpy as np

from support import oracle
from support.inputs import CODE_BYTES, GROUPS, NAN_BYTES, PAGE, Inputs, scale_bytes

POOLS = 3  # of a bucket
NAN_KEY, NAN_QUERY = 1 / 1500, 1 / 60
EXACT_GLOBALS = np.float32([1, 2, 0.5, 4, -1, -0.25])
ODD_GLOBALS = np.float32([1, -2, 0, np.inf, np.nan, 3.7, 1e-30])


@dataclasses.dataclass
class Pool:
    """inp: codes and scales, with metadata of no meaning. scores, bound: [Hq, Tq, max(pages, 1), 128]; bound is None where results are exact in fp32."""

    inp: Inputs
    exact: bool
    scores: np.ndarray
    bound: np.ndarray | None


def kind_of(bucket, number, seed):
    """(kind of scales, whether some are NaN). The first two pools of a bucket are exact, the third rounds."""
    turn = seed + bucket.mask + len(bucket.shape)
    exact = ("exact", "exact_low" if turn % 2 else "exact_high", "exact")[turn % 3]
    rounding = ("ordinary", "normal") if bucket.fmt == "nvfp4" else ("ordinary", "wide", "normal")
    return ((exact, False), ("exact", True), (rounding[turn % len(rounding)], True))[number]


def make(bucket, number, seed):
    """Pool `number` of a bucket; the same for the same seed on every machine."""
    rng = np.random.RandomState([seed, number, sum(map(ord, bucket.name))])
    kind, nan = kind_of(bucket, number, seed)
    Tq, Hq, Hkv, P, G = bucket.tokens, bucket.heads_q, bucket.heads_kv, bucket.pages, GROUPS[bucket.fmt]
    code = lambda *shape: rng.randint(0, 256, (*shape, CODE_BYTES), dtype=np.uint8)  # noqa: E731
    q, k = code(Tq, Hq), code(P, Hkv, PAGE)
    if (seed + number + len(bucket.name)) % 3 == 0:  # every other query head has no positive score
        q[:, ::2] &= 0x77
        k |= 0x88
    q_scale, k_scale = (
        scale_bytes(rng, bucket.fmt, (Tq, Hq, G), kind, "q"),
        scale_bytes(rng, bucket.fmt, (P, Hkv, PAGE, G), kind, "k"),
    )
    if bucket.fmt == "mxfp4" and kind == "exact":
        of_queries = (
            (0, 1, 2, 3) if rng.randint(2) else (0, 1, 2, 3) * 15 + (4,)
        )  # one row of 4 takes its whole tile out of int8
        q_scale, k_scale = (
            _spans(rng, (Tq, 1, 1), q_scale.shape, of_queries),
            _spans(rng, (P, Hkv, 1, 1), k_scale.shape, (0, 1, 3, 3, 4, 5)),
        )
        _zero_groups(rng, k, k_scale)
    if nan:
        for scales, share in ((q_scale, NAN_QUERY), (k_scale, NAN_KEY)):
            rows = np.nonzero(rng.random_sample(scales.shape[:-1]) < share)
            scales[(*rows, rng.randint(0, G, rows[0].size))] = NAN_BYTES[bucket.fmt][rng.randint(2)]
    q_global = k_global = None
    if bucket.fmt == "nvfp4":  # always given: whether it is belongs to the compiled program
        choices = EXACT_GLOBALS if number < 2 else ODD_GLOBALS
        q_global, k_global = (
            choices[rng.randint(0, choices.size, Hq)],
            EXACT_GLOBALS[rng.randint(0, EXACT_GLOBALS.size, Hkv)],
        )
    nothing = np.zeros(bucket.seqs + 1, np.int32)
    inp = Inputs(
        bucket.fmt,
        q,
        k,
        q_scale,
        k_scale,
        np.zeros(bucket.indices, np.int32),
        nothing,
        nothing,
        nothing,
        bucket.max_seqlen_q,
        bucket.max_seqlen_k,
        bucket.mask > 0,
        np.zeros(bucket.seqs, np.int32) if bucket.mask == 2 else None,
        q_global,
        k_global,
        padding=None,
        padding_seed=seed % 2**31,
    )
    return Pool(inp, number < 2, *_table(inp, number < 2))


def _spans(rng, owners, shape, spans):
    """E8M0 bytes around a base of each owner, over a span of its own: what a page, or the rows of a token, may be to a kernel (int8, bf16, general) differs
    from owner to owner, and every score stays exact, since the two spans of a score are at most 2^9 together."""
    base, span = rng.randint(96, 158, owners), rng.choice(spans, owners)
    return (base + (rng.random_sample(shape) * (span + 1)).astype(int)).astype(np.uint8)


def _zero_groups(rng, codes, scales):
    """Some groups of zero codes (of either sign), with any finite scale: they count for nothing."""
    bytes_of = codes.reshape(*scales.shape, codes.shape[-1] // scales.shape[-1])
    where = rng.random_sample(scales.shape) < 0.01
    bytes_of[where] &= 0x88
    scales[where] = rng.randint(0, 255, where.sum())


def _table(inp, exact):
    Tq, Hq, Hkv, P, _, _ = inp.shape
    R = Hq // Hkv
    shape = (Hq, Tq, max(P, 1), PAGE)
    scores, bound = np.zeros(shape, np.float32 if exact else np.float64), None if exact else np.zeros(shape)
    if 0 in (P, Tq):
        return scores, bound
    q, q_nan = oracle.dequantise(inp.q, inp.q_scale, inp.fmt)
    k, k_nan = oracle.dequantise(inp.k, inp.k_scale, inp.fmt)
    with np.errstate(invalid="ignore", over="ignore"):
        head_scale = oracle.head_scales(inp)[:, None, None, None]
        for h in range(Hkv):
            heads = slice(h * R, (h + 1) * R)
            rows, keys = q[:, heads].transpose(1, 0, 2).reshape(-1, 128), k[:, h].reshape(-1, 128)
            s = (rows @ keys.T).reshape(R, Tq, P, PAGE)
            s[q_nan[:, heads].T[:, :, None, None] | k_nan[None, None, :, h]] = np.nan
            scores[heads] = np.maximum.accumulate(s, -1) * head_scale[heads]  # NaN stays
            if not exact:
                size = (np.abs(rows) @ np.abs(keys).T).reshape(R, Tq, P, PAGE)
                bound[heads] = np.maximum.accumulate(size, -1) * np.abs(
                    np.nan_to_num(head_scale[heads], nan=0.0, posinf=0.0)
                )
    return scores, bound
