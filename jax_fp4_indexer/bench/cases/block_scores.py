"""Benchmark cases of the block scores: batches of sequences, and what one call must compute and move."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import jax_fp4_indexer as jfi
from jax_fp4_indexer.bench.cases import COLD_BYTES, How

PAGE = 128
SCALE_BYTES = {"nvfp4": 8, "mxfp4": 4}
WIDE_SPAN = 12  # binades to each side: 2^24 apart, more than int8 and less than bf16 holds
MAX_SETS = 24  # copies of the pages
ROWS = 2**18
MATERIALISED = 40e9  # bytes of fp32 scores that the naive baseline may take
DECODE_QUERIES = 8  # a sequence's queries up to which a call is bound by memory


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch: a `BenchCase` of lengths per sequence.

    wide_pages     share of the pages in which every scale is moved by its own power of two within 2^+-WIDE_SPAN (MXFP4
                   only): int8 holds none of those exactly
    """

    name: str
    q_lens: tuple
    k_lens: tuple
    heads_q: int
    heads_kv: int
    causal: bool
    published_us: dict = dataclasses.field(default_factory=dict)
    wide_pages: float = 0.0
    tags: frozenset = frozenset()

    op = "block_scores"
    scale_layouts = ("public", "preordered_mma")

    @property
    def formats(self):
        return ("mxfp4",) if self.wide_pages else ("nvfp4", "mxfp4")

    @property
    def tokens(self):
        return sum(self.q_lens)

    @property
    def pages(self):
        return sum(-(-k // PAGE) for k in self.k_lens)

    @property
    def k_tiles(self):
        return max(-(-k // PAGE) for k in self.k_lens)

    def visible_pairs(self):
        """Query-key pairs the mask lets through, per head."""
        total = 0
        for q, k in zip(self.q_lens, self.k_lens):
            total += int(np.clip(np.arange(q, dtype=np.int64) + (k - q) + 1, 0, k).sum()) if self.causal else q * k
        return total

    def flops(self):
        return 2 * self.heads_q * 128 * self.visible_pairs()

    def tiles(self):
        """Tiles of 128 query rows (heads and tokens) by one page, of the pages that a row sees some of; rows packed
        without gaps."""
        pages = 0
        for q, k in zip(self.q_lens, self.k_lens):
            last = np.arange(q, dtype=np.int64) + (k - q) if self.causal else np.full(q, k - 1, np.int64)
            pages += int((np.clip(last, -1, k - 1) // PAGE + 1).sum())
        return self.heads_q * pages / 128

    def int8_share(self, fmt):
        """Share of the products that int8 holds exactly: MXFP4 pages whose scales lie close together, as those of
        normal vectors do."""
        return 1.0 - self.wide_pages if fmt == "mxfp4" else 0.0

    def _by_type(self, fmt, operations):
        share = self.int8_share(fmt)
        return {kind: n for kind, n in (("bf16", (1 - share) * operations), ("int8", share * operations)) if n}

    def work(self, how: How) -> dict[str, float]:
        return self._by_type(how.format, self.flops())

    def issued(self, how: How) -> dict[str, float] | None:
        return self._by_type(how.format, self.tiles() * 2 * 128**3) if max(self.q_lens) > DECODE_QUERIES else None

    def bytes(self, how: How) -> int:
        """Packed codes, scales, metadata and scores."""
        row = 64 + SCALE_BYTES[how.format]
        metadata = 4 * (self.pages + 3 * (len(self.q_lens) + 1))
        return (
            self.tokens * self.heads_q * row + self.pages * PAGE * self.heads_kv * row + metadata + self.result_bytes()
        )

    def result_bytes(self) -> int:
        return 4 * self.heads_q * self.k_tiles * self.tokens

    def bytes_at_least(self) -> int:
        """Two copies of the pages, and two results."""
        return 2 * (self.pages * PAGE * self.heads_kv * 68 + self.result_bytes())

    def describe(self) -> str:
        span = lambda x: str(x[0]) if len(set(x)) == 1 else f"{min(x)}..{max(x)}"
        return (
            f"B={len(self.q_lens)} q={span(self.q_lens)} k={span(self.k_lens)} heads {self.heads_q}/{self.heads_kv} "
            f"{'causal' if self.causal else 'non-causal'}"
        )

    def make(self, how: How, calls: int, seed: int = 0) -> "Data":
        return make(self, how, calls, seed)

    def call(self, how: How):
        def call(data, i):
            return jfi.fp4_indexer_block_scores(
                data.q,
                data.k,
                data.q_scale,
                data.k_scale,
                data.cu_seqlens_q,
                data.cu_seqlens_k,
                data.cu_page_offsets,
                max_seqlen_q=max(self.q_lens),
                max_seqlen_k=max(self.k_lens),
                kv_indices=data.kv_indices[i],
                fp4_format=how.format,
                causal=self.causal,
                scale_layout=how.scale_layout,
                implementation=how.implementation,
            )

        return call

    def baselines(self, how: How) -> dict:
        """ "xla": dequantise to bf16, einsum, mask, maximum (uniform lengths in whole pages); "reference": the
        definition, page by page."""
        plain = plain_xla(self, how.format)
        return ({} if plain is None else {"xla": plain}) | {
            "reference": self.call(How(how.format, "public", "reference"))
        }


@dataclasses.dataclass(frozen=True)
class Data:
    """Operands shared by all calls, and one page list a call. Call i reads the pages of set i % sets, in an order of
    its own."""

    q: jax.Array
    k: jax.Array
    q_scale: jax.Array
    k_scale: jax.Array
    cu_seqlens_q: jax.Array
    cu_seqlens_k: jax.Array
    cu_page_offsets: jax.Array
    kv_indices: tuple


def prefix_sum(lengths):
    """int32 [B+1]: where each of `lengths` starts, and the end."""
    return jnp.asarray(np.concatenate([[0], np.cumsum(lengths)]), jnp.int32)


@functools.cache
def _normal_rows(fmt, seed):
    """ROWS vectors of 128 normal values, quantised: codes [ROWS, 64], scales [ROWS, G]."""
    quantise = jfi.quantize_nvfp4 if fmt == "nvfp4" else jfi.quantize_mxfp4
    return tuple(
        jax.jit(lambda key: tuple(quantise(jax.random.normal(key, (ROWS, 128), jnp.float32))[:2]))(jax.random.key(seed))
    )


@functools.partial(jax.jit, static_argnames=("rows",))
def _drawn(pool, key, rows):
    """`rows` of the pool's rows, drawn with repetition: quantising as many anew takes longer than timing them."""
    index = jax.random.randint(key, (rows,), 0, ROWS)
    return tuple(x[index] for x in pool)


def _with_wide_pages(k_scale, pages, key):
    """E8M0 bytes [pages, Hkv, 128, G]: those of `pages` moved, each by its own number of binades."""
    by = jax.random.randint(key, (len(pages), *k_scale.shape[1:]), -WIDE_SPAN, WIDE_SPAN + 1)
    moved = k_scale[pages].view(jnp.uint8).astype(jnp.int32) + by
    return k_scale.at[pages].set(moved.astype(jnp.uint8).view(k_scale.dtype))


def make(case: Case, how: How, calls: int, seed: int = 0) -> Data:
    """Normal vectors quantised by our own quantiser, pages shuffled over a pool that holds several copies."""
    fmt, sets = how.format, int(min(MAX_SETS, max(2, -(-COLD_BYTES // case.bytes(how)))))
    pool = case.pages * sets
    kq, kk = jax.random.split(jax.random.key(seed))
    normal = _normal_rows(fmt, seed)
    q, q_scale = _drawn(normal, kq, case.tokens * case.heads_q)
    k, k_scale = _drawn(normal, kk, pool * case.heads_kv * 128)
    groups = q_scale.shape[-1]
    q, q_scale = q.reshape(case.tokens, case.heads_q, 64), q_scale.reshape(case.tokens, case.heads_q, groups)
    k, k_scale = k.reshape(pool, case.heads_kv, 128, 64), k_scale.reshape(pool, case.heads_kv, 128, groups)
    rng = np.random.default_rng(seed)
    pages_of = rng.permutation(pool).astype(np.int32).reshape(sets, case.pages)
    wide = round(case.wide_pages * case.pages)
    if wide:  # as many in every set
        k_scale = _with_wide_pages(k_scale, pages_of[:, :wide].ravel(), jax.random.fold_in(kk, 1))
    if how.scale_layout == "preordered_mma":
        q_scale, k_scale = jfi.fp4_indexer_reorder_scales_for_mma(q_scale, k_scale, fmt)
    lists = tuple(jax.device_put([rng.permutation(pages_of[i % sets]) for i in range(calls)]))
    pages = [-(-n // 128) for n in case.k_lens]
    return jax.block_until_ready(
        Data(q, k, q_scale, k_scale, prefix_sum(case.q_lens), prefix_sum(case.k_lens), prefix_sum(pages), lists)
    )


jax.tree_util.register_dataclass(Data, [f.name for f in dataclasses.fields(Data)], [])


def plain_xla(case, fmt):
    """Dequantise to bf16, einsum, mask, maximum, with all scores materialised. None for lengths that differ or end
    inside a page, and for scores that do not fit."""
    if len(set(case.q_lens)) > 1 or len(set(case.k_lens)) > 1 or case.k_lens[0] % 128:
        return None
    batch, q_len, k_len, heads_kv = len(case.q_lens), case.q_lens[0], case.k_lens[0], case.heads_kv
    if 4 * case.heads_q * q_len * k_len * batch > MATERIALISED:
        return None
    pages = k_len // 128

    def call(data, i):
        kv_indices = data.kv_indices[i]
        dequantise = lambda c, s: jfi.dequantize(c, s, fmt).astype(jnp.bfloat16)
        q = dequantise(data.q, data.q_scale).reshape(batch, q_len, heads_kv, case.heads_q // heads_kv, 128)
        k = dequantise(data.k[kv_indices], data.k_scale[kv_indices]).reshape(batch, pages, heads_kv, 128, 128)
        scores = jnp.einsum("bqhrd,bphkd->hrpbqk", q, k, preferred_element_type=jnp.float32)
        if case.causal:
            key = jnp.arange(k_len).reshape(pages, 1, 128)
            visible = key <= jnp.arange(q_len)[:, None] + (k_len - q_len)
            scores = jnp.where(visible[None, None, :, None], scores, -jnp.inf)
        return scores.max(-1).reshape(case.heads_q, pages, batch * q_len)

    return call


def uniform(
    name: str, batch: int, q_len: int, k_len: int, heads_q: int, heads_kv: int, causal: bool, tags="", **published_us
) -> Case:
    """A case whose sequences are all alike. `tags`: words."""
    return Case(
        name, (q_len,) * batch, (k_len,) * batch, heads_q, heads_kv, causal, published_us, tags=frozenset(tags.split())
    )


def _decode(name, k_len, tags, **published):
    return uniform(name, 128, 4, k_len, 4, 1, False, tags, **published)


def _prefill_8k(name, tags, **published):
    return uniform(name, 1, 8192, 8192, 64, 4, True, tags, **published)


_SKEWED = tuple(2048 * (1 + (i * 13) % 32) for i in range(128))

CASES = (
    _prefill_8k("prefill_q8k_k8k", "headline quick layouts", mxfp4=844.9, nvfp4=875.6),
    dataclasses.replace(_prefill_8k("prefill_q8k_k8k_mixed", "quick"), wide_pages=0.1),
    dataclasses.replace(_prefill_8k("prefill_q8k_k8k_wide", "quick"), wide_pages=1.0),
    uniform("prefill_q8k_k64k", 1, 8192, 65536, 64, 4, True),
    _decode("decode_8k", 8192, "headline quick layouts", nvfp4=23.7),
    _decode("decode_16k", 16384, "headline", nvfp4=53.9),
    _decode("decode_32k", 32768, "headline", nvfp4=105.0),
    _decode("decode_64k", 65536, "headline quick layouts", nvfp4=199.1),
    uniform("decode_uniform", 64, 1, 16384, 64, 4, True),
    Case("decode_skewed", (4,) * 128, _SKEWED, 4, 1, False, tags=frozenset({"quick"})),
    Case("decode_skewed_1m", (4,) * 128, (2**20,) + (8192,) * 127, 4, 1, False),
    uniform("decode_b1_128k", 1, 4, 131072, 4, 1, False, "quick"),
    uniform("decode_32_rows", 128, 8, 32768, 4, 1, False),
    uniform("decode_64_rows", 128, 8, 32768, 8, 1, False),
    uniform("prefill_q1k_k8k", 1, 1024, 8192, 64, 4, True),
    uniform("prefill_q128_k8k", 8, 128, 8192, 64, 4, True),
    uniform("prefill_q16_k8k", 32, 16, 8192, 64, 4, True),
    uniform("prefill_q9_k8k", 32, 9, 8192, 64, 4, True),
    uniform("prefill_h8_8", 1, 8192, 8192, 8, 8, True),
    uniform("prefill_h32_8", 1, 8192, 8192, 32, 8, True),
    uniform("prefill_h64_1", 1, 8192, 8192, 64, 1, True),
    uniform("prefill_h16_1", 1, 8192, 8192, 16, 1, True),
    Case(
        "prefill_ragged", tuple(64 + 37 * i for i in range(32)), tuple(1000 + 331 * i for i in range(32)), 64, 4, True
    ),
    uniform("cpu_decode", 2, 4, 8192, 4, 1, False, "cpu"),  # seconds on a CPU
)
