"""What every slot of the block scores must hold, computed naively in float64.

Written from the contract alone: it shares no code with the library. Float64 holds every product of two MXFP4 scales
(2^-254 .. 2^254) and every sum exactly enough (2^-53 of the sum of absolute terms), so exponents need no special care here.
"""

import dataclasses

import numpy as np

from .inputs import GROUPS, PAGE, falls, sequences

MAGNITUDE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([MAGNITUDE, -MAGNITUDE])
BYTE_VALUES = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], -1)  # the low nibble is the even element
FLT_MAX = float(np.finfo(np.float32).max)
FLT_MIN = 2.0**-126


def _scale_values():
    b = np.arange(256)
    exponent, mantissa = (b & 0x7F) >> 3, b & 7
    e4m3 = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    e4m3[(b & 0x7F) == 0x7F] = np.nan
    e8m0 = 2.0 ** (b - 127.0)
    e8m0[255] = np.nan
    return {"nvfp4": e4m3, "mxfp4": e8m0}


SCALE_VALUES = _scale_values()


@dataclasses.dataclass
class Oracle:
    """scores: float64 [Hq, Ktiles, Tq], -inf where nothing is visible, NaN where a counted key is NaN or the page does not exist.

    bound: the largest sum |terms| of a visible key, the unit of the error bar. Above fp32's maximum a score counts as infinite.
    """

    scores: np.ndarray
    bound: np.ndarray

    @property
    def expected(self):
        """The fp32 values, to be met bit for bit where the arithmetic is exact in any order."""
        with np.errstate(over="ignore"):
            return self.scores.astype(np.float32)


def dequantise(codes, scales, fmt):
    """u8 [..., 64], u8 [..., G] -> float64 [..., 128] with 0 for NaN groups, and the rows that hold a NaN scale."""
    s = SCALE_VALUES[fmt][scales]
    nan = np.isnan(s).any(-1)
    values = BYTE_VALUES[codes].reshape(*codes.shape[:-1], 128)
    return values * np.repeat(np.nan_to_num(s, nan=0.0), 128 // GROUPS[fmt], -1), nan


def head_scales(inp):
    """float64 [Hq]: the product of the global scales."""
    _, Hq, Hkv, *_ = inp.shape
    q = np.ones(Hq) if inp.q_global is None else np.broadcast_to(np.asarray(inp.q_global, np.float64), (Hq,))
    k = np.ones(Hkv) if inp.k_global is None else np.broadcast_to(np.asarray(inp.k_global, np.float64), (Hkv,))
    return q * np.repeat(k, Hq // Hkv)


def evaluate(inp, max_products=2**22):
    """The whole output. Work goes in chunks of at most about `max_products` scores."""
    Tq, Hq, Hkv, num_pages, _, tiles = inp.shape
    bound = np.zeros((Hq, tiles, Tq))
    if falls(inp):
        return Oracle(np.full_like(bound, np.nan), bound)
    scores = np.full_like(bound, -np.inf)
    R = Hq // Hkv
    with np.errstate(invalid="ignore", over="ignore"):
        scale = head_scales(inp)
        for q0, q_len, k_len, p0, n, offset in sequences(inp):
            if q_len == 0 or n == 0:
                continue
            last = np.minimum(k_len - 1, np.arange(q_len, dtype=np.int64) + offset)
            step = max(1, max_products // (R * q_len * PAGE))
            for h in range(Hkv):
                heads = slice(h * R, (h + 1) * R)
                q, q_nan = dequantise(inp.q[q0 : q0 + q_len, heads], inp.q_scale[q0 : q0 + q_len, heads], inp.fmt)
                for kb in range(0, n, step):
                    ids = inp.kv_indices[p0 + kb : p0 + min(kb + step, n)].astype(np.int64)
                    exists = (ids >= 0) & (ids < num_pages)
                    safe = np.where(exists, ids, 0)
                    k, k_nan = (
                        dequantise(inp.k[safe, h], inp.k_scale[safe, h], inp.fmt)
                        if num_pages
                        else (np.zeros((ids.size, PAGE, 128)), False)
                    )
                    k_nan = k_nan | ~exists[:, None]
                    m = ids.size
                    flat = q.reshape(q_len * R, 128), k.reshape(m * PAGE, 128)
                    s = (flat[0] @ flat[1].T).reshape(q_len, R, m, PAGE)
                    size = (np.abs(flat[0]) @ np.abs(flat[1]).T).reshape(q_len, R, m, PAGE)
                    s[np.broadcast_to(q_nan[:, :, None, None] | k_nan[None, None], s.shape)] = np.nan
                    keys = (kb + np.arange(m))[:, None] * PAGE + np.arange(PAGE)
                    visible = keys[None, None] <= last[:, None, None, None]
                    s = np.max(np.where(visible, s, -np.inf), -1)  # np.max keeps NaN
                    size = np.max(np.where(visible, size, 0.0), -1)
                    where = visible[..., 0]  # [q_len, 1, m]
                    s = np.where(where, s * scale[None, heads, None], -np.inf)
                    size = size * np.abs(scale[None, heads, None])
                    put = heads, slice(kb, kb + m), slice(q0, q0 + q_len)
                    scores[put], bound[put] = s.transpose(1, 2, 0), np.nan_to_num(size, nan=0.0).transpose(1, 2, 0)
    return Oracle(scores, bound)


def visible_keys(inp):
    """int [Ktiles, Tq]: how many keys of a block a token sees. The whole -inf structure, at no cost."""
    Tq, _, _, _, _, tiles = inp.shape
    count = np.zeros((tiles, Tq), np.int32)
    for q0, q_len, k_len, _, n, offset in sequences(inp):
        if q_len and n:
            last = np.minimum(k_len - 1, np.arange(q_len, dtype=np.int64) + offset)
            count[:n, q0 : q0 + q_len] = np.clip(last[None] + 1 - np.arange(n)[:, None] * PAGE, 0, PAGE)
    return count


def at(inp, heads, blocks, tokens):
    """Oracle of single slots (index arrays of one length), for outputs too large to compute whole."""
    _, Hq, Hkv, num_pages, B, _ = inp.shape
    rows = list(sequences(inp))
    owner = np.full(inp.q.shape[0], -1)
    for b, (q0, q_len, *_) in enumerate(rows):
        owner[q0 : q0 + q_len] = b
    table = np.array([r for r in rows], np.int64).reshape(-1, 6)
    seq = table[np.maximum(owner[tokens], 0)] if B else np.zeros((len(tokens), 6), np.int64)
    q0, _, k_len, p0, n, offset = seq.T
    last = np.minimum(k_len - 1, tokens - q0 + offset)
    seen = (owner[tokens] >= 0) & (blocks < n) & (last >= blocks * PAGE)
    entry = np.where(seen, p0 + blocks, 0)
    ids = inp.kv_indices[entry].astype(np.int64)
    exists = (ids >= 0) & (ids < num_pages)
    safe, hkv = np.where(exists, ids, 0), heads // (Hq // Hkv)
    scores, bound = np.empty(len(heads)), np.zeros(len(heads))
    scale = head_scales(inp)[heads]
    for c in range(0, len(heads), 256):
        x = slice(c, c + 256)
        q, q_nan = dequantise(inp.q[tokens[x], heads[x]], inp.q_scale[tokens[x], heads[x]], inp.fmt)
        k, k_nan = dequantise(inp.k[safe[x], hkv[x]], inp.k_scale[safe[x], hkv[x]], inp.fmt)
        s = (k @ q[:, :, None])[..., 0]
        size = (np.abs(k) @ np.abs(q)[:, :, None])[..., 0]
        s[q_nan[:, None] | k_nan | ~exists[x, None]] = np.nan
        shown = blocks[x, None] * PAGE + np.arange(PAGE) <= last[x, None]
        s, size = np.max(np.where(shown, s, -np.inf), -1), np.max(np.where(shown, size, 0.0), -1)
        scores[x], bound[x] = np.where(seen[x], s * scale[x], -np.inf), size * np.abs(scale[x]) * seen[x]
    return Oracle(scores, bound)
