"""Parity tests need a GPU. Without one they skip, unless JFI_REQUIRE_GPU=1 makes that an error."""
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")     # test_contexts runs a second process on the same GPU
for folder in (Path(__file__).parents[1], Path(__file__).parent):   # `support` and the harness are plain folders: nothing of the checkout shadows an installed wheel
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True, scope="session")
def gpu():
    import jax
    if jax.default_backend() != "gpu":
        why = f"JAX runs on {jax.default_backend()!r} here, parity needs a CUDA GPU (install the cuda12 or cuda13 extra)"
        if os.environ.get("JFI_REQUIRE_GPU") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return jax.devices()[0]
