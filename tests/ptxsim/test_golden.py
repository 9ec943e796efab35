"""Simulated kernels against what an H200 computed from the same rows: the scores kept in golden/h200.npz, key "<case>|<path>" (native sm_90a kernels, jax 0.11.2).
Every exact row is in golden/exact.json, as a digest; sweep.py compares those.

The wide decode of sm_90a gives every bit: it adds in the order of the kernel that the card ran, and the simulator rounds as it does. The others, of sm_90a in
another order (the prefill since its rows lie in registers) and of Blackwell, which no card of ours runs, must give the H200's bits on exact rows; elsewhere both lie within the bar of float64, so at most two bars apart. Seeds are those of the rows (tests/support/cases.py, cases.py here).
"""
import itertools
import pathlib

import numpy as np
import pytest

from ptxsim import cases, golden, kernels, runs
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
