"""What a kernel's inner loops cost, read from its SASS: instructions by pipe, without running anything.

    code = Code(inspect.disassemble(path))
    code.mix(code.loop("LDTM.x128"))        Mix of one turn of the loop around the tensor-memory load

A loop is the code from a label to a branch back to it; nested loops are counted apart. Code that a loop jumps over most of the time counts as run.
"""

import collections
import dataclasses
import re

_LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_LABEL = re.compile(r"^\s*(\.L_x?_?\w+):")
TARGET = re.compile(r"`\((\.L_\w+)\)")

# First word of the opcode -> pipe. What is not named is "other": it takes an issue slot and no pipe of interest.
PIPES = {
    "alu": "FMNMX FMNMX3 FSEL FSETP ISETP IADD3 IADD LOP3 LOP SHF SHL SHR SEL PRMT VIADD VIMNMX VIMNMX3 LEA PLOP3 P2R R2P I2FP FLO POPC IABS MOV VOTE HMNMX2 F2FP BREV",
    "fma": "FFMA FMUL FADD FFMA2 FMUL2 FADD2 IMAD HMUL2 HFMA2 HADD2",
    "uniform": "UIADD3 ULEA ULOP3 USHF UMOV USEL UISETP UPLOP3 UIMAD UP2UR R2UR S2UR UFLO UPRMT UVIRTADDR UVIMNMX UI2FP",
    "memory": "LDG STG LDS STS LDSM STSM LDC LDCU ATOMS RED LDGSTS SHFL REDUX SYNCS CCTL LDGDEPBAR ARRIVES BAR",
    "tensor": "HMMA IMMA HGMMA IGMMA UTCOMMA UTCQMMA UTCHMMA UTCCP UTCBAR",
    "tmem": "LDTM STTM",
}
PIPE_OF = {name: pipe for pipe, names in PIPES.items() for name in names.split()}


@dataclasses.dataclass(frozen=True)
class Mix:
    """Instructions of a piece of code. `pipes`: count by pipe; `opcodes`: by first word."""

    total: int
    pipes: dict
    opcodes: dict

    def __getitem__(self, pipe):
        return self.pipes.get(pipe, 0)


class Code:
    """SASS of one kernel. `lines`: instructions, predicates kept; `labels`: name -> index; `loops`: (first, last) index of every loop."""

    def __init__(self, sass):
        self.lines, self.labels = [], {}
        for line in sass.splitlines():
            if label := _LABEL.match(line):
                self.labels[label[1]] = len(self.lines)
            elif text := _LINE.match(line):
                self.lines.append(text[1])
        back = (
            (self.labels.get(t[1]), i)
            for i, text in enumerate(self.lines)
            if "BRA" in text and (t := TARGET.search(text))
        )
        ends = collections.defaultdict(int)
        for first, last in back:
            if first is not None and first <= last:
                ends[first] = max(ends[first], last)
        self.loops = sorted(ends.items())

    def opcode(self, i):
        return re.sub(r"^@!?U?P\w+\s+", "", self.lines[i]).split()[0]

    def find(self, opcode):
        """Indices of the instructions whose opcode starts with `opcode`."""
        return [i for i in range(len(self.lines)) if self.opcode(i).startswith(opcode)]

    def loop(self, opcode, which=0):
        """The innermost loop around the `which`-th instruction `opcode`. ValueError if there is none."""
        places = self.find(opcode)
        around = [
            (last - first, first, last)
            for first, last in self.loops
            if len(places) > which and first <= places[which] <= last
        ]
        if not around:
            raise ValueError(
                f"no loop around {opcode} number {which}; there are {len(places)} of it and {len(self.loops)} loops"
            )
        return min(around)[1:]

    def mix(self, loop):
        """Mix of one turn of a loop, without the loops inside it."""
        first, last = loop
        inner = [x for x in self.loops if x != loop and first <= x[0] and x[1] <= last]
        opcodes = collections.Counter(
            self.opcode(i).split(".")[0] for i in range(first, last + 1) if not any(a <= i <= b for a, b in inner)
        )
        opcodes.pop("NOP", None)
        pipes = collections.Counter()
        for name, n in opcodes.items():
            pipes[PIPE_OF.get(name, "other")] += n
        return Mix(sum(opcodes.values()), dict(pipes), dict(opcodes))
