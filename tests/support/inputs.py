"""Builders of inputs of `fp4_indexer_block_scores`: NumPy arrays, the same bytes for the same seed on every NumPy.

`RandomState` is used throughout because its stream is frozen by NumPy's policy; oracles computed on one machine are checked
against inputs rebuilt on another.
"""

import dataclasses
import hashlib

import numpy as np

PAGE = 128
CODE_BYTES = 64
GROUPS = {"nvfp4": 8, "mxfp4": 4}
ONE = {"nvfp4": 0x38, "mxfp4": 127}  # the scale byte that means 1.0
NAN_BYTES = {"nvfp4": (0x7F, 0xFF), "mxfp4": (0xFF, 0xFF)}
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@dataclasses.dataclass
class Inputs:
    """One call. Scale bytes are held in the public order; `arrays` gives either layout."""

    fmt: str
    q: np.ndarray  # u8 [Tq, Hq, 64]
    k: np.ndarray  # u8 [num_pages, Hkv, 128, 64]
    q_scale: np.ndarray  # u8 [Tq, Hq, G]
    k_scale: np.ndarray  # u8 [num_pages, Hkv, 128, G]
    kv_indices: np.ndarray  # i32 [N]
    cu_q: np.ndarray  # i32 [B+1]
    cu_k: np.ndarray  # i32 [B+1]
    cu_p: np.ndarray  # i32 [B+1]
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool = True
    qo_offset: np.ndarray | None = None
    q_global: np.ndarray | None = None  # f32 scalar or [Hq]
    k_global: np.ndarray | None = None  # f32 scalar or [Hkv]
    padding: int | None = 0xFF  # byte in the padding rows of tiled scales; None: random bytes
    padding_seed: int = 0

    @property
    def shape(self):
        """(Tq, Hq, Hkv, num_pages, B, Ktiles)"""
        return (
            self.q.shape[0],
            self.q.shape[1],
            self.k.shape[1],
            self.k.shape[0],
            self.cu_q.size - 1,
            -(-self.max_seqlen_k // PAGE),
        )

    def arrays(self, layout="public"):
        """Array arguments by the keyword names of the public function; absent ones are left out."""
        q_scale, k_scale = self.q_scale, self.k_scale
        if layout == "preordered_mma":
            pages, heads = self.k.shape[:2]
            q_scale = tile_scales(q_scale.transpose(1, 0, 2), self.padding, self.padding_seed)
            k_scale = tile_scales(
                k_scale.reshape(pages * heads, PAGE, GROUPS[self.fmt]), self.padding, self.padding_seed + 1
            )
        a = dict(
            q_fp4=self.q,
            k_fp4=self.k,
            q_scale=q_scale,
            k_scale=k_scale,
            cu_seqlens_q=self.cu_q,
            cu_seqlens_k=self.cu_k,
            cu_page_offsets=self.cu_p,
            kv_indices=self.kv_indices,
            qo_offset=self.qo_offset,
            q_global_scale=self.q_global,
            k_global_scale=self.k_global,
        )
        return {name: x for name, x in a.items() if x is not None}

    def statics(self, layout="public"):
        """Keyword arguments that are fixed while tracing."""
        return dict(
            max_seqlen_q=self.max_seqlen_q,
            max_seqlen_k=self.max_seqlen_k,
            fp4_format=self.fmt,
            causal=self.causal,
            scale_layout=layout,
        )

    def digest(self):
        h = hashlib.blake2b(repr((self.fmt, self.statics())).encode(), digest_size=16)
        for name, x in self.arrays().items():
            h.update(f"{name}{x.shape}{x.dtype}".encode())
            h.update(np.ascontiguousarray(x).tobytes())
        return h.hexdigest()


def tile_scales(public, padding=0xFF, seed=0):
    """u8 [L, mn, G] -> the MMA storage [L, ceil(mn/128), ceil(G/4), 32, 4, 4]; padding rows hold `padding` (None: random bytes)."""
    L, mn, G = public.shape
    tiles, quads = -(-mn // 128), -(-G // 4)
    size = (L, tiles * quads * 512)
    out = (
        np.random.RandomState(seed).randint(0, 256, size, dtype=np.uint8)
        if padding is None
        else np.full(size, padding, np.uint8)
    )
    r, g = np.arange(mn)[:, None], np.arange(G)[None, :]
    out[:, (r // 128 * quads + g // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + g % 4] = public
    return out.reshape(L, tiles, quads, 32, 4, 4)


def prefix(lengths):
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int32)


def pages_of(kl):
    return [-(-int(n) // PAGE) for n in kl]


def base(ql, kl, Hq=1, Hkv=1, fmt="nvfp4", **fields):
    """Every code 1.0, every scale 1.0, pages in order: a block with a visible key scores exactly 128."""
    pages, G = sum(pages_of(kl)), GROUPS[fmt]
    Tq, pool = int(sum(ql)), max(pages, 1)
    inp = Inputs(
        fmt,
        np.full((Tq, Hq, CODE_BYTES), 0x22, np.uint8),
        np.full((pool, Hkv, PAGE, CODE_BYTES), 0x22, np.uint8),
        np.full((Tq, Hq, G), ONE[fmt], np.uint8),
        np.full((pool, Hkv, PAGE, G), ONE[fmt], np.uint8),
        np.arange(pages, dtype=np.int32),
        prefix(ql),
        prefix(kl),
        prefix(pages_of(kl)),
        max(1, *ql) if len(ql) else 1,
        max(kl) if len(kl) else 0,
    )
    return dataclasses.replace(inp, **fields)


RAMP_START = {"mxfp4": 0, "nvfp4": -9}  # exponent of the first 16 keys; E4M3 ends at 2**8, so NVFP4 ramps hold 288 keys


def ramp(ql, kl, fmt="mxfp4", **fields):
    """`base` whose key t scores 128 * 2**(t//16 + RAMP_START): the score names the last visible key's 16-group."""
    inp = base(ql, kl, fmt=fmt, **fields)
    for b in range(len(ql)):
        for kb in range(inp.cu_p[b + 1] - inp.cu_p[b]):
            exponent = (kb * PAGE + np.arange(PAGE)) // 16 + RAMP_START[fmt]
            inp.k_scale[inp.cu_p[b] + kb] = power_of_two_byte(fmt, np.minimum(exponent, 8 if fmt == "nvfp4" else 127))[
                None, :, None
            ]
    return inp


def power_of_two_byte(fmt, exponent):
    """The scale byte of 2**exponent (NVFP4: -9..8, MXFP4: -127..127)."""
    exponent = np.asarray(exponent)
    if fmt == "mxfp4":
        return (exponent + 127).astype(np.uint8)
    return np.where(exponent >= -6, (exponent + 7) << 3, 1 << np.clip(exponent + 9, 0, 2)).astype(np.uint8)


def scale_bytes(rng, fmt, shape, kind, side):
    """Random scale bytes [..., G].

    ordinary  NVFP4: every finite byte, bit 7 random. MXFP4: 119..132.
    exact     powers of two, the two sides together spread over 2^9 at most: the fp32 result is exact in any order.
    exact_low, exact_high   the same at the ends of the format (NVFP4: subnormals, 2^8; MXFP4: bytes near 0 with near 254).
    normal    near 1, as quantised activations are.
    narrow    MXFP4: every byte within three binades, 125..128: what the int8 form of a prefill holds. Exact in any order.
    wide      MXFP4: group g lies anywhere in 0..254, q and k complementary up to +-20, so sums stay finite.
    """
    sign = rng.randint(0, 2, shape).astype(np.uint8) << 7 if fmt == "nvfp4" else np.uint8(0)
    if kind == "ordinary":
        return (
            (rng.randint(0, 0x7F, shape).astype(np.uint8) | sign)
            if fmt == "nvfp4"
            else rng.randint(119, 133, shape).astype(np.uint8)
        )
    if kind == "normal":
        return (
            (rng.randint(0x28, 0x48, shape).astype(np.uint8) | sign)
            if fmt == "nvfp4"
            else rng.randint(125, 130, shape).astype(np.uint8)
        )
    if kind in ("exact", "exact_low", "exact_high"):
        spread = 5 if side == "q" else 6
        step = rng.randint(0, spread, shape)
        if fmt == "mxfp4":
            low = {"exact": -3, "exact_low": -127 if side == "q" else 122, "exact_high": 123 if side == "q" else -127}[
                kind
            ]
        else:
            low = {"exact": -3, "exact_low": -9, "exact_high": 9 - spread}[kind]
        return power_of_two_byte(fmt, low + step) | sign
    if kind == "narrow" and fmt == "mxfp4":
        return rng.randint(125, 129, shape).astype(np.uint8)
    if kind == "wide" and fmt == "mxfp4":
        centre = np.random.RandomState(shape[-1] + 7).randint(20, 235, shape[-1])
        return np.clip((centre if side == "q" else 254 - centre) + rng.randint(-20, 21, shape), 0, 254).astype(np.uint8)
    raise ValueError(f"no scale kind {kind!r} for {fmt}")


def batch(
    fmt,
    ql,
    kl,
    Hq=1,
    Hkv=1,
    *,
    seed=0,
    kind="ordinary",
    spare_pages=3,
    pad_tokens=0,
    pad_indices=0,
    shuffle=True,
    **fields,
):
    """A random ragged batch over all 16 codes in a shuffled pool. Whatever does not count is poisoned with NaN scales."""
    rng = np.random.RandomState(seed * 7919 + 17)
    pages, G = sum(pages_of(kl)), GROUPS[fmt]
    Tq, pool = int(sum(ql)) + pad_tokens, max(pages + spare_pages, 1)
    code = lambda *shape: rng.randint(0, 256, (*shape, CODE_BYTES), dtype=np.uint8)
    ids = rng.permutation(pool)[:pages] if shuffle else np.arange(pages)
    inp = Inputs(
        fmt,
        code(Tq, Hq),
        code(pool, Hkv, PAGE),
        scale_bytes(rng, fmt, (Tq, Hq, G), kind, "q"),
        scale_bytes(rng, fmt, (pool, Hkv, PAGE, G), kind, "k"),
        np.concatenate([ids, rng.randint(0, pool, pad_indices)]).astype(np.int32),
        prefix(ql),
        prefix(kl),
        prefix(pages_of(kl)),
        max([1, *ql]),
        max([0, *kl]),
    )
    inp = dataclasses.replace(inp, **fields)
    return poison(inp, rng.randint(0, 2))


def sequences(inp):
    """(q0, q_len, k_len, p0, pages, offset) of every sequence, by the rules that make any metadata safe. Plain Python integers."""
    Tq, _, _, _, B, tiles = inp.shape
    N = inp.kv_indices.size
    cut = lambda x, low, high: min(max(int(x), low), high)
    for b in range(B):
        q0 = cut(inp.cu_q[b], 0, Tq)
        q_len = cut(inp.cu_q[b + 1], q0, Tq) - q0
        k_len = cut(int(inp.cu_k[b + 1]) - int(inp.cu_k[b]), 0, INT32_MAX)
        p0 = cut(inp.cu_p[b], 0, N)
        n = min(cut(inp.cu_p[b + 1], p0, N) - p0, -(-k_len // PAGE), tiles)
        offset = k_len if not inp.causal else k_len - q_len if inp.qo_offset is None else int(inp.qo_offset[b])
        yield q0, q_len, k_len, p0, n, offset


def falls(inp):
    """Whether the sum of queries or of pages falls somewhere, so that every slot is NaN."""
    return any((x[1:] < x[:-1]).any() for x in (inp.cu_q, inp.cu_p))


def counted(inp):
    """Masks of what counts: tokens [Tq], keys [num_pages, 128], list entries [N]. Keys no query of the batch sees do not count."""
    tokens = np.zeros(inp.q.shape[0], bool)
    keys = np.zeros((inp.k.shape[0], PAGE), bool)
    entries = np.zeros(inp.kv_indices.size, bool)
    for q0, q_len, k_len, p0, n, offset in () if falls(inp) else sequences(inp):
        tokens[q0 : q0 + q_len] = True
        last = min(k_len - 1, q_len - 1 + offset) if q_len else -1
        for kb in range(min(n, last // PAGE + 1)):
            entries[p0 + kb] = True
            page = inp.kv_indices[p0 + kb]
            if 0 <= page < keys.shape[0]:
                keys[page, : last + 1 - kb * PAGE] = True
    return tokens, keys, entries


def poison(inp, which=0):
    """In place: NaN scale bytes wherever nothing counts (which: the positive or the negative NaN)."""
    tokens, keys, _ = counted(inp)
    byte = NAN_BYTES[inp.fmt][which]
    inp.q_scale[~tokens] = byte
    for hkv in range(inp.k.shape[1]):
        inp.k_scale[:, hkv][~keys] = byte
    return inp


def scramble(inp, seed):
    """A copy in which every byte that does not count is random: codes, scales, unused list entries, padding of tiled scales."""
    rng = np.random.RandomState(seed)
    tokens, keys, entries = counted(inp)
    noise = lambda x, free: np.where(
        free.reshape(free.shape + (1,) * (x.ndim - free.ndim)), rng.randint(0, 256, x.shape, dtype=np.uint8), x
    )
    free_keys = np.broadcast_to(~keys[:, None, :], inp.k.shape[:3])
    wild = np.concatenate(
        [rng.randint(INT32_MIN, INT32_MAX, entries.size), rng.randint(-3, inp.k.shape[0] + 3, entries.size)]
    )
    ids = np.where(
        entries, inp.kv_indices, wild[rng.randint(0, max(wild.size, 1), entries.size)] if wild.size else 0
    ).astype(np.int32)
    return dataclasses.replace(
        inp,
        q=noise(inp.q, ~tokens),
        q_scale=noise(inp.q_scale, ~tokens),
        k=noise(inp.k, free_keys),
        k_scale=noise(inp.k_scale, free_keys),
        kv_indices=ids,
        padding=None,
        padding_seed=seed,
    )


def alone(inp, b):
    """The same shapes with sequence b as the only one that has queries or keys: its rows must keep their bits.

    Returns (inputs, q0, q_len): rows q0..q0+q_len of the batch are rows 0..q_len of the result.
    """
    q0, q_len, k_len, p0, n, _ = list(sequences(inp))[b]
    order = np.roll(np.arange(inp.q.shape[0]), -q0)
    used = np.arange(len(inp.cu_q)) > 0
    length = int(inp.cu_p[b + 1]) - int(inp.cu_p[b])
    offset = None
    if inp.qo_offset is not None:
        offset = np.zeros_like(inp.qo_offset)
        offset[0] = inp.qo_offset[b]
    out = dataclasses.replace(
        inp,
        q=inp.q[order],
        q_scale=inp.q_scale[order],
        kv_indices=np.roll(inp.kv_indices, -p0),
        qo_offset=offset,
        cu_q=np.where(used, q_len, 0).astype(np.int32),
        cu_k=np.where(used, k_len, 0).astype(np.int32),
        cu_p=np.where(used, length, 0).astype(np.int32),
    )
    return out, q0, q_len


def padded(inp, tokens, seqs, pages, indices, tiles, max_seqlen_q=None):
    """The same batch in larger static shapes, as a serving loop pads it: empty sequences, NaN tokens and pages, wild unused ids, extra K tiles.

    Only for metadata that does not contradict itself: clamping to a longer buffer would change what contradictory metadata means.
    """
    more = lambda x, n, value: np.concatenate([x, np.full((n - x.shape[0], *x.shape[1:]), value, x.dtype)])
    nan = NAN_BYTES[inp.fmt][0]
    hold = lambda x: more(x, seqs + 1, x[-1])
    return dataclasses.replace(
        inp,
        q=more(inp.q, tokens, 0x77),
        q_scale=more(inp.q_scale, tokens, nan),
        k=more(inp.k, pages, 0x77),
        k_scale=more(inp.k_scale, pages, nan),
        kv_indices=more(inp.kv_indices, indices, INT32_MIN),
        cu_q=hold(inp.cu_q),
        cu_k=hold(inp.cu_k),
        cu_p=hold(inp.cu_p),
        qo_offset=None if inp.qo_offset is None else more(inp.qo_offset, seqs, INT32_MAX),
        max_seqlen_k=tiles * PAGE,
        max_seqlen_q=max_seqlen_q or inp.max_seqlen_q,
    )
