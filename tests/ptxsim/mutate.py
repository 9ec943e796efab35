"""Changes one instruction of a kernel at a time and asks whether the simulator notices.

A change that nobody notices is redundant, equivalent, or a gap of the cases or of the simulator: it is listed, to be judged by a reader.

    for change in chosen(kernel, executed, KINDS, sample=80, seed=1):
        mutant = changed(kernel, change)        # run it, and see whether it is noticed
"""

import copy
import dataclasses
import hashlib
import random

import numpy as np

from .decode.operands import OPS

# What a change is called: an instruction that orders, moves or multiplies is dropped; a wait answers at once; a count of arrivals, bytes, threads or groups in flight is
# another; a wait asks for the other phase; bits of an operand's descriptor, an address, a mask of bits or partner of a lane, a comparison is off by one; a guard is turned around.
KINDS = ("drop", "no wait", "count", "parity", "descriptor", "address", "mask", "compare", "guard")
DROPPED = [
    "MB_INIT",
    "MB_ARRIVE",
    "MB_EXPECT",
    "BAR",
    "BARWARP",
    "CL_ARRIVE",
    "CL_WAIT",
    "FENCE_ASYNC",
    "FENCE_MB",
    "CPASYNC",
    "CPCOMMIT",
    "CPWAIT",
    "CPMBAR",
    "BULK_G2S",
    "BULK_S2G",
    "TMA_LOAD",
    "MMA",
    "LDMATRIX",
    "WGMMA",
    "WG_FENCE",
    "WG_COMMIT",
    "WG_WAIT",
    "ATOM",
    "TC_MMA",
    "TC_CP",
    "TC_COMMIT",
    "TMEM_WAIT",
    "TMEM_DEALLOC",
]
GUARDED = ["LD", "ST", "MB_INIT", "MB_ARRIVE", "MB_EXPECT", "CPASYNC", "BULK_G2S", "TMA_LOAD", "BRA"]
# Operation -> the fields of a row that hold offsets (8 + their number in the decoder), and by how many bytes each is moved.
OFFSETS = {
    "LDMATRIX": [(10, 16)],
    "CPASYNC": [(8, 16), (9, 16)],
    "BULK_G2S": [(8, 16), (9, 16), (10, 8)],
    "TMA_LOAD": [(8, 128), (9, 8)],
    "ATOM": [(12, 4)],
    "MB_ARRIVE": [(8, 8)],
    "MB_EXPECT": [(8, 8)],
    "MB_WAIT": [(8, 8)],
    "MB_INIT": [(8, 8)],
    "CPMBAR": [(8, 8)],
    "TC_COMMIT": [(8, 8)],
}
COMPARISONS = {
    0: 1,
    1: 0,
    2: 3,
    3: 2,
    4: 5,
    5: 4,
    6: 7,
    7: 6,
    8: 9,
    9: 8,
    10: 11,
    11: 10,
    12: 13,
    13: 12,
}  # eq ne, lt le, gt ge and so on
MAKES_DESCRIPTORS = ["ADD64", "ADD32", "OR", "PACK", "MOV"]
NAMES = {number: name for name, number in OPS.items()}


@dataclasses.dataclass(frozen=True)
class Change:
    """Row `pc` of a table becomes `row`; `sources`: {number of a source operand: constant in its place}."""

    kind: str
    pc: int
    row: tuple
    note: str = ""
    sources: tuple = ()

    @property
    def what(self):
        return f"{self.kind} ({self.note})" if self.note else self.kind


@dataclasses.dataclass
class Verdict:
    kernel: str
    change: Change
    at: str
    noticed: str  # what noticed it, or "" if nothing did

    def __str__(self):
        return f"{self.kernel} {self.change.what}: {self.at}\n    {self.noticed or 'NOT NOTICED'}"


class _Reader:
    """Constants among the operands of a program, and who writes a register."""

    def __init__(self, program):
        self.program, self.values = program, list(program.constants)
        self.writers = {}
        for pc, row in enumerate(program.table):
            for register in program.pool[row[4] : row[4] + row[3]]:
                self.writers.setdefault(int(register), []).append(pc)

    def constant(self, row, i):
        """Value of source i if the text states it, or None."""
        at = int(self.program.pool[row[6] + i]) - self.program.num_registers
        return self.values[at][1] if i < row[5] and at >= 0 and self.values[at][0] == "value" else None

    def descriptors(self):
        """Rows that make what wgmma or tcgen05.mma takes as a descriptor: three steps back."""
        table, pool, found = self.program.table, self.program.pool, set()
        front = {
            int(pool[row[6] + i])
            for row in table
            for i in {"WGMMA": range(row[5] - (2 if row[11] else 1), row[5]), "TC_MMA": (1, 2), "TC_CP": (1,)}.get(
                NAMES[int(row[0])], ()
            )
        }
        for _ in range(3):
            rows = {
                pc
                for register in front
                for pc in self.writers.get(register, ())
                if NAMES[int(table[pc][0])] in MAKES_DESCRIPTORS
            } - found
            found |= rows
            front = {int(r) for pc in rows for r in pool[table[pc][6] : table[pc][6] + table[pc][5]]}
        return found


def changes(program, kinds=KINDS):
    """Every single Change of `program` of these kinds."""
    reader, table = _Reader(program), program.table
    descriptors = reader.descriptors()

    def edited(kind, pc, note="", sources=(), **fields):
        row = table[pc].copy()
        for field, value in fields.items():
            row[int(field[1:])] = value
        return Change(kind, pc, tuple(int(x) for x in row), note, tuple(sources))

    def of(pc, row):
        name, constant = NAMES[int(row[0])], lambda i: reader.constant(row, i)
        if name in DROPPED:
            yield edited("drop", pc, f0=OPS["NOP"], f7=0)
        if name == "MB_WAIT":
            yield edited("no wait", pc, f0=OPS["PMOV"], f8=program.num_predicates + 1, f10=program.num_predicates + 1)
            phase = constant(1)
            for stuck in (0, 1) if phase is None else (1 - phase,):
                yield edited("parity", pc, str(stuck), [(1, stuck)])
        if name in ("CPWAIT", "WG_WAIT") and row[8] >= 0:
            yield edited("count", pc, f"{row[8] + 1} groups", f8=row[8] + 1)
        amounts = {
            "MB_INIT": (1, 1),
            "MB_EXPECT": (1, 16),
            "MB_ARRIVE": (1, 16 if row[9] else 1),
            "BAR": (1, 32),
            "BULK_G2S": (2, 16),
        }
        if name in amounts and constant(amounts[name][0]) is not None:
            i, step = amounts[name]
            for value in (constant(i) + step, constant(i) - step):
                if value > 0:
                    yield edited("count", pc, str(value), [(i, value)])
        if name == "BAR" and constant(0) is not None:
            yield edited("count", pc, f"barrier {constant(0) + 1}", [(0, constant(0) + 1)])
        if name in ("LD", "ST"):
            yield edited("address", pc, f"+{row[9] * row[10]}", f12=row[12] + row[9] * row[10])
        for field, step in OFFSETS.get(name, ()):
            yield edited("address", pc, f"operand {field - 8} +{step}", **{f"f{field}": row[field] + step})
        if name == "TMA_LOAD":
            for i in range(3, 3 + row[10]):
                if constant(i) is not None:
                    yield edited("address", pc, f"coordinate {i - 3} +1", [(i, constant(i) + 1)])
        if pc in descriptors:
            for i in range(row[5]):
                if constant(i) is not None:
                    yield edited("descriptor", pc, f"{constant(i):#x} ^ 1", [(i, constant(i) ^ 1)])
        if name == "SHFL" and constant(1) is not None:
            other = constant(1) >> 1 or 2
            yield edited("mask", pc, f"lane {other}", [(1, other)])
        if name == "VOTE":
            yield edited("mask", pc, "negated", f10=row[10] ^ 1)
        if name == "AND":
            for i in range(row[5]):
                if constant(i):
                    yield edited(
                        "mask", pc, f"{constant(i):#x} without its lowest bit", [(i, constant(i) & (constant(i) - 1))]
                    )
        if name == "SETP":
            yield edited("compare", pc, "off by one" if row[8] > 1 else "negated", f8=COMPARISONS[int(row[8])])
        if name in GUARDED and row[1] >= 0:
            yield edited("guard", pc, f2=row[2] ^ 1)

    for pc, row in enumerate(table):
        yield from (c for c in of(pc, row) if c.kind in kinds)


def changed(kernel, change):
    """The kernel with one Change; counts of its own."""
    program = copy.copy(kernel.program)
    program.table, row = program.table.copy(), list(change.row)
    if change.sources:
        program.constants = dict(program.constants)
        operands = [int(x) for x in program.pool[row[6] : row[6] + row[5]]]
        for i, value in change.sources:
            operands[i] = program.constants.setdefault(("value", value), program.num_registers + len(program.constants))
        row[6] = len(program.pool)
        program.pool = np.concatenate([program.pool, np.array(operands + [0], np.int32)])
    program.table[change.pc] = row
    mutant = dataclasses.replace(kernel)
    mutant.__dict__.update(program=program, hits=np.zeros(len(program.code), np.int64))
    return mutant


def chosen(kernel, executed, kinds=KINDS, sample=0, seed=0):
    """Changes of executed instructions, `sample` of them (0: all): by turns of each kind and each operation of it, drawn by `seed`."""
    groups = {}
    for change in changes(kernel.program, kinds):
        if executed[change.pc]:
            groups.setdefault((change.kind, kernel.program.table[change.pc][0]), []).append(change)
    if not sample:
        return [c for group in groups.values() for c in group]
    draw, picked, taken = random.Random(f"{seed} {kernel.name}"), [], dict.fromkeys(groups, 0)
    for group in groups.values():
        draw.shuffle(group)
    while len(picked) < sample and any(groups.values()):
        for kind in kinds:
            left = [key for key in groups if key[0] == kind and groups[key]]
            if left and len(picked) < sample:
                key = min(left, key=taken.get)
                taken[key] += 1
                picked.append(groups[key].pop())
    return sorted(picked, key=lambda c: c.pc)


def text_stamp(kernel):
    """16 hex digits of the text that is executed."""
    return hashlib.sha256(kernel.text.encode()).hexdigest()[:16]
