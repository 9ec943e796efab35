"""PTX text -> a flat list of instructions: labels resolved, registers named by scope, lines kept."""

import collections
import dataclasses
import re
from typing import NamedTuple


class PtxError(Exception):
    """The text is outside of what is simulated; the message names the line."""


class Reg(NamedTuple):
    name: str


class Imm(NamedTuple):
    value: int


class FloatImm(NamedTuple):
    bits: int


class Symbol(NamedTuple):
    name: str


class Special(NamedTuple):
    name: str  # without the %


class Mem(NamedTuple):
    base: object
    offset: int
    coords: object  # the second part of [map, {..}], or None


class Vec(NamedTuple):
    items: list


class Pair(NamedTuple):
    first: object
    second: object


class Not(NamedTuple):
    reg: object


class Sink(NamedTuple):
    """The operand _: a result nobody wants."""


@dataclasses.dataclass
class Instruction:
    op: str
    args: list
    guard: tuple  # (register, negated), or None
    line: int
    text: str
    source: str = ""  # file and line of the kernel's Python, where the text says
    target: int = None  # of a branch


@dataclasses.dataclass
class Entry:
    name: str
    params: list  # (name, bytes)
    code: list
    types: dict  # register -> "b32", "pred", ...
    shared: list  # (name, alignment, bytes; None: dynamic)
    locals: list  # (name, alignment, bytes)
    ctas: int = 1  # of an SM, for which the compiler leaves registers


SPECIALS = re.compile(
    r"%(tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|cluster_\w+|clusterid|nclusterid|smid|nsmid|clock\w*|globaltimer\w*|lanemask_\w+|dynamic_smem_size)(\.[xyz])?$"
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d+)\])?"
)
_SHARED = re.compile(
    r"^\s*(\.extern\s+|\.visible\s+)?\.shared\s+(?:\.align\s+(\d+)\s+)?\.b8\s+([\w$]+)(?:\[(\d*)\])?", re.M
)
_LOCAL = re.compile(r"\.local\s+(?:\.align\s+(\d+)\s+)?\.b8\s+([\w$]+)\[(\d+)\]")
_LABEL = re.compile(r"([A-Za-z_$][\w$]*)\s*:(?!:)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*")
_INT = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")


def split_operands(text):
    out, depth, current = [], 0, ""
    for ch in text:
        depth += (ch in "[{(") - (ch in "]})")
        if ch == "," and depth == 0:
            out.append(current.strip())
            current = ""
        else:
            current += ch
    return out + [current.strip()] if current.strip() else out


class _Body:
    """Statements of one entry. Scopes: a register or label of an inner {} gets a prefix of its own."""

    def __init__(self, entry):
        self.entry, self.scopes, self.labels, self.branches, self.count, self.source = entry, [("", {})], {}, [], 0, ""

    def lookup(self, name):
        for _, names in reversed(self.scopes):
            if name in names:
                return names[name]
        return None

    def open(self):
        self.count += 1
        self.scopes.append((f"$scope{self.count}.", {}))

    def close(self):
        self.scopes.pop()
        return not self.scopes

    def label(self, name):
        self.labels[self.scopes[-1][0] + name] = len(self.entry.code)

    def declare(self, statement, line):
        m = re.match(r"\.reg\s+\.(\w+)\s+(.*)", statement)
        if m is None:
            raise PtxError(f"line {line}: declaration {statement!r} is not simulated")
        prefix, names = self.scopes[-1]
        for item in m.group(2).split(","):
            many = re.fullmatch(r"(%?\w+)<(\d+)>", item.strip())
            for name in [f"{many.group(1)}{i}" for i in range(int(many.group(2)))] if many else [item.strip()]:
                names[name] = prefix + name
                self.entry.types[prefix + name] = m.group(1)

    def operand(self, t):
        if t == "_":
            return Sink()
        if t[0] == "{":
            return Vec([self.operand(x) for x in split_operands(t[1:-1])])
        if t[0] == "[":
            inner = split_operands(t[1:-1])
            m = re.match(r"([%\w$.]+)\s*(?:\+\s*(-?\w+))?$", inner[0])
            return Mem(
                self.operand(m.group(1)), int(m.group(2) or "0", 0), self.operand(inner[1]) if len(inner) > 1 else None
            )
        if t[0] == "!":
            return Not(self.operand(t[1:]))
        if "|" in t:
            return Pair(*(self.operand(x.strip()) for x in t.split("|")))
        if _INT.match(t):
            return Imm(int(t.rstrip("U"), 16 if "x" in t.lower() else 10))
        m = re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", t)
        if m:
            return FloatImm(int(m.group(1) or m.group(2), 16))
        name = self.lookup(t)
        if name is not None:
            return Reg(name)
        if SPECIALS.match(t):
            return Special(t[1:])
        if t[0] == "%":
            raise PtxError(f"undeclared register {t}")
        return Symbol(t)

    def instruction(self, statement, line):
        text, guard = statement, None
        m = re.match(r"@(!?)(%?\w+)\s+", statement)
        if m:
            guard, statement = (self.lookup(m.group(2)), m.group(1) == "!"), statement[m.end() :]
        m = re.match(r"([a-z][\w.:]*)\s*(.*)$", statement)
        if m is None:
            raise PtxError(f"line {line}: cannot read {text!r}")
        op, rest = m.groups()
        try:
            args = [] if op.startswith("bra") else [self.operand(x) for x in split_operands(rest)]
        except PtxError as e:
            raise PtxError(f"line {line}: {e} in {text!r}") from None
        instruction = Instruction(op, args, guard, line, text, self.source)
        if op.startswith("bra"):
            self.branches.append((instruction, rest.strip(), [prefix for prefix, _ in reversed(self.scopes)]))
        self.entry.code.append(instruction)

    def resolve(self):
        for instruction, label, chain in self.branches:
            found = [self.labels[prefix + label] for prefix in chain if prefix + label in self.labels]
            if not found:
                raise PtxError(f"line {instruction.line}: no label {label}")
            instruction.target = found[0]


def _places(text):
    """{(number of a file, line): "sm90/decode.py:86"} of the .loc lines. The line that most instructions name is the launch: it stands for
    "unknown" and is left out, so that such an instruction keeps the place of the one before it."""
    files = {number: "/".join(path.split("/")[-2:]) for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]+)"', text)}
    count = collections.Counter(_LOC.findall(text))
    launch = {place for place, _ in count.most_common(1)}
    return {
        place: f"{files[place[0]]}:{place[1]}"
        for place in count.keys() - launch
        if place[0] in files and place[1] != "0"
    }


_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


def parse(text):
    """The one .entry of a PTX module. PtxError with the line for what cannot be read."""
    if len(re.findall(r"\.entry\b", text)) != 1:
        raise PtxError("the text has to hold exactly one .entry")
    if re.search(r"\.func\b|\bcall\b", text):
        raise PtxError("functions and calls are not simulated")
    head = re.search(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?", text, re.S)
    params = [
        (name, int(size) if size else _BYTES[kind[1:]]) for kind, name, size in _PARAM.findall(head.group(2) or "")
    ]
    shared = [
        (name, int(align or 1), None if extern.strip() == ".extern" or not size else int(size))
        for extern, align, name, size in _SHARED.findall(text)
    ]
    entry = Entry(
        head.group(1),
        params,
        [],
        {},
        shared,
        [(name, int(align or 16), int(size)) for align, name, size in _LOCAL.findall(text)],
    )
    start = text.index("{", head.end())
    several = re.search(r"\.minnctapersm\s+(\d+)", text[head.end() : start])
    entry.ctas = int(several.group(1)) if several else 1
    body = re.sub(r"//[^\n]*", "", text[start + 1 :])
    body = re.sub(r"^[ \t]*\.(file|pragma)\b[^\n]*", "", body, flags=re.M)
    places = _places(text)
    line, i, b = text.count("\n", 0, start) + 1, 0, _Body(entry)
    while i < len(body):
        ch = body[i]
        if ch.isspace():
            line += ch == "\n"
            i += 1
        elif ch == "{":
            b.open()
            i += 1
        elif ch == "}":
            i += 1
            if b.close():
                break
        elif m := _LOC.match(body, i):
            b.source = places.get(m.groups(), b.source)
            i = m.end()
        elif m := _LABEL.match(body, i):
            b.label(m.group(1))
            i = m.end()
        else:
            end = body.index(";", i)
            statement, at = body[i:end], line
            line += statement.count("\n")
            i = end + 1
            statement = " ".join(statement.split())
            if statement.startswith(".reg"):
                b.declare(statement, at)
            elif statement and not statement.startswith((".shared", ".local")):
                b.instruction(statement, at)
    b.resolve()
    return entry
