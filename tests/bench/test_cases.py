"""The named benchmark cases: what they count, and the data made for them."""
import dataclasses

import numpy as np
import pytest

from jax_fp4_indexer.bench import data, shapes


def test_counts_of_a_case():
    case = shapes.uniform("x", 2, 3, 5, 4, 2, True)
    assert case.visible_pairs() == 2 * (3 + 4 + 5) and case.flops() == 2 * 4 * 128 * 24
    # codes and scales of queries and of two one-page pools, metadata, scores
    assert case.logical_bytes("nvfp4") == 6 * 4 * 72 + 2 * 128 * 2 * 72 + 4 * (2 + 9) + 4 * 4 * 1 * 6
    assert shapes.uniform("x", 1, 4, 2, 1, 1, True).visible_pairs() == 1 + 2          # two queries see nothing


def test_tiles_are_rows_of_128_by_pages_seen():
    assert shapes.CASES["prefill_q8k_k8k"].tiles() == 64 * sum(range(1, 65))
    assert shapes.uniform("x", 3, 4, 300, 32, 2, False).tiles() == 3 * 3              # 4 x 32 rows, three pages
    assert shapes.uniform("x", 1, 4, 2, 128, 1, True).tiles() == 2                    # the first two queries see nothing


@pytest.mark.parametrize("layout", ("public", "preordered_mma"))
def test_as_many_wide_pages_in_every_page_list(layout):
    case = dataclasses.replace(shapes.uniform("x", 1, 16, 1280, 4, 2, True), wide_pages=0.3)
    made = data.make(case, "mxfp4", layout, calls=5)
    scales = np.asarray(made.k_scale.view("uint8")).reshape(-1, 2, 512)
    wide = np.ptp(scales, -1).min(-1) > 8               # normal vectors alone span two or three binades
    assert {int(wide[np.asarray(pages)].sum()) for pages in made.kv_indices} == {3}
    assert np.ptp(scales) <= 2 * shapes.WIDE_SPAN + 4


def test_cases_of_the_wide_pages_are_mxfp4_alone():
    assert shapes.CASES["prefill_q8k_k8k_mixed"].int8_share("mxfp4") == 0.9
    for case in shapes.CASES.values():
        assert case.formats == (("mxfp4",) if case.wide_pages else ("nvfp4", "mxfp4")) and case.int8_share("nvfp4") == 0
