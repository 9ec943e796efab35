"""Random calls of the block-score op, valid and not, against an exact oracle.

    PYTHONPATH=.:tests python -m fuzz --seed 1 --cases 10000 --processes 4 --json out.json      # kernels, on a GPU
    PYTHONPATH=.:tests python -m fuzz --seed 1 --case 4711                         # one case again
    PYTHONPATH=.:tests python -m fuzz --implementations reference --cases 200     # anywhere

Exit status: 0 all well, 1 something failed, 3 cases were left out, 4 a case hung.
"""

import argparse
import os
import sys

from support import claims
from support.calls import IMPLEMENTATIONS


def write_record(summary, folder):
    name, capability = claims.card()
    counts = {key: summary[key] for key in ("seed", "buckets", "counts", "right_and_wrong", "slots_compared")}
    return claims.record(
        "fuzz",
        counts,
        summary["failures"],
        name=name,
        capability=capability,
        folder=folder,
        command="python -m fuzz " + " ".join(sys.argv[1:]),
    )


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="fuzz")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--cases", type=int, default=1000)
    p.add_argument("--first", type=int, default=0, help="index of the first case")
    p.add_argument("--case", help="run these cases alone: indices, separated by commas")
    p.add_argument("--list-buckets", action="store_true")
    p.add_argument(
        "--buckets", default="", help="parts of bucket names, separated by commas; changes which case has which index"
    )
    p.add_argument("--implementations", default=",".join(IMPLEMENTATIONS))
    p.add_argument("--processes", type=int, default=1, help="share the buckets over so many processes")
    p.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    p.add_argument("--reference-every", type=int, default=0, help="run the reference, too, on every so many cases")
    p.add_argument("--workers", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 2)))
    p.add_argument("--hang-limit", type=float, default=30, help="seconds a case may take")
    p.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no further case starts")
    p.add_argument("--json")
    claims.add_option(p)
    args = p.parse_args(argv)
    from . import parallel, shapes
    from .run import Fuzzer

    if args.list_buckets:
        print("\n".join(b.name for b in shapes.buckets(args.buckets)))
        return 0
    if args.processes > 1:
        return parallel.run(sys.argv[1:] if argv is None else argv, args.processes, args.json, args.record)
    fuzzer = Fuzzer(
        args.seed,
        args.implementations.split(","),
        match=args.buckets,
        reference_every=args.reference_every,
        workers=args.workers,
        hang_limit=args.hang_limit,
        json_path=args.json,
        time_limit=args.time_limit,
    )
    indices = map(int, args.case.split(",")) if args.case else range(args.first, args.first + args.cases)
    well = fuzzer.run(parallel.part(fuzzer, indices, args.part))
    fuzzer.show()
    fuzzer.write()
    if args.record is not None:
        print("record:", write_record(fuzzer.summary(), args.record))
    return 0 if well else 1 if fuzzer.failures else 3


if __name__ == "__main__":
    sys.exit(main())
