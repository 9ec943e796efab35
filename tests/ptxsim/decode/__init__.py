"""PTX text -> the table of instructions that core/ executes.

The opcodes understood are exactly those that a `form` in alu.py, memory.py, sync.py or tensor.py matches as a whole; anything else, an unknown
suffix included, is an error that names the line, when the text is decoded.
"""

import numpy as np

from ..parse import PtxError, parse
from . import alu, memory, sync, tensor  # noqa: F401 (they register the forms)
from .operands import Decoder, Unsupported, find_form


class Program:
    """A decoded kernel. `code`: parsed instructions, `table`: one row each, as struct Inst of core/sim.h.

    PtxError names every opcode or operand that is not simulated, with its line.
    """

    def __init__(self, text):
        entry = parse(text)
        self.name, self.params, self.code, self.ctas = entry.name, entry.params, entry.code, entry.ctas
        decoder = Decoder(entry)
        rows, problems = [], {}
        for instruction in self.code:
            try:
                handler, match = find_form(instruction.op)
                row = handler(decoder, instruction, match)
                row[1:3] = decoder.guard(instruction)
                rows.append(row)
            except Unsupported as e:
                problems.setdefault(str(e), f"line {instruction.line}: {e} in {instruction.text[:150]!r}")
        if problems:
            raise PtxError(f"{self.name}: not simulated:\n  " + "\n  ".join(problems.values()))
        self.table = np.array(rows, np.int64).reshape(-1, 16)
        self.pool = np.array(decoder.pool + [0], np.int32)
        self.constants = decoder.constants
        self.num_registers, self.num_predicates = len(decoder.registers), len(decoder.predicates)
        self.static_shared, self.dynamic_base, self.local_bytes = (
            decoder.static_shared,
            decoder.dynamic_base,
            decoder.local_bytes,
        )

    def at(self, pc):
        """ "line 12: add.s32 ... (sm90/decode.py:86)" of an instruction."""
        if not 0 <= pc < len(self.code):
            return "-"
        text, source = self.code[pc].text, self.code[pc].source
        return f"line {self.code[pc].line}: {text if len(text) < 200 else text[:197] + '...'}{f' ({source})' if source else ''}"
