"""The fuzzer's cases on the real PTX in the simulator (tests/ptxsim): accesses, hangs, races and undefined data are seen, slot by slot, without a GPU.

PYTHONPATH=.:tests python -m fuzz.simulated --seed 1 --cases 200 --variants sm_90a.native.decode
"""

import argparse
import collections
import dataclasses
import sys

from harness.ops.block_scores import wire
from ptxsim import kernels
from ptxsim.launch import SimError
from simulated import launches, selection

from . import cases, expected, shapes

# Shapes that a kernel walks in well under a second there
SHAPES = "decode_8_2,columns_32,columns_64,many_sequences,one_query_each,one_long,ratio_17,prefill_4_2,all_of_size_1,two_queries,no_pages,no_list,no_sequences"


def run(variant, case, truth, schedule="eager"):
    """Sentences on what is wrong with one case on one variant; empty if nothing is."""
    m = case.metadata
    inp = dataclasses.replace(
        case.pool.inp, cu_q=m.cu_q, cu_k=m.cu_k, cu_p=m.cu_p, kv_indices=m.kv_indices, qo_offset=m.qo_offset
    )
    mode, _, seed = schedule.partition(":")
    passes = (None, 3)[case.index % 2] if variant.path == "prefill" else None
    try:
        outcome = launches.run_variant(
            kernels.load(variant.launches),
            variant,
            wire(inp, variant.scale_layout, passes),
            mode=mode,
            seed=int(seed or 0),
        )
    except SimError as error:
        return [f"{type(error).__name__}: {error}"]
    problem = expected.judge(outcome.scores, case.pool, truth)
    return outcome.faults + ([problem] if problem else [])


def sweep(seed, indices, variants, schedules=("eager", "random:7"), report=print):
    """Every case on one of the variants, by turns. Returns (counts, failures)."""
    buckets, pools = [b for b in shapes.buckets(SHAPES) if any(v.format == b.fmt for v in variants)], cases.Pools(seed)
    counts, failures = collections.Counter(), []
    for index in indices:
        case = cases.make(seed, index, buckets, pools)
        truth = expected.expect(case.pool, case.metadata)
        fitting = [v for v in variants if v.format == case.bucket.fmt]
        variant = fitting[index % len(fitting)]
        schedule = schedules[index // len(fitting) % len(schedules)]
        problems = run(variant, case, truth, schedule)
        counts["cases"] += 1
        counts["invalid"] += bool(case.invalid)
        if problems:
            line = (
                f"{selection.label(variant)} {schedule} {case}: {problems[0]} ({len(problems)} problems)\n     "
                f"PYTHONPATH=.:tests python -m fuzz.simulated --seed {seed} --first {index} --cases 1 --variants {selection.label(variant)} --schedules {schedule}"
            )
            failures.append(line)
            report("FAIL " + line)
    return counts, failures


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="fuzz.simulated")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--cases", type=int, default=100)
    p.add_argument("--variants", default="", help="part of a label, e.g. sm_90a.native.decode")
    p.add_argument("--schedules", default="eager,random:7")
    args = p.parse_args(argv)
    chosen = [v for v in selection.all_variants("block_scores") if args.variants in selection.label(v)]
    counts, failures = sweep(args.seed, range(args.first, args.first + args.cases), chosen, args.schedules.split(","))
    print(f"{counts['cases']} cases, {counts['invalid']} of them invalid, {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
