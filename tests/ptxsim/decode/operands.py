"""Operands, and the registry of opcode forms."""

import functools
import pathlib
import re

from ..parse import FloatImm, Imm, Mem, Not, Pair, Reg, Sink, Special, Symbol, Vec

_HEADER = (pathlib.Path(__file__).resolve().parents[1] / "core" / "opcodes.h").read_text()
OPS = {name: i for i, name in enumerate(re.findall(r"\bOP_(\w+)", re.sub(r"//[^\n]*", "", _HEADER)))}

# Numbers of core/launch.c::special_value.
SPECIALS = {
    name: i + 1
    for i, name in enumerate(
        "tid.x tid.y tid.z ntid.x ntid.y ntid.z ctaid.x ctaid.y ctaid.z nctaid.x nctaid.y nctaid.z laneid warpid cluster_ctarank cluster_nctarank smid nsmid "
        "cluster_ctaid.x cluster_ctaid.y cluster_ctaid.z dynamic_smem_size nwarpid lanemask_eq lanemask_lt lanemask_le lanemask_gt lanemask_ge "
        "cluster_nctaid.x cluster_nctaid.y cluster_nctaid.z nclusterid.x nclusterid.y nclusterid.z clusterid.x clusterid.y clusterid.z".split()
    )
}

SMEM_BASE, PARAM_WINDOW, SHARED_WINDOW, LOCAL_WINDOW = (
    1024,
    0x7000_0000_0000,
    0x7100_0000_0000,
    0x7200_0000_0000,
)  # as in core/sim.h
SHARED_CONSTANT = 100  # kind of a constant that gets the CTA's rank added


class Unsupported(Exception):
    pass


_forms = []


def form(*patterns):
    """Register a handler (decoder, instruction, match) -> row for opcodes that match one of `patterns` as a whole."""

    def register(handler):
        _forms.extend((re.compile(p), handler) for p in patterns)
        return handler

    return register


@functools.cache
def find_form(op):
    for pattern, handler in _forms:
        match = pattern.fullmatch(op)
        if match:
            return handler, match
    raise Unsupported(f"unknown opcode {op}")


def width(t):
    """Bits of a type: f16x2 is 32."""
    m = re.fullmatch(r"[a-z]+(\d+)(?:x(\d))?", t)
    if m is None:
        raise Unsupported(f"type {t}")
    return int(m.group(1)) * int(m.group(2) or 1)


def items(operand):
    return operand.items if isinstance(operand, Vec) else [operand]


def _register_bits(t):
    return max(width(t), 16)


class Decoder:
    """Numbers registers and constants, and builds rows. A constant is a register behind the last real one."""

    def __init__(self, entry):
        self.entry, self.pool, self.constants = entry, [], {}
        self.predicates, self.registers, self.bits = {}, {}, {}
        for name, t in entry.types.items():
            if t == "pred":
                self.predicates[name] = len(self.predicates)
            else:
                self.registers[name], self.bits[name] = len(self.registers), _register_bits(t)
        self.params = {name: i for i, (name, _) in enumerate(entry.params)}
        self.symbols, at, dynamic = {}, SMEM_BASE, []
        for name, align, size in entry.shared:
            if size is None:
                dynamic.append((name, align))
                continue
            at = -(-at // align) * align
            self.symbols[name] = at
            at += size
        self.static_shared = at - SMEM_BASE
        at = -(-at // max([1, *(align for _, align in dynamic)])) * max([1, *(align for _, align in dynamic)])
        self.symbols.update((name, at) for name, _ in dynamic)
        self.dynamic_base, self.local_bytes, self.locals = at, 0, {}
        for name, align, size in entry.locals:
            self.local_bytes = -(-self.local_bytes // align) * align
            self.locals[name] = LOCAL_WINDOW + self.local_bytes
            self.local_bytes += size

    # ---- operands
    def constant(self, kind, value):
        return self.constants.setdefault((kind, value), len(self.registers) + len(self.constants))

    def _check_width(self, name, bits, wider):
        """ptxas wants registers of the width that the instruction names, or wider ones in loads, stores and conversions."""
        if self.bits[name] != max(bits, 16) and not (wider and self.bits[name] > bits):
            raise Unsupported(f"register {name} of {self.bits[name]} bits as an operand of {bits}")

    def source(self, o, bits, wider=False):
        if isinstance(o, Reg):
            if o.name not in self.registers:
                raise Unsupported(f"predicate {o.name} as a value")
            self._check_width(o.name, bits, wider)
            return self.registers[o.name]
        if isinstance(o, Imm):
            return self.constant("value", o.value & ((1 << bits) - 1))
        if isinstance(o, FloatImm):
            return self.constant("value", o.bits)
        if isinstance(o, Special) and o.name in SPECIALS:
            return self.constant("special", SPECIALS[o.name])
        if isinstance(o, Symbol):
            if o.name in self.symbols:
                return self.constant("shared", self.symbols[o.name])
            if o.name in self.locals:
                return self.constant("value", self.locals[o.name])
            if o.name in self.params:
                return self.constant("value", PARAM_WINDOW + 4096 * self.params[o.name])
        raise Unsupported(f"operand {o}")

    def address(self, o, space_bits):
        if not isinstance(o, Mem):
            raise Unsupported(f"operand {o} where an address is expected")
        return self.source(o.base, space_bits)

    def destination(self, o, bits, wider=False):
        if isinstance(o, Sink):
            return -1
        if not isinstance(o, Reg) or o.name not in self.registers:
            raise Unsupported(f"destination {o}")
        self._check_width(o.name, bits, wider)
        return self.registers[o.name]

    def predicate(self, o):
        """(index, negated); false and true are behind the last predicate."""
        if isinstance(o, Not):
            index, negated = self.predicate(o.reg)
            return index, 1 - negated
        if isinstance(o, Imm):
            return len(self.predicates) + (o.value != 0), 0
        if not isinstance(o, Reg) or o.name not in self.predicates:
            raise Unsupported(f"predicate {o}")
        return self.predicates[o.name], 0

    def predicate_out(self, o):
        return -1 if isinstance(o, Sink) else self.predicate(o)[0]

    def pair(self, o):
        """(value, predicate) of d|p; a missing predicate is _."""
        return (o.first, o.second) if isinstance(o, Pair) else (o, Sink())

    def guard(self, instruction):
        if instruction.guard is None:
            return -1, 0
        name, negated = instruction.guard
        if name not in self.predicates:
            raise Unsupported("guard that is no predicate")
        return self.predicates[name], int(negated)

    # ---- rows
    def row(self, op, destinations=(), sources=(), im=(), simple=0):
        im = list(im) + [0] * (8 - len(im))
        at = len(self.pool)
        self.pool += [*destinations, *sources]
        return [OPS[op], -1, 0, len(destinations), at, len(sources), at + len(destinations), simple, *im]

    def plain(self, op, instruction, bits, n, im=(), to=0, wider=False):
        """One destination of `to` bits (default: those of the first source), then `n` sources of `bits` (or a list); undefined if a source is."""
        args = instruction.args
        if len(args) != n + 1:
            raise Unsupported(f"{len(args)} operands")
        widths = bits if isinstance(bits, (list, tuple)) else [bits] * n
        if isinstance(args[0], Sink):
            return self.row("NOP")
        return self.row(
            op,
            [self.destination(args[0], to or widths[0], wider)],
            [self.source(o, w, wider) for o, w in zip(args[1:], widths)],
            im,
            1,
        )
