"""Runs kernels in the simulator by hand.

PYTHONPATH=tests python -m simulated run sm_90a.native.decode --cases many_pages --schedules eager,lazy
PYTHONPATH=tests python -m simulated coverage sm_80
PYTHONPATH=tests python -m simulated stats sm_90a.native.decode.nvfp4.public.n16 --cases sim_many_pages-
PYTHONPATH=tests python -m simulated mutate sm_90a.native.decode.nvfp4.public.n16 --sample 80 --seed 1
"""

import argparse
import os
import sys
import time

from ptxsim import kernels, mutate

from . import mutations, selection


def _select(words):
    chosen = [v for v in selection.all_variants() if all(w in selection.label(v) for w in words)]
    if not chosen:
        sys.exit(
            f"no variant has {' and '.join(words)} in its label, e.g. {selection.label(selection.all_variants()[0])}"
        )
    return chosen


def _sweep(variant, args):
    compiled, start, bad, count, insts = kernels.load(variant.launches), time.time(), 0, 0, 0
    for schedule in args.schedules.split(","):
        for case, outcome, problems in selection.sweep(
            compiled, variant, schedule, args.cases, elect_last=args.elect_last
        ):
            count, insts, bad = count + 1, insts + (outcome.insts if outcome else 0), bad + bool(problems)
            for p in problems:
                print(f"{selection.label(variant)} {case.name} {schedule}: {p}", flush=True)
            for note in outcome.notes if outcome and args.notes else ():
                print(f"  note: {case.name} {schedule}: {note}", flush=True)
    print(
        f"{selection.label(variant)}: {count - bad} of {count} right, {insts / 1e6:.1f} M warp instructions, {time.time() - start:.1f} s; executed: "
        + ", ".join(
            f"{k.name} {k.coverage:.1%} of {len(k.hits)}"
            + (f", mbarriers completed {min(k.phases.values())} phases or more" if k.phases else "")
            for k in compiled
        ),
        flush=True,
    )
    return compiled, bad


def _statistics(variant, args):
    """Prints the statistics of every row and kernel in the first schedule."""
    schedule, bad = args.schedules.split(",")[0], 0
    for row, kernel, report, problems in selection.statistics(
        kernels.load(variant.launches), variant, selection.rows(variant, match=args.cases), schedule
    ):
        bad += bool(problems)
        print(
            f"{selection.label(variant)} {row} {schedule}: {kernel.name}\n{report}"
            + "".join(f"\n  wrong: {p}" for p in problems),
            flush=True,
        )
    return bad


def main():
    parser = argparse.ArgumentParser(
        prog="python -m simulated", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command",
        choices=["run", "coverage", "stats", "mutate"],
        help="stats counts what warps execute, and bank conflicts; coverage also lists what did not run; mutate lists the changes that nobody notices",
    )
    parser.add_argument("variants", nargs="*", help="parts of a variant's label, all of which it has to hold")
    parser.add_argument("--cases", default="", help="parts of case names, separated by commas; default: all")
    parser.add_argument("--schedules", default=",".join(selection.SCHEDULES))
    parser.add_argument("--elect-last", action="store_true", help="elect.sync elects the last lane")
    parser.add_argument("--notes", action="store_true", help="print notes as well as faults")
    parser.add_argument("--kinds", default=",".join(mutate.KINDS), help="of changes, separated by commas; default: all")
    parser.add_argument(
        "--sample", type=int, default=0, help="changes of a kernel, of all kinds in turn; default: all of them"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--launches", help="numbers of the variant's launches to change; default: all")
    parser.add_argument(
        "--record",
        nargs="?",
        const=str(mutations.RECORDS),
        help="also put what came out into this file; default: tests/evidence/mutations.json",
    )
    parser.add_argument(
        "--again", action="store_true", help="only the survivors that --record's file has, on other --cases"
    )
    parser.add_argument("--all", action="store_true", help="print the changes that were noticed, too")
    args = parser.parse_args()
    if args.command == "stats":
        os.environ.setdefault("JFI_PTXSIM_LINES", "1")  # roles have the names of their Python functions
    if args.again and not (args.record and args.cases):
        parser.error("--again needs --record and --cases")
    bad, records = 0, []
    for variant in _select(args.variants):
        if args.command == "mutate" and args.again:
            records += mutations.again(variant, args.cases, mutations.load(args.record))
            continue
        if args.command == "mutate":
            launches = [int(i) for i in args.launches.split(",")] if args.launches else None
            records += mutations.report(
                variant,
                args.kinds.split(","),
                match=args.cases or mutations.CASES,
                launches=launches,
                sample=args.sample,
                seed=args.seed,
                show_all=args.all,
            )
            continue
        if args.command == "stats":
            bad += _statistics(variant, args)
            continue
        compiled, wrong = _sweep(variant, args)
        bad += wrong
        for kernel in compiled if args.command == "coverage" else ():
            for line in kernel.not_executed():
                print(f"    {kernel.name} {line}")
    if args.record:
        mutations.save(args.record, records)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
