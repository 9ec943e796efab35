"""The rows of every op (tests/harness) through the public op under jax.jit on this machine's device, in one process.

    python tests/parity/every_op.py --op batched_gemv --record              # on a GPU
    python tests/parity/every_op.py --op block_scores --tag quick --implementations reference        # anywhere

For each row, choice and implementation: the bar of the op's oracle, the same bits in repeats, with other bytes wherever nothing counts, and of parts
alone. Prints a line for each failure and a summary. Exit status: 0 all bars hold, 1 something failed, 3 rows were left out for lack of time.
Block scores have a program of their own as well, which does more (run.py).
"""

import argparse
import collections
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

import jax  # noqa: E402
import numpy as np  # noqa: E402

from harness import registry  # noqa: E402
from simulated import selection  # noqa: E402
from support import claims  # noqa: E402


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--op", default="", help="one op; default: all that have tests")
    p.add_argument("--tag", help="only rows with this tag, e.g. quick")
    p.add_argument("--cases", default="", help="parts of names of rows, separated by commas")
    p.add_argument(
        "--implementations",
        default="",
        help="values of the op's argument, separated by commas; default: all that request kernels",
    )
    p.add_argument("--repeats", type=int, default=5, help="runs that must give the same bits")
    p.add_argument("--scrambles", type=int, default=1, help="runs with other bytes wherever nothing counts")
    p.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no further row starts")
    claims.add_option(p)
    return p.parse_args(argv)


class Programs:
    """Programs by shapes and static arguments, which many rows share."""

    def __init__(self):
        self.known = {}

    def __call__(self, tests, case, implementation, choices):
        """{result: array}."""
        function, arrays = tests.call(case, implementation, choices)
        static = sorted(
            (k, v if isinstance(v, (int, float, str, bool, type(None))) else id(v))
            for k, v in getattr(function, "keywords", {}).items()
        )
        key = repr((tests.spec.name, static, [(name, x.shape, str(x.dtype)) for name, x in arrays.items()]))
        if key not in self.known:
            self.known[key] = (
                jax.jit(function).lower(**arrays).compile(),
                function,
            )  # the function keeps what `id` names alive
        out = self.known[key][0](**arrays)
        return {
            b.name: np.asarray(x)
            for b, x in zip(tests.spec.results, out if isinstance(out, tuple) else (out,), strict=True)
        }


def bits(x):
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def differences(found, whole):
    return [
        f"{name}: {int((bits(x) != bits(whole[name])).sum())} of {x.size} slots"
        for name, x in found.items()
        if (bits(x) != bits(whole[name])).any()
    ]


def check(run, tests, case, implementation, choices, args, counts):
    """Sentences on what is wrong with one row."""
    found = run(tests, case, implementation, choices)
    verdict = tests.compare(case, found)
    counts["comparisons"] += 1
    counts["exact"] += verdict.exact
    counts["slots"] += sum(x.size for x in found.values())
    problems = list(verdict.problems)
    for _ in range(args.repeats):
        counts["repeats"] += 1
        problems += [f"repeat: {d}" for d in differences(run(tests, case, implementation, choices), found)]
    for seed in range(args.scrambles):
        counts["other bytes"] += 1
        problems += [
            f"bytes that do not count: {d}"
            for d in differences(run(tests, tests.scrambled(case, seed), implementation, choices), found)
        ]
    for part, where in tests.parts(case):
        alone = run(tests, part, implementation, choices)
        for name, (index, own) in where.items():
            counts["parts alone"] += 1
            n = int((bits(alone[name][own].copy()) != bits(found[name][index].copy())).sum())
            problems += [f"{part.name}: {n} slots of {name} differ"] * bool(n)
    return problems, verdict.worst


def main(argv=None):
    args = parse(argv)
    if args.op:
        os.environ["JFI_OP"] = args.op
    device, start, status = jax.devices()[0], time.monotonic(), 0
    for tests in registry.chosen():
        run, counts, failures, worst = Programs(), collections.Counter(), [], 0.0
        implementations = args.implementations.split(",") if args.implementations else tests.implementations()
        for choices in selection.combinations(tests.spec, without=getattr(tests, "made_by_the_op", ())):
            rows = [
                c
                for c in tests.cases(*([args.tag] if args.tag else []), **choices)
                if any(part in c.name for part in args.cases.split(","))
            ]
            for case in rows:
                if time.monotonic() - start > args.time_limit:
                    counts["not run"] += 1
                    continue
                for implementation in implementations:
                    try:
                        problems, error = check(run, tests, case, implementation, choices, args, counts)
                    except Exception as e:  # a row that does not run must not hide the others
                        problems, error = [f"{type(e).__name__}: {str(e).strip()[:300]}"], 0.0
                    worst = max(worst, error)
                    failures += [
                        {"case": case.name, "choices": choices, "implementation": implementation, "what": p}
                        for p in problems
                    ]
                    for p in problems:
                        print(f"FAIL {tests.spec.name} {case.name} {choices} {implementation}: {p}", flush=True)
        print(
            f"{tests.spec.name} on {device.device_kind}: {dict(counts)}, {len(failures)} failures, worst error {worst:.2e}, {time.monotonic() - start:.0f} s",
            flush=True,
        )
        if args.record is not None:
            if not hasattr(device, "compute_capability"):
                raise SystemExit(f"every_op.py: --record is about a GPU, JAX runs on {device.device_kind}")
            capability = tuple(int(x) for x in str(device.compute_capability).split("."))
            print(
                "record:",
                claims.record(
                    f"parity.{tests.spec.name}",
                    {**counts, "worst": worst},
                    failures,
                    name=device.device_kind,
                    capability=capability,
                    folder=args.record,
                ),
            )
        status = 1 if failures or status == 1 else 3 if counts["not run"] else status
    return status


if __name__ == "__main__":
    sys.exit(main())
