"""The named benchmark cases, and what one call of a case must compute and move."""
import dataclasses

import numpy as np

PAGE = 128
SCALE_BYTES = {"nvfp4": 8, "mxfp4": 4}
WIDE_SPAN = 12      # binades to each side: 2^24 apart, more than int8 and less than bf16 holds


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch: lengths per sequence.

    published_us   the source's figure on a B200 (microseconds) by format, where there is one
    wide_pages     share of the pages in which every scale is moved by its own power of two within 2^+-WIDE_SPAN (MXFP4 only): no int8 form holds those
    """
    name: str
    q_lens: tuple
    k_lens: tuple
    heads_q: int
    heads_kv: int
    causal: bool
    published_us: dict = dataclasses.field(default_factory=dict)
    wide_pages: float = 0.0

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
        """Tiles of 128 query rows (heads and tokens) by one page, of the pages that a row sees some of; rows packed without gaps."""
        pages = 0
        for q, k in zip(self.q_lens, self.k_lens):
            last = np.arange(q, dtype=np.int64) + (k - q) if self.causal else np.full(q, k - 1, np.int64)
            pages += int((np.clip(last, -1, k - 1) // PAGE + 1).sum())
        return self.heads_q * pages / 128

    def int8_share(self, fmt):
        """Share of the products that int8 holds exactly: MXFP4 pages whose scales lie close together, as those of normal vectors do."""
        return 1.0 - self.wide_pages if fmt == "mxfp4" else 0.0

    def logical_bytes(self, fmt):
        """Packed codes, scales, metadata and scores, each counted once (the seed's convention)."""
        row = 64 + SCALE_BYTES[fmt]
        metadata = 4 * (self.pages + 3 * (len(self.q_lens) + 1))
        return self.tokens * self.heads_q * row + self.pages * PAGE * self.heads_kv * row + metadata + 4 * self.heads_q * self.k_tiles * self.tokens

    def bytes_at_least(self):
        """Memory of a program of two calls: two copies of the pages, and two results."""
        return 2 * (self.pages * PAGE * self.heads_kv * 68 + 4 * self.heads_q * self.k_tiles * self.tokens)

    def describe(self):
        span = lambda x: str(x[0]) if len(set(x)) == 1 else f"{min(x)}..{max(x)}"
        return f"B={len(self.q_lens)} q={span(self.q_lens)} k={span(self.k_lens)} heads {self.heads_q}/{self.heads_kv} {'causal' if self.causal else 'non-causal'}"


def uniform(name, batch, q_len, k_len, heads_q, heads_kv, causal, **published_us):
    return Case(name, (q_len,) * batch, (k_len,) * batch, heads_q, heads_kv, causal, published_us)


def _decode(name, k_len, **published):
    return uniform(name, 128, 4, k_len, 4, 1, False, **published)


def _prefill_8k(name, **published):
    return uniform(name, 1, 8192, 8192, 64, 4, True, **published)


_SKEWED = tuple(2048 * (1 + (i * 13) % 32) for i in range(128))

CASES = {case.name: case for case in (
    _prefill_8k("prefill_q8k_k8k", mxfp4=844.9, nvfp4=875.6),
    dataclasses.replace(_prefill_8k("prefill_q8k_k8k_mixed"), wide_pages=0.1),
    dataclasses.replace(_prefill_8k("prefill_q8k_k8k_wide"), wide_pages=1.0),
    uniform("prefill_q8k_k64k", 1, 8192, 65536, 64, 4, True),
    _decode("decode_8k", 8192, nvfp4=23.7),
    _decode("decode_16k", 16384, nvfp4=53.9),
    _decode("decode_32k", 32768, nvfp4=105.0),
    _decode("decode_64k", 65536, nvfp4=199.1),
    uniform("decode_uniform", 64, 1, 16384, 64, 4, True),
    Case("decode_skewed", (4,) * 128, _SKEWED, 4, 1, False),
    Case("decode_skewed_1m", (4,) * 128, (2**20,) + (8192,) * 127, 4, 1, False),
    uniform("decode_b1_128k", 1, 4, 131072, 4, 1, False),
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
    Case("prefill_ragged", tuple(64 + 37 * i for i in range(32)), tuple(1000 + 331 * i for i in range(32)), 64, 4, True),
)}

CPU = uniform("cpu_decode", 2, 4, 8192, 4, 1, False)          # what `bench` takes where there is no GPU: seconds

HEADLINE = ("prefill_q8k_k8k", "decode_8k", "decode_16k", "decode_32k", "decode_64k")
QUICK = ("prefill_q8k_k8k", "prefill_q8k_k8k_mixed", "prefill_q8k_k8k_wide", "decode_8k", "decode_64k", "decode_skewed", "decode_b1_128k")


def select(names):
    """Cases by name; none given: the headline cases; "all": every one. KeyError names an unknown one."""
    if not names:
        names = HEADLINE
    if "all" in names:
        names = tuple(CASES)
    return [CASES[name] for name in names]
