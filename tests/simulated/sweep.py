"""Runs the whole list of cases and keeps what came out in the ledger (ledger.py). Goes on where it stopped: what the ledger or the cache of results holds is not run again.

    PYTHONPATH=.:tests python -m simulated.sweep                                everything that is missing or stale (make evidence)
    PYTHONPATH=.:tests python -m simulated.sweep direct sm_100a decode          variants whose name holds these words
    PYTHONPATH=.:tests python -m simulated.sweep stand_in 10.0 --schedules eager,lazy
    PYTHONPATH=.:tests python -m simulated.sweep --again                        all of it anew
    PYTHONPATH=.:tests python -m simulated.sweep status                         what is missing or stale; exit code 1 if anything is
    PYTHONPATH=.:tests python -m simulated.sweep table                          README.md's table anew, which a sweep writes too

`direct` is a variant of the table of variants in all schedules. `stand_in` is jax.jit on a pretended GPU, whose classes of calls are "<capability>.<implementation>.<format>.<layout>".
Several processes may share the work: --part 2/3 takes every third line, from the second on; each writes what it ran.
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

from harness import registry
from harness.protocol import Verdict

from . import launches, ledger, results, selection, summary

# The order is that of the work: Blackwell's own kernels, portable ones, those of sm_90a. 8.6 has the kernels of 8.0; the portable kernels of sm_90a to sm_120a have one text.
ARCHS = ("sm_100a", "sm_103a", "sm_80", "sm_90a", "sm_120a")
CAPABILITIES = {
    "10.0": "decode,prefill",
    "10.3": "decode,prefill",
    "9.0": "decode,prefill",
    "8.0": "portable",
    "12.0": "portable",
}
EACH_VARIANT_ONCE = (
    "10.0",
    "10.3",
)  # where an implementation, format and layout is one variant: run in all schedules, which spares running it directly
STAND_IN_SCHEDULES = ("eager", "lazy", "random:1")


@dataclasses.dataclass(frozen=True)
class Work:
    """What one line of the ledger is about."""

    through: str
    label: str
    op: str
    choices: tuple  # ((choice, value), ...): rows that fit them are run
    variant: object = None  # direct
    implementation: str = ""  # stand_in
    match: str = ""  # parts of names of rows

    @property
    def name(self):
        return f"{self.through}/{self.label}"

    @property
    def rows(self):
        rows = registry.op(self.op).cases(**dict(self.choices))
        return [c for c in rows if any(part in c.name for part in self.match.split(","))]

    @property
    def schedules(self):
        return (
            selection.SCHEDULES
            if self.through == "direct" or self.label.startswith(EACH_VARIANT_ONCE)
            else STAND_IN_SCHEDULES
        )


def everything():
    """All Work in order."""
    place = lambda v: (
        v.implementation != "native" or v.arch == "sm_90a",
        v.implementation == "native",
        ARCHS.index(v.arch),
    )
    direct = [
        Work("direct", selection.label(v), v.op, v.select, v) for v in sorted(selection.all_variants(), key=place)
    ]
    through = [
        Work(
            "stand_in",
            f"{capability}.{how}.{f}.{s}",
            "block_scores",
            (*([] if how == "portable" else [("path", how)]), ("format", f), ("scale_layout", s)),
            implementation=how,
        )
        for capability, implementations in CAPABILITIES.items()
        for how in implementations.split(",")
        for f in variants.block_scores.FORMATS
        for s in variants.block_scores.SCALE_LAYOUTS
    ]
    first = [w for w in through if w.label.startswith(EACH_VARIANT_ONCE)]
    return first + direct + [w for w in through if w not in first]


def chosen(words, match=""):
    found = [dataclasses.replace(w, match=match) for w in everything() if all(word in w.name for word in words)]
    if not found:
        sys.exit(
            f"nothing has {' and '.join(words)} in its name; names look like {' and '.join(sorted({w.through: w.name for w in everything()}.values()))}"
        )
    return found


def ids_of(work):
    return {results.row_id(work.op, c) for c in work.rows}


def current(lines, work):
    """The line of `work`, or None if there is none of these kernels, rows and simulator."""
    value = lines.get(work.name)
    return None if value is None or ledger.stale(value, ids_of(work)) else value


def covered(lines, work, schedule):
    """The name of another line in which the same texts ran the same rows in the same simulator, or None: portable kernels of several archs have
    one text, and what calls through the stand-in driver launched has run. Only of `direct`."""
    if work.through != "direct":
        return None
    texts, rows = (
        sorted(results.stamp(k) for k in kernels.load(work.variant.launches)),
        results.rows_digest(ids_of(work)),
    )
    for name, value in lines.items():
        if (
            name != work.name
            and schedule in value["schedules"]
            and not value["wrong"]
            and (value["rows"], value["simulator"]) == (rows, results.simulator())
            and sorted(e["text"] for e in value["kernels"].values()) == texts
        ):
            return name
    return None


def missing(lines, work):
    """The schedules that have not run, in order."""
    value = current(lines, work)
    done = [] if value is None or value["wrong"] else value["schedules"]
    return [s for s in work.schedules if s not in done and not covered(lines, work, s)]


class _Direct:
    def run(self, work, schedule, again=False):
        """(compiled kernels that were launched, ledger.Sum) of every row."""
        compiled, total = kernels.load(work.variant.launches), ledger.Sum()
        rows, _ = results.sweep(compiled, work.variant, schedule, work.rows, again=again)
        for row in rows:
            total.add(row)
            for i, k in enumerate(compiled if row.hits else ()):
                total.see(ledger.name_of(k), row.executed(i, len(k.program.code)), row.phases[i])
        return compiled, total


class _PretendedGpu:
    """The stand-in driver of this process, and the programs of one Work, which its schedules share."""

    def __init__(self, capability, works):
        from . import stand_in

        portable = any(w.implementation == "portable" for w in works)  # else their kernels need not be compiled
        table = [v for v in variants.VARIANTS if portable or v.implementation == "native"]
        self.stand_in, self.device = (
            stand_in,
            stand_in.install(tuple(int(x) for x in capability.split(".")), table=table),
        )
        self.work, self.programs = None, {}

    def run(self, work, schedule, again=False):
        """As _Direct.run; every row runs."""
        if work != self.work:
            self.work, self.programs = work, {}
        launched, total, self.device.schedule = set(), ledger.Sum(), schedule
        for k in self.device.kernels.values():
            k.hits[:] = 0
            k.phases.clear()
        tests, choices = registry.op(work.op), dict(work.choices)
        for case in work.rows:
            if case.name not in self.programs:
                self.programs[case.name] = self.stand_in.program(tests, case, choices, work.implementation)
            found = self.stand_in.call(self.device, self.programs[case.name], tests, case, choices)
            launched |= set(self.device.launched)
            row = results.judged(
                tests,
                case,
                choices,
                found,
                tests.compare(case, found) if found else Verdict([]),
                self.device.problems + launches.unwritten(found or {}),
            )
            row.instructions = self.device.instructions
            total.add(row)
        compiled = [k for symbol, k in self.device.kernels.items() if symbol in launched]
        for k in compiled:
            total.see(ledger.name_of(k), k.hits > 0, dict(k.phases))
        return compiled, total


def run(book, work, schedule, runner, again=False):
    """One schedule of one Work is run and put into the ledger. Returns its Sum."""
    start = time.time()
    compiled, total = runner.run(work, schedule, again)
    total.seconds = time.time() - start
    book.put(work.name, lambda old: ledger.with_schedules(old, ledger.line(compiled, {schedule: total})))
    return total


def _work_through(book, pairs, runner, args):
    """pairs: (Work, schedule) in order. Returns whether anything was wrong."""
    bad = False
    for work, schedule in pairs:
        if schedule not in work.schedules or args.schedules and schedule not in args.schedules.split(","):
            continue
        if time.time() > args.deadline:
            print("stopped: the time is over", flush=True)
            break
        if not args.again and schedule not in missing(book.lines(), work):
            continue
        total = run(book, work, schedule, runner, args.again)
        bad |= bool(total.wrong)
        print(
            f"{work.name} {schedule}: {len(total.ids)} rows, {total.exact} exact, {total.reports} reports, {len(total.wrong)} wrong, "
            f"{total.seconds:.1f} s, {total.instructions / 1e6:.1f} M warp instructions",
            *total.wrong[:3],
            sep="\n  ",
            flush=True,
        )
    return bad


def _sweep(args):
    book, works = ledger.Ledger(args.ledger), chosen(args.words, args.cases)
    index, count = (int(x) for x in args.part.split("/"))
    works = works[index - 1 :: count]
    if args.capability:  # a process of its own, for it pretends one GPU for good
        os.environ["JAX_PLATFORMS"] = "cpu"
        works = [w for w in works if w.through == "stand_in" and w.label.startswith(args.capability)]
        return _work_through(
            book, itertools.product(works, selection.SCHEDULES), _PretendedGpu(args.capability, works), args
        )  # schedules share programs
    bad = False
    kernels.load(variants.kernels_of([w.variant for w in works if w.variant]))  # one compiler process an arch
    for through, group in itertools.groupby(works, lambda w: w.through):
        if through == "direct":
            pairs = [
                (work, schedule) for schedule, work in itertools.product(selection.SCHEDULES, list(group))
            ]  # if the time ends, all has run in some schedule
            bad |= _work_through(book, pairs, _Direct(), args)
            continue
        for capability in dict.fromkeys(".".join(w.label.split(".")[:2]) for w in group):
            minutes = ["--minutes", str((args.deadline - time.time()) / 60)] if args.minutes else []
            options = [
                *args.words,
                "--ledger",
                args.ledger,
                "--schedules",
                args.schedules,
                "--cases",
                args.cases,
                "--part",
                args.part,
                "--capability",
                capability,
                *["--again"] * args.again,
                *minutes,
            ]
            bad |= subprocess.run([sys.executable, "-m", "simulated.sweep", *map(str, options)]).returncode != 0
    _write_table(book)
    return bad


def _write_table(book):
    if book.path == ledger.FILE:
        summary.README.write_text(summary.replaced(summary.README.read_text(), book.lines()))


def status(book, words):
    """A sentence for each Work of which something is stale or missing."""
    found, lines = [], book.lines()
    for work in chosen(words):
        old = ledger.stale(lines[work.name], ids_of(work)) if work.name in lines else []
        left = missing(lines, work)
        if left:
            found.append(f"{work.name}: " + "; ".join([*old, "schedules to run: " + ", ".join(left)]))
    return found


def main():
    parser = argparse.ArgumentParser(
        prog="python -m simulated.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="*", help="status or table; else parts of names, all of which a name has to hold"
    )
    parser.add_argument("--schedules", default="", help="of these only")
    parser.add_argument("--again", action="store_true", help="run also what the ledger and the cache of results hold")
    parser.add_argument("--minutes", type=float, help="begin nothing after so many")
    parser.add_argument("--part", default="1/1", help="every n-th line, from the i-th on, as i/n")
    parser.add_argument("--ledger", default=ledger.FILE, type=pathlib.Path)
    parser.add_argument(
        "--cases", default="", help="parts of names of rows, separated by commas; only with a --ledger of your own"
    )
    parser.add_argument("--capability", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cases and args.ledger == ledger.FILE:
        parser.error("--cases leaves rows out: name a file with --ledger, so that the tree's lines stay whole")
    args.deadline = time.time() + 60 * args.minutes if args.minutes else float("inf")
    book, command = ledger.Ledger(args.ledger), args.words[0] if args.words else ""
    if command == "status":
        found = status(book, args.words[1:])
        print(*found, *[f"renew: {ledger.RENEW}"] * bool(found), sep="\n")
        sys.exit(bool(found))
    elif command == "table":
        _write_table(book)
    else:
        sys.exit(_sweep(args))


if __name__ == "__main__":
    main()
