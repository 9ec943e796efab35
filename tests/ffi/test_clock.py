"""The handler of the device clock, registered for CPU with a stand-in driver: what it launches, and what it refuses."""

import ctypes
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_driver import FakeDriver

from jax_fp4_indexer.primitives import runtime

TARGET = "jax_fp4_indexer_test.clock"


@pytest.fixture(scope="module")
def driver(built, tmp_path_factory):
    """A copy of the library of its own: the driver is a choice of a process."""
    library = ctypes.CDLL(str(shutil.copy(built / runtime.LIBRARY, tmp_path_factory.mktemp("clock") / "library.so")))
    before = os.environ.get("JFI_LIBCUDA")
    os.environ["JFI_LIBCUDA"] = str(built / "tests" / "libfake_cuda.so")
    jax.ffi.register_ffi_target(
        TARGET, {"execute": jax.ffi.pycapsule(library.jfi_clock_execute_on_host)}, platform="cpu"
    )
    yield FakeDriver(os.environ["JFI_LIBCUDA"])
    if before is None:
        del os.environ["JFI_LIBCUDA"]
    else:
        os.environ["JFI_LIBCUDA"] = before


@pytest.fixture
def fake(driver):
    driver.device(0, (9, 0))
    driver.fail("", 0)
    driver.param_sizes([8])
    driver.forget_launches()
    return driver


def stamp(rows=132, words=6, aliases={0: 0}, dtype=jnp.uint32):
    x, y = jnp.arange(7, dtype=jnp.int32), jnp.ones((2, 3))
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((rows, words), dtype)
    return jax.block_until_ready(
        jax.jit(lambda x, y: jax.ffi.ffi_call(TARGET, types, input_output_aliases=aliases)(x, y))(x, y)
    )


def test_one_cta_a_row_and_x_goes_through(fake):
    x, ticks = stamp(rows=17)
    ((symbol, grid, device, params),) = fake.launches()
    assert (symbol, grid, device) == ("jfi_clock", (17, 1, 1), 0)
    assert params == [ticks.unsafe_buffer_pointer()]
    np.testing.assert_array_equal(x, np.arange(7))


@pytest.mark.parametrize(
    "changed, told",
    [
        (
            dict(aliases={}),
            "x: got a result with memory of its own, expected a result that shares the memory of operand 0; lower with input_output_aliases={0: 0}",
        ),
        (dict(words=5), "ticks: got [132,5], expected uint32[n,6] with n in 1..65535"),
        (dict(dtype=jnp.int32), "ticks: got [132,6], expected uint32"),
        (dict(rows=65536), "ticks: got [65536,6], expected uint32[n,6] with n in 1..65535"),
    ],
)
def test_refusals(fake, changed, told):
    with pytest.raises(jax.errors.JaxRuntimeError) as e:
        stamp(**changed)
    assert f"jax_fp4_indexer.clock: {told}" in str(e.value) and "INVALID_ARGUMENT" in str(e.value)
    assert fake.launches() == []


def test_an_error_of_the_driver_is_told(fake):
    fake.fail("cuLaunchKernelEx", 700)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="jax_fp4_indexer.clock: cuLaunchKernelEx failed: an illegal memory access"
    ):
        stamp()
