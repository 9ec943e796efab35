"""Where a scale byte lies in the tiled layout (formats/scale_layout.py states both layouts), for row, token and group
numbers that are not negative.

A tile is 128 rows by 4 groups, 512 bytes: the four bytes of a row's groups, SCALE_ROW bytes from a row to the next, 4
bytes from a row to the one 32 further. The next four groups lie in a tile of their own.

The formulas divide by powers of two, and each kernel divides in its own way, which decides the instructions that it
is made of:

| `by` | division | for |
|---|---|---|
| Operators | `//` and `%` of the DSL, right for negative numbers | numbers whose range LLVM knows, and ints of Python |
| Masks | `>>` and `&` | numbers that LLVM may fold further |
| Instructions | PTX `shr` and `and` | numbers of which LLVM would make more instructions, not fewer |
| Shifts | PTX `shr`, and `&` | the same, where LLVM may fold the masks |
"""

from ...configs.block_scores import GROUPS
from ..device.ptx_math import and_, shr

SCALE_TILE = 512  # bytes of 128 rows and 4 groups
SCALE_ROW = 16  # bytes from a row to the next one, in rows 32 i .. 32 i + 31


def _log2(n: int) -> int:
    """log2 of a power of two."""
    return n.bit_length() - 1


class Operators:
    """x // n, x % n, and the digit x // n % m. n and m: powers of two."""

    quotient = staticmethod(lambda x, n: x // n)
    remainder = staticmethod(lambda x, n: x % n)
    digit = staticmethod(lambda x, n, m: x % (n * m) // n)


class Masks:
    quotient = staticmethod(lambda x, n: x >> _log2(n))
    remainder = staticmethod(lambda x, n: x & (n - 1))
    digit = staticmethod(lambda x, n, m: (x & (n * m - 1)) >> _log2(n))


class Instructions:
    quotient = staticmethod(lambda x, n: shr(x, _log2(n)))
    remainder = staticmethod(lambda x, n: and_(x, n - 1))
    digit = staticmethod(lambda x, n, m: and_(shr(x, _log2(n)), m - 1))


class Shifts:
    quotient = Instructions.quotient
    remainder = Masks.remainder
    digit = staticmethod(lambda x, n, m: shr(x, _log2(n)) & (m - 1))


def tile_bytes(format: str) -> int:
    """Bytes of all groups of 128 rows."""
    return (GROUPS[format] + 3) // 4 * SCALE_TILE


def row_offset(row, by, base=None):
    """Byte of row `row` (below 128) within a tile, counted from `base`."""
    at = by.remainder(row, 32) * SCALE_ROW
    at = at if base is None else base + at
    return at + by.quotient(row, 32) * 4


def token_offset(token, by):
    """Byte of row `token % 128` within its tile."""
    return by.remainder(token, 32) * SCALE_ROW + by.digit(token, 32, 4) * 4


def group_offset(group, by):
    """Byte of a group from that of group 0 of the same row."""
    return by.quotient(group, 4) * SCALE_TILE + by.remainder(group, 4)


def tiled_offset(row, group, by):
    """Byte of (row, group), row below 128, within the tiles of these rows."""
    return row_offset(row, by, by.quotient(group, 4) * SCALE_TILE) + by.remainder(group, 4)
