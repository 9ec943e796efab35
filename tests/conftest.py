"""Eight fake CPU devices for the sharding tests, and the marker of tests that need a GPU."""
import os

import pytest

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; skipped without one, an error without one if JFI_REQUIRE_GPU=1")


def _has_gpu():
    import jax
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


def pytest_collection_modifyitems(items):
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items or _has_gpu():
        return
    if os.environ.get("JFI_REQUIRE_GPU") == "1":
        raise pytest.UsageError(f"JFI_REQUIRE_GPU=1, but JAX finds no GPU for the {len(gpu_items)} tests marked gpu")
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason="no GPU"))
