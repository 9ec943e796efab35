"""Writes exact.json on a machine with a GPU: every exact row through jax.jit, on both paths; the scale layouts take turns.

    PYTHONPATH=tests:. python -m ptxsim.golden OUT.json
"""
import argparse
import functools
import json
import time

import jax
import numpy as np

import jax_fp4_indexer as jfi
from support import check, oracle

from .. import cases
from . import digest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no further row is begun")
    args = parser.parse_args()
    if jax.default_backend() != "gpu":
        raise SystemExit(f"JAX runs on {jax.default_backend()!r}: golden scores come from a GPU")
    start, found, wrong, left = time.time(), {}, [], 0
    turn = 0
    for path in ("decode", "prefill"):
        for fmt in ("nvfp4", "mxfp4"):
            for case in cases.of(path, fmt):
                if not case.table.exact:
                    continue
                if time.time() - start > args.limit:
                    left += 1
                    continue
                inp, layout = case.table.build(), ("public", "preordered_mma")[turn % 2]
                turn += 1
                op = functools.partial(jfi.fp4_indexer_block_scores, implementation=path, **inp.statics(layout))
                scores = np.array(jax.jit(op)(**inp.arrays(layout)))
                result = check.compare(scores, oracle.evaluate(inp), True)
                wrong += [f"{case.name} {path}: {result.problem}"] * (not result.ok)
                found.setdefault(inp.digest(), {})[path] = digest(scores)
    with open(args.out, "w") as f:
        f.write("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(found.items())) + "}\n")
    print(f"{jax.devices()[0].device_kind}: {turn} exact rows in {time.time() - start:.0f} s, {left} left out, {len(wrong)} wrong", *wrong, sep="\n")
    raise SystemExit(bool(wrong or left))


if __name__ == "__main__":
    main()
