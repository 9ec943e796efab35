"""A call of the batched GEMV: what is known while tracing (`Static`), how arguments are checked, and the operands that
they become.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import describe, message
from ..formats import scale_layout as layouts
from ..specs.batched_gemv import SPEC
from . import fp4, must

OP = SPEC.api
GROUP = 16  # codes that share a scale
MAX_COLUMNS = 8
NO_DERIVATIVE = (
    f"{OP} multiplies quantised operands and has no derivative. Wrap its arguments (not its result) in jax.lax.stop_gradient, "
    "or differentiate a product of dequantised arrays (jax_fp4_indexer.dequantize)."
)


@dataclasses.dataclass(frozen=True)
class Static:
    """The static part of a call: the attributes of its spec, by their names; hashable, so that equal calls share a
    program.
    """

    columns: str
    k_multiple: str
    scale_layout: str
    out_dtype: str
    a_global: str
    b_global: str


def check(
    a: Any,
    b: Any,
    a_scale: Any,
    b_scale: Any,
    *,
    a_global_scale: Any,
    b_global_scale: Any,
    scale_layout: Any,
    out_dtype: Any,
    implementation: Any,
    implementations: Sequence[str | None],
) -> tuple[Static, dict[str, Any]]:
    """Everything that shapes, dtypes and static arguments can get wrong; returns (Static, the arrays as given, by
    argument).

    Never reads the contents of an array, so traced and concrete arguments take the same path.
    """
    must.choice(OP, "scale_layout", scale_layout, layouts.LAYOUTS)
    must.choice(OP, "implementation", implementation, implementations)
    dtype = _out_dtype(out_dtype)
    batch, rows, k = _codes("a", a, ("[L, M, K/2]",), (3,))
    *lead, k_of_b = _codes("b", b, ("[L, K/2]", "[L, N, K/2]"), (2, 3))
    if lead[0] != batch:
        raise ValueError(
            message(
                OP,
                "b",
                b,
                f"L = {batch}, as a has",
                "Axis 0 of both is the batch: one matrix and one vector (or N of them) each.",
            )
        )
    if k_of_b != k:
        raise ValueError(
            message(
                OP,
                "b",
                b,
                f"K = {k} values a vector, as a's rows have",
                "Check the last axes: packed codes have two values a byte.",
            )
        )
    columns = lead[1] if len(lead) == 2 else 1
    if not isinstance(columns, int) or columns > MAX_COLUMNS:
        raise ValueError(
            message(
                OP,
                "b",
                b,
                f"[L, K/2], or [L, N, K/2] with N at most {MAX_COLUMNS}",
                "Split the vectors over several calls, or use a matrix product.",
            )
        )
    for name, x, lines, letters in (
        ("a_scale", a_scale, (rows,), "M, "),
        ("b_scale", b_scale, tuple(lead[1:]), "N, " if len(lead) == 2 else ""),
    ):
        _scales(name, x, scale_layout, batch, lines, letters, k)
    arrays = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale}
    for name, x in (("a_global_scale", a_global_scale), ("b_global_scale", b_global_scale)):
        arrays[name] = _global(name, x, batch)
    must.one_place(OP, arrays)
    of = {
        name: "one" if arrays[name] is None or np.ndim(arrays[name]) == 0 else "batch"
        for name in ("a_global_scale", "b_global_scale")
    }
    return Static(
        columns_choice(columns),
        "256" if k % 256 == 0 else "16",
        scale_layout,
        dtype,
        of["a_global_scale"],
        of["b_global_scale"],
    ), arrays


def columns_choice(columns: int) -> str:
    """The attribute `columns` of a call with so many."""
    return "1" if columns <= 1 else "8"


def operands(static: Static, arrays: Mapping[str, Any]) -> tuple[jax.Array, ...]:
    """The operands of the op's spec from checked arrays: bytes are reinterpreted, never copied or converted."""
    a, b = fp4.code_bytes(arrays["a"]), fp4.code_bytes(arrays["b"])
    b_scale = fp4.scale_bytes(arrays["b_scale"])
    if b.ndim == 2:
        b = b[:, None]
        b_scale = b_scale[:, None] if static.scale_layout == "public" else b_scale
    global_scales = (
        jnp.ones(1, jnp.float32) if x is None else jnp.reshape(jnp.asarray(x, jnp.float32), -1)
        for x in (arrays["a_global_scale"], arrays["b_global_scale"])
    )
    return (a, b, fp4.scale_bytes(arrays["a_scale"]), b_scale, *global_scales)


def _codes(argument: str, x: Any, names: Sequence[str], ranks: Sequence[int]) -> tuple[Any, ...]:
    """Checks packed codes; returns their sizes, the last one in values."""
    must.array(
        OP,
        argument,
        x,
        ("uint8", "int8", fp4.FLOAT4),
        "Pass packed E2M1 codes, two a byte, as quantize_nvfp4 returns them.",
    )
    packed = x.dtype.name != fp4.FLOAT4
    if x.ndim not in ranks:
        shapes = " or ".join(n if packed else n.replace("K/2", "K") for n in names)
        raise ValueError(message(OP, argument, x, f"shape {shapes}", "Add the missing axes (L = 1 for one matrix)."))
    k = x.shape[-1] * 2 if packed else x.shape[-1]
    if not isinstance(k, int) or k == 0 or k % GROUP:
        raise ValueError(
            message(
                OP,
                argument,
                f"{describe(x)}, K = {k}",
                f"K a positive multiple of {GROUP}, known while tracing",
                "Pad the rows with zero codes to whole groups.",
            )
        )
    return (*x.shape[:-1], k)


def _scales(argument: str, x: Any, scale_layout: str, batch: Any, lines: tuple[Any, ...], letters: str, k: int) -> None:
    """Checks scales: one for each group of a line, public or tiled."""
    if scale_layout == "public":
        expected, names = (batch, *lines, k // GROUP), f"[L, {letters}K/16]"
        remedy = (
            'NVFP4 has one scale per 16 values; for scales in tiles of 128 rows pass scale_layout="preordered_mma".'
        )
    else:
        expected, names = (
            (batch, *layouts.tiled_shape(*(lines or (1,)), k // GROUP)),
            f"[L, ceil({letters.rstrip(', ') or '1'}/128), ceil(K/64), 32, 4, 4]",
        )
        remedy = 'Reorder public scales with to_blocked, or pass scale_layout="public".'
    fp4.scales_of(OP, argument, x, "nvfp4", expected, names, remedy)


def _global(argument: str, x: Any, batch: Any) -> Any:
    """The scale as a float32 array or number, or None."""
    if x is None:
        return None
    if must.is_number(x):
        return must.number(OP, argument, x)
    must.array(OP, argument, x, ("float32",), "Cast it with .astype(jnp.float32).")
    if tuple(x.shape) not in ((), (batch,)):
        raise ValueError(
            message(
                OP, argument, x, f"shape [] or [L] = [{batch}]", "Pass one float32 for all batches, or one for each."
            )
        )
    return x


def _out_dtype(out_dtype: Any) -> str:
    """The name of the result's dtype."""
    allowed = SPEC.choices()["out_dtype"]
    try:
        name = jnp.dtype(out_dtype).name
    except TypeError:
        name = None
    if name not in allowed:
        got = repr(out_dtype) if name is None else name
        raise ValueError(
            message(
                OP,
                "out_dtype",
                got,
                f"one of {', '.join(allowed)}",
                "Pass one of these, e.g. jnp.bfloat16, and cast the result for another.",
            )
        )
    return name
