"""`nvfp4_batched_gemv`: the public function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..calls.batched_gemv import check
from ..primitives.batched_gemv import CALL
from . import _dispatch

IMPLEMENTATIONS = (None, "portable", "reference")


def nvfp4_batched_gemv(
    a: Any,
    b: Any,
    a_scale: Any,
    b_scale: Any,
    *,
    a_global_scale: Any = None,
    b_global_scale: Any = None,
    scale_layout: str = "public",
    out_dtype: Any = jnp.float16,
    implementation: str | None = None,
) -> jax.Array:
    """y[l, m(, n)] = ga * gb * sum over k of a[l, m, k] * sfa[l, m, k // 16] * b[l, (n,) k] * sfb[l, (n,) k // 16]:
    NVFP4 matrices times one to eight NVFP4 vectors each.

    Args:
      a: [L, M, K/2] uint8 or int8, two E2M1 codes a byte, low nibble first; or [L, M, K] float4_e2m1fn. K is a
        multiple of 16 (multiples of 256 are fastest).
      b: [L, K/2] likewise, or [L, N, K/2] with N at most 8.
      a_scale: float8_e4m3fn, or the same bytes as uint8, read without the sign bit; 0x7F is NaN. public
        [L, M, K/16]; preordered_mma [L, ceil(M/128), ceil(K/64), 32, 4, 4], which is `to_blocked` of the public one.
      b_scale: public [L, K/16] or [L, N, K/16]; preordered_mma [L, 1, ceil(K/64), 32, 4, 4] for either.
      a_global_scale, b_global_scale: float32 scalar, or [L], or None. They multiply the sums in fp32.
      scale_layout: "public" or "preordered_mma", for both scales. Same bits from both.
      out_dtype: float16, bfloat16 or float32; the fp32 result is rounded to it once.
      implementation: None chooses the best kernel on a GPU and the definition elsewhere. "portable" forces the
        kernels, "reference" the plain-jnp definition. Platforms other than CUDA always run the definition.

    Returns:
      out_dtype [L, M] if b is [L, K/2], else [L, M, N]. Products and the sum over a group of 16 are exact; sums over
      groups are fp32. An element depends on its row of a and its vector of b alone: the same bits in any batch, and
      in every run. A NaN scale makes the elements NaN that use it, and no others; padding of tiled scales never
      changes a bit.

    Raises:
      TypeError, ValueError: wrong shapes, dtypes or static arguments, while tracing.
      UnsupportedError: "portable" without a kernel for this GPU. (None runs the definition then, and warns once.)
    """
    static, arrays = check(
        a,
        b,
        a_scale,
        b_scale,
        a_global_scale=a_global_scale,
        b_global_scale=b_global_scale,
        scale_layout=scale_layout,
        out_dtype=out_dtype,
        implementation=implementation,
        implementations=IMPLEMENTATIONS,
    )
    y = _dispatch.run(CALL, static, arrays, implementation)
    return y[..., 0] if arrays["b"].ndim == 2 else y
