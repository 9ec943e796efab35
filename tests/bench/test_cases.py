"""The benchmark cases of the block scores: what they count, and the data that is made for them."""

import dataclasses

import jax
import numpy as np
import pytest
from support import check, inputs, oracle

import jax_fp4_indexer as jfi
from jax_fp4_indexer.bench import cases
from jax_fp4_indexer.bench.cases import How, batched_gemv, block_scores
from jax_fp4_indexer.bench.cases.block_scores import uniform

NVFP4, MXFP4 = (How(fmt, "preordered_mma") for fmt in ("nvfp4", "mxfp4"))


def test_counts_of_a_case():
    case = uniform("x", 2, 3, 5, 4, 2, True)
    assert case.visible_pairs() == 2 * (3 + 4 + 5) and case.flops() == 2 * 4 * 128 * 24
    assert case.work(NVFP4) == {"bf16": 24576} and case.work(MXFP4) == {"int8": 24576}
    # codes and scales of queries and of two one-page pools, metadata, scores
    assert case.bytes(NVFP4) == 6 * 4 * 72 + 2 * 128 * 2 * 72 + 4 * (2 + 9) + 4 * 4 * 1 * 6
    assert uniform("x", 1, 4, 2, 1, 1, True).visible_pairs() == 1 + 2  # two queries see nothing


def test_tiles_are_rows_of_128_by_pages_seen():
    assert cases.all_cases()["prefill_q8k_k8k"].tiles() == 64 * sum(range(1, 65))
    assert uniform("x", 3, 4, 300, 32, 2, False).tiles() == 3 * 3  # 4 x 32 rows, three pages
    assert uniform("x", 1, 4, 2, 128, 1, True).tiles() == 2  # the first two queries see nothing


def test_what_the_tensor_cores_issue():
    whole = 64 * sum(range(1, 65)) * 2 * 128**3
    prefill, mixed, decode = (
        cases.all_cases()[name] for name in ("prefill_q8k_k8k", "prefill_q8k_k8k_mixed", "decode_64k")
    )
    assert (
        prefill.issued(NVFP4) == {"bf16": whole}
        and prefill.issued(MXFP4) == {"int8": whole}
        and decode.issued(NVFP4) is None
    )
    assert mixed.issued(MXFP4) == {"bf16": pytest.approx(0.1 * whole), "int8": pytest.approx(0.9 * whole)}


@pytest.mark.parametrize("layout", ("public", "preordered_mma"))
def test_as_many_wide_pages_in_every_page_list(layout):
    case = dataclasses.replace(uniform("x", 1, 16, 1280, 4, 2, True), wide_pages=0.3)
    made = case.make(How("mxfp4", layout), calls=5)
    scales = np.asarray(made.k_scale.view("uint8")).reshape(-1, 2, 512)
    wide = np.ptp(scales, -1).min(-1) > 8  # normal vectors alone span two or three binades
    assert {int(wide[np.asarray(pages)].sum()) for pages in made.kv_indices} == {3}
    assert np.ptp(scales) <= 2 * block_scores.WIDE_SPAN + 4


def test_cases_of_the_wide_pages_are_mxfp4_alone():
    assert cases.all_cases()["prefill_q8k_k8k_mixed"].int8_share("mxfp4") == 0.9
    for case in block_scores.CASES:
        assert case.formats == (("mxfp4",) if case.wide_pages else ("nvfp4", "mxfp4")) and case.int8_share("nvfp4") == 0


def test_calls_of_a_program_read_more_than_the_l2_holds():
    """By turns from copies of the pages: as many as it takes, or as many as are made at most."""
    large, small = uniform("x", 16, 4, 65536, 1, 1, False), uniform("x", 1, 4, 1024, 1, 1, False)
    for case, copies in ((large, 3), (small, block_scores.MAX_SETS)):
        assert copies == block_scores.MAX_SETS or (copies - 1) * case.bytes(
            NVFP4
        ) < cases.COLD_BYTES <= copies * case.bytes(NVFP4)
        made = case.make(NVFP4, calls=copies + 1)
        lists = [np.asarray(pages) for pages in made.kv_indices]
        assert made.k.shape[0] == copies * case.pages
        assert np.array_equal(
            np.unique(np.concatenate(lists[:copies])), np.arange(copies * case.pages)
        )  # no page twice
        assert np.array_equal(np.sort(lists[copies]), np.sort(lists[0])) and not np.array_equal(lists[copies], lists[0])
    assert cases.COLD_BYTES > 2 * 60 * 2**20  # an H200 has 50 MiB of L2, a B200 two of 63


@pytest.mark.parametrize("how", (NVFP4, MXFP4))
def test_inputs_are_those_of_normal_vectors(how):
    """Zeros would flatter: the tensor cores then need less power, and the clock is higher."""
    made = uniform("x", 2, 4, 256, 4, 2, False).make(how, calls=2)
    for codes in (made.q, made.k):
        nibbles = np.concatenate([np.asarray(codes).ravel() & 15, np.asarray(codes).ravel() >> 4])
        share = np.bincount(nibbles, minlength=16) / nibbles.size
        assert (np.delete(share, [0, 8]) > 0.01).all() and share[0] + share[8] < 0.2
    scales = np.asarray(made.k_scale.view("uint8"))
    assert len(np.unique(scales)) > 2 and (scales > 0).all()
    other = uniform("x", 2, 4, 256, 4, 2, False).make(how, calls=2, seed=1)
    assert not np.array_equal(made.k, other.k)


@pytest.mark.parametrize("fmt", ("nvfp4", "mxfp4"))
def test_each_call_of_a_program_reads_its_own_pages_and_so_do_the_baselines(fmt):
    how, case = How(fmt, "public"), uniform("x", 2, 4, 256, 4, 2, True)
    made = case.make(how, calls=3)
    u8 = lambda x: np.asarray(x).view(np.uint8)
    baselines = case.baselines(how)
    assert set(baselines) == {"xla", "reference"}
    seen = []
    for i in range(3):
        truth = oracle.evaluate(
            inputs.Inputs(
                fmt,
                u8(made.q),
                u8(made.k),
                u8(made.q_scale),
                u8(made.k_scale),
                np.asarray(made.kv_indices[i]),
                np.asarray(made.cu_seqlens_q),
                np.asarray(made.cu_seqlens_k),
                np.asarray(made.cu_page_offsets),
                4,
                256,
            )
        )
        seen.append(truth.expected)
        for call in (case.call(how), baselines["reference"]):
            assert not check.compare(np.asarray(jax.jit(call, static_argnums=1)(made, i)), truth, exact=False).problem
        # bf16 holds E2M1 times a power of two, but not times every E4M3 scale
        plain = np.asarray(jax.jit(baselines["xla"], static_argnums=1)(made, i))
        np.testing.assert_allclose(plain, truth.expected, rtol=0, atol=0.01 * truth.bound.max())
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[1], seen[2])


def test_cases_are_found_by_listing_the_folder_and_have_the_protocol():
    members = [name for name in vars(cases.BenchCase) if not name.startswith("_")]
    annotated = list(cases.BenchCase.__annotations__)
    assert "block_scores" in cases.ops()
    for name, case in cases.all_cases().items():
        assert name == case.name and all(hasattr(case, member) for member in members + annotated), name
        assert (
            case.formats
            and case.scale_layouts
            and case.describe()
            and case.tags <= {"headline", "quick", "layouts", "cpu"}
        )
        for fmt in case.formats:
            how = How(fmt, case.scale_layouts[0])
            assert case.bytes(how) > 0 and set(case.work(how)) <= {"bf16", "int8"} and sum(case.work(how).values()) > 0
            issued = case.issued(how)
            assert issued is None or sum(issued.values()) >= 0.999 * sum(case.work(how).values())
            assert case.result_bytes() > 0 and case.bytes_at_least() > 0


def test_cases_by_name_op_and_tag():
    assert [case.name for case in cases.select(op="block_scores")] == [
        "prefill_q8k_k8k",
        "decode_8k",
        "decode_16k",
        "decode_32k",
        "decode_64k",
    ]
    assert "cpu" not in set().union(*(case.tags for case in cases.select(("all",))))
    assert [case.name for case in cases.select(("decode_64k", "cpu_decode"))] == ["decode_64k", "cpu_decode"]
    with pytest.raises(KeyError, match="no_such"):
        cases.select(("no_such",))


def test_no_two_calls_of_the_gemv_are_the_same(monkeypatch):
    """XLA would compute them once, and a program of many calls would seem fast."""
    seen = []
    monkeypatch.setattr(jfi, "nvfp4_batched_gemv", lambda *operands, **named: seen.append(tuple(map(id, operands))))
    case = next(c for c in batched_gemv.CASES if "cpu" in c.tags)
    how, calls = cases.How("nvfp4", "public"), 3 * batched_gemv.MAX_SETS
    data = case.make(how, calls)
    for i in range(calls):
        case.call(how)(data, i)
    assert len(set(seen)) == calls
    assert len({operands[0] for operands in seen}) == len(data.a) >= 2
