"""Which tests `make test` runs, and how they are dealt to several processes. A plugin that conftest.py registers.

    -m "not gpu and not nightly"    make test (the default)
    -m "not gpu"                    make test-all: with the slow ones that rarely fail

With `-n 2 --dist loadgroup` the tests of a file run in one process, because they share what its fixtures and caches hold; a module may instead set
XDIST_GROUP to the name of a parameter, whose values are dealt out apart, or to "" for every test apart.
"""

import hashlib
import re

import pytest

# Slow tests that rarely fail -> what of them `make test` runs all the same. A part of a node id, and patterns of which one has to match.
NIGHTLY = {
    "packaging/test_installations.py::test_ends_in_a_result_or_a_remedy": (
        "import_before_the_backend",
        "handler_on_a_pretended_hopper",
        "no_library_and_no_gpu",
        "gpu_without_a_kernel_by_name",
        "damaged_cubin",
        "missing_library",
    ),
    "simulated/test_stack.py::test_the_op_on_a_pretended_gpu": (
        r"[\[-]8\.0[-\]]",
        r"[\[-]9\.0[-\]]",
        r"[\[-]10\.0[-\]]",
    ),
}


class Tiers:
    @pytest.hookimpl(tryfirst=True)  # before -m chooses and before xdist deals
    def pytest_collection_modifyitems(self, items):
        for item in items:
            for part, kept in NIGHTLY.items():
                if part in item.nodeid and not any(re.search(pattern, item.nodeid) for pattern in kept):
                    item.add_marker(pytest.mark.nightly)
            by = getattr(item.module, "XDIST_GROUP", None)
            if by is None:
                item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
            elif by:
                item.add_marker(pytest.mark.xdist_group(f"{item.nodeid.partition('::')[0]} {self._value(item, by)}"))

    @staticmethod
    def _value(item, name):
        """Of a parameter that tests of one group share; tests without it are a group of their own."""
        callspec = getattr(item, "callspec", None)
        value = callspec.params.get(name, "") if callspec else ""
        return hashlib.blake2b(str(value).encode(), digest_size=3).hexdigest()
