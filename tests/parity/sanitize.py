"""The case table under compute-sanitizer: short processes side by side, since a long one has died with a segmentation fault.

    python tests/parity/sanitize.py [--tool memcheck] [--rows small|variants|large] [--oracle DIR] [--time-limit 300] [--json OUT] [--done EARLIER.json]

Every variant of a case is launched once and judged by the oracle; what else parity checks (repeats, bytes that do not count, sequences alone) is left
to it. Rows `variants` are the pairs of sanitizer_cover.py, which launch every kernel with something to do, with few CTAs so that its rings go round: racecheck looks
at every access to shared memory, on the host, and takes a multiple of memcheck's time. The tool is told to look at this package's kernels and no
others. A process that dies is run again in halves until the case is found. With --done, cases that an earlier run found clean are left out. With --control
calls of kernels with a fault put into them (altered_kernels.py) are run instead, under the same settings, each of which the tool has to report.

racecheck needs kernels that it can follow (docs/facts.md): racecheck_build.py makes them, --cubins names them, and `--alter arrivals` does the rest.

The JSON lists the cases (or pairs) and, for each kernel that the GPU's variants launch, how many clean ones launched it.
Exit status: 0 all clean (--control: every fault was reported), 1 errors or deaths, 3 time ran out before the end.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import os
import queue
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

RUN = Path(__file__).with_name("run.py")
# Graph capture hides launches from the tool; memory taken for more than one buffer at a time hides where a buffer ends.
ENVIRONMENT = {
    "XLA_FLAGS": "--xla_gpu_enable_command_buffer=",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "PYTHONFAULTHANDLER": "1",
}
ALLOCATOR = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}  # unless the caller's environment names one
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
KERNELS = "kernel_cutlass_"  # with this the name of every kernel of the package begins, and of none of XLA's
CASES_A_PROCESS = 24
PORT = 49152  # the tool's own first one


class Control(NamedTuple):
    alter: str  # see altered_kernels.py
    unit: str  # a pair that it spoils
    said: str  # what the tool says
    every_lane: bool = False  # of the kernels that racecheck_build.py makes, which --cubins has to name


CONTROLS = {
    "memcheck": [Control("stores", "k_lengths_causal-nvfp4=decode.public", "Invalid __global__ write")],
    "racecheck": [
        Control("cta_barriers", "k_lengths_causal-nvfp4=portable_decode.public", "Race reported"),
        Control("arrivals", "ragged_1-nvfp4=prefill_direct.public", "Race reported"),  # 31 lanes do not arrive
        Control("arrivals", "forms_mixed-mxfp4=prefill_staged.public", "Race reported"),  # the same
        Control("arrivals,named_barriers", "q_lengths_causal-nvfp4=decode.public", "Race reported", True),
    ],
    "synccheck": [Control("arrivals", "q_lengths_causal-nvfp4=decode.public", "Barrier error detected")],
}


def rows(which):
    """Names of the chosen rows of the case table."""
    from support import cases

    return [c.name for c in cases.table(None if which == "all" else which)]


def gpus_here():
    """Numbers of this machine's GPUs; [] where nvidia-smi does not say."""
    try:
        return subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []


def visible_gpus():
    """What CUDA_VISIBLE_DEVICES may name, one of each; [None]: nothing is known, and nothing is to be set."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else gpus_here() or [None]


def chosen_gpus(text):
    """The GPUs that --gpus names. Without this every process would die on a GPU that is not there, and be run again in halves."""
    here, wanted = gpus_here(), text.split(",")
    strangers = [g for g in wanted if here and g.isdigit() and g not in here]
    if strangers:
        raise SystemExit(
            f"sanitize: --gpus {text}: no GPU {', '.join(strangers)} on this machine. nvidia-smi lists {', '.join(here)}: name some of these, or leave --gpus out for all."
        )
    return wanted


@functools.cache
def tool_help():
    return subprocess.run(["compute-sanitizer", "--help"], capture_output=True, text=True).stdout


def tool_options(tool, slot, jobs):
    """Options that this machine's compute-sanitizer knows: only our kernels, only the process itself, a port and a share of the host's threads for each process."""
    found = []
    for option, value in (("--kernel-name", f"kns={KERNELS}"), ("--kernel-regex", f"kns={KERNELS}")):
        if option in tool_help() and not found:
            found += [option, value]
    wanted = [
        ("--target-processes", "application-only"),
        ("--port", str(PORT + 16 * slot)),
        ("--show-backtrace", "device"),
    ]
    if tool == "racecheck":
        wanted.append(("--racecheck-num-workers", str(max(1, (os.cpu_count() or 2) // jobs))))
    for option, value in wanted:
        found += [option, value] if option in tool_help() else []
    return found


class Sanitizer:
    """`names`, `chunks`, `program` and `further` say what runs; another list of cases (tests/fuzz/sanitize.py) has others."""

    def __init__(self, args):
        self.args, self.start = args, time.monotonic()
        self.end = self.start + args.time_limit
        self.found = {
            "tool": args.tool,
            "rows": args.rows,
            "clean": [],
            "errors": [],
            "died": [],
            "not_run": [],
            "deaths": [],
            "unfinished": [],
            "processes": [],
        }
        self.runs = 0  # case-variant pairs
        gpus = chosen_gpus(args.gpus) if args.gpus else visible_gpus()
        self.jobs = args.jobs * len(gpus)
        self.slots = queue.SimpleQueue()
        for slot in range(self.jobs):
            self.slots.put((slot, gpus[slot % len(gpus)]))

    @functools.cached_property
    def capability(self):
        import sanitizer_cover

        return self.args.capability or sanitizer_cover.capability_here()

    def names(self):
        import sanitizer_cover

        done = set(json.loads(Path(self.args.done).read_text())["clean"]) if self.args.done else set()
        every = (
            sanitizer_cover.pairs(self.capability)
            if self.args.rows == "variants"
            else self.in_order(rows(self.args.rows))
        )
        return [name for name in every if name not in done]

    def in_order(self, names):
        """Cases of one program next to each other, and of one format, which has kernels of its own."""
        import runner
        from support import cases

        programs, table = runner.Programs(runner.IMPLEMENTATIONS), {c.name: c for c in cases.table()}
        first = {}
        for name in names:
            first.setdefault((table[name].fmt, programs.key(table[name].build())), len(first))
        return sorted(names, key=lambda n: (table[n].fmt, first[table[n].fmt, programs.key(table[n].build())]))

    def chunks(self, names):
        """What each process runs: neighbours."""
        processes = min(max(1, len(names)), max(self.jobs, -(-len(names) // CASES_A_PROCESS)))
        ends = [len(names) * i // processes for i in range(processes + 1)]
        return [names[a:b] for a, b in zip(ends, ends[1:])]

    def program(self, names):
        """Arguments of the Python that runs these cases; its output says "0 failures" and how many cases ran."""
        command = [str(RUN), "--bare", "--workers", "1", "--only", ",".join(names)]
        command += ["--ctas", str(self.args.ctas)] if self.args.ctas else []
        command += ["--alter", self.args.alter] if self.args.alter else []
        command += ["--cubins", self.args.cubins] if self.args.cubins else []
        return command + (["--oracle", self.args.oracle] if self.args.oracle else [])

    def environment(self, gpu):
        chosen = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        return {**ALLOCATOR, **os.environ, **ENVIRONMENT, **chosen}

    def check(self, names):
        slot, gpu = self.slots.get()
        try:
            finished = self.process(names, slot, gpu)
        finally:
            self.slots.put((slot, gpu))
        if finished is None:
            self.found["not_run"] += names
        else:
            self.judge(names, *finished)

    def process(self, names, slot, gpu):
        """(exit status, output, end of the error output) of the tool on these cases, None where time ran out."""
        begin = time.monotonic()
        if self.end <= begin:
            return None
        command = [
            "compute-sanitizer",
            "--tool",
            self.args.tool,
            *tool_options(self.args.tool, slot, self.jobs),
            sys.executable,
            *self.program(names),
        ]
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(gpu),
            start_new_session=True,
        )
        try:
            text, errors = child.communicate(timeout=self.end - begin)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # the tool, and the program under it
            self.found["unfinished"].append({"cases": names, "output": digest(child.communicate()[0])})
            return None
        phases = re.search(r"^seconds: (.*)", text, re.M)
        self.found["processes"].append(
            {
                "units": len(names),
                "seconds": round(time.monotonic() - begin, 1),
                "of which": phases[1] if phases else "",
            }
        )
        return child.returncode, text, errors

    def judge(self, names, status, text, errors):
        # racecheck prints both summaries when its program fails; what counts is the larger
        reported = [
            int(n)
            for pair in re.findall(r"ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: (\d+) hazard", text)
            for n in pair
            if n
        ]
        ended = re.search(r"^\d+ failures", text, re.M)
        if any(reported) or (reported and ended and not re.search(r"^0 failures", text, re.M)):
            self.found["errors"].append({"cases": names, "output": digest(text), "error_output": errors[-2000:]})
        elif reported and ended:
            self.found["clean"] += names
            self.runs += sum(int(n) for n in re.findall(r"(\d+)/\d+ cases", text))
        else:  # it died, or never began
            self.found["deaths"].append(
                {"cases": names, "status": status, "output": digest(text), "error_output": errors[-3000:]}
            )
            if len(names) > 1:
                self.check(names[: len(names) // 2])
                self.check(names[len(names) // 2 :])
            else:
                self.found["died"] += names

    def further(self, names):
        """What else the JSON holds."""
        import sanitizer_cover

        launched = {name: sanitizer_cover.launches(name, self.capability) for name in names}
        count = collections.Counter(kernel for name in self.found["clean"] for kernel in launched[name])
        return {"kernels": {k: count[k] for k in sorted(set().union(*launched.values()))}}

    @property
    def claim(self):
        """The name of the record."""
        return self.args.tool

    def counted(self):
        """What a record counts besides."""
        return {}

    def run(self):
        names = self.names()
        chunks = self.chunks(names)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(self.check, chunks))
        seconds, found = time.monotonic() - self.start, self.found
        print(
            f"{self.args.tool}: {len(found['clean'])} clean of {len(names)} ({self.runs} case-variant pairs), {len(found['errors'])} processes with errors, "
            f"{len(found['died'])} whose process died, {len(found['not_run'])} not run; {seconds:.0f} s, {len(chunks)} processes, {self.jobs} at a time"
        )
        for error in found["errors"] + found["deaths"]:
            print(
                error["cases"],
                f"exit status {error['status']}" if "status" in error else "",
                error["output"],
                error["error_output"],
                sep="\n",
            )
        if self.args.record is not None:
            from support import claims

            name, capability = claims.card()
            counts = {
                "clean": len(found["clean"]),
                "cases": len(names),
                "pairs": self.runs,
                "not_run": len(found["not_run"]),
                "rows": self.args.rows,
                "alter": getattr(self.args, "alter", ""),
                "kernels_altered_in": getattr(self.args, "cubins", None) or "",
                **self.counted(),
            }
            failures = [{"cases": e["cases"], "status": e.get("status")} for e in found["errors"] + found["deaths"]]
            print(
                "record:",
                claims.record(self.claim, counts, failures, name=name, capability=capability, folder=self.args.record),
            )
        if self.args.json:
            report = {**found, "pairs": self.runs, "seconds": seconds}
            Path(self.args.json).write_text(
                json.dumps(report, indent=1)
            )  # first without what else may fail: it is cheap to count again, and dear to run again
            Path(self.args.json).write_text(json.dumps({**report, **self.further(names)}, indent=1))
        return 1 if found["errors"] or found["died"] else 3 if found["not_run"] else 0

    def control(self):
        """Every fault of the tool's, one after the other. 0 if it reports them all."""
        silent, cubins = 0, self.args.cubins
        for control in CONTROLS[self.args.tool]:
            if control.every_lane and not cubins:
                print(
                    f"{self.args.tool} control: {control.alter} in {control.unit} left out, it is for the kernels of racecheck_build.py: make them and name them with --cubins"
                )
                continue
            self.args.alter, self.args.cubins = control.alter, cubins if control.every_lane else None
            self.found.update(clean=[], errors=[], died=[], not_run=[], deaths=[], unfinished=[])
            self.check([control.unit])
            said = [
                line for error in self.found["errors"] for line in error["output"].splitlines() if control.said in line
            ]
            print(
                f"{self.args.tool} control, {control.alter} in {control.unit}: "
                + (
                    f"reported, {said[0]}"
                    if said
                    else f"no word of {control.said!r}: its silence means nothing here\n{json.dumps(self.found, indent=1)}"
                ),
                flush=True,
            )
            silent += not said
        return 1 if silent else 0


def digest(text):
    """What a report of errors says, without the host's call stacks: lines that begin a finding with how often they came, then the end of the output."""
    lines = [
        re.sub(r"\b(thread|block) \(\d+,\d+,\d+\)", r"\1 (...)", line)[:300]
        for line in text.splitlines()
        if line.startswith("=========") and "Host Frame" not in line
    ]
    counted = [f"{n} x {line}" for line, n in collections.Counter(lines).most_common(40)]
    rest = [line[:300] for line in text.splitlines() if not line.startswith("=========") and line.strip()]
    return "\n".join(counted + rest[-12:])


def add_arguments(p, jobs):
    """Arguments that the fuzzer's list of cases has too."""
    p.add_argument("--tool", default="memcheck", choices=TOOLS)
    p.add_argument("--time-limit", type=float, default=86400, help="seconds")
    p.add_argument("--jobs", type=int, default=jobs, help="processes side by side on a GPU")
    p.add_argument("--gpus", help="as CUDA_VISIBLE_DEVICES (default: all)")
    p.add_argument("--json", help="write what was found to this file")
    p.add_argument(
        "--record",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="write the claim to FOLDER; default: benchmarks/results/<card> (support/claims.py)",
    )


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(p, max(1, min(6, (os.cpu_count() or 2) // 3)))
    p.add_argument("--rows", default="all", choices=("small", "large", "all", "variants"))
    p.add_argument(
        "--ctas",
        type=int,
        help="run.py --ctas; 0: as many as the GPU has room for (default: 1 for rows `variants` under other tools than memcheck, else 0)",
    )
    p.add_argument("--alter", default="", help="run.py --alter")
    p.add_argument("--cubins", help="run.py --cubins: the kernels of this folder, in place of the package's")
    p.add_argument("--control", action="store_true", help="put faults into kernels: does the tool report them?")
    p.add_argument("--oracle", help="folder of run.py --make-oracle")
    p.add_argument(
        "--capability",
        type=lambda x: tuple(int(n) for n in x.split(".")),
        help="of the GPU, e.g. 9.0 (default: ask nvidia-smi)",
    )
    p.add_argument("--done", help="file of an earlier --json: what it found clean is left out")
    args = p.parse_args()
    if args.control:
        if args.tool not in CONTROLS:
            p.error(f"--control: got --tool {args.tool}, expected one of {', '.join(CONTROLS)}")
        args.rows = "variants"
    if args.ctas is None:
        args.ctas = int(args.rows == "variants" and args.tool != "memcheck")
    sanitizer = Sanitizer(args)
    return sanitizer.control() if args.control else sanitizer.run()


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
