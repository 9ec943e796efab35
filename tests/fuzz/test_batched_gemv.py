"""The batched GEMV's fuzzer: right results pass, and planted faults are noticed."""

import collections

import ml_dtypes
import numpy as np
import pytest

from fuzz import batched_gemv as fuzz
from support.batched_gemv import Case, Problem, oracle

SEED = 5
DEFINITION = fuzz.Programs("reference")


def small(out_dtype):
    """A shape with rows enough to spoil one."""
    return fuzz.Shape(0, 2, 9, 272, 3, "preordered_mma", out_dtype, ("one", "batch"))


def failures(call, shape, cases=len(fuzz.KINDS)):
    fuzzer = fuzz.Fuzzer(call, SEED)
    fuzzer.run([shape], cases)
    return fuzzer.failures


def test_the_definition_passes():
    fuzzer = fuzz.Fuzzer(DEFINITION, SEED)
    of = [small("bfloat16"), *fuzz.shapes(SEED, 4, most=2e4)]
    assert fuzzer.run(of, 8 * len(of)), fuzzer.failures[:3]
    assert set(fuzzer.kinds) == set(fuzz.KINDS)
    assert all(fuzzer.counts[name] for name in ("exact", "elements NaN", "rounded once", "repeats", "parts alone"))


@pytest.mark.parametrize("out_dtype", fuzz.DTYPES)
def test_a_call_under_the_sanitizer_is_one_call(out_dtype):
    calls = []
    count = lambda d, dtype, operands: calls.append(dtype) or DEFINITION(d, dtype, operands)
    assert fuzz.Fuzzer(count, SEED, bare=True).run([small(out_dtype)], 100) and calls == [out_dtype]


def test_one_wrong_row_is_noticed():
    def wrong(d, out_dtype, operands):
        y = DEFINITION(d, out_dtype, operands).copy()
        if y.shape[:2] == (2, 9):
            y[1, 7] = y[1, 6]
        return y

    assert {f["kind"] for f in failures(wrong, small("float32"))} >= {k for k in fuzz.KINDS if "nan" not in k}


def test_an_error_in_the_sixth_digit_and_a_repeat_with_other_bits_are_noticed():
    calls = collections.Counter()

    def wrong(d, out_dtype, operands):
        calls[d.kind] += 1
        y = DEFINITION(d, out_dtype, operands)
        return y * np.float32(1 + 2e-5) if calls[d.kind] == 1 else y

    found = {f["what"] for f in failures(wrong, small("float32"))}
    assert any("wrong, first" in x for x in found) and "a repeat has other bits" in found


@pytest.mark.parametrize("out_dtype, by_way_of", [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_a_result_rounded_twice_is_noticed(out_dtype, by_way_of):
    """Once to one bit more than the result keeps, then to the result's dtype."""
    kept = {"float16": 12, "bfloat16": 9}[out_dtype]

    def twice(d, dtype, operands):
        y = DEFINITION(d, "float32", operands)
        if dtype == "float32":
            return y
        mantissa, exponent = np.frexp(y.astype(np.float64))
        with np.errstate(over="ignore"):
            return np.ldexp(np.round(np.ldexp(mantissa, kept)), exponent - kept).astype(np.float32).astype(by_way_of)

    found = failures(twice, small(out_dtype), cases=24)
    assert found and all("rounded once" in f["what"] for f in found)


def test_the_truth_is_that_of_the_other_tests():
    for number in range(len(fuzz.KINDS)):
        d = fuzz.truth(fuzz.draw(small("float32"), number, SEED))
        s = d.shape
        case = Case("", "", s.batch, s.rows, s.k, s.columns, globals_=s.globals_)
        want, magnitude = oracle(Problem(case, *d.codes, *d.scales, *d.globals_))
        assert np.array_equal(np.isnan(want), d.nan)
        np.testing.assert_allclose(np.where(d.nan, 0, d.want - want), 0, atol=1e-12 * np.nanmax(magnitude))


def test_shapes_reach_what_they_are_for():
    of = fuzz.shapes(1)
    assert of == fuzz.shapes(1) and len(of) == fuzz.SHAPES
    assert {s.columns for s in of} == set(range(9)) and max(s.batch for s in of) > 65535
    assert min(s.k for s in of) == 16 and max(s.k for s in of) > 32000 and any(s.rows > 4000 for s in of)
    assert all(s.k % 16 == 0 and s.batch * s.rows * s.k * s.n <= 4e7 for s in of)
    assert {(s.layout, s.out_dtype) for s in of} == {(x, y) for x in ("public", "preordered_mma") for y in fuzz.DTYPES}
    assert len({(s.layout, s.n > 1, s.k % 256 == 0) for s in of}) == 8  # what chooses a kernel
