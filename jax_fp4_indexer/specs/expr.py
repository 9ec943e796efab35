"""Integer expressions over named sizes: written once in Python, evaluated in Python and, from the manifest, in C++.

    tokens, heads = sizes("tokens heads")
    ceil_div(tokens, 128) * heads               # an Expr
    str(...)                                    # "(tokens + 127) / 128 * heads", what the manifest holds
    parse("(tokens + 127) / 128 * heads")       # the same Expr
    (...).value({"tokens": 200, "heads": 4})    # 8

Code that computes with ints (a scratch layout, say) yields its own formula when it is called with sizes instead.

Grammar of the text, read by ffi/expr.cc: integers, names, `+ - * / %`, `min(a, b)`, `max(a, b)` and parentheses, with the usual
precedence. `/` rounds down. All values are non-negative int64, except that a difference may be negative; an overflow is an error.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}
FUNCTIONS = {"min": min, "max": max}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}
_AST = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%"}


@dataclasses.dataclass(frozen=True, eq=True)
class Expr:
    """`op` is "size", "int", an operator or a function; `args` holds a name, an int, or two Exprs."""

    op: str
    args: tuple

    def value(self, values: Mapping[str, Any]) -> Any:
        """The number for `values` (name -> int, or anything that computes like an int). KeyError if a name is missing."""
        if self.op == "int":
            return self.args[0]
        if self.op == "size":
            return values[self.args[0]]
        a, b = (x.value(values) for x in self.args)
        return (OPERATORS.get(self.op) or FUNCTIONS[self.op])(a, b)

    def names(self) -> frozenset[str]:
        """Every size that the expression reads."""
        if self.op == "int":
            return frozenset()
        return frozenset(self.args) if self.op == "size" else self.args[0].names() | self.args[1].names()

    def __str__(self) -> str:
        if self.op in ("int", "size"):
            return str(self.args[0])
        if self.op in FUNCTIONS:
            return f"{self.op}({self.args[0]}, {self.args[1]})"
        left, right = (self._operand(x, side) for side, x in enumerate(self.args))
        return f"{left} {self.op} {right}"

    def _operand(self, x: Expr, side: int) -> str:
        own, inner = _PRECEDENCE[self.op], _PRECEDENCE.get(x.op, 3)
        return f"({x})" if inner < own or side == 1 and inner == own else str(x)

    def __add__(self, other: Expr | int) -> Expr:
        return _combine("+", self, other)

    def __radd__(self, other: int) -> Expr:
        return _combine("+", other, self)

    def __sub__(self, other: Expr | int) -> Expr:
        return _combine("-", self, other)

    def __rsub__(self, other: int) -> Expr:
        return _combine("-", other, self)

    def __mul__(self, other: Expr | int) -> Expr:
        return _combine("*", self, other)

    def __rmul__(self, other: int) -> Expr:
        return _combine("*", other, self)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return _combine("/", self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return _combine("%", self, other)

    def __lt__(self, other: Expr | int) -> bool:
        raise TypeError(f"the size {self} has no value yet: use min_ or max_ in place of a comparison")

    __gt__ = __le__ = __ge__ = __lt__

    def __bool__(self) -> bool:
        raise TypeError(f"the size {self} has no value yet, so it is neither true nor false")


def of(x: Expr | int) -> Expr:
    """An Expr as it is, an int as a constant."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, bool) or not isinstance(x, int):
        raise TypeError(f"got {x!r}, expected an Expr or an int")
    return Expr("int", (x,))


def sizes(names: str) -> tuple[Expr, ...]:
    """One named size for each word of `names`."""
    return tuple(Expr("size", (name,)) for name in names.split())


def min_(a: Expr | int, b: Expr | int) -> Expr:
    return _combine("min", a, b)


def max_(a: Expr | int, b: Expr | int) -> Expr:
    return _combine("max", a, b)


def ceil_div(a: Expr | int, b: int) -> Expr:
    return (of(a) + (b - 1)) // b


def align(a: Expr | int, to: int) -> Expr:
    """The smallest multiple of `to` that is at least `a`."""
    return ceil_div(a, to) * to


def _combine(op: str, a: Expr | int, b: Expr | int) -> Expr:
    a, b = of(a), of(b)
    if a.op == b.op == "int":  # constants fold, so that formulas stay short
        return of((OPERATORS.get(op) or FUNCTIONS[op])(*a.args, *b.args))
    zero, one = Expr("int", (0,)), Expr("int", (1,))
    if (op in "+-" and b == zero) or (op in "*/" and b == one):
        return a
    if (op == "+" and a == zero) or (op == "*" and a == one):
        return b
    return Expr(op, (a, b))


@functools.lru_cache(maxsize=None)
def parse(text: str) -> Expr:
    """The Expr of a text of the grammar. ValueError for anything else."""
    try:
        tree = ast.parse(str(text).strip(), mode="eval").body
    except SyntaxError as e:
        raise ValueError(f"{text!r} is no expression: {e.msg}") from None
    return _from_ast(tree, text)


def _from_ast(node: ast.expr, text: str) -> Expr:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return of(node.value)
    if isinstance(node, ast.Name):
        return Expr("size", (node.id,))
    if isinstance(node, ast.BinOp) and type(node.op) in _AST:
        return Expr(_AST[type(node.op)], (_from_ast(node.left, text), _from_ast(node.right, text)))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FUNCTIONS
        and len(node.args) == 2
    ):
        return Expr(node.func.id, tuple(_from_ast(x, text) for x in node.args))
    raise ValueError(f"{text!r} is no expression of sizes: it holds {ast.unparse(node)!r}")
