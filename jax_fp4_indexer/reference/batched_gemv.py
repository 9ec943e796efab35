"""Batched GEMV of NVFP4 operands, the definition.

    y[l, m, n] = ga[l] * gb[l] * sum over groups g of (a_scale[l, m, g] * b_scale[l, n, g]) * dot(a[l, m, g], b[l,
n, g])

A group dot is exact (its terms are multiples of 1/4 below 2^11), and so are the product of two scales and its
product with the dot. What rounds is the sum over groups, taken in order, in fp32; then the two global scales; then
the result's dtype, once.

K is walked in steps of a few groups: memory for a step, never a dequantised matrix.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..calls.batched_gemv import GROUP, NO_DERIVATIVE, Static, check, operands
from ..calls.varying import on_one_mesh, same_varying_axes
from . import values

STEP_VALUES = 2**22  # values of a that a step dequantises, at most, or one group of every row
MAX_STEP = 32  # groups of a step


def nvfp4_batched_gemv(
    a,
    b,
    a_scale,
    b_scale,
    *,
    a_global_scale=None,
    b_global_scale=None,
    scale_layout="public",
    out_dtype=jnp.float16,
    implementation=None,
):
    """The definition of `jax_fp4_indexer.nvfp4_batched_gemv`: same arguments, same result, plain jnp on any platform.

    `implementation` is accepted so that the signatures agree; it must be None or "reference". Raises as the op
    does, but for UnsupportedError.
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
        implementations=(None, "reference"),
    )
    y = _products(arrays, static=static)
    return y[..., 0] if arrays["b"].ndim == 2 else y


@functools.partial(jax.jit, static_argnames="static", inline=True)
def _products(arrays: dict[str, Any], *, static: Static) -> jax.Array:
    core = jax.custom_jvp(functools.partial(definition, static))
    core.defjvp(_no_derivative)
    return core(*operands(static, arrays))


def _no_derivative(primals, tangents):
    raise NotImplementedError(NO_DERIVATIVE)


def definition(
    static: Static,
    a: jax.Array,
    b: jax.Array,
    a_scale: jax.Array,
    b_scale: jax.Array,
    a_global: jax.Array,
    b_global: jax.Array,
) -> jax.Array:
    """y [L, M, N] from normalised operands, those of the custom call in its order: a u8 [L, M, K/2], b u8 [L, N, K/2],
    scales u8 in `static.scale_layout`, global scales f32 [1] or [L].
    """
    a, b, a_scale, b_scale, a_global, b_global = on_one_mesh(
        *same_varying_axes(a, b, a_scale, b_scale, a_global, b_global)
    )
    (batch, rows, half), cols = a.shape, b.shape[1]
    groups = half * 2 // GROUP
    if static.scale_layout == "preordered_mma":
        a_scale, b_scale = (_public(x, lines, groups) for x, lines in ((a_scale, rows), (b_scale, cols)))
    zero = jnp.zeros_like(a, shape=(batch, rows, cols), dtype=jnp.float32)
    if 0 in zero.shape:
        return zero.astype(static.out_dtype)
    step = _step(batch * rows, groups)

    def add(sums, first, count):
        """sums plus `count` groups from group `first` on."""
        take = lambda x, per: lax.dynamic_slice_in_dim(x, first * per, count * per, 2)
        of_a, of_b = (values.group_values(take(x, GROUP // 2), GROUP) for x in (a, b))
        dots = jnp.einsum("lmgk,lngk->lmng", of_a, of_b, precision=lax.Precision.HIGHEST)
        scales = values.ue4m3_value(take(a_scale, 1))[:, :, None] * values.ue4m3_value(take(b_scale, 1))[:, None]
        terms = scales * dots
        for g in range(count):
            sums = sums + terms[..., g]
        return sums

    sums = lax.fori_loop(0, groups // step, lambda i, sums: add(sums, i * step, step), zero)
    if groups % step:
        sums = add(sums, groups // step * step, groups % step)
    return _scaled(sums, a_global[:, None, None], b_global[:, None, None]).astype(static.out_dtype)


def _step(lines: Any, groups: int) -> int:
    """Groups of a step. The number of rows may be symbolic."""
    if jax.export.is_symbolic_dim(lines):
        return min(MAX_STEP, groups)
    return max(1, min(MAX_STEP, groups, STEP_VALUES // max(1, lines * GROUP)))


def _public(tiled: jax.Array, lines: Any, groups: int) -> jax.Array:
    """[L, tiles, quads, 32, 4, 4] -> [L, lines, groups]."""
    x = jnp.transpose(tiled, (0, 1, 4, 3, 2, 5))
    return x.reshape(x.shape[0], x.shape[1] * 128, x.shape[4] * 4)[:, :lines, :groups]


def _scaled(sums: jax.Array, a_global: jax.Array, b_global: jax.Array) -> jax.Array:
    """sums * (a_global * b_global); one factor after the other where their product is no normal number, which would
    lose bits or be infinite.
    """
    both = a_global * b_global
    regular = (jnp.abs(both) >= jnp.finfo(jnp.float32).tiny) & (jnp.abs(both) < jnp.inf)
    return jnp.where(regular, sums * both, sums * a_global * b_global)
