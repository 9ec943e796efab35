"""Eight fake CPU devices for the sharding tests, the platform tests run on, and the marker of tests that need a GPU."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import tiers  # noqa: E402

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"


def pytest_configure(config):
    config.pluginmanager.register(tiers.Tiers())
    config.addinivalue_line(
        "markers", "nightly: slow and rarely fails; left out unless -m says otherwise (make test-all)"
    )
    config.addinivalue_line("markers", "xdist_group(name): tests of one group run in one process (pytest-xdist)")
    config.addinivalue_line(
        "markers",
        "gpu: needs an NVIDIA GPU. Left out unless asked for with -m gpu; then no GPU is an error if JFI_REQUIRE_GPU=1, else a skip",
    )
    if (
        "not gpu" in config.option.markexpr
    ):  # the default: where there is a GPU, these tests still compare bits of the definition on CPU
        os.environ["JAX_PLATFORMS"] = "cpu"


@pytest.hookimpl(trylast=True)  # after -m: what is left is what will run
def pytest_collection_modifyitems(items):
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import jax

    if jax.default_backend() == "gpu":
        return
    why = f"JAX runs on {jax.default_backend()!r} here, but {len(gpu_items)} chosen tests need a CUDA GPU (install the cuda12 or cuda13 extra)"
    if os.environ.get("JFI_REQUIRE_GPU") == "1":
        raise pytest.UsageError(why)
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """The simulator's core does not compile: said once, and the session ends. Every further test of the simulator would fail for the same reason."""
    outcome = yield
    if call.excinfo is not None and type(call.excinfo.value).__name__ == "DoesNotBuild" and not item.session.shouldfail:
        item.session.shouldfail = str(call.excinfo.value).splitlines()[0]
        outcome.get_result().longrepr = str(call.excinfo.value)
