"""The situations of installations.py in this environment: some of them in `make test` (tests/tiers.py), all in `make test-all`, which also runs that file
under the oldest and the newest JAX."""

import sys

import installations
import probe
import pytest


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    return installations.stand_in_driver(tmp_path_factory.mktemp("driver"))


def test_every_situation_is_known():
    assert {*installations.RESULTS, *installations.REMEDIES} == {*probe.SITUATIONS}


@pytest.mark.parametrize("name", [*installations.RESULTS, *installations.REMEDIES])
def test_ends_in_a_result_or_a_remedy(installed, driver, name):
    answer = installations.probe(sys.executable, installed, driver, name)
    assert answer["right"], answer
