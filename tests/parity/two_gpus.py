"""The op on two GPUs of one host: same bits as on one, no communication, speed-up, first calls on both at once.

    python tests/parity/two_gpus.py OUT.json            # rows as benchmarks/README.md says, findings into OUT.checks.json
    python tests/parity/two_gpus.py OUT.json --small    # the same on two fake CPU devices, small shapes

Every section runs in processes of its own with a time limit (a hang of the driver or of NCCL cannot be interrupted from inside), and what it has found by then is kept.
Both files are written after each section. Exit status: 0 all holds, 1 something does not, 3 time ran out before the end.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

# Name -> (seconds at most, whether XLA takes most of the memory at its start, which repeated large results want).
SECTIONS = {"results": (80, False), "plain_jit": (60, False), "time_prefill": (75, True), "time_decode": (75, True)}
FIRST_CALL_SECONDS = 25


def environment(small, preallocate):
    env = os.environ | {
        "NCCL_NVLS_ENABLE": "0",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true" if preallocate else "false",
    }  # no NVLink multicast: shared hosts may forbid it
    env["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), *filter(None, [env.get("PYTHONPATH")])])
    if small:
        env |= {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": env.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2",
        }
    return env


def child(arguments, small, seconds, preallocate):
    """Runs a section in a process; -> (its findings so far, "" or what went wrong, seconds)."""
    begin = time.monotonic()
    command = [sys.executable, str(Path(__file__).resolve()), *arguments, *(["--small"] if small else [])]
    process = subprocess.Popen(
        command,
        env=environment(small, preallocate),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
        problem = "" if process.returncode == 0 else f"exit status {process.returncode}: {err.strip()[-600:]}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        problem = f"still running after {seconds:.0f} s, killed: {err.strip()[-600:]}"
    return (
        [json.loads(line) for line in (out or "").splitlines() if line.startswith("{")],
        problem,
        time.monotonic() - begin,
    )


class Report:
    """Rows and checks, written to the two files whenever something is added."""

    def __init__(self, path):
        self.path, self.rows, self.checks = Path(path), [], []
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, *findings):
        for finding in findings:
            (self.rows if finding.get("op") else self.checks).append(finding)
            print(row_text(finding) if finding.get("op") else check_text(finding), flush=True)
        self.write()

    def write(self):
        self.path.write_text(json.dumps(self.rows, indent=1) + "\n")
        self.path.with_suffix(".checks.json").write_text(json.dumps(self.checks, indent=1) + "\n")


def row_text(row):
    return (
        f"row    {row['case']} {row['format']} {row['split']}: {row['median_us']:.1f} us burst, {row['sustained_us']:.1f} sustained; "
        f"one GPU {row['one_gpu_median_us']:.1f}, {row['one_gpu_sustained_us']:.1f}; {row['speedup']:.2f}x, {row['sustained_speedup']:.2f}x"
    )


def check_text(check):
    figures = ", ".join(f"{name} {value}" for name, value in check.items() if name not in ("check", "problem"))
    return f"{'FAILED' if check['problem'] else 'ok':6} {check['check']}{': ' + check['problem'] if check['problem'] else ''} ({figures})"


def first_calls(report, small, processes, deadline):
    """Fresh processes whose first call ever runs on both devices at once; in every second one a collective of an earlier program is still running then. False: no time left."""
    summary = {
        "check": f"first calls ever, on both devices at once: {processes} fresh processes",
        "problem": "none begun",
        "begun": 0,
        "failures": [],
        "seconds": [],
        "first_call_ms": [],
    }
    report.checks.append(summary)
    for i in range(processes):
        left = deadline - time.monotonic()
        if left < 4:
            break
        found, problem, seconds = child(
            ["--section", "first_call", "--variant", str(i % 2)], small, min(FIRST_CALL_SECONDS, left), False
        )
        problem = problem or (found[0]["problem"] if found else "no result")
        summary["begun"] += 1
        summary["seconds"].append(round(seconds, 1))
        if problem:
            summary["failures"].append(f"process {i}, variant {i % 2}: {problem}")
        else:
            summary["first_call_ms"].append(found[0]["first_call_ms"])
        summary["problem"] = (
            f"{len(summary['failures'])} failed"
            if summary["failures"]
            else ""
            if summary["begun"] == processes
            else f"only {summary['begun']} begun"
        )
        report.write()
    print(check_text(summary), flush=True)
    return summary["begun"] == processes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?")
    parser.add_argument("--small", action="store_true", help="two fake CPU devices, small shapes")
    parser.add_argument(
        "--only",
        default="",
        help="comma-separated sections: results, plain_jit, time_prefill, time_decode, first_calls",
    )
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--limit", type=float, default=300, help="seconds of the whole run")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--variant", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.section:
        import two_gpus_sections

        return two_gpus_sections.run(args.section, args.small, args.variant)
    if not args.out:
        parser.error("say where the rows go: two_gpus.py OUT.json")
    deadline = time.monotonic() + args.limit
    report, complete = Report(args.out), True
    chosen = [name for name in args.only.split(",") if name] or [*SECTIONS, "first_calls"]
    for name in chosen:
        if name == "first_calls":
            complete &= first_calls(report, args.small, args.processes, deadline)
            continue
        limit, preallocate = SECTIONS[name]
        left = deadline - time.monotonic()
        if left < 10:
            report.add({"check": name, "problem": "not begun: no time left"})
            complete = False
            continue
        found, problem, seconds = child(
            ["--section", name], args.small, min(limit, left) if not args.small else 600, preallocate
        )
        report.add(*found, {"check": f"section {name} to its end", "problem": problem, "seconds": round(seconds, 1)})
    report.write()
    failed = [c for c in report.checks if c["problem"]]
    print(
        f"{len(report.checks) - len(failed)} checks hold, {len(failed)} do not; {len(report.rows)} rows in {report.path}; {time.monotonic() - deadline + args.limit:.0f} s"
    )
    return 1 if failed and complete else 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())
