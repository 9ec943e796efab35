"""The small rows of the case table through the public op on CPU, where it runs the definition; and the oracle against exact fractions.

Rows are padded to a few static shapes, as serving code pads them, so that a handful of programs serves all of them.
Rows about shapes and metadata keep the shapes they state.
"""

import dataclasses
import fractions

import numpy as np
import pytest

import jax_fp4_indexer as jfi
from support import cases, check, inputs, oracle

SMALL = cases.table("small")
AS_STATED = ("k_len_0", "all_empty", "empty_", "q_len_0", "no_queries", "batch_0", "max_seqlen", "lie_", "padded_")
SHAPES = ((300, 24, 64, 64, 16), (300, 260, 260, 260, 16))  # tokens, sequences, pages, list entries, K tiles
TILED = (
    "scale_padding",
    "scale_order",
    "ragged",
    "grid",
    "padded_",
    "all_empty_no",
    "ratio",
)  # rows that run in the tiled scale layout here


def scores(inp, layout):
    a = inp.arrays(layout)
    return np.asarray(jfi.fp4_indexer_block_scores(**a, **inp.statics(layout)))


def in_shared_shapes(case, inp):
    Tq, _, _, pages, B, tiles = inp.shape
    need = (Tq, B, pages, inp.kv_indices.size, tiles)
    fits = [s for s in SHAPES if all(n <= size for n, size in zip(need, s))]
    if case.name.startswith(AS_STATED) or not fits:
        return inp
    return inputs.padded(inp, *fits[0], max_seqlen_q=fits[0][0])  # an upper bound: it is part of the program's key


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_case(case):
    inp = case.build()
    wide = in_shared_shapes(case, inp)
    out = scores(wide, "preordered_mma" if any(word in case.name for word in TILED) else "public")
    tiles, tokens = inp.shape[5], inp.shape[0]
    assert np.isneginf(out[:, tiles:]).all() and np.isneginf(out[:, :, tokens:]).all(), "padding must come out -inf"
    check.compare(out[:, :tiles, :tokens], oracle.evaluate(inp), case.exact).raise_if_wrong(case.name)


@pytest.mark.parametrize("case", [c for c in SMALL if c.expected is not None], ids=lambda c: c.name)
def test_oracle_gives_the_stated_answer(case):
    got = oracle.evaluate(case.build()).expected
    np.testing.assert_array_equal(got, np.broadcast_to(case.expected, got.shape))


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_case_asks_only_what_is_decided(case):
    """Exact rows are exact in fp32, and no finite score comes from partial sums beyond fp32, whose result the contract leaves open."""
    o = oracle.evaluate(case.build())
    finite = np.isfinite(o.expected)
    assert (o.bound[finite] <= oracle.FLT_MAX).all()
    if case.exact:
        np.testing.assert_array_equal(o.scores[finite], o.expected[finite].astype(np.float64))


@pytest.mark.parametrize("fmt", cases.BOTH)
def test_oracle_against_fractions(fmt):
    """Element by element in exact rational arithmetic, codes and scales decoded by their definitions."""
    inp = inputs.batch(fmt, [2, 3], [5, 131], Hq=2, Hkv=1, seed=3, qo_offset=np.array([3, 127], np.int32))
    F, G = fractions.Fraction, inputs.GROUPS[fmt]

    def element(code):
        e, m = code >> 1 & 3, code & 1
        return (-1) ** (code >> 3) * (F(m, 2) if e == 0 else F(2 + m, 2) * 2 ** (e - 1))

    def scale(byte):
        if fmt == "mxfp4":
            return F(2) ** (byte - 127)
        e, m = byte >> 3 & 15, byte & 7
        return F(m, 512) if e == 0 else F(8 + m, 8) * F(2) ** (e - 7)

    def row(codes, scales):
        return [element(int(codes[d // 2]) >> 4 * (d % 2) & 15) * scale(int(scales[d * G // 128])) for d in range(128)]

    got = oracle.evaluate(inp)
    for b, (q0, q_len, k_len, p0, _, offset) in enumerate(inputs.sequences(inp)):
        for t in range(q0, q0 + q_len):
            q = row(inp.q[t, 1], inp.q_scale[t, 1])
            for kb in range(inp.shape[5]):
                keys = [j for j in range(kb * 128, min(k_len, kb * 128 + 128)) if j <= t - q0 + offset]
                dots = []
                for j in keys:
                    page = inp.kv_indices[p0 + kb]
                    k = row(inp.k[page, 0, j % 128], inp.k_scale[page, 0, j % 128])
                    dots.append((sum(x * y for x, y in zip(q, k)), sum(abs(x * y) for x, y in zip(q, k))))
                want = float(max(d for d, _ in dots)) if dots else -np.inf
                size = float(max(s for _, s in dots)) if dots else 0.0
                assert got.scores[1, kb, t] == pytest.approx(want, rel=1e-15, abs=1e-15 * size), (b, t, kb)
                assert got.bound[1, kb, t] == pytest.approx(size, rel=1e-14)


def test_single_slots_equal_the_whole():
    inp = inputs.batch(
        "nvfp4", [3, 0, 40], [300, 129, 257], Hq=6, Hkv=3, seed=5, pad_tokens=4, q_global=np.float32(0.5)
    )
    inp.kv_indices[1] = -1
    whole = oracle.evaluate(inp)
    slots = [x.ravel() for x in np.indices(whole.scores.shape)]
    one = oracle.at(inp, *slots)
    np.testing.assert_allclose(one.scores, whole.scores.ravel(), rtol=1e-12)
    np.testing.assert_allclose(
        one.bound[np.isfinite(one.scores)], whole.bound.ravel()[np.isfinite(one.scores)], rtol=1e-12
    )
    seen = oracle.visible_keys(inp)
    np.testing.assert_array_equal(np.isneginf(whole.scores), np.broadcast_to(seen == 0, whole.scores.shape))


class TestBars:
    """Each bar must be able to fail."""

    truth = oracle.Oracle(
        np.array([[[1.0, -np.inf, np.nan, 2.0**130, 2.0**-130]]]), np.array([[[10.0, 0, 10, 2.0**130, 2.0**-130]]])
    )
    right = np.array([[[1.0, -np.inf, np.nan, np.inf, 0.0]]], np.float32)

    def test_right(self):
        r = check.compare(self.right, self.truth, exact=True)
        assert r.ok and (r.minus_inf, r.nan, r.inf, r.equal, r.flushed) == (1, 1, 1, 1, 1)

    @pytest.mark.parametrize(
        "slot, value, exact, word",
        [
            (0, np.float32(1.0000001), True, "bits differ"),
            (0, np.float32(1.0001), False, "error above"),
            (0, -np.inf, False, "-inf set"),
            (0, np.nan, False, "NaN set"),
            (1, -3e38, False, "-inf set"),
            (1, np.nan, False, "NaN set"),
            (2, 0, False, "NaN set"),
            (3, 3.4e38, False, "+inf set"),
            (4, 1e-30, True, "bits differ"),
        ],
    )
    def test_wrong(self, slot, value, exact, word):
        out = self.right.copy()
        out[0, 0, slot] = value
        assert word in check.compare(out, self.truth, exact).problem

    def test_within_the_bar(self):
        out = self.right.copy()
        out[0, 0, 0] = 1.00003
        assert check.compare(out, self.truth, exact=False).ok

    def test_wrong_shape(self):
        assert "expected float32[1, 1, 5]" in check.compare(self.right[0], self.truth, False).problem


def test_scramble_touches_only_what_does_not_count():
    inp = inputs.batch("mxfp4", [3, 9], [129, 300], Hq=4, Hkv=2, seed=6, pad_tokens=5, pad_indices=7)
    other = inputs.scramble(inp, 1)
    tokens, keys, entries = inputs.counted(inp)
    assert not tokens.all() and not keys.all() and not entries.all()
    assert (
        (other.q != inp.q).any() and (other.k_scale != inp.k_scale).any() and (other.kv_indices != inp.kv_indices).any()
    )
    np.testing.assert_array_equal(other.q[tokens], inp.q[tokens])
    np.testing.assert_array_equal(other.k.transpose(0, 2, 1, 3)[keys], inp.k.transpose(0, 2, 1, 3)[keys])
    np.testing.assert_array_equal(oracle.evaluate(other).scores, oracle.evaluate(inp).scores)
    changed = dataclasses.replace(inp, q=inp.q ^ 0x11)  # the oracle does see what counts
    assert (oracle.evaluate(changed).scores != oracle.evaluate(inp).scores).any()
