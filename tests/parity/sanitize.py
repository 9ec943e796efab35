"""The case table under compute-sanitizer: many short processes side by side, since one long one has died with a segmentation fault.

    python tests/parity/sanitize.py [--tool memcheck] [--rows small|variants|large] [--oracle DIR] [--time-limit 300] [--json OUT] [--done EARLIER.json]

Rows `variants` are the few of `VARIANT_ROWS`, which launch every kernel with something to do: racecheck takes a multiple of memcheck's time.
A process that dies is run again in halves until the case is found. With --done, cases that an earlier run found clean are left out.
The JSON lists the cases and, for each kernel that the GPU's variants launch, how many clean cases launched it.
Exit status: 0 all clean, 1 errors or deaths, 3 time ran out before the end.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

RUN = Path(__file__).with_name("run.py")
# Graph capture hides launches from the tool; memory taken at once hides where a buffer ends.
ENVIRONMENT = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer=", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
CASES_A_PROCESS = 19            # of the processes that did not die
# Decode of one, two and several tiles of columns, both masks, ragged and empty sequences, tails, exponents out of every window, bad ids, metadata that lies.
VARIANT_ROWS = ("tail_after_65", "pages_ragged", "ragged_0", "padded_indices", "global_exact", "q_lengths_causal", "e8m0_ends_in_k_2", "wide_0", "nan_query",
                "heads_17_1_q2", "edge_q8_r16_causal", "edge_q9_r17_all", "ratio_6_2_short", "ragged_2", "scale_order_129", "page_id_bad_prefill", "lie_everything")


def rows(which):
    """Names of the chosen rows of the case table."""
    from support import cases
    if which == "variants":
        return [c.name for c in cases.table("small") if c.name.rpartition("-")[0] in VARIANT_ROWS]
    return [c.name for c in cases.table(None if which == "all" else which)]


def kernels(names, capability):
    """{case: set of kernels that its variants launch on a GPU of that capability}"""
    import harness
    from support import cases

    from jax_fp4_indexer.primitives import runtime
    table, found = {c.name: c for c in cases.table()}, {}
    for name in names:
        inp, found[name] = table[name].build(), set()
        _, heads_q, heads_kv, *_ = inp.shape
        for variant in harness.IMPLEMENTATIONS:
            for layout in harness.LAYOUTS:
                call = harness.call(variant, inp, layout)
                if call is not None:
                    columns = call["max_seqlen_q"] * (heads_q // heads_kv)
                    kind = "portable" if variant.startswith("portable") else "auto"
                    path = "decode" if variant.endswith("decode") else "prefill"
                    found[name] |= set(runtime.choose_variant(capability, path=path, fp4_format=table[name].fmt, scale_layout=layout,
                                                              implementation=kind, columns=columns)[2])
    return found


def capability_here():
    """(major, minor) of the first GPU."""
    text = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", "0"], capture_output=True, text=True, check=True).stdout
    return tuple(int(x) for x in text.strip().split("."))


class Sanitizer:
    """`names`, `chunks`, `program` and `further` say what runs; another list of cases (tests/fuzz/sanitize.py) has others."""
    environment = ENVIRONMENT

    def __init__(self, args):
        self.args, self.start = args, time.monotonic()
        self.end = self.start + args.time_limit
        self.found = {"tool": args.tool, "rows": args.rows, "clean": [], "errors": [], "died": [], "not_run": []}
        self.runs = 0                   # case-variant pairs

    def names(self):
        done = set(json.loads(Path(self.args.done).read_text())["clean"]) if self.args.done else set()
        return [name for name in rows(self.args.rows) if name not in done]

    def chunks(self, names):
        """What each process runs."""
        processes = min(max(1, len(names)), max(self.args.jobs, -(-len(names) // CASES_A_PROCESS)))
        return [names[i::processes] for i in range(processes)]

    def program(self, names):
        """Arguments of the Python that runs these cases; its output says "0 failures" and how many cases ran."""
        command = [str(RUN), "--repeats", "1", "--scrambles", "0", "--workers", "1", "--filter", ",".join(names)]
        return command + (["--oracle", self.args.oracle] if self.args.oracle else [])

    def check(self, names):
        left = self.end - time.monotonic()
        if left <= 0:
            self.found["not_run"] += names
            return
        command = ["compute-sanitizer", "--tool", self.args.tool, sys.executable, *self.program(names)]
        try:
            text = subprocess.run(command, capture_output=True, text=True, timeout=left, env={**os.environ, **self.environment}).stdout
        except subprocess.TimeoutExpired:
            self.found["not_run"] += names
            return
        # racecheck prints both summaries when its program fails; what counts is the larger
        summary = re.findall(r"ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: (\d+) hazard", text)
        if not summary and len(names) > 1:
            self.check(names[:len(names) // 2])
            self.check(names[len(names) // 2:])
        elif not summary:
            self.found["died"] += names
        elif any(int(n) for pair in summary for n in pair if n) or not re.search(r"^0 failures", text, re.M):
            self.found["errors"].append({"cases": names, "output": digest(text)})
        else:
            self.found["clean"] += names
            self.runs += sum(int(n) for n in re.findall(r"(\d+)/\d+ cases", text))

    def further(self, names):
        """What else the JSON holds."""
        launched = kernels(names, self.args.capability or capability_here())
        count = collections.Counter(kernel for name in self.found["clean"] for kernel in launched[name])
        return {"kernels": {k: count[k] for k in sorted(set().union(*launched.values()))}}

    def run(self):
        names = self.names()
        chunks = self.chunks(names)
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            list(pool.map(self.check, chunks))
        seconds = time.monotonic() - self.start
        print(f"{self.args.tool}: {len(self.found['clean'])} cases clean ({self.runs} case-variant pairs), {len(self.found['errors'])} processes with errors, "
              f"{len(self.found['died'])} cases whose process died, {len(self.found['not_run'])} not run; {seconds:.0f} s, {len(chunks)} processes, {self.args.jobs} at a time")
        for error in self.found["errors"]:
            print(error["cases"], error["output"], sep="\n")
        if self.args.json:
            report = {**self.found, "pairs": self.runs, "seconds": seconds}
            Path(self.args.json).write_text(json.dumps(report, indent=1))       # first without what else may fail: it is cheap to count again, and dear to run again
            Path(self.args.json).write_text(json.dumps({**report, **self.further(names)}, indent=1))
        return 1 if self.found["errors"] or self.found["died"] else 3 if self.found["not_run"] else 0


def digest(text):
    """What a report of errors says, without the host's call stacks: lines that begin a finding with how often they came, then the end of the output."""
    lines = [re.sub(r"\b(thread|block) \(\d+,\d+,\d+\)", r"\1 (...)", line)[:300] for line in text.splitlines() if line.startswith("=========") and "Host Frame" not in line]
    counted = [f"{n} x {line}" for line, n in collections.Counter(lines).most_common(40)]
    rest = [line[:300] for line in text.splitlines() if not line.startswith("=========") and line.strip()]
    return "\n".join(counted + rest[-12:])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--tool", default="memcheck", choices=TOOLS)
    p.add_argument("--rows", default="all", choices=("small", "large", "all", "variants"))
    p.add_argument("--oracle", help="folder of run.py --make-oracle")
    p.add_argument("--time-limit", type=float, default=86400, help="seconds")
    p.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 3), help="processes side by side")
    p.add_argument("--capability", type=lambda x: tuple(int(n) for n in x.split(".")), help="of the GPU whose kernels --json counts, e.g. 9.0 (default: ask nvidia-smi)")
    p.add_argument("--json", help="write what was found to this file")
    p.add_argument("--done", help="file of an earlier --json: its clean cases are left out")
    return Sanitizer(p.parse_args()).run()


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    # The processes that are watched use the GPU; this one only builds inputs.
    found = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax  # noqa: F401
    if found is None:
        del os.environ["JAX_PLATFORMS"]
    else:
        os.environ["JAX_PLATFORMS"] = found
    sys.exit(main())
