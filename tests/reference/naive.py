"""A block-score call written as loops in float64, and the small inputs of the tests. Shares nothing with the package; bytes are decoded by ml_dtypes."""

import dataclasses

import ml_dtypes
import numpy as np

GROUPS = {"nvfp4": 8, "mxfp4": 4}
ONE = {"nvfp4": 0x38, "mxfp4": 127}


def prefix(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


@dataclasses.dataclass
class Batch:
    """Operands of a call. Scale bytes are public; `replace` makes variants."""

    q: np.ndarray
    k: np.ndarray
    q_scale: np.ndarray
    k_scale: np.ndarray
    cu_q: np.ndarray
    cu_k: np.ndarray
    cu_p: np.ndarray
    kv_indices: np.ndarray
    fmt: str
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool = True
    qo_offset: object = None
    q_global_scale: object = None
    k_global_scale: object = None

    def replace(self, **fields):
        return dataclasses.replace(self, **fields)

    def run(self, f, **options):
        return np.asarray(
            f(
                self.q,
                self.k,
                self.q_scale,
                self.k_scale,
                self.cu_q,
                self.cu_k,
                self.cu_p,
                **{**self.keywords(), **options},
            )
        )

    def run_padded(self, f, **options):
        """The same scores from shapes padded to a few sizes, as serving code does, so that many tests share a compiled program."""
        size = lambda n, *sizes: next(s for s in sizes if n <= s) - n
        more_tokens, more_pages = size(self.q.shape[0], 8, 64, 256), size(self.k.shape[0], 8, 64, 256)
        more_seqs = size(len(self.cu_q) - 1, 4, 64)
        grow = lambda x, n, fill: np.concatenate([x, np.full((n, *x.shape[1:]), fill, x.dtype)])
        padded = self.replace(
            q=grow(self.q, more_tokens, 0x77),
            q_scale=grow(self.q_scale, more_tokens, 0xFF),
            k=grow(self.k, more_pages, 0x77),
            k_scale=grow(self.k_scale, more_pages, 0xFF),
            kv_indices=grow(self.kv_indices, size(self.kv_indices.size, 8, 64, 256), -1),
            qo_offset=None if self.qo_offset is None else grow(np.asarray(self.qo_offset, np.int32), more_seqs, 5),
            max_seqlen_q=8,
            max_seqlen_k=128 * (self.k_tiles + size(self.k_tiles, 4, 64, 256)),
            **{
                name: grow(getattr(self, name), more_seqs, getattr(self, name)[-1]) for name in ("cu_q", "cu_k", "cu_p")
            },
        )
        got = padded.run(f, **options)
        assert (got[:, self.k_tiles :] == -np.inf).all() and (got[:, :, self.q.shape[0] :] == -np.inf).all()
        return got[:, : self.k_tiles, : self.q.shape[0]]

    @property
    def k_tiles(self):
        return -(-self.max_seqlen_k // 128)

    def keywords(self):
        return dict(
            max_seqlen_q=self.max_seqlen_q,
            max_seqlen_k=self.max_seqlen_k,
            kv_indices=self.kv_indices,
            fp4_format=self.fmt,
            causal=self.causal,
            qo_offset=self.qo_offset,
            q_global_scale=self.q_global_scale,
            k_global_scale=self.k_global_scale,
        )


def base(q_lens, k_lens, heads_q=1, heads_kv=1, fmt="mxfp4", **fields):
    """All codes 1.0, all scales 1.0: a block with a visible key scores 128, every other block -inf."""
    pages = [-(-n // 128) for n in k_lens]
    tokens, pool, groups = sum(q_lens), sum(pages), GROUPS[fmt]
    made = Batch(
        q=np.full((tokens, heads_q, 64), 0x22, np.uint8),
        k=np.full((pool, heads_kv, 128, 64), 0x22, np.uint8),
        q_scale=np.full((tokens, heads_q, groups), ONE[fmt], np.uint8),
        k_scale=np.full((pool, heads_kv, 128, groups), ONE[fmt], np.uint8),
        cu_q=prefix(q_lens),
        cu_k=prefix(k_lens),
        cu_p=prefix(pages),
        kv_indices=np.arange(pool, dtype=np.int32),
        fmt=fmt,
        max_seqlen_q=max([1, *q_lens]),
        max_seqlen_k=max([0, *k_lens]),
    )
    return made.replace(**fields)


def ramp(q_lens, k_lens, **fields):
    """mxfp4 base in which key t of a sequence scores 128 * 2**(t // 16): a score names the last visible group of 16 keys."""
    made = base(q_lens, k_lens, **fields)
    for b, n in enumerate(k_lens):
        for t in range(-(-n // 128) * 128):
            made.k_scale[made.cu_p[b] + t // 128, :, t % 128] = 127 + t // 16
    return made


def random(seed, q_lens, k_lens, heads_q, heads_kv, fmt, exact=False, spare_pages=3, spare_tokens=0, **fields):
    """Random codes and scales on a shuffled pool with unused pages. `exact`: scales are powers of two within 2^9 of each other combined."""
    rng = np.random.default_rng(seed)
    made = base(q_lens, k_lens, heads_q, heads_kv, fmt)
    used, tokens = made.k.shape[0], made.q.shape[0] + spare_tokens
    pool, groups = used + spare_pages, GROUPS[fmt]

    def scale(*shape):
        if exact:
            return (ONE[fmt] + rng.integers(-2, 3, shape) * (8 if fmt == "nvfp4" else 1)).astype(np.uint8)
        return rng.integers(*((0x08, 0x70) if fmt == "nvfp4" else (117, 137)), shape).astype(np.uint8)

    return made.replace(
        q=rng.integers(0, 256, (tokens, heads_q, 64), dtype=np.uint8),
        k=rng.integers(0, 256, (pool, heads_kv, 128, 64), dtype=np.uint8),
        q_scale=scale(tokens, heads_q, groups),
        k_scale=scale(pool, heads_kv, 128, groups),
        kv_indices=rng.permutation(pool)[:used].astype(np.int32),
        **fields,
    )


def widen(codes, scale, fmt):
    """Packed codes and scale bytes -> float64 values."""
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 128)
    values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    dtype = ml_dtypes.float8_e8m0fnu if fmt == "mxfp4" else ml_dtypes.float8_e4m3fn
    scale = (scale if fmt == "mxfp4" else scale & 0x7F).view(dtype).astype(np.float64)
    return values * np.repeat(scale, 128 // GROUPS[fmt], -1)


def naive(batch):
    """(scores, the largest sum of absolute terms behind each score), float64 [Hq, Ktiles, Tq], for consistent metadata."""
    q, k = widen(batch.q, batch.q_scale, batch.fmt), widen(batch.k, batch.k_scale, batch.fmt)
    tokens, heads_q, _ = q.shape
    ratio = heads_q // k.shape[1]
    per_head = lambda g, n: np.broadcast_to(np.float64(1 if g is None else g), (n,))
    head_scale = per_head(batch.q_global_scale, heads_q) * np.repeat(per_head(batch.k_global_scale, k.shape[1]), ratio)
    tiles = -(-batch.max_seqlen_k // 128)
    scores, bound = np.full((heads_q, tiles, tokens), -np.inf), np.zeros((heads_q, tiles, tokens))
    for b in range(len(batch.cu_q) - 1):
        q_len, k_len = batch.cu_q[b + 1] - batch.cu_q[b], int(batch.cu_k[b + 1] - batch.cu_k[b])
        offset = k_len - q_len if batch.qo_offset is None else int(batch.qo_offset[b])
        for i in range(q_len):
            end = min(k_len, int(i) + offset + 1) if batch.causal else k_len
            for kb in range(min(tiles, max(0, -(-end // 128)))):
                page, t = batch.kv_indices[batch.cu_p[b] + kb], batch.cu_q[b] + i
                count = min(128, end - 128 * kb)
                for h in range(heads_q):
                    if not 0 <= page < len(k):
                        scores[h, kb, t] = np.nan
                        continue
                    terms = q[t, h] * k[page, h // ratio, :count]
                    scores[h, kb, t] = terms.sum(-1).max() * head_scale[h]
                    bound[h, kb, t] = np.abs(terms).sum(-1).max() * abs(head_scale[h])
    return scores, bound


def assert_within_bar(got, batch):
    expected, bound = naive(batch)
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(expected))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = np.isfinite(expected)
    assert finite.any()
    error = np.abs(got[finite] - expected[finite])
    assert (error <= 4e-6 * bound[finite]).all(), (error / bound[finite]).max()
