"""The simulator against what an H200 answered to the probes (probes/h200.npz; probes/__init__.py says how to ask another card)."""

import numpy as np
import pytest

from ptxsim.probes import here, instructions, numbers, protocol, rounding
from ptxsim.probes.__main__ import KEPT, RECORD, launches

CARD = np.load(RECORD)
LAUNCHES = launches()
FAULTS = (
    "mbarrier.at_once",
    "mbarrier.one_too_many",
    "mbarrier.many_too_many",
    "mbarrier.bytes_open",
    "mbarrier.bytes_open_two",
)
ULPS = {
    "rcp.approx.f32": 1,
    "rcp.approx.ftz.f32": 1,
    "rsqrt.approx.f32": 1,
    "ex2.approx.f32": 2,
    "ex2.approx.ftz.f32": 2,
}


def of(*kinds, without=()):
    return [pytest.param(x, id=x.name) for x in LAUNCHES if x.name.split(".")[0] in kinds and x.name not in without]


def words(launch, **how):
    """Words that the kernel wrote here, and the card's; what only a card tells (the bits of an mbarrier) is left out."""
    ours, result = here.run_one(launch, **how)
    assert not isinstance(ours, str), ours
    assert not result.faults, str(result)
    wrote = np.ones(len(ours), bool) if launch.fill == 0 else ours != launch.fill
    assert wrote.any()
    return ours[wrote], CARD[launch.name][wrote]


@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
@pytest.mark.parametrize(
    "launch", of("addresses", "lanes", "mbarrier", "elected", without=(*FAULTS, "addresses.cluster8"))
)
def test_protocol(launch, mode):
    if "_load." in launch.name:
        mode = "eager"  # asks without waiting: in lazy order no copy happens meanwhile
    ours, theirs = words(launch, mode=mode, seed=1)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("launch", [x for x in of("mbarrier") if x.id in FAULTS])
def test_over_arrival_ends_a_launch(launch):
    """On the card too, with no more to say than "launch failed"."""
    assert "CUDA_ERROR_LAUNCH_FAILED" in str(CARD[launch.name])
    problem, _ = here.run_one(launch)
    assert isinstance(problem, str) and problem.startswith("over-arrival"), problem


def test_ranks_of_eight_ctas():
    """Too many CTAs for the simulator's clocks: bit 24 upwards holds the rank in a cluster of eight as well."""
    found = CARD["addresses.cluster8"].reshape(-1, protocol.CLUSTER_WORDS)
    np.testing.assert_array_equal(found[:, 1] >> 24, found[:, 0])
    assert set(found[:, 1] & 0xFFFFFF) == {1024} and sorted(found[:8, 0]) == list(range(8))


@pytest.mark.parametrize("launch", of("instructions"))
def test_instructions(launch):
    ours, theirs = (x.reshape(-1, instructions.PAIRS) for x in words(launch))
    wrong = {name: int((a != b).sum()) for name, a, b in zip(instructions.OPS, ours, theirs) if (a != b).any()}
    assert not wrong, f"pairs with other results: {wrong}"


@pytest.mark.parametrize("launch", of("approximate"))
def test_approximations(launch):
    """Correctly rounded here; on the card within so many units in the last place, and lg2 within 2^-22 near 1."""
    ours, theirs = (x.reshape(-1, instructions.PAIRS) for x in words(launch))
    for name, a, b in zip(instructions.APPROXIMATE, ours, theirs):
        x, y = a.view(np.float32).astype(float), b.view(np.float32).astype(float)
        np.testing.assert_array_equal(np.isfinite(x), np.isfinite(y))
        if name in ULPS:
            assert np.abs(a.astype(np.int64) - b).max() <= ULPS[name], name
        else:
            x, y = x[np.isfinite(x)], y[np.isfinite(x)]
            assert (np.abs(x - y) <= 2.0**-22 * np.maximum(1, np.abs(x))).all(), name


@pytest.mark.parametrize("launch", of("tensor_swizzle", "product_swizzle"))
def test_swizzles(launch):
    ours, theirs = words(launch)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("launch", of("rounding"))
def test_rounding(launch):
    """Every bit of a sum."""
    ours, theirs = words(launch)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "kind, unit", [("f16", "wgmma"), ("bf16", "wgmma"), ("f16", "mma"), ("bf16", "mma"), ("e4m3", "wgmma")]
)
def test_models_of_rounding(kind, unit):
    """What docs/facts.md says in words, apart from the simulator; and a model that is a little different is not it."""
    rows, columns = numbers.ROUNDING[unit]
    given = CARD[f"rounding.{unit}.{kind}"]
    D = numbers.by_row(given, rows)
    A, B, C = numbers.rounding_inputs(kind, rows, columns, KEPT, 11 if unit == "wgmma" else 12)
    best = rounding.MODELS[kind]
    assert (rounding.predict(best, A, B, C).view(np.uint32) == D.view(np.uint32)).all()
    for change in (
        dict(fraction=best.fraction - 1),
        dict(fraction=best.fraction + 1),
        dict(normalised=True),
        dict(result=best.result + 1),
    ):
        assert (
            rounding.predict(rounding.changed(best, **change), A, B, C).view(np.uint32) != D.view(np.uint32)
        ).any(), change
