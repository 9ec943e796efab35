"""Breaks one instruction of a kernel at a time and asks whether the simulator notices.

A mutant that nobody notices is redundant, equivalent, or a gap of the cases or of the simulator: it is listed, to be judged by a reader.

    for verdict in verdicts(variant): print(verdict)
"""
import copy
import dataclasses
import time

import numpy as np

from . import cases, kernels, runs
from .decode.operands import OPS

CASES = "k_lengths_causal-,ragged_1-,page_id_bad_prefill,sim_many_pages-,sim_bad_pages_one,sim_skewed,sim_wide_long,sim_passes-,sim_wide_passes,sim_many_sequences_600,sim_forms_many,forms_some_queries,sim_many_tiles"
SCHEDULES = ("eager", "lazy", "random:1")

DROPPED = ["MB_INIT", "MB_ARRIVE", "MB_EXPECT", "BAR", "BARWARP", "CL_ARRIVE", "CL_WAIT", "FENCE_ASYNC", "FENCE_MB", "CPASYNC", "CPCOMMIT", "CPWAIT", "CPMBAR",
           "BULK_G2S", "BULK_S2G", "TMA_LOAD", "MMA", "LDMATRIX", "WGMMA", "WG_FENCE", "WG_COMMIT", "WG_WAIT", "ATOM",
           "TC_MMA", "TC_CP", "TC_COMMIT", "TMEM_WAIT", "TMEM_DEALLOC"]
NAMES = {number: name for name, number in OPS.items()}


@dataclasses.dataclass
class Verdict:
    kernel: str
    what: str           # "drop", "no wait", "address", "guard", "store"
    at: str
    noticed: str        # what noticed it, or "" if nothing did

    def __str__(self):
        return f"{self.kernel} {self.what}: {self.at}\n    {self.noticed or 'NOT NOTICED'}"


def mutants(program):
    """(what, pc, row) of every single change: `row` replaces row pc of the table."""
    for pc, row in enumerate(program.table):
        name = NAMES[int(row[0])]
        new = row.copy()
        if name in DROPPED:
            new[0], new[7] = OPS["NOP"], 0
            yield "drop", pc, new
        elif name == "MB_WAIT":         # answers yes at once
            new[0] = OPS["PMOV"]
            new[8] = new[10] = program.num_predicates + 1
            yield "no wait", pc, new
        elif name in ("LD", "ST"):
            new[12] += new[9] * new[10]
            yield "address", pc, new
        if name in ("ST", "MB_ARRIVE", "BULK_G2S", "BRA") and row[1] >= 0:
            new = row.copy()
            new[2] ^= 1
            yield "guard", pc, new


def _changed(kernel, pc, row):
    program = copy.copy(kernel.program)
    program.table = program.table.copy()
    program.table[pc] = row
    mutant = dataclasses.replace(kernel)
    mutant.__dict__.update(program=program, hits=np.zeros(len(program.code), np.int64))
    return mutant


def _kind(problem):
    """A few words on what noticed."""
    return problem.split("\n")[0][:140]


def verdicts(variant, kinds=("drop", "no wait"), every=1, offset=0):
    """Verdicts on the mutants of `variant` in instructions that its cases execute. every, offset: take each `every`-th mutant."""
    compiled = kernels.load(variant.launches)
    rows = cases.of(variant.path, variant.format, CASES)
    budget = {}
    for case in rows:
        for schedule in SCHEDULES:
            outcome, problems = runs.run(compiled, variant, case, schedule)
            if problems:
                raise AssertionError(f"{case.name} {schedule}: wrong before any change: {problems[0]}")
            budget[case.name] = max(budget.get(case.name, 0), 3 * outcome.insts + 100000)
    for index, kernel in enumerate(compiled):
        chosen = [m for m in mutants(kernel.program) if m[0] in kinds and kernel.hits[m[1]]]
        for what, pc, row in chosen[offset::every]:
            changed = [*compiled[:index], _changed(kernel, pc, row), *compiled[index + 1:]]
            noticed = ""
            for schedule in SCHEDULES:
                for case in rows:
                    if not noticed:
                        _, problems = runs.run(changed, variant, case, schedule, max_insts=budget[case.name])
                        noticed = f"{schedule} {case.name}: {_kind(problems[0])}" if problems else ""
            yield Verdict(kernel.name, what, kernel.program.at(pc), noticed)


def report(variant, kinds, every, offset, show_all=False):
    """Print the verdicts and a count a kernel. Returns how many were not noticed."""
    count, missed, start = {}, {}, time.time()
    for v in verdicts(variant, kinds, every, offset):
        key = v.kernel, v.what
        count[key] = count.get(key, 0) + 1
        missed[key] = missed.get(key, 0) + (not v.noticed)
        if show_all or not v.noticed:
            print(v, flush=True)
    for (kernel, what), n in count.items():
        print(f"{kernel} {what}: {n - missed[kernel, what]} of {n} noticed")
    print(f"{time.time() - start:.0f} s", flush=True)
    return sum(missed.values())
