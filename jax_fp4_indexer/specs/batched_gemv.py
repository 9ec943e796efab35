"""`nvfp4_batched_gemv`: its custom call. Meaning of the operands: ops/batched_gemv.py; of the arrays' bytes: formats/."""

from .expr import Expr, ceil_div, sizes
from .spec import Cases, Choice, Condition, OpSpec, buffer, cases

batch, rows, cols, half, k_unit, most_cols = sizes(
    "batch rows cols half k_unit most_cols"
)  # half: bytes of a row, K / 2


def _scales(lines: Expr) -> Cases:
    return cases(
        "scale_layout",
        public=[batch, lines, half // 8],
        preordered_mma=[batch, ceil_div(lines, 128), ceil_div(half, 32), 32, 4, 4],
    )


def _global_scale(choice: str) -> Cases:
    return cases(choice, one=[1], batch=[batch])


SPEC = OpSpec(
    name="batched_gemv",
    api="nvfp4_batched_gemv",
    version=1,
    operands=(
        buffer("a", "uint8", [batch, rows, half], align=128),
        buffer("b", "uint8", [batch, cols, half], align=128),
        buffer("a_scale", "uint8", _scales(rows), align=32),
        buffer("b_scale", "uint8", _scales(cols), align=32),
        buffer("a_global_scale", "float32", _global_scale("a_global"), align=4),
        buffer("b_global_scale", "float32", _global_scale("b_global"), align=4),
    ),
    results=(
        buffer(
            "y",
            cases("out_dtype", float16="float16", bfloat16="bfloat16", float32="float32"),
            [batch, rows, cols],
            align=16,
        ),
    ),
    attributes=(
        Choice("columns", ("1", "8")),  # there are no more than so many
        Choice("k_multiple", ("256", "16")),  # K is a multiple of it
        Choice("scale_layout", ("public", "preordered_mma")),
        Choice("out_dtype", ("float16", "bfloat16", "float32")),
        Choice(
            "a_global", ("one", "batch")
        ),  # one global scale, or one a batch: what the kernel multiplies the batch with
        Choice("b_global", ("one", "batch")),
    ),
    select=("columns", "k_multiple", "scale_layout"),
    derived=(
        ("k_unit", cases("k_multiple", **{"256": 128, "16": 8})),
        ("most_cols", cases("columns", **{"1": 1, "8": 8})),
    ),
    conditions=(
        Condition("a", half % k_unit, "rows of K / 2 bytes, K a multiple of k_multiple"),
        Condition("b", cols // (most_cols + 1), "at most `columns` columns"),
    ),
    scalars=("batch", "rows", "cols", "half", "out_dtype", "a_global", "b_global"),
    split=("batch", "rows"),
)
