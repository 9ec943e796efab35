"""Simulated kernels against what an H200 computed from the same rows: the scores kept in golden/h200.npz, key "<case>|<path>" (native sm_90a kernels, jax 0.11.2).
Every exact row is in golden/exact.json, as a digest; sweep.py compares those.

A kernel of sm_90a gives every bit of the rows that the card ran with it: the simulator rounds as the card does. Other kernels add in another order, those of Blackwell, which no
card of ours runs, among them: they must give the H200's bits on exact rows; elsewhere both lie within the bar of float64, so at most two bars apart. Seeds are those of the rows
(tests/support/cases.py, cases.py here).
"""

import itertools

import numpy as np
import pytest

from jax_fp4_indexer.configs.block_scores import DIRECT_COLUMNS
from harness.ops.block_scores import built
from ptxsim import kernels
from simulated import cases, golden, selection
from support import check

GOLDEN = np.load(golden.SCORES)
XDIST_GROUP = "variant"
VARIANTS = [
    v for v in selection.quick_variants() if v.implementation == "native" and (v.arch == "sm_90a" or v.bound == 0)
]


def ran_on_the_card(variant, inp):
    """Whether the card ran these inputs with this kernel, or one that adds in its order: it takes that of the least bound that holds a sequence's queries (ffi: PickVariant)."""
    tokens, heads, heads_kv, *_ = inp.shape
    columns = inp.max_seqlen_q * (heads // heads_kv)
    others = [
        v.bound
        for v in selection.all_variants("block_scores")
        if (v.arch, v.implementation, v.path, v.format, v.scale_layout)
        == ("sm_90a", "native", variant.path, variant.format, "public")
    ]
    taken = min((x for x in others if columns <= x), default=0)
    alike = variant.path == "prefill" and {variant.bound, taken} <= {
        DIRECT_COLUMNS[variant.format],
        0,
    }  # direct and staged
    return variant.arch == "sm_90a" and (variant.bound == taken or alike)


@pytest.mark.parametrize("variant", VARIANTS, ids=selection.label)
def test_bits_of_the_h200(variant):
    compiled, compared, exact = kernels.load(variant.launches), 0, 0
    for case in cases.of(variant.path, variant.format, ""):
        key = f"{case.name}|{variant.path}"
        if key not in GOLDEN:
            continue
        outcome, problems = selection.run(compiled, variant, case, "eager")
        assert not problems, f"{case.name}: {problems[0]}"
        card, here = GOLDEN[key], outcome.scores
        assert card.shape == here.shape, key
        for what in (np.isnan, np.isneginf, np.isposinf):
            np.testing.assert_array_equal(what(here), what(card), err_msg=f"{key}: {what.__name__}")
        finite = np.isfinite(card)
        inp, truth = built(case.table)
        if case.table.exact or ran_on_the_card(variant, inp):
            np.testing.assert_array_equal(
                here[finite],
                card[finite],
                err_msg=f"{key}: if the order of additions was changed on purpose, the card has to compute h200.npz anew (golden/__main__.py)",
            )
            exact += case.table.exact
        else:
            worst = (np.abs(here[finite].astype(np.float64) - card[finite]) - 2 * check.BAR * truth.bound[finite]).max(
                initial=-1.0
            )
            assert worst <= 0, f"{key}: {worst} beyond two bars"
        compared += 1
    assert compared >= 15 and exact >= 5


def test_the_h200_computed_the_reference_bits_of_exact_rows():
    compared = 0
    for path, fmt in itertools.product(("decode", "prefill"), ("nvfp4", "mxfp4")):
        for case in cases.of(path, fmt):
            inp, truth = built(case.table)
            card = golden.exact(inp, path) if case.table.exact else None
            if card is not None:
                assert golden.digest(truth.expected) == card, f"{case.name} {path}"
                compared += 1
    assert compared >= 600
