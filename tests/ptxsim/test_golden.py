"""Simulated kernels against what an H200 computed from the same rows: the scores kept in golden/h200.npz, key "<case>|<path>" (native sm_90a kernels, jax 0.11.2).
Every exact row is in golden/exact.json, as a digest; sweep.py compares those.

The wide decode of sm_90a gives every bit: it adds in the order of the kernel that the card ran, and the simulator rounds as it does. The others, of sm_90a in
another order (the prefill since its rows lie in registers: `test_order_of_additions_of_the_prefill`) and of Blackwell, which no card of ours runs, must give the H200's bits on exact rows; elsewhere both lie within the bar of float64, so at most two bars apart. Seeds are those of the rows (tests/support/cases.py, cases.py here).
"""
import itertools
import pathlib

import numpy as np
import pytest

from ptxsim import cases, golden, kernels, runs
from ptxsim.pages_alone import E2M1, _e4m3
from ptxsim.probes import rounding
from support import check

GOLDEN = np.load(pathlib.Path(__file__).with_name("golden") / "h200.npz")
VARIANTS = [v for v in runs.quick_variants() if v.implementation == "native" and (v.path, v.max_columns) in (("decode", 0), ("decode", 16), ("prefill", 0))]


@pytest.mark.parametrize("variant", VARIANTS, ids=runs.label)
def test_bits_of_the_h200(variant):
    compiled, compared, exact = kernels.load(variant.launches), 0, 0
    same_order = (variant.arch, variant.path, variant.max_columns) == ("sm_90a", "decode", 0)
    for case in cases.of(variant.path, variant.format, ""):
        key = f"{case.name}|{variant.path}"
        if key not in GOLDEN:
            continue
        outcome, problems = runs.run(compiled, variant, case, "eager")
        assert not problems, f"{case.name}: {problems[0]}"
        card, here = GOLDEN[key], outcome.scores
        assert card.shape == here.shape, key
        for what in (np.isnan, np.isneginf, np.isposinf):
            np.testing.assert_array_equal(what(here), what(card), err_msg=f"{key}: {what.__name__}")
        finite = np.isfinite(card)
        if case.table.exact or same_order:
            np.testing.assert_array_equal(here[finite], card[finite], err_msg=f"{key}: if the order of additions was changed on purpose, take the variant out of same_order")
            exact += case.table.exact
        else:
            bound = runs.built(case.table)[1].bound
            worst = (np.abs(here[finite].astype(np.float64) - card[finite]) - 2 * check.BAR * bound[finite]).max(initial=-1.0)
            assert worst <= 0, f"{key}: {worst} beyond two bars"
        compared += 1
    assert compared >= 15 and exact >= 5


def test_the_h200_computed_the_reference_bits_of_exact_rows():
    compared = 0
    for path, fmt in itertools.product(("decode", "prefill"), ("nvfp4", "mxfp4")):
        for case in cases.of(path, fmt):
            inp, truth = runs.built(case.table)
            card = golden.exact(inp, path) if case.table.exact else None
            if card is not None:
                assert golden.digest(truth.expected) == card, f"{case.name} {path}"
                compared += 1
    assert compared >= 600


# Elements of d by K step of 16: in turn, as the prefill that the card ran had them; as today's has them: pairs 2 * (s % 2) and the next (codes i, i + 4) of word s / 2 of each quarter.
IN_TURN = np.arange(128).reshape(8, 16)
BY_QUARTERS = np.array([[32 * t + 8 * (s // 2) + i + half for t in range(4) for i in (2 * (s % 2), 2 * (s % 2) + 1) for half in (0, 4)] for s in range(8)])


def values(codes, scales, fmt):
    """[..., 64] bytes and their scales -> [..., 128] float64."""
    factor = _e4m3(scales) if fmt == "nvfp4" else np.exp2(scales - 127.0)
    return E2M1[np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 128)] * np.repeat(factor, 128 // scales.shape[-1], -1)


def rounded_scores(inp, order):
    """float32 [Hq, Ktiles, Tq] of a causal call, summed in that order as probes/rounding.py has it from the card."""
    q, k = values(inp.q, inp.q_scale, inp.fmt), values(inp.k, inp.k_scale, inp.fmt)
    tokens, heads, heads_kv, _, batch, tiles = inp.shape
    scores = np.full((heads, tiles, tokens), -np.inf, np.float32)
    for b, h in itertools.product(range(batch), range(heads)):
        (first, end), keys = inp.cu_q[b:b + 2], inp.cu_k[b + 1] - inp.cu_k[b]
        for block, page in enumerate(inp.kv_indices[inp.cu_p[b]:inp.cu_p[b + 1]]):
            rows, tile, sums = q[None, first:end, h], k[page, h * heads_kv // heads][None], np.zeros((1, end - first, 128))
            for step in order:
                sums = rounding.predict(rounding.MODELS["bf16"], rows[..., step], tile[..., step], sums).astype(np.float64)
            seen = 128 * block + np.arange(128) <= (keys - (end - first) + np.arange(end - first))[:, None]
            scores[h, block, first:end] = np.where(seen, sums[0], -np.inf).max(-1)
    return scores


PLAIN = ("padded_tokens", "k_lengths_causal", "q_lengths_causal", "sim_many_pages", "sim_nan_long", "sim_skewed", "sim_deep_prefill")      # no offsets, bad pages nor far exponents


@pytest.mark.parametrize("fmt", ("nvfp4", "mxfp4"))
def test_order_of_additions_of_the_prefill(fmt):
    """Every bit of rounded sums: by the model, in the old order they are the card's, in today's order the simulated kernel's."""
    variant, different, compared = next(v for v in VARIANTS if (v.arch, v.path, v.format) == ("sm_90a", "prefill", fmt)), 0, 0
    compiled = kernels.load(variant.launches)
    for row in PLAIN:
        case, = cases.of("prefill", fmt, f"{row}-{fmt}")
        inp, card = runs.built(case.table)[0], GOLDEN[f"{row}-{fmt}|prefill"]
        finite = np.isfinite(card)
        with np.errstate(over="ignore", invalid="ignore"):
            old, new = rounded_scores(inp, IN_TURN)[finite], rounded_scores(inp, BY_QUARTERS)[finite]
        np.testing.assert_array_equal(old, card[finite], err_msg=f"{row}: of the card")
        outcome, problems = runs.run(compiled, variant, case, "eager")
        np.testing.assert_array_equal(new, outcome.scores[finite], err_msg=f"{row}: simulated")
        assert not problems
        different, compared = different + (old != new).sum(), compared + finite.sum()
    assert different > 100 and compared > 10000, (different, compared)
