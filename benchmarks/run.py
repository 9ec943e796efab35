"""Every named case, both formats (for the headline cases also plain XLA, for some public scales), into `benchmarks/results/<card>/block_scores.json`.

    python benchmarks/run.py [CASE ...] [--quick] [--out FILE]      then: python benchmarks/report.py

The file is written anew after every row, so that a run cut short keeps what it has.
"""
import argparse
import json
import pathlib
import time

import jax
from rich.console import Console

from jax_fp4_indexer.bench import limits, run, shapes

RESULTS = pathlib.Path(__file__).parent / "results"


def card():
    """Folder name of the default device: h200, b200, cpu, ..."""
    return jax.devices()[0].device_kind.lower().replace("nvidia", "").strip().replace(" ", "-")


PUBLIC = ("prefill_q8k_k8k", "decode_8k", "decode_64k")         # timed with public scales too


def plan(cases, quick):
    """(case, scale layout, bursts, whether plain XLA runs beside it), most wanted first: within about two minutes for all."""
    headline = [case for case in cases if case.name in shapes.HEADLINE]
    others = [case for case in cases if case not in headline]
    if quick:
        return [(case, "preordered_mma", 3, False) for case in headline + others]
    return ([(case, "preordered_mma", 7, True) for case in headline] + [(case, "preordered_mma", 5, False) for case in others]
            + [(case, "public", 5, False) for case in headline if case.name in PUBLIC])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names, or all (the default; with --quick the headline cases)")
    parser.add_argument("--quick", action="store_true", help="preordered scales only, no plain XLA, three bursts a row")
    parser.add_argument("--formats", default="nvfp4,mxfp4")
    parser.add_argument("--implementation", default=None)
    parser.add_argument("--out", default=None)
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=None, help="bursts a row (default 7 for the headline cases, else 5; with --quick 3)")
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no further row starts")
    args = parser.parse_args()
    start = time.monotonic()
    out = pathlib.Path(args.out) if args.out else RESULTS / card() / "block_scores.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    rates = limits.measure()
    print(run.describe(rates), f"({time.monotonic() - start:.1f} s)", flush=True)
    rows, left_out = [], []
    for case, layout, repeats, xla in plan(shapes.select(args.cases or (shapes.QUICK if args.quick else ("all",))), args.quick):
        for fmt in args.formats.split(","):
            if fmt not in case.formats:
                continue
            if time.monotonic() - start > args.time_limit:
                left_out.append(f"{case.name} {fmt} {layout}")
                continue
            rows.append(run.run_case(case, fmt, layout, args.implementation, rates=rates, warmup=2, iters=args.iters, repeats=args.repeats or repeats, xla=xla))
            row = rows[-1]
            print(f"{case.name} {fmt} {layout}: burst {row['median_us']:.2f} (range {row['spread_us']:.2f}), sustained {row['sustained_us']:.2f} us; took {', '.join(f'{k} {v:.1f}' for k, v in row['took_s'].items())} s", flush=True)
            out.write_text(json.dumps(rows, indent=1) + "\n")
    Console(width=180).print(run.table(rows))
    print(f"{len(rows)} rows in {time.monotonic() - start:.0f} s, left out: {left_out or 'none'}; wrote {out}")


if __name__ == "__main__":
    main()
