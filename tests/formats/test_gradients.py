"""Gradients through the quantisers: zero, as documented, and the straight-through estimator of docs/formats.md."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fp4_indexer as jfi

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "formats.md"
X = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)


@pytest.fixture
def fake_quantise():
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    names = {"jax": jax, "jfi": jfi}
    exec(code, names)
    return names["fake_quantise"]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_straight_through_estimator(fake_quantise, dtype):
    x, weight = jnp.asarray(X, dtype), jnp.asarray(X[::-1] + 1, dtype)
    values = jfi.dequantize(*jfi.quantize_nvfp4(x), "nvfp4").astype(dtype)
    np.testing.assert_array_equal(fake_quantise(x), values)
    assert (values != x).any()
    for transform in (lambda f: f, jax.jit):
        gradient = transform(jax.grad(lambda x: (weight * fake_quantise(x)).astype(jnp.float32).sum()))(x)
        assert gradient.dtype == dtype
        np.testing.assert_array_equal(gradient, weight)


@pytest.mark.parametrize("quantise, fmt", [(jfi.quantize_nvfp4, "nvfp4"), (jfi.quantize_mxfp4, "mxfp4")])
def test_without_it_gradients_are_zero_as_the_docstring_says(quantise, fmt):
    gradient = jax.grad(lambda x: jfi.dequantize(*quantise(x), fmt).sum())(X)
    np.testing.assert_array_equal(gradient, np.zeros_like(X))
    assert "`jax.grad` through this function is zero" in quantise.__doc__ and "docs/formats.md" in quantise.__doc__
