"""Rows as text: a table where it fits the width, else a block of lines a row. Needs no library."""

from collections.abc import Sequence

COLUMNS = (  # heading, key, format
    ("case", "case", "s"),
    ("format", "format", "s"),
    ("layout", "scale_layout", "s"),
    ("sustained us", "sustained_us", ".2f"),
    ("burst us", "median_us", ".2f"),
    ("in a chain", "chain_us", ".2f"),
    ("of tensor pipe", "sustained_tensor_share", ".0%"),
    ("of read rate", "sustained_read_share", ".0%"),
    ("of XLA's GEMM", "sustained_gemm_share", ".0%"),
    ("busy", "busy", ".0%"),
    ("SM MHz", "sustained_sm_mhz", ".0f"),
    ("plain XLA", "xla_us", ".0f"),
    ("reference", "reference_us", ".0f"),
    ("published B200", "published_us", ".1f"),
)


def cells(row: dict, columns: Sequence = COLUMNS) -> list[str]:
    """A row's values as text, "-" for what it does not have."""
    return ["-" if row.get(key) is None else format(row[key], form) for _, key, form in columns]


def text(rows: Sequence[dict], width: int = 200, columns: Sequence = COLUMNS) -> str:
    """Lines of at most `width` characters."""
    lines = [[heading for heading, *_ in columns], *(cells(row, columns) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        left = [form == "s" for *_, form in columns]
        return "\n".join(
            "  ".join(c.ljust(w) if flush else c.rjust(w) for c, w, flush in zip(line, widths, left)).rstrip()
            for line in lines
        )
    names = [form == "s" for *_, form in columns]
    blocks = []
    for line in lines[1:]:
        title = " ".join(c for c, is_name in zip(line, names) if is_name)
        block, current = [title], " "
        for heading, value, is_name in zip(lines[0], line, names):
            item = f" {heading} {value};"
            if is_name or value == "-":
                continue
            if len(current) + len(item) > width:
                block.append(current)
                current = " "
            current += item
        blocks.append("\n".join([*block, current.rstrip(";")]))
    return "\n".join(blocks)
