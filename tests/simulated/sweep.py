"""Runs the whole list of cases and keeps what came out in results/ (records.py). Goes on where it stopped: what is recorded of the same kernels is not run again.

    PYTHONPATH=tests python -m simulated.sweep                                  everything that is missing
    PYTHONPATH=tests python -m simulated.sweep direct sm_100a decode            variants whose label holds these words
    PYTHONPATH=tests python -m simulated.sweep stand_in 10.0 --schedules eager,lazy
    PYTHONPATH=tests python -m simulated.sweep --again                          all of it anew
    PYTHONPATH=tests python -m simulated.sweep status | forget | table          what is missing; remove stale records; README.md's table, which a sweep writes too

`direct` is a variant of aot/variants.py in all schedules. `stand_in` is jax.jit on a pretended GPU, whose classes of calls are "<capability>.<implementation>.<format>.<layout>".
"""
import argparse
import dataclasses
import itertools
import os
import pathlib
import subprocess
import sys
import time

from jax_fp4_indexer.aot import variants
from ptxsim import kernels

from . import cases, records, selection, summary

# The order is that of the work: Blackwell's own kernels, portable ones, those of sm_90a. 8.6 has the kernels of 8.0; the portable kernels of sm_90a to sm_120a have one text.
ARCHS = ("sm_100a", "sm_103a", "sm_80", "sm_90a", "sm_120a")
CAPABILITIES = {"10.0": "decode,prefill", "10.3": "decode,prefill", "9.0": "decode,prefill", "8.0": "portable", "12.0": "portable"}
EACH_VARIANT_ONCE = ("10.0", "10.3")        # where an implementation, format and layout is one variant: run in all schedules, which spares running it directly
STAND_IN_SCHEDULES = ("eager", "lazy", "random:1")


@dataclasses.dataclass(frozen=True)
class Work:
    """What one record is about."""
    through: str
    label: str
    path: str               # whose rows: decode, prefill, or both for the portable kernels of a pretended GPU
    format: str
    layout: str
    variant: object = None          # direct
    implementation: str = ""        # stand_in
    match: str = ""                 # parts of names of rows

    @property
    def rows(self):
        return list({c.name: c for path in self.path.split("+") for c in cases.of(path, self.format, self.match)}.values())

    @property
    def schedules(self):
        return selection.SCHEDULES if self.through == "direct" or self.label.startswith(EACH_VARIANT_ONCE) else STAND_IN_SCHEDULES


def everything():
    """All Work in order."""
    place = lambda v: (v.implementation != "native" or v.arch == "sm_90a", v.implementation == "native", ARCHS.index(v.arch))
    direct = [Work("direct", selection.label(v), v.path, v.format, v.scale_layout, v) for v in sorted(selection.all_variants(), key=place)]
    through = [Work("stand_in", f"{capability}.{how}.{f}.{s}", "decode+prefill" if how == "portable" else how, f, s, implementation=how)
               for capability, implementations in CAPABILITIES.items() for how in implementations.split(",") for f in variants.FORMATS for s in variants.SCALE_LAYOUTS]
    first = [w for w in through if w.label.startswith(EACH_VARIANT_ONCE)]
    return first + direct + [w for w in through if w not in first]


def chosen(words, match=""):
    found = [dataclasses.replace(w, match=match) for w in everything() if all(word in f"{w.through}.{w.label}" for word in words)]
    if not found:
        sys.exit(f"nothing has {' and '.join(words)} in its name; names look like direct.{selection.label(variants.VARIANTS[0])} and {everything()[0].through}.{everything()[0].label}")
    return found


def current(store, work):
    """The record of `work`, or None if there is none of these kernels."""
    record = store.read(work.through, work.label)
    return None if record is None or records.stale(record) else record


def covered(store, work, schedule):
    """The name of another record in which the same texts ran the same rows, or None: portable kernels of several archs have one text, and
    what calls through the stand-in driver launched has run. Only of `direct`."""
    if work.through != "direct":
        return None
    entries, rows = _entries(kernels.load(work.variant.launches)), {records.row_id(c) for c in work.rows}
    for r in store.records():
        if (r["through"], r["label"]) != (work.through, work.label) and schedule in r["runs"] and records.same_kernels(r["kernels"], entries):
            done = store.tally(r["runs"][schedule])
            if done.good and set(done.rows) == rows:
                return f"{r['through']}.{r['label']}"
    return None


def missing(store, record, work, schedule):
    """(rows to run, the Tally to add them to or None)."""
    rows = work.rows
    if record is None or schedule not in record["runs"]:
        return rows, None
    done = store.tally(record["runs"][schedule])
    have, ids = set(done.rows), {records.row_id(c): c for c in rows}
    if not done.good or not have <= ids.keys():     # wrong, or a row has changed: its old result cannot be taken out of the sums
        return rows, None
    return [c for i, c in ids.items() if i not in have], done


def _entries(compiled):
    return [records.kernel_entry(k) for k in compiled]


def _forget_counts(compiled):
    for k in compiled:
        k.hits[:] = 0
        k.phases.clear()


class _Direct:
    def run(self, work, schedule, rows, tally):
        """Fill the tally. Returns the compiled kernels that were launched."""
        compiled = kernels.load(work.variant.launches)
        _forget_counts(compiled)
        for case in rows:
            outcome, problems = selection.run(compiled, work.variant, case, schedule)
            tally.count(case, work.path, outcome and outcome.scores, outcome.faults if outcome else problems)
            tally.instructions += outcome.insts if outcome else 0
        return compiled


class _PretendedGpu:
    """The stand-in driver of this process, and the programs of one Work, which its schedules share."""

    def __init__(self, capability, works):
        from . import stand_in
        portable = any(w.implementation == "portable" for w in works)       # else their kernels need not be compiled
        table = [v for v in variants.VARIANTS if portable or v.implementation == "native"]
        self.stand_in, self.device = stand_in, stand_in.install(tuple(int(x) for x in capability.split(".")), table=table)
        self.work, self.programs = None, {}

    def run(self, work, schedule, rows, tally):
        """As _Direct.run."""
        if work != self.work:
            self.work, self.programs = work, {}
        launched, self.device.schedule = set(), schedule
        _forget_counts(self.device.kernels.values())
        for case in rows:
            inp = selection.built(case.table)[0]
            if case.name not in self.programs:
                self.programs[case.name] = self.stand_in.program(inp, work.layout, work.implementation, case.passes_of)
            scores = self.stand_in.call(self.device, self.programs[case.name], inp, work.layout)
            launched |= set(self.device.launched)
            tally.instructions += self.device.instructions
            tally.count(case, work.path, scores, self.device.problems)
        return [k for symbol, k in self.device.kernels.items() if symbol in launched]


def run(store, work, schedule, runner, again=False):
    """One schedule of one Work: what is missing is run and recorded. Returns the Tally of it, or None if nothing was missing."""
    record = None if again else current(store, work)
    rows, before = missing(store, record, work, schedule)
    if not rows:
        return None
    tally, start = records.Tally(), time.time()
    launched = runner.run(work, schedule, rows, tally)
    tally.see(launched)
    tally.seconds = time.time() - start
    store.write(work.through, work.label, _entries(launched), {schedule: before.add(tally) if before else tally}, keep=current(store, work) is not None)
    return tally


def _work_through(store, pairs, runner, args):
    """pairs: (Work, schedule) in order. Returns whether anything was wrong."""
    bad = False
    for work, schedule in pairs:
        if schedule not in work.schedules or args.schedules and schedule not in args.schedules.split(","):
            continue
        if time.time() > args.deadline:
            print("stopped: the time is over", flush=True)
            break
        tally = None if not args.again and covered(store, work, schedule) else run(store, work, schedule, runner, args.again)
        if tally:
            bad |= not tally.good
            print(f"{work.through} {work.label} {schedule}: {len(tally.rows)} rows, {tally.exact} exact, {tally.reports} reports, {len(tally.wrong)} wrong, "
                  f"{tally.seconds:.1f} s, {tally.instructions / 1e6:.1f} M warp instructions", *tally.wrong[:3], sep="\n  ", flush=True)
    return bad


def _sweep(args):
    store, works = records.Store(args.results), chosen(args.words, args.cases)
    if args.capability:         # a process of its own, for it pretends one GPU for good
        os.environ["JAX_PLATFORMS"] = "cpu"
        works = [w for w in works if w.through == "stand_in" and w.label.startswith(args.capability)]
        return _work_through(store, itertools.product(works, selection.SCHEDULES), _PretendedGpu(args.capability, works), args)      # schedules share programs
    bad = False
    kernels.load(variants.kernels_of([w.variant for w in works if w.variant]))      # one compiler process an arch
    for through, group in itertools.groupby(works, lambda w: w.through):
        if through == "direct":
            pairs = [(work, schedule) for schedule, work in itertools.product(selection.SCHEDULES, list(group))]     # if the time ends, all has run in some schedule
            bad |= _work_through(store, pairs, _Direct(), args)
            continue
        for capability in dict.fromkeys(".".join(w.label.split(".")[:2]) for w in group):
            minutes = ["--minutes", str((args.deadline - time.time()) / 60)] if args.minutes else []
            options = [*args.words, "--results", args.results, "--schedules", args.schedules, "--cases", args.cases, "--capability", capability, *["--again"] * args.again, *minutes]
            bad |= subprocess.run([sys.executable, "-m", "simulated.sweep", *map(str, options)]).returncode != 0
    _finish(store)
    return bad


def _finish(store):
    if store.folder == records.FOLDER:
        summary.README.write_text(summary.replaced(summary.README.read_text(), store.records()))


def status(store, words):
    """A line for each Work of which something is missing. Returns how many there are."""
    count = 0
    for work in chosen(words):
        record = store.read(work.through, work.label)
        old = records.stale(record) if record else []
        left = {schedule: len(missing(store, None if old else record, work, schedule)[0]) for schedule in work.schedules}
        left = {schedule: n for schedule, n in left.items() if n and not covered(store, work, schedule)}
        if old or left:
            count += 1
            print(f"{work.through} {work.label}: " + "; ".join([*old, "rows to run: " + ", ".join(f"{s} {n}" for s, n in left.items())]))
    return count


def main():
    parser = argparse.ArgumentParser(prog="python -m simulated.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="status, forget or table; else parts of names, all of which a name has to hold")
    parser.add_argument("--schedules", default="", help="of these only")
    parser.add_argument("--again", action="store_true", help="run also what is recorded")
    parser.add_argument("--minutes", type=float, help="begin nothing after so many")
    parser.add_argument("--results", default=records.FOLDER, type=pathlib.Path)
    parser.add_argument("--cases", default="", help="parts of names of rows, separated by commas; only with --results of your own")
    parser.add_argument("--capability", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cases and args.results == records.FOLDER:
        parser.error("--cases leaves rows out: name a folder with --results, so that the tree's records stay whole")
    args.deadline = time.time() + 60 * args.minutes if args.minutes else float("inf")
    store, command = records.Store(args.results), args.words[0] if args.words else ""
    if command == "status":
        sys.exit(status(store, args.words[1:]) > 0)
    elif command == "forget":
        for record in store.records():
            if records.stale(record):
                store.forget(record["through"], record["label"])
                print(f"removed: {record['through']} {record['label']}")
    elif command == "table":
        _finish(store)
    else:
        sys.exit(_sweep(args))


if __name__ == "__main__":
    main()
