"""Every named case, both formats (for the headline cases also public scales and plain XLA), into `benchmarks/results/<card>/block_scores.json`, with the roofline plot beside it.

    python benchmarks/run.py [CASE ...] [--out FILE]
"""
import argparse
import json
import pathlib

import jax

from jax_fp4_indexer.bench import run, shapes
from roofline import plot

RESULTS = pathlib.Path(__file__).parent / "results"


def card():
    """Folder name of the default device: h200, b200, cpu, ..."""
    return jax.devices()[0].device_kind.lower().replace("nvidia", "").strip().replace(" ", "-")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--formats", default="nvfp4,mxfp4")
    parser.add_argument("--implementation", default=None)
    parser.add_argument("--no-xla", action="store_true")
    parser.add_argument("--out", default=None)
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    out = pathlib.Path(args.out) if args.out else RESULTS / card() / "block_scores.json"
    chosen = shapes.select(args.cases or ("all",))
    headline = [case for case in chosen if case.name in shapes.HEADLINE]
    others = [case for case in chosen if case not in headline]
    rows = []
    # Plain XLA and public scales beside the headline cases only: of all they would take many minutes.
    for cases, layouts, xla in ((headline, ("preordered_mma",), not args.no_xla), (others, ("preordered_mma",), False), (headline, ("public",), False)):
        if cases:
            rows += run.run(cases, args.formats.split(","), layouts, args.implementation, warmup=2, iters=args.iters, repeats=args.repeats, xla=xla, limits=True, json_path=None)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(rows, indent=1) + "\n")
    plot(rows, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
