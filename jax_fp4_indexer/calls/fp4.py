"""FP4 codes and their scales as arguments: checks, and their bytes as uint8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..formats import scales
from . import must

FLOAT4 = "float4_e2m1fn"


def code_bytes(x: must.Array) -> jax.Array:
    """Codes as uint8 [..., D/2]: uint8 as is, int8 by its bits, float4_e2m1fn [..., D] packed two a byte, low nibble
    first."""
    x = jnp.asarray(x)
    if x.dtype == jnp.uint8:
        return x
    return x.view(jnp.uint8) if x.dtype.name == FLOAT4 else jax.lax.bitcast_convert_type(x, jnp.uint8)


def scale_bytes(x: must.Array) -> jax.Array:
    """Scales as uint8 of the same shape, by their bits."""
    x = jnp.asarray(x)
    return x if x.dtype == jnp.uint8 else jax.lax.bitcast_convert_type(x, jnp.uint8)


def codes(
    op: str,
    argument: str,
    x: Any,
    lead: Sequence[Any],
    names: str,
    elements: int,
    remedy: str,
    other_sizes: str = "",
) -> tuple[int, ...]:
    """Checks packed codes [*lead, elements / 2], or [*lead, elements] of float4_e2m1fn; returns the leading sizes.

    `lead` has an int per axis, or None where any size is right; `names` spells the shape of the packed codes for the
    message. `other_sizes` is the remedy where the last axis is right and another one is not.
    """
    produced = "Pass packed E2M1 codes, two a byte, as quantize_nvfp4 and quantize_mxfp4 return them."
    must.array(op, argument, x, ("uint8", "int8", FLOAT4), produced)
    packed = must.name_of(x.dtype) != FLOAT4
    width = elements // 2 if packed else elements
    names = names if packed else names.replace(f" {elements // 2}]", f" {elements}]")
    if other_sizes and len(x.shape) == len(lead) + 1 and x.shape[-1] == width:
        remedy = other_sizes
    must.shape(op, argument, x, (*lead, width), names, remedy)
    return x.shape[:-1]


def scales_of(
    op: str, argument: str, x: Any, fp4_format: str, expected: Sequence[Any], names: str, remedy: str
) -> None:
    """Checks the dtype of scales of `fp4_format`, and their shape."""
    dtype = scales.FORMATS[fp4_format].scale_dtype
    same = f"Scales of {fp4_format} are {dtype}, or the same bytes as uint8; check fp4_format."
    must.array(op, argument, x, (dtype, "uint8"), same)
    must.shape(op, argument, x, expected, names, remedy)
