"""The situations of installations.py in this environment. Oldest and newest JAX: `make test-all` runs that file."""
import sys

import installations
import probe
import pytest


@pytest.fixture(scope="session")
def answers(installed, tmp_path_factory):
    return installations.run_all(sys.executable, installed, installations.stand_in_driver(tmp_path_factory.mktemp("driver")))


def test_every_situation_is_known():
    assert {*installations.RESULTS, *installations.REMEDIES} == {*probe.SITUATIONS}


@pytest.mark.parametrize("name", [*installations.RESULTS, *installations.REMEDIES])
def test_ends_in_a_result_or_a_remedy(answers, name):
    assert answers[name]["right"], answers[name]
