"""What the first launch of a prefill on sm_90a (kernels/block_scores/sm90_prepare.py) writes beside the plan: widened pages, in MXFP4 also narrow ones and notes of exponents,
against plain models of them. A note that is too careful only costs time, so that scores would not tell.
"""

import dataclasses
import itertools

import numpy as np

from jax_fp4_indexer.configs.block_scores import (
    INT8_SPAN,
    KEY_WINDOW,
    NARROW_PAGE_BYTES,
    PAGE,
    QUERY_CHUNK,
    QUERY_FLAG_HEADS,
    QUERY_WINDOW,
    WIDE_PAGE_BYTES,
    Scratch,
)
from support.inputs import GROUPS, pages_of, prefix, tile_scales

from . import prepass

WIDENS, CLEARS = "block_scores.prepare.", "block_scores.plan."
MULTIPROCESSORS = 3
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])
NAN_PAIR = 0x7FC07FC0


def _e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return np.where(byte & 0x7F == 0x7F, np.nan, value)


def codes_of(page):
    """[128, 64] bytes -> [128, 128] codes."""
    return np.stack([page & 15, page >> 4], -1).reshape(PAGE, 128)


def wide(codes, scales, fmt):
    """(the 32 KB of a page in bf16, which bytes of it are defined)."""
    shift = 2.0**31 if fmt == "mxfp4" else 2.0**-10
    factor = np.where(scales == 255, np.nan, np.exp2(scales - 127.0)) if fmt == "mxfp4" else _e4m3(scales)
    held = (scales >= KEY_WINDOW[0]) & (scales <= KEY_WINDOW[1]) if fmt == "mxfp4" else scales & 0x7F != 0x7F
    per = 128 // scales.shape[1]
    words = codes.reshape(PAGE, 16, 8)
    zero, nan = (words & 7 == 0).all(-1), np.repeat(np.isnan(factor), per // 8, 1)
    factor, held = np.repeat(factor, per // 8, 1), np.repeat(held, per // 8, 1)
    if fmt == "mxfp4":
        factor, held = np.where(zero & ~nan, 1, factor), held | zero & ~nan
    values = (E2M1[words] * np.where(held, factor, 0)[..., None] * shift).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    # piece 4 * j + i: of each quarter codes i and i + 4 of word j
    quarter, j, i = np.indices((4, 4, 4)).reshape(3, -1)
    pairs = np.stack([bits[:, 4 * quarter + j, i], bits[:, 4 * quarter + j, i + 4]], -1)
    r, c = np.arange(PAGE)[:, None], (4 * j + i)[None, :]
    at = (c // 8 * 1024 + r * 8 + ((c % 8) ^ (r % 8))) * 4 + quarter
    out, sure = np.zeros((8192, 2), np.uint16), np.zeros(8192, bool)
    out[at], sure[at] = pairs, held[:, 4 * quarter + j]
    return out.view(np.uint8).reshape(-1), np.repeat(sure, 4)


def narrow(codes, scales, exponent):
    """(the 16 KB of a page in int8, which bytes of it are defined): rows behind the last counted one are anything."""
    shift = np.repeat(scales.astype(int) - exponent, 32, 1)
    held = (shift >= 0) & (shift <= INT8_SPAN) | (codes & 7 == 0)
    values = np.where(held, E2M1[codes] * 2 * np.exp2(np.where(held, shift, 0)), 0).astype(np.int8)
    # piece 2 * j + h: of each quarter codes 4 * h .. 4 * h + 3 of word j
    quarter, j, h = np.indices((4, 4, 2)).reshape(3, -1)
    of = 8 * quarter + 2 * j + h
    r, c = np.arange(PAGE)[:, None], (2 * j + h)[None, :]
    at = (r * 8 + (c ^ (r % 8))) * 4 + quarter
    out, sure = np.zeros((4096, 4), np.int8), np.zeros((4096, 4), bool)
    out[at], sure[at] = values.reshape(PAGE, 32, 4)[:, of], held.reshape(PAGE, 32, 4)[:, of]
    return out.view(np.uint8).reshape(-1), sure.reshape(-1)


def notes(codes, scales, counted):
    """(page flag, exponent byte) of a page in MXFP4."""
    words = (codes.reshape(PAGE, 4, 32) & 7 == 0).reshape(PAGE, 4, 4, 8).all(-1) & (scales != 255)[..., None]
    seen = (~words).any(-1)[:counted]
    rows = scales[:counted].astype(int)
    far = seen & (rows != 255) & ((rows < KEY_WINDOW[0]) | (rows > KEY_WINDOW[1]))
    flag = int(128 - np.argmax(far.any(1))) if far.any() else 0
    counts = rows[seen]
    if not counts.size:
        return flag, 127
    return flag, int(
        counts.min()
    ) if not flag and counts.max() < 255 and counts.max() - counts.min() <= INT8_SPAN else 0


@dataclasses.dataclass(frozen=True)
class Problem:
    name: str
    reason: str
    seed: int
    heads_q: int
    heads_kv: int
    queries: tuple
    keys: tuple
    pad: int = 0

    def _inputs(self, fmt):
        """(codes of keys, scales of keys, scales of queries, list of pages), nearly every page and chunk of queries with one exponent that may be out of bounds."""
        rng, pages = np.random.RandomState(self.seed), sum(pages_of(self.keys))
        ids = rng.permutation(pages + 2)[:pages].astype(np.int32)
        tokens, G = sum(self.queries) + self.pad, GROUPS[fmt]
        k = rng.randint(0, 256, (pages + 2, self.heads_kv, PAGE, 64), dtype=np.uint8)
        if fmt == "nvfp4":
            return (
                k,
                rng.randint(0, 256, (pages + 2, self.heads_kv, PAGE, G), dtype=np.uint8),
                np.zeros((tokens, self.heads_q, G), np.uint8),
                ids,
            )
        k.reshape(-1, 4)[rng.rand(k.size // 4) < 0.1] = 0x80
        around = lambda shape, low, high: (rng.choice([low, (low + high) // 2, high - INT8_SPAN], shape)).astype(int)
        k_base, q_base = (
            around((pages + 2, self.heads_kv, 1, 1), *KEY_WINDOW),
            around((tokens, self.heads_q, 1), *QUERY_WINDOW),
        )
        k_scale = k_base + rng.randint(0, INT8_SPAN + 1, (pages + 2, self.heads_kv, PAGE, G))
        q_scale = q_base + rng.randint(0, INT8_SPAN + 1, (tokens, self.heads_q, G))
        odd = lambda i, base, window: [
            255,
            window[0] - 1,
            window[1] + 1,
            base + INT8_SPAN + 1,
            window[0],
            window[1],
            max(base - 1, 0),
            254,
            0,
        ][i % 9]
        # a thread has eight rows of a page in turn, a lane sixteen heads: each of them has each of the nine
        for i, (page, kv) in enumerate(
            itertools.product([*ids, *set(range(pages + 2)) - set(ids)], range(self.heads_kv))
        ):
            k_scale[page, kv, i % 8 * 16 + rng.randint(16), rng.randint(G)] = odd(
                i // 8, int(k_base[page, kv, 0, 0]), KEY_WINDOW
            )
        for c in range(-(-tokens // QUERY_CHUNK)):
            t, h = (
                min(c * QUERY_CHUNK + rng.randint(QUERY_CHUNK), tokens - 1),
                (c % 16 * 4 + rng.randint(4)) % self.heads_q,
            )
            q_scale[t, h, c // 16 % 4] = odd(c // 64, int(q_base[t, h, 0]), QUERY_WINDOW)
            if 560 <= c < 576:  # of each of the sixteen once: only the greatest tells that there is a NaN
                q_scale[t, h] = 255
        k[ids[0]], k_scale[ids[0], :, ::3, 1] = 0x08, 3  # a page of zeros
        ids[2:4] = -1, pages + 2
        return k, k_scale.astype(np.uint8), q_scale.astype(np.uint8), ids

    def run(self, kernel, schedule, max_insts=10**7):
        _, _, fmt, layout_name = kernel.name.split(".")
        k, k_scale, q_scale, ids = self._inputs(fmt)
        tokens, seed = len(q_scale), int(schedule.partition(":")[2] or 0)
        sizes = dict(
            num_seqs=len(self.keys),
            tokens=tokens,
            heads_q=self.heads_q,
            heads_kv=self.heads_kv,
            num_indices=len(ids) + 1,
            num_pages=len(k),
            first_page=0,
            k_tiles=max(pages_of(self.keys)),
            mask=1,
            pages_per_pass=len(ids) + 2,
        )
        layout = Scratch.layout(sizes["num_seqs"], tokens, self.heads_kv, sizes["pages_per_pass"])
        given, want = ([prepass.Area(0, layout.size(fmt), seed)] for _ in range(2))
        want[0].ignore(0, layout.page_flags)
        if kernel.name.startswith(WIDENS):
            self._expect_pages(want[0], layout, sizes, k, k_scale, ids, fmt)
        else:
            want[0].put(layout.page_flags, np.zeros(sizes["pages_per_pass"] * self.heads_kv))
        if fmt == "mxfp4":
            want[0].put(layout.query_flags, self._query_flags(q_scale))
        if layout_name == "preordered_mma":
            q_scale, k_scale = (
                tile_scales(q_scale.transpose(1, 0, 2)),
                tile_scales(k_scale.reshape(-1, PAGE, k_scale.shape[-1])),
            )
        arrays = {
            "k": k,
            "k_scale": np.ascontiguousarray(k_scale),
            "q_scale": np.ascontiguousarray(q_scale),
            "kv_indices": np.append(ids, 0).astype(np.int32),
            "cu_seqlens_q": prefix(self.queries),
            "cu_seqlens_k": prefix(self.keys),
            "cu_page_offsets": prefix(pages_of(self.keys)),
        }
        return prepass.run(kernel, given, want, sizes, arrays, schedule, MULTIPROCESSORS, max_insts)

    def _expect_pages(self, scratch, layout, sizes, k, k_scale, ids, fmt):
        counts = [min(n - PAGE * i, PAGE) for n in self.keys for i in range(-(-n // PAGE))]
        for page in range(sizes["pages_per_pass"]):
            for kv in range(self.heads_kv):
                unit, flag, exponent = page * self.heads_kv + kv, 0, 0
                if page < len(ids) and not 0 <= ids[page] < len(k):
                    scratch.put(layout.wide + unit * WIDE_PAGE_BYTES, np.full(WIDE_PAGE_BYTES // 4, NAN_PAIR))
                elif page < len(ids):
                    codes, scales = codes_of(k[ids[page], kv]), k_scale[ids[page], kv]
                    self._put(scratch, layout.wide + unit * WIDE_PAGE_BYTES, *wide(codes, scales, fmt))
                    flag, exponent = notes(codes, scales, counts[page]) if fmt == "mxfp4" else (0, 0)
                    if exponent:
                        self._put(scratch, layout.narrow + unit * NARROW_PAGE_BYTES, *narrow(codes, scales, exponent))
                if fmt == "mxfp4":
                    scratch.put(layout.page_flags + unit * 4, flag)
                    scratch.put(layout.exponents + unit * 4, exponent)

    @staticmethod
    def _put(scratch, at, data, sure):
        scratch.put(at, data, np.uint8)
        scratch.free[at : at + data.size] = ~sure

    def _query_flags(self, q_scale):
        e = q_scale[: sum(self.queries)].astype(int)
        bad = ((e != 255) & ((e < QUERY_WINDOW[0]) | (e > QUERY_WINDOW[1]))).any(-1)
        odd = bad | (e.max(-1) == 255) | (e.max(-1) - e.min(-1) > INT8_SPAN)
        words = np.zeros(-(-len(q_scale) // QUERY_CHUNK), np.int64)
        for t, h in np.argwhere(odd):
            words[t // QUERY_CHUNK] |= int(bad[t, h]) | 1 << (
                1 + h // (self.heads_q // self.heads_kv) % QUERY_FLAG_HEADS
            )
        return words


PROBLEMS = [
    Problem(
        "few", "pages and chunks that end early, KV heads of two words of flags", 1, 33, 33, (9, 20), (70, 300), 30
    ),
    Problem(
        "pages", "an exponent out of bounds anywhere in a page", 2, 2, 2, (5, 4, 2), (128 * 30 - 3, 5, 128 * 9 + 77)
    ),
    Problem(
        "queries",
        "an exponent out of bounds anywhere in eight query rows of 64 heads",
        3,
        64,
        2,
        (3000, 1, 1600),
        (200, 1, 300),
        30,
    ),
    Problem("heads", "more heads than a round over them", 4, 70, 2, (330, 7), (290, 260)),
]


def problems(kernel):
    return PROBLEMS if kernel.name.startswith((WIDENS, CLEARS)) else []
