"""Codes and scales of a bucket, and a table from which the scores of any metadata over them are read.

    table[h, t, page, r] = head_scale[h] * max over the keys 0 .. r of the page of q[t, h] . k[page, key]

A block's score is one entry of it, whatever the metadata says: the oracle of a case is a gather. Float64, by the decoding of tests/support/oracle.py.
"""
import dataclasses

import numpy as np

from support import oracle
from support.inputs import CODE_BYTES, GROUPS, NAN_BYTES, PAGE, Inputs, scale_bytes

POOLS = 3                       # of a bucket
NAN_KEY, NAN_QUERY = 1 / 1500, 1 / 60
EXACT_GLOBALS = np.float32([1, 2, .5, 4, -1, -.25])
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
    exact = ("exact", "exact_low", "exact_high")[(seed + bucket.mask) % 3]
    rounding = ("ordinary", "normal") if bucket.fmt == "nvfp4" else ("ordinary", "wide", "normal")
    return ((exact, False), ("exact", True), (rounding[(seed + bucket.mask) % len(rounding)], True))[number]


def make(bucket, number, seed):
    """Pool `number` of a bucket; the same for the same seed on every machine."""
    rng = np.random.RandomState([seed, number, sum(map(ord, bucket.name))])
    kind, nan = kind_of(bucket, number, seed)
    Tq, Hq, Hkv, P, G = bucket.tokens, bucket.heads_q, bucket.heads_kv, bucket.pages, GROUPS[bucket.fmt]
    q_scale, k_scale = scale_bytes(rng, bucket.fmt, (Tq, Hq, G), kind, "q"), scale_bytes(rng, bucket.fmt, (P, Hkv, PAGE, G), kind, "k")
    if nan:
        for scales, share in ((q_scale, NAN_QUERY), (k_scale, NAN_KEY)):
            rows = np.nonzero(rng.random_sample(scales.shape[:-1]) < share)
            scales[(*rows, rng.randint(0, G, rows[0].size))] = NAN_BYTES[bucket.fmt][rng.randint(2)]
    q_global = k_global = None
    if bucket.fmt == "nvfp4":           # always given: whether it is belongs to the compiled program
        choices = EXACT_GLOBALS if number < 2 else ODD_GLOBALS
        q_global, k_global = choices[rng.randint(0, choices.size, Hq)], EXACT_GLOBALS[rng.randint(0, EXACT_GLOBALS.size, Hkv)]
    nothing = np.zeros(bucket.seqs + 1, np.int32)
    inp = Inputs(bucket.fmt, rng.randint(0, 256, (Tq, Hq, CODE_BYTES), dtype=np.uint8), rng.randint(0, 256, (P, Hkv, PAGE, CODE_BYTES), dtype=np.uint8), q_scale, k_scale,
                 np.zeros(bucket.indices, np.int32), nothing, nothing, nothing, bucket.max_seqlen_q, bucket.max_seqlen_k, bucket.mask > 0,
                 np.zeros(bucket.seqs, np.int32) if bucket.mask == 2 else None, q_global, k_global, padding=None, padding_seed=seed % 2**31)
    return Pool(inp, number < 2, *_table(inp, number < 2))


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
            scores[heads] = np.maximum.accumulate(s, -1) * head_scale[heads]            # NaN stays
            if not exact:
                size = (np.abs(rows) @ np.abs(keys).T).reshape(R, Tq, P, PAGE)
                bound[heads] = np.maximum.accumulate(size, -1) * np.abs(np.nan_to_num(head_scale[heads], nan=0.0, posinf=0.0))
    return scores, bound
