"""The ledger of what the simulator has run: tests/evidence/ledger.json, a sorted line for each variant and each class of calls through the stand-in driver.

    "direct/sm_100a.native.decode.nvfp4.public.n0"      the variant's launches (results.sweep)
    "stand_in/10.0.native.decode.nvfp4.public"          jax.jit, the C++ handler and the manifest around them (stand_in.py)

A line is a claim, and names what it was made with: the text of every kernel, the list of rows, the code of the simulator. It is stale when one of these is
another in the tree. Lines are written by `make evidence` (sweep.py), never by hand; `make test` says which are stale, `make release-check` fails on them.
"""

import dataclasses
import functools
import json
import pathlib

import numpy as np

from jax_fp4_indexer.aot import variants
from ptxsim import cache, kernels

from . import results, selection

FILE = cache.HERE.parent / "evidence" / "ledger.json"
THROUGH = ("direct", "stand_in")
COVERAGE = 0.95  # share of a kernel's static instructions that some schedule has to execute
RING = 3  # phases that every mbarrier completes in some CTA: its ring has gone around twice
KEPT_PROBLEMS = 5
RENEW = "make evidence"


class StaleEvidence(UserWarning):
    """A claim of another tree. Its text names the command that renews it."""


@dataclasses.dataclass
class Sum:
    """Results over rows, of one schedule or of several."""

    ids: set = dataclasses.field(default_factory=set)
    slots: int = 0
    exact: int = 0
    card: int = 0
    worst: float = 0.0
    bits: int = 0  # of all scores, whatever the order of the rows
    reports: int = 0
    wrong: list = dataclasses.field(default_factory=list)
    instructions: int = 0
    seconds: float = 0.0
    executed: dict = dataclasses.field(default_factory=dict)  # "arch/kernel" -> bool array of its instructions
    phases: dict = dataclasses.field(default_factory=dict)  # "arch/kernel" -> {offset of an mbarrier: phases}

    def add(self, row):
        self.ids.add(row.id)
        self.slots, self.exact, self.card, self.worst = (
            self.slots + row.slots,
            self.exact + row.exact,
            self.card + row.card,
            max(self.worst, row.worst),
        )
        self.bits ^= int(row.bits or "0", 16)
        self.reports, self.wrong, self.instructions = (
            self.reports + len(row.reports),
            self.wrong + row.wrong,
            self.instructions + row.instructions,
        )

    def see(self, name, executed, phases):
        """What ran of a kernel."""
        self.executed[name] = self.executed.get(name, np.zeros(len(executed), bool)) | executed
        known = self.phases.setdefault(name, {})
        for offset, n in phases.items():
            known[offset] = max(n, known.get(offset, 0))


def name_of(kernel):
    """ "sm_90a/block_scores.decode.nvfp4.public.n16", of a compiled kernel: its arch and its name in the manifest."""
    return f"{kernel.arch}/{kernel.name}"


@functools.cache
def tree():
    """{name_of: stamp} of every kernel of the tree."""
    return {name_of(k): results.stamp(k) for k in kernels.load(list(variants.KERNELS))}


def line(compiled, schedules):
    """The value of a line. schedules: {schedule: Sum}, over the same rows."""
    sums = list(schedules.values())
    wrong = [p for s in sums for p in s.wrong]
    if len({s.bits for s in sums}) > 1 and not wrong:
        wrong.append(
            f"the scores depend on the schedule: {', '.join(f'{name} {s.bits:016x}' for name, s in schedules.items())}"
        )
    first, entries = sums[0], {}
    for k in compiled:
        executed = [s.executed[name_of(k)] for s in sums if name_of(k) in s.executed]
        phases = [min(s.phases[name_of(k)].values(), default=RING) for s in sums if name_of(k) in s.phases]
        entries[name_of(k)] = {
            "text": results.stamp(k),
            "executed": round(float(np.logical_or.reduce(executed).mean()), 4),
            "phases": max(phases),
        }
    return {
        "kernels": entries,
        "rows": results.rows_digest(first.ids),
        "cases": len(first.ids),
        "schedules": list(schedules),
        "result": f"{first.bits:016x}",
        "exact": first.exact,
        "card": first.card,
        "slots": first.slots,
        "worst": float(f"{max(s.worst for s in sums):.3g}"),
        "reports": sum(s.reports for s in sums),
        "wrong": wrong[:KEPT_PROBLEMS],
        "instructions": sum(s.instructions for s in sums),
        "seconds": round(sum(s.seconds for s in sums), 1),
        "simulator": results.simulator(),
    }


def with_schedules(old, new):
    """`old` with the schedules of `new`, if both are of the same kernels, rows and simulator and neither has a fault; else `new`."""
    alike = (
        old
        and not old["wrong"]
        and not new["wrong"]
        and not set(old["schedules"]) & set(new["schedules"])
        and all(old[key] == new[key] for key in ("rows", "simulator", "result"))
        and {n: e["text"] for n, e in old["kernels"].items()} == {n: e["text"] for n, e in new["kernels"].items()}
    )
    if not alike:
        return new
    most = {
        n: {"text": e["text"], **{key: max(e[key], old["kernels"][n][key]) for key in ("executed", "phases")}}
        for n, e in new["kernels"].items()
    }
    return {
        **new,
        "kernels": most,
        "schedules": [s for s in selection.SCHEDULES if s in old["schedules"] + new["schedules"]],
        "worst": max(old["worst"], new["worst"]),
        "instructions": old["instructions"] + new["instructions"],
        "seconds": round(old["seconds"] + new["seconds"], 1),
    }


class Ledger:
    """The file: {name: line}."""

    def __init__(self, path=FILE):
        self.path = pathlib.Path(path)

    def lines(self):
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def put(self, name, make):
        """Replace a line by `make` of what it was (None: it was not there). Other processes may write other lines meanwhile."""
        with cache.locked("ledger"):
            lines = self.lines()
            self.write({**lines, name: make(lines.get(name))})

    def write(self, lines):
        text = ",\n".join(f"{json.dumps(name)}: {json.dumps(lines[name], sort_keys=True)}" for name in sorted(lines))
        cache.replace(self.path, lambda to: to.write_text("{\n" + text + "\n}\n"))


def other_kernels(value):
    """Sentences: kernels of a line that the tree does not have any more, or with another text."""
    found = []
    for name, entry in value["kernels"].items():
        text = tree().get(name)
        if text is None:
            found.append(f"{name} is no kernel of the tree")
        elif text != entry["text"]:
            found.append(f"{name} has the text {text}, the line's is {entry['text']}")
    return found


def stale(value, ids=None):
    """Sentences: what of a line is another in the tree; ids: those of its rows today, or None to leave them out."""
    found = other_kernels(value)
    if ids is not None and results.rows_digest(ids) != value["rows"]:
        found.append(f"the list of rows has changed ({value['cases']} rows were run, {len(ids)} are listed)")
    if value["simulator"] != results.simulator():
        found.append(f"it was made with the simulator {value['simulator']}, the tree's is {results.simulator()}")
    return found
