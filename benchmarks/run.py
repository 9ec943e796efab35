"""Every named case, in its formats (some in both scale layouts), into `benchmarks/results/<card>/<op>.json`, a file an
op.

    python benchmarks/run.py [CASE ...] [--op OP] [--quick] [--out FILE]      then: python benchmarks/report.py

For the headline cases plain XLA and the definition under `jit` are timed too. The file is written anew after every
row, so that a run cut short keeps what it has. Needs JAX and NumPy alone.
"""

import argparse
import json
import pathlib
import sys
import time

import jax

from jax_fp4_indexer.bench import cases, limits, run, table
from jax_fp4_indexer.bench.cases import How

RESULTS = pathlib.Path(__file__).parent / "results"


def card():
    """Folder name of the default device: h200, b200, cpu, ..."""
    return jax.devices()[0].device_kind.lower().replace("nvidia", "").strip().replace(" ", "-")


def plan(chosen, quick):
    """[(case, scale layout, bursts, whether the baselines are timed too)], most wanted first."""
    headline = [case for case in chosen if "headline" in case.tags]
    others = [case for case in chosen if case not in headline]
    layout = lambda case: case.scale_layouts[-1]
    if quick:
        return [(case, layout(case), 3, False) for case in headline + others]
    return (
        [(case, layout(case), 7, True) for case in headline]
        + [(case, layout(case), 5, False) for case in others]
        + [(case, other, 5, False) for case in chosen if "layouts" in case.tags for other in case.scale_layouts[:-1]]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names, or all (the default; with --quick the cases for it)")
    parser.add_argument("--op", choices=cases.ops(), default=None, help="the cases of this op alone")
    parser.add_argument("--quick", action="store_true", help="preordered scales only, no baselines, three bursts a row")
    parser.add_argument("--formats", default=None, help="comma-separated; default: all of a case")
    parser.add_argument("--implementation", default=None)
    parser.add_argument("--out", type=pathlib.Path, default=None, help="one file for all rows")
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument(
        "--repeats",
        type=int,
        default=None,
        help="bursts a row (default 7 for the headline cases, else 5; with --quick 3)",
    )
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no further row starts")
    args = parser.parse_args()
    try:
        chosen = cases.select(args.cases or (() if args.quick else ("all",)), args.op, "quick")
    except KeyError as error:
        sys.exit(f"benchmarks/run.py: got the case {error}, expected one of {', '.join(cases.all_cases())}")
    start = time.monotonic()
    rates = limits.measure()
    print(run.describe(rates), f"({time.monotonic() - start:.1f} s)", flush=True)
    rows, left_out, written = [], [], set()
    for case, layout, repeats, baselines in plan(chosen, args.quick):
        for fmt in args.formats.split(",") if args.formats else case.formats:
            if fmt not in case.formats:
                continue
            if time.monotonic() - start > args.time_limit:
                left_out.append(f"{case.name} {fmt} {layout}")
                continue
            rows.append(
                run.run_case(
                    case,
                    How(fmt, layout, args.implementation),
                    rates=rates,
                    warmup=2,
                    iters=args.iters,
                    repeats=args.repeats or repeats,
                    baselines=baselines,
                )
            )
            row = rows[-1]
            print(
                f"{case.name} {fmt} {layout}: burst {row['median_us']:.2f} (range {row['spread_us']:.2f}), "
                f"sustained {row['sustained_us']:.2f} us; "
                f"took {', '.join(f'{k} {v:.1f}' for k, v in row['took_s'].items())} s",
                flush=True,
            )
            out = args.out or RESULTS / card() / f"{case.op}.json"
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps([r for r in rows if args.out or r["op"] == case.op], indent=1) + "\n")
            written.add(str(out))
    print(table.text(rows))
    print(
        f"{len(rows)} rows in {time.monotonic() - start:.0f} s, left out: {left_out or 'none'}; "
        f"wrote {', '.join(sorted(written)) or 'nothing'}"
    )


if __name__ == "__main__":
    main()
