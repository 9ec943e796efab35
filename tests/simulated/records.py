"""What the simulator has run, kept in results/: one small JSON file a variant, or a class of calls through the stand-in driver.

    results/direct/sm_100a.native.decode.nvfp4.public.n0.json       the variant's launches (selection.run)
    results/stand_in/10.0.native.decode.nvfp4.public.json           jax.jit, the C++ handler and the manifest around them (stand_in.py)

A file says of which kernels it speaks (`kernels`, by their names in the manifest) and what came out in each schedule (`runs`). It is stale when a kernel of the tree
executes another text than the one it names; comments, other files and names of modules do not make it so. Rows that a list of cases has gained since are named by `missing` and run by the next sweep.
"""
import dataclasses
import functools
import hashlib
import json
import pathlib

import numpy as np

from jax_fp4_indexer.aot import variants
from ptxsim import cache, kernels

from . import golden, launches, selection

FOLDER = cache.HERE / "results"
THROUGH = ("direct", "stand_in")
COVERAGE = 0.95         # share of a kernel's static instructions that some schedule has to execute
RING = 3                # phases that every mbarrier completes in some CTA: its ring has gone around twice
KEPT_PROBLEMS = 20
RENEW = "PYTHONPATH=tests python -m simulated.sweep"


@dataclasses.dataclass
class Tally:
    """Results of one schedule over some rows; `add` takes another tally of the same kernels over other rows."""
    rows: list = dataclasses.field(default_factory=list)        # ids
    slots: int = 0
    exact: int = 0          # rows whose finite scores have the reference's bits (0.0 == -0.0)
    h200: int = 0           # of those, rows whose scores have the bits that an H200 computed (golden/exact.json)
    worst: float = 0.0      # error over sum of magnitudes
    reports: int = 0        # faults that the simulator reported
    wrong: list = dataclasses.field(default_factory=list)       # "case: problem"
    bits: int = 0           # of all scores, whatever the order of the rows
    executed: dict = dataclasses.field(default_factory=dict)    # kernel -> share of its instructions
    missed: dict = dataclasses.field(default_factory=dict)      # kernel -> "all instructions: those that did not run", as 2911: 3-7,20
    phases: dict = dataclasses.field(default_factory=dict)      # kernel -> least phases that one of its mbarriers completed
    instructions: int = 0   # of warps
    seconds: float = 0.0

    def count(self, case, path, scores, reports):
        """One row. scores: float32, or None where the call failed; reports: sentences of the simulator."""
        inp, truth = selection.built(case.table)
        result, problems = (None, []) if scores is None else launches.judge(scores, truth, case.table.exact)
        self.rows.append(row_id(case))
        self.reports += len(reports)
        if result is not None:
            self.slots += scores.size
            self.worst = max(self.worst, result.worst)
            self.bits ^= int(golden.digest(scores, case.name), 16)
            self.exact += case.table.exact and result.ok
            card = golden.exact(inp, path) if case.table.exact else None
            self.h200 += card is not None
            if card not in (None, golden.digest(scores)):
                problems.append("the scores have not the bits of the H200")
        self.wrong += [f"{case.name}: {p}" for p in (*reports, *problems)]

    def see(self, compiled):
        """After the last row: what ran of the kernels, whose counts are of this schedule alone."""
        for k in compiled:
            self.executed[k.name] = round(k.coverage, 4)
            self.missed[k.name] = f"{k.hits.size}: {_ranges(np.nonzero(k.hits == 0)[0])}"
            self.phases[k.name] = min(k.phases.values(), default=RING)

    def add(self, other):
        most = lambda a, b: {k: max(a.get(k, 0), b.get(k, 0)) for k in {**a, **b}}
        executed, missed = most(self.executed, other.executed), {**self.missed, **other.missed}
        for k in self.missed.keys() & other.missed.keys():
            size, both = int(self.missed[k].partition(":")[0]), sorted(_numbers(self.missed[k]) & _numbers(other.missed[k]))
            executed[k], missed[k] = round(1 - len(both) / size, 4), f"{size}: {_ranges(both)}"
        return Tally(self.rows + other.rows, self.slots + other.slots, self.exact + other.exact, self.h200 + other.h200, max(self.worst, other.worst),
                     self.reports + other.reports, self.wrong + other.wrong, self.bits ^ other.bits, executed, missed, most(self.phases, other.phases),
                     self.instructions + other.instructions, self.seconds + other.seconds)

    @property
    def good(self):
        return not self.wrong and not self.reports


def _ranges(numbers):
    """[3, 4, 5, 9] -> "3-5,9"."""
    found = []
    for n in map(int, numbers):
        if found and found[-1][1] == n - 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in found)


def _numbers(missed):
    """The set of an entry of Tally.missed."""
    parts = [p.partition("-") for p in missed.partition(": ")[2].split(",") if p]
    return {n for a, _, b in parts for n in range(int(a), int(b or a) + 1)}


@functools.cache
def _row_id(name):
    case = _known[name]
    inp, truth = selection.built(case.table)
    h = hashlib.blake2b(repr((name, inp.digest(), case.passes_of, case.table.exact)).encode(), digest_size=4)
    for where in (np.isneginf(truth.scores), np.isnan(truth.scores)):
        h.update(np.packbits(where).tobytes())
    return h.hexdigest()


_known = {}


def row_id(case):
    """8 hex digits: the inputs, how the row is judged, where -inf and NaN belong."""
    _known[case.name] = case
    return _row_id(case.name)


# ---- kernels
def stamp(compiled):
    """16 hex digits of what a launch executes: the text, and how it is launched."""
    facts = [compiled.block, compiled.cluster, compiled.grid, compiled.dynamic_shared_bytes, compiled.params]
    return hashlib.sha256((json.dumps(facts) + compiled.text).encode()).hexdigest()[:16]


def kernel_entry(compiled):
    return {"name": compiled.name, "arch": compiled.arch, "text": stamp(compiled)}


@functools.cache
def tree():
    """{(arch, name in the manifest): stamp} of every kernel of aot/variants.py."""
    return {(k.arch, k.name): stamp(k) for k in kernels.load(list(variants.KERNELS))}


def stale(record):
    """Sentences: which kernels of a record the tree does not have any more, or with another text."""
    found = []
    for entry in record["kernels"]:
        text = tree().get((entry["arch"], entry["name"]))
        if text is None:
            found.append(f"{entry['arch']} {entry['name']}: no such kernel in aot/variants.py")
        elif text != entry["text"]:
            found.append(f"{entry['arch']} {entry['name']}: its PTX is {text}, the record's {entry['text']}")
    return found


@functools.cache
def simulator():
    """8 hex digits of the core's C sources."""
    h = hashlib.sha256()
    for file in sorted((cache.HERE / "core").glob("*.[ch]")):
        h.update(file.read_bytes())
    return h.hexdigest()[:8]


# ---- files
class Store:
    """A folder of records. Lists of rows are kept once, in rows.json: {id of a list: its rows' ids in one string}."""

    def __init__(self, folder=FOLDER):
        self.folder = pathlib.Path(folder)

    def _lists(self):
        path = self.folder / "rows.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def records(self):
        """[{through, label, kernels, runs}] of all files."""
        return [json.loads(p.read_text()) for through in THROUGH for p in sorted((self.folder / through).glob("*.json"))]

    def read(self, through, label):
        """The record or None."""
        path = self._path(through, label)
        return json.loads(path.read_text()) if path.exists() else None

    def _path(self, through, label):
        return self.folder / through / f"{label}.json"

    def forget(self, through, label):
        self._path(through, label).unlink(missing_ok=True)

    def tally(self, run):
        """The Tally of an entry of a record's `runs`."""
        fields = {f.name for f in dataclasses.fields(Tally)}
        return Tally(**{**{k: v for k, v in run.items() if k in fields}, "rows": self._lists()[run["rows"]].split(), "bits": int(run["bits"], 16)})

    def write(self, through, label, entries, tallies, keep):
        """tallies: {schedule: Tally}, in place of what the record holds for those schedules. keep: its other schedules and kernels stay."""
        old, lists = self.read(through, label), self._lists()
        written = old["runs"] if keep else {}
        entries = list({(e["arch"], e["name"]): e for e in [*(old["kernels"] if keep else []), *entries]}.values())
        for schedule, t in tallies.items():
            rows = sorted(t.rows)
            key = hashlib.blake2b("".join(rows).encode(), digest_size=4).hexdigest()
            lists[key] = " ".join(rows)
            written[schedule] = {**dataclasses.asdict(t), "rows": key, "cases": len(rows), "wrong": t.wrong[:KEPT_PROBLEMS], "bits": f"{t.bits:016x}",
                                 "worst": float(f"{t.worst:.3g}"), "seconds": round(t.seconds, 1), "simulator": simulator()}
        record = {"through": through, "label": label, "kernels": entries, "runs": {s: written[s] for s in selection.SCHEDULES if s in written}}
        _write(self._path(through, label), record)
        used = {r["rows"] for record in self.records() for r in record["runs"].values()}
        _write(self.folder / "rows.json", {k: lists[k] for k in sorted(used)})


def same_kernels(a, b):
    """Do two lists of entries name the same texts?"""
    return sorted(e["text"] for e in a) == sorted(e["text"] for e in b)


def _write(path, value):
    """JSON with a line for each kernel and each schedule."""
    deep = lambda v, n: json.dumps(v) if n == 0 or not isinstance(v, (dict, list)) or not v else (
        "{\n" + ",\n".join(f"{' ' * (3 - n)}{json.dumps(k)}: {deep(x, n - 1)}" for k, x in v.items()) + "}" if isinstance(v, dict) else
        "[\n" + ",\n".join(" " * (3 - n) + deep(x, n - 1) for x in v) + "]")
    cache.replace(path, lambda to: to.write_text(deep(value, 2) + "\n"))
