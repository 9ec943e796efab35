"""Parity tests need a GPU: all of them carry the marker `gpu` (see tests/conftest.py)."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # test_inside_jit runs a second process on the same GPU
for folder in (
    Path(__file__).parents[1],
    Path(__file__).parent,
):  # `support` and this folder are plain folders: nothing of the checkout shadows an installed wheel
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.gpu)
