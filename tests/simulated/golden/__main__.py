"""Writes exact.json, or with --scores h200.npz, on a machine with a GPU, through jax.jit.

PYTHONPATH=tests:. python -m simulated.golden OUT.json
PYTHONPATH=tests:. python -m simulated.golden --scores OUT.npz
"""

import argparse
import functools
import json
import time

import jax
import numpy as np

import jax_fp4_indexer as jfi
from support import check, oracle

from . import SCORES, digest
from .. import cases


def scores_of(inp, path, layout):
    op = functools.partial(jfi.fp4_indexer_block_scores, implementation=path, **inp.statics(layout))
    return np.array(jax.jit(op)(**inp.arrays(layout)))


def write_exact(out, limit):
    """Every exact row, on both paths; the scale layouts take turns. Returns what was wrong."""
    start, found, wrong, left = time.time(), {}, [], 0
    turn = 0
    for path in ("decode", "prefill"):
        for fmt in ("nvfp4", "mxfp4"):
            for case in cases.of(path, fmt):
                if not case.table.exact:
                    continue
                if time.time() - start > limit:
                    left += 1
                    continue
                inp, layout = case.table.build(), ("public", "preordered_mma")[turn % 2]
                turn += 1
                scores = scores_of(inp, path, layout)
                result = check.compare(scores, oracle.evaluate(inp), True)
                wrong += [f"{case.name} {path}: {result.problem}"] * (not result.ok)
                found.setdefault(inp.digest(), {})[path] = digest(scores)
    with open(out, "w") as f:
        f.write("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(found.items())) + "}\n")
    print(f"{turn} exact rows in {time.time() - start:.0f} s, {left} left out")
    return wrong + [f"{left} rows left out"] * bool(left)


def write_scores(out):
    """The rows that h200.npz has, as far as they are still in the list. Returns what was wrong; prints which rows have other bits than it, and which are gone."""
    kept, new, wrong = np.load(SCORES), {}, []
    for path in ("decode", "prefill"):
        for fmt in ("nvfp4", "mxfp4"):
            for case in cases.of(path, fmt):
                key = f"{case.name}|{path}"
                if key not in kept:
                    continue
                inp = case.table.build()
                one, other = (scores_of(inp, path, layout) for layout in ("public", "preordered_mma"))
                result = check.compare(one, oracle.evaluate(inp), case.table.exact)
                wrong += [f"{key}: {result.problem}"] * (not result.ok) + [f"{key}: the scale layouts differ"] * (
                    digest(one) != digest(other)
                )
                if digest(one) != digest(kept[key]):
                    print(
                        f"{key}: {(one.view(np.uint32) != kept[key].view(np.uint32)).sum()} of {one.size} scores have other bits than before"
                    )
                new[key] = one
    np.savez_compressed(out, **new)
    print(f"{len(new)} rows; gone:", *sorted(set(kept.files) - set(new)))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--scores", action="store_true", help="the scores themselves, of the rows that h200.npz has")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further exact row is begun")
    args = parser.parse_args()
    if jax.default_backend() != "gpu":
        raise SystemExit(f"JAX runs on {jax.default_backend()!r}: golden scores come from a GPU")
    wrong = write_scores(args.out) if args.scores else write_exact(args.out, args.limit)
    print(f"{jax.devices()[0].device_kind}: {len(wrong)} wrong", *wrong, sep="\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
