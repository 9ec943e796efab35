"""Every op, by its file in ops/ alone: its rows, its oracle and its definition agree, and the protocol that the other tests build on holds."""

import re

import jax
import numpy as np
import pytest

from harness import registry
from jax_fp4_indexer.aot import variants
from jax_fp4_indexer.specs import OPS

CHOSEN = registry.chosen()


def quick(tests):
    return tests.cases("quick")


def everything():
    return [pytest.param(tests, case, id=f"{tests.spec.name}-{case.name}") for tests in CHOSEN for case in quick(tests)]


def choices_of(tests, case):
    """The choices of a variant that runs the case, one of them."""
    fitting = [
        v.choices
        for v in variants.VARIANTS
        if v.op == tests.spec.name and any(c.name == case.name for c in tests.cases(**v.choices))
    ]
    assert fitting, f"no variant runs {case.name}"
    return fitting[0]


_kept = {}


def results(tests, case, choices):
    """{name: array} of the definition under jit, computed once."""
    key = tests.spec.name, case.name, tuple(choices.items())
    if key not in _kept:
        function, arrays = tests.call(case, "reference", choices)
        out = jax.jit(function)(**arrays)
        _kept[key] = {
            b.name: np.asarray(x)
            for b, x in zip(tests.spec.results, out if isinstance(out, tuple) else (out,), strict=True)
        }
    return _kept[key]


def bits(x):
    """NaN of every kind is one."""
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x)


def test_every_op_has_tests_and_no_others_have():
    assert set(registry.everything()) == set(OPS)


@pytest.mark.parametrize("tests, case", everything())
def test_the_definition(tests, case):
    choices = choices_of(tests, case)
    found = results(tests, case, choices)
    verdict = tests.compare(case, found)
    assert not verdict.problems, verdict.problems
    with_faults = {name: x + np.ones_like(x) * x.dtype.type(64) for name, x in found.items()}
    if any(np.isfinite(x.astype(np.float32)).any() for x in found.values()):
        assert tests.compare(case, with_faults).problems, "the bar lets an error of 64 pass"


@pytest.mark.parametrize("tests, case", everything())
def test_the_custom_call_is_as_the_spec_says(tests, case):
    choices = choices_of(tests, case)
    wire = tests.operands(case, choices).of(choices)
    values = wire.values(tests.spec)
    types = tests.spec.operand_types(wire.attributes, values)
    assert {name: (x.dtype.name, x.shape) for name, x in wire.operands.items()} == {
        name: (dtype, tuple(shape)) for name, (dtype, shape) in types.items()
    }
    assert {name: x.shape for name, x in results(tests, case, choices).items()} == {
        name: tuple(shape) for name, (_, shape) in tests.spec.result_types(wire.attributes, values).items()
    }


@pytest.mark.parametrize("tests", [pytest.param(t, id=t.spec.name) for t in CHOSEN])
def test_rows_have_names_and_identities_of_their_own(tests):
    rows = quick(tests)
    assert len({c.name for c in rows}) == len(rows) >= 5 and {c.name for c in rows} <= {c.name for c in tests.cases()}
    identities = {tests.identity(c) for c in rows}
    assert len(identities) == len(rows) and all(re.fullmatch("[0-9a-f]{8}", i) for i in identities)


@pytest.mark.parametrize("tests", [pytest.param(t, id=t.spec.name) for t in CHOSEN])
def test_every_variant_runs_quick_rows(tests):
    lacks = [v for v in variants.VARIANTS if v.op == tests.spec.name and not tests.cases("quick", **v.choices)]
    assert not lacks, lacks[0]


@pytest.mark.parametrize("tests", [pytest.param(t, id=t.spec.name) for t in CHOSEN])
def test_bytes_that_do_not_count_and_parts_alone(tests):
    """On the definition: the same bits with other bytes where nothing counts, and of a part alone. Some of the quick rows have such bytes and parts."""
    scrambled = parts = 0
    for case in quick(tests)[:6]:
        choices = choices_of(tests, case)
        whole = results(tests, case, choices)
        other = tests.scrambled(case, 1)
        scrambled += tests.identity(other) != tests.identity(case)
        for name, x in results(tests, other, choices).items():
            np.testing.assert_array_equal(bits(x), bits(whole[name]), err_msg=f"{case.name}: {name}")
        for part, where in tests.parts(case):
            alone = results(tests, part, choices)
            for name, (index, own) in where.items():
                np.testing.assert_array_equal(
                    bits(alone[name][own]), bits(whole[name][index]), err_msg=f"{part.name}: {name}"
                )
                parts += 1
    assert scrambled and parts
