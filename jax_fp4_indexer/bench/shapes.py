"""The named benchmark cases, and what one call of a case must compute and move."""
import dataclasses

import numpy as np

PAGE = 128
SCALE_BYTES = {"nvfp4": 8, "mxfp4": 4}


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch: lengths per sequence. `published_us` is the seed's figure on a B200 (microseconds), where there is one."""
    name: str
    q_lens: tuple
    k_lens: tuple
    heads_q: int
    heads_kv: int
    causal: bool
    published_us: dict = dataclasses.field(default_factory=dict)

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

    def logical_bytes(self, fmt):
        """Packed codes, scales, metadata and scores, each counted once (the seed's convention)."""
        row = 64 + SCALE_BYTES[fmt]
        metadata = 4 * (self.pages + 3 * (len(self.q_lens) + 1))
        return self.tokens * self.heads_q * row + self.pages * PAGE * self.heads_kv * row + metadata + 4 * self.heads_q * self.k_tiles * self.tokens

    def describe(self):
        span = lambda x: str(x[0]) if len(set(x)) == 1 else f"{min(x)}..{max(x)}"
        return f"B={len(self.q_lens)} q={span(self.q_lens)} k={span(self.k_lens)} heads {self.heads_q}/{self.heads_kv} {'causal' if self.causal else 'non-causal'}"


def uniform(name, batch, q_len, k_len, heads_q, heads_kv, causal, **published_us):
    return Case(name, (q_len,) * batch, (k_len,) * batch, heads_q, heads_kv, causal, published_us)


def _decode(name, k_len, **published):
    return uniform(name, 128, 4, k_len, 4, 1, False, **published)


_SKEWED = tuple(2048 * (1 + (i * 13) % 32) for i in range(128))

CASES = {case.name: case for case in (
    uniform("prefill_q8k_k8k", 1, 8192, 8192, 64, 4, True, mxfp4=844.9, nvfp4=875.6),
    uniform("prefill_q8k_k64k", 1, 8192, 65536, 64, 4, True),
    _decode("decode_8k", 8192, nvfp4=23.7),
    _decode("decode_16k", 16384, nvfp4=53.9),
    _decode("decode_32k", 32768, nvfp4=105.0),
    _decode("decode_64k", 65536, nvfp4=199.1),
    uniform("decode_uniform", 64, 1, 16384, 64, 4, True),
    Case("decode_skewed", (4,) * 128, _SKEWED, 4, 1, False),
    uniform("decode_b1_128k", 1, 4, 131072, 4, 1, False),
    uniform("prefill_q1k_k8k", 1, 1024, 8192, 64, 4, True),
    uniform("prefill_q128_k8k", 8, 128, 8192, 64, 4, True),
    uniform("prefill_q16_k8k", 32, 16, 8192, 64, 4, True),
    uniform("prefill_h8_8", 1, 8192, 8192, 8, 8, True),
    uniform("prefill_h32_8", 1, 8192, 8192, 32, 8, True),
    uniform("prefill_h16_1", 1, 8192, 8192, 16, 1, True),
    Case("prefill_ragged", tuple(64 + 37 * i for i in range(32)), tuple(1000 + 331 * i for i in range(32)), 64, 4, True),
)}

HEADLINE = ("prefill_q8k_k8k", "decode_8k", "decode_16k", "decode_32k", "decode_64k")


def select(names):
    """Cases by name; none given: the headline cases; "all": every one. KeyError names an unknown one."""
    if not names:
        names = HEADLINE
    if "all" in names:
        names = tuple(CASES)
    return [CASES[name] for name in names]
