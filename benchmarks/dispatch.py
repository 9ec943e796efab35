"""What a call costs beside its kernels: the gap on the device in a chain of 8 dependent calls inside one jit, with command buffers (CUDA graphs) and without.

    python benchmarks/dispatch.py [--out FILE]      # default: benchmarks/results/<card>/dispatch.json

A link of the chain is a call and a small kernel that makes the next call's queries depend on its scores. Everything is measured on the device (`bench.clock`):

chain_us    a link, start to start
call_us     a call among independent ones in a captured graph, start to start
edge_us     a stamp after a stamp in a captured graph: the shortest start to start of two kernels there
gap_us      chain_us - (call_us - edge_us): all that is not the call's own kernels. call_us - edge_us is at most their time, so this is at least the gap

`handler_runs` is how often XLA ran the op's host code in `RUNS` runs of the warm program: none where it replays a captured graph. Each mode is a process of its own, since
XLA reads its flags once.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

import jax
import jax.numpy as jnp

from jax_fp4_indexer.bench import cases, clock, timing
from jax_fp4_indexer.bench.cases import How
from jax_fp4_indexer.bench.cases.block_scores import uniform
from jax_fp4_indexer.primitives import runtime
from run import RESULTS, card

LINKS, RUNS = 8, 20
CASES = (
    uniform("decode_one_page", 1, 1, 128, 4, 1, False),
    cases.all_cases()["decode_8k"],
    uniform("prefill_one_page", 1, 16, 128, 4, 1, True),
)
MODES = {"command buffers": "", "no command buffers": "--xla_gpu_enable_command_buffer="}


def chain(call, links=LINKS):
    """Jitted (data) -> ticks of stamp, `links` dependent calls, stamp, stamp."""

    def run(inputs):
        q, start = clock.stamp(inputs.q)
        for i in range(links):
            scores = call(dataclasses.replace(inputs, q=q), i)
            q = q ^ jnp.isnan(scores[0, 0, 0]).astype(jnp.uint8)
        q, end = clock.stamp(q)
        _, after = clock.stamp(q)
        return jnp.stack([start, end, after])

    return jax.jit(run)


def measure():
    """Rows of this process's mode."""
    rows = []
    for case in CASES:
        for fmt in ("nvfp4", "mxfp4"):
            how = How(fmt, "preordered_mma")
            inputs, call = case.make(how, 3 * LINKS), case.call(how)
            program, independent = chain(call), timing.program(call, (LINKS, 2 * LINKS, 0))
            for fn in [independent] * 3 + [
                program
            ] * 4:  # the one that is counted last: its buffers stay where they are
                jax.block_until_ready(fn(inputs))
            before = runtime.executions("block_scores")
            links = [clock.read(program(inputs))[0] for _ in range(RUNS)]
            handler_runs = runtime.executions("block_scores") - before
            alone = [clock.read(independent(inputs))[0] for _ in range(RUNS)]
            rows.append(
                {
                    "case": case.name,
                    "format": fmt,
                    "chain_us": statistics.median((us[0] - us[1]) / LINKS for us in links),
                    "call_us": statistics.median((us[1] - us[2]) / (2 * LINKS) for us in alone),
                    "edge_us": statistics.median(us[2] for us in alone),
                    "handler_runs": handler_runs,
                    "runs": RUNS,
                    "links": LINKS,
                }
            )
    return rows


def run_modes():
    """{mode: rows}, gaps worked out; each mode in a process of its own."""
    found = {}
    for mode, flag in MODES.items():
        env = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()}
        done = subprocess.run([sys.executable, __file__, "--one-mode"], capture_output=True, text=True, env=env)
        if done.returncode:
            raise RuntimeError(f"{mode}: {done.stderr[-3000:]}")
        found[mode] = json.loads(done.stdout.splitlines()[-1])
    for mode, rows in found.items():
        for row, graph in zip(rows, found["command buffers"]):
            row["gap_us"] = row["chain_us"] - (
                graph["call_us"] - graph["edge_us"]
            )  # the kernels' own time is that of the graph
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=None)
    parser.add_argument("--one-mode", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one_mode:
        if not clock.available():
            sys.exit("benchmarks/dispatch.py needs a CUDA GPU and the package's library")
        print(json.dumps(measure()))
        return
    found = run_modes()
    print(f"{'':28s}" + "".join(f"{mode:>44s}" for mode in found))
    print(f"{'case':20s}{'format':8s}" + f"{'link':>10s}{'call':>10s}{'gap':>10s}{'handler':>14s}" * len(found))
    for rows in zip(*found.values()):
        print(
            f"{rows[0]['case']:20s}{rows[0]['format']:8s}"
            + "".join(
                f"{r['chain_us']:10.2f}{r['call_us']:10.2f}{r['gap_us']:10.2f}{r['handler_runs']:14d}" for r in rows
            )
        )
    out = args.out or RESULTS / card() / "dispatch.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    where = {"card": jax.devices()[0].device_kind, "jax": jax.__version__, "date": datetime.date.today().isoformat()}
    out.write_text(json.dumps({**where, "modes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
