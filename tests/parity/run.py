"""The whole case table on this machine's device, in one process, without pytest.

    python tests/parity/run.py --make-oracle DIR            # anywhere: float64 oracles into DIR/oracle.npz
    python tests/parity/run.py --oracle DIR --json out.json # on the GPU

Prints a line per failing case and a summary. Exit status: 0 all bars hold, 1 something failed, 3 cases were left out for lack of time,
4 a case hung.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import platform
import sys
import threading
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from support import cases, claims  # noqa: E402


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument(
        "--impl",
        default="decode,prefill_direct,prefill_staged,portable_decode,portable_prefill",
        help="comma-separated: decode, prefill_direct, prefill_staged, portable_decode, portable_prefill, prefill (its form by size), auto, reference",
    )
    p.add_argument("--layout", default="public,preordered_mma")
    p.add_argument("--format", choices=("nvfp4", "mxfp4"))
    p.add_argument("--filter", default="", help="part of a case name; several, separated by commas")
    p.add_argument(
        "--only",
        default="",
        help="these cases alone, by whole names, separated by commas; CASE=IMPLEMENTATION.LAYOUT for one variant of one",
    )
    p.add_argument("--size", choices=("small", "large"))
    p.add_argument(
        "--repeats",
        type=int,
        default=20,
        help="runs that must give the same bits (a quarter of it on outputs above 2^24 slots)",
    )
    p.add_argument("--scrambles", type=int, default=2, help="runs with other bytes wherever nothing counts")
    p.add_argument(
        "--bare",
        action="store_true",
        help="each variant once, judged by the oracle alone, in programs that hold nothing else (for compute-sanitizer)",
    )
    p.add_argument(
        "--ctas",
        type=int,
        default=0,
        help="CTAs of the kernels that fill the GPU (default: what the manifest says), so that a small case takes many turns",
    )
    p.add_argument("--alter", default="", help="comma-separated: what altered_kernels.py does to the kernels")
    p.add_argument("--cubins", help="folder with kernels and a manifest of their own (racecheck_build.py)")
    p.add_argument(
        "--extra",
        default="",
        help="comma-separated: inside_jit (scan, loop, donation; run first), past_2_31 (beyond 2^31)",
    )
    p.add_argument("--no-table", action="store_true", help="only what --extra names")
    p.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no further case starts")
    p.add_argument(
        "--hang-limit",
        type=float,
        default=120,
        help="seconds one case may execute before the run ends with status 4 and says which",
    )
    p.add_argument("--exclude", default="", help="parts of case names to leave out, separated by commas")
    p.add_argument(
        "--workers",
        type=int,
        default=max(1, min(12, (os.cpu_count() or 2) - 2)),
        help="threads that build and compile ahead",
    )
    p.add_argument("--oracle", help="folder of --make-oracle")
    p.add_argument("--make-oracle", metavar="DIR")
    p.add_argument("--json", help="write everything found to this file")
    claims.add_option(p)
    p.add_argument("--list", action="store_true")
    return p.parse_args(argv)


def chosen_pairs(text):
    """{case: its variants, or None for all of them} of --only."""
    wanted = {}
    for name, _, variant in (x.partition("=") for x in text.split(",") if x):
        all_of_it = not variant or wanted.get(name, []) is None
        wanted[name] = None if all_of_it else [*wanted.get(name, []), variant]
    return wanted


def ahead(pool, function, items, depth):
    """function(item) in order, `depth` items computed ahead of the consumer."""
    waiting = collections.deque()
    for item in items:
        waiting.append((item, pool.submit(function, item)))
        if len(waiting) >= depth:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


class Summary:
    """Counts per variant over the run, and the failures."""

    def __init__(self):
        self.variants = collections.defaultdict(
            lambda: dict(
                cases=0,
                passed=0,
                exact=0,
                exact_equal=0,
                slots=0,
                minus_inf=0,
                nan=0,
                inf=0,
                flushed=0,
                worst=0.0,
                worst_case="",
            )
        )
        self.counts, self.failures, self.not_run = collections.Counter(), [], []
        self.seconds, self.of_case = (
            collections.Counter(),
            {},
        )  # of the threads that did it, which overlap; of running and judging each case

    def add(self, report):
        bad = {v for v, _ in report.problems}
        for v, r in report.results.items():
            s = self.variants[v]
            s["cases"] += 1
            s["passed"] += v not in bad
            s["exact"] += r.exact
            s["exact_equal"] += r.exact and r.ok
            for field in ("slots", "minus_inf", "nan", "inf", "flushed"):
                s[field] += getattr(r, field)
            if r.ok and r.worst > s["worst"]:
                s["worst"], s["worst_case"] = r.worst, report.case
        self.counts.update(report.counts)
        for v, what in report.problems:
            self.fail(report.case, v, what)

    def fail(self, case, variant, what):
        self.failures.append(dict(case=case, variant=variant, what=what))
        print(f"FAIL {case} {variant}: {what}", flush=True)

    def show(self, seconds):
        for v, s in sorted(self.variants.items()):
            print(
                f"{v:32s} {s['passed']}/{s['cases']} cases, exact {s['exact_equal']}/{s['exact']} bitwise, worst error {s['worst']:.2e} sum|terms| ({s['worst_case']}), "
                f"{s['slots']} slots, {s['minus_inf']} -inf, {s['nan']} NaN, {s['inf']} inf, {s['flushed']} flushed"
            )
        print("checks:", ", ".join(f"{k} {n}" for k, n in sorted(self.counts.items())) or "none")
        print("seconds:", ", ".join(f"{k} {n:.1f}" for k, n in self.seconds.items()))
        print(f"{len(self.failures)} failures, {len(self.not_run)} cases not run, {seconds:.1f} s", flush=True)


def run_table(args, chosen, summary, deadline):
    import runner
    import numpy as np

    store = runner.OracleStore(Path(args.oracle) / "oracle.npz" if args.oracle else None)
    programs = runner.Programs(args.impl.split(","), args.layout.split(","), comparing=not args.bare)
    wanted = chosen_pairs(args.only)

    def prepare(case, only=None):
        begin = time.monotonic()
        inp = case.build()
        truth, stored = store.get(case, inp)
        built = time.monotonic()
        program = programs.of(inp, only or wanted.get(case.name))
        summary.seconds["build inputs and oracles"] += built - begin
        summary.seconds["compile"] += time.monotonic() - built
        return inp, program, truth, stored

    def judged(case, inp, program, truth, repeats, scrambles):
        """run_case under a watchdog: a hung kernel cannot be interrupted, only left."""

        def leave():
            summary.fail(case.name, "all", f"no end after {args.hang_limit:.0f} s: hung")
            write(args, summary)
            os._exit(4)

        watchdog = threading.Timer(args.hang_limit, leave)
        watchdog.daemon = True
        watchdog.start()
        begin = time.monotonic()
        try:
            return runner.run_case(case, inp, program, truth, repeats, scrambles)
        finally:
            summary.of_case[case.name] = time.monotonic() - begin
            summary.seconds["run and judge"] += summary.of_case[case.name]
            watchdog.cancel()

    canary = next(c for c in cases.table(fmt=args.format) if c.name.startswith("ragged_1-"))
    steady = None
    with concurrent.futures.ThreadPoolExecutor(args.workers) as pool:
        lost = False
        for case, future in ahead(pool, prepare, chosen, args.workers * 2):
            if lost or time.monotonic() > deadline:
                summary.not_run.append(case.name)
                future.cancel()
                continue
            try:
                inp, program, truth, stored = future.result()
                if not stored and args.oracle:
                    summary.counts["oracles recomputed here"] += 1
                if not program.calls:
                    summary.counts["cases no chosen implementation can be asked for"] += 1
                    continue
                large = np.prod(program.out_shape) > 2**24
                summary.add(
                    judged(case, inp, program, truth, args.repeats // 4 if large else args.repeats, args.scrambles)
                )
                if args.bare:
                    print(
                        f"done {case.name} {len(program.calls)} variants, {summary.of_case[case.name]:.2f} s",
                        flush=True,
                    )
                if case.name.startswith("lie_"):  # the next ordinary call must still be right
                    steady = steady or (canary, *prepare(canary, wanted.get(case.name))[:3])
                    summary.add(judged(*steady, 1, 0))
            except (
                Exception
            ) as error:  # a case that raises is a failure; later cases still run unless the device is gone
                summary.fail(case.name, "all", f"{type(error).__name__}: {str(error).strip()[:600]}")
                traceback.print_exc(limit=-3)
                lost = any(
                    word in str(error)
                    for word in (
                        "ILLEGAL_ADDRESS",
                        "LAUNCH_FAILED",
                        "illegal memory access",
                        "unspecified launch failure",
                    )
                )
                if lost:
                    print(
                        "the device context is lost: run the remaining cases in a new process (--exclude this one)",
                        flush=True,
                    )


def write(args, summary, seconds=None):
    if args.record is not None:
        import jax

        device = jax.devices()[0]
        if not hasattr(device, "compute_capability"):
            raise SystemExit(f"run.py: --record is about a GPU, JAX runs on {device.device_kind}")
        counts = {
            "comparisons": {
                v: {k: s[k] for k in ("cases", "passed", "exact", "exact_equal", "slots", "worst")}
                for v, s in sorted(summary.variants.items())
            },
            "checks": dict(summary.counts),
            "cases": len(summary.of_case),
            "not_run": len(summary.not_run),
        }
        path = claims.record(
            "parity",
            counts,
            summary.failures,
            name=device.device_kind,
            capability=tuple(int(x) for x in str(device.compute_capability).split(".")),
            cubins=args.cubins,
            folder=args.record,
        )
        print(f"record: {path}", flush=True)
    if not args.json:
        return
    import jax

    device = jax.devices()[0]
    found = dict(
        jax=jax.__version__,
        device=device.device_kind,
        capability=str(getattr(device, "compute_capability", "")),
        seconds=seconds,
        variants=summary.variants,
        checks=summary.counts,
        seconds_of_case=summary.of_case,
        failures=summary.failures,
        not_run=summary.not_run,
    )
    Path(args.json).write_text(json.dumps(found, indent=1))


def main(argv=None):
    args = parse(argv)
    left_out, wanted = [x for x in args.exclude.split(",") if x], chosen_pairs(args.only)
    chosen = [
        c
        for c in cases.table(args.size, args.format, args.filter)
        if not any(x in c.name for x in left_out) and (not wanted or c.name in wanted)
    ]
    unknown = sorted(set(wanted) - {c.name for c in chosen})
    if unknown:
        sys.exit(
            f"run.py: --only names {', '.join(unknown)}: not among the chosen rows of the case table (--list shows them)"
        )
    if args.list:
        for c in chosen:
            print(f"{c.name:36s} {c.size:6s} {c.compare:8s} {'exact' if c.exact else '':6s} {c.reason}")
        return 0
    start = time.monotonic()
    import runner
    import jax

    if args.make_oracle:
        Path(args.make_oracle).mkdir(parents=True, exist_ok=True)
        path = Path(args.make_oracle) / "oracle.npz"
        runner.OracleStore.save(path, chosen)
        print(f"{path}: {len(chosen)} cases, {path.stat().st_size / 2**20:.1f} MiB, {time.monotonic() - start:.1f} s")
        return 0
    if args.ctas or args.alter or args.cubins:
        import altered_kernels

        altered_kernels.load([x for x in args.alter.split(",") if x], args.ctas, args.cubins)
    device = jax.devices()[0]
    print(f"jax {jax.__version__}, {platform.python_version()}, {device.device_kind}, {len(chosen)} cases", flush=True)
    summary, deadline = Summary(), start + args.time_limit
    summary.seconds["start"] = time.monotonic() - start
    extras = [x for x in args.extra.split(",") if x]
    for name in ("inside_jit", "past_2_31"):
        if name == "past_2_31" and not args.no_table:
            run_table(args, chosen, summary, deadline)
        if name in extras:
            for what, problem in __import__(name).run(args.impl.split(","), args.format):
                summary.counts[name] += 1
                if problem:
                    summary.fail(name, what, problem)
    summary.show(time.monotonic() - start)
    write(args, summary, time.monotonic() - start)
    return 1 if summary.failures else 3 if summary.not_run else 0


if __name__ == "__main__":
    sys.exit(main())
