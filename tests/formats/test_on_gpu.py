"""The bytes of the formats on a GPU: those of a CPU and of exact arithmetic."""

import on_gpu
import pytest


@pytest.mark.gpu
def test_bytes_on_a_gpu():
    number, size, found = on_gpu.differences()
    assert found == [] and number == 81 and size > 40e6
