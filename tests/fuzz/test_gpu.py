"""The whole fuzzer on a GPU: make test-gpu."""

import jax
import pytest

from fuzz import alignment
from fuzz.run import Fuzzer
from support.calls import IMPLEMENTATIONS

pytestmark = pytest.mark.gpu


def test_ten_thousand_cases():
    fuzzer = Fuzzer(1, IMPLEMENTATIONS, reference_every=500, workers=8)
    well = fuzzer.run(range(10_000))
    fuzzer.show()
    assert well, fuzzer.failures[:3]
    assert fuzzer.counts["invalid"] > 3_000


def test_operands_that_lie_anywhere():
    assert jax.default_backend() == "gpu"
    found = list(alignment.run(IMPLEMENTATIONS))
    assert not [f for f in found if f[2]], [f for f in found if f[2]][:3]
