"""A spec as Markdown, for the documentation: `python -m jax_fp4_indexer.specs.docs block_scores`."""

from __future__ import annotations

import sys
from typing import Any

from .spec import IMPLEMENTATIONS, Cases, Choice, OpSpec


def custom_call(op: OpSpec) -> str:
    """Tables of the buffers and of the attributes of an op's custom call; a test compares them with the documentation."""
    buffers = [("operand", b) for b in op.operands] + [("result", b) for b in op.results]
    rows = [(f"{kind} {b.name}", _cases(b.dtype), _cases(b.shape), b.align) for kind, b in buffers]
    if op.scratch:
        rows.append(("result scratch", "uint8", "`[scratch_bytes]`", 128))
    attributes = [("op", f"`{op.name}`"), ("implementation", " or ".join(f"`{i}`" for i in IMPLEMENTATIONS))]
    for a in op.attributes:
        attributes.append(
            (
                a.name,
                " or ".join(f"`{v}`" for v in a.values) if isinstance(a, Choice) else f"int64 in {a.low}..{a.high}",
            )
        )
    return "\n".join(
        [
            _table(("buffer", "dtype", "shape", "alignment in bytes"), rows),
            "",
            _table(("attribute", "values"), attributes),
        ]
    )


def _cases(value: Any) -> str:
    if isinstance(value, Cases):
        return "; ".join(f"{value.by} {key}: {_cases(v)}" for key, v in value.cases)
    return f"`[{', '.join(map(str, value))}]`" if isinstance(value, tuple) else str(value)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


if __name__ == "__main__":
    from . import OPS

    print(custom_call(OPS[sys.argv[1]]))
