"""Everything worth knowing of a card on which the kernels have not run yet, in one archive to send back.

    make card-report                                        all of it: an hour at most, and a CUDA toolkit for the last steps
    python tests/parity/card_report.py --quick              a minute: every step on a few cases, to see that all of them work here
    python tests/parity/card_report.py --steps doctor,parity --out report

| step | what | limit, seconds |
|---|---|---|
| doctor | driver, capability, which kernel each call takes | 60 |
| parity | the whole case table, native and portable kernels, 20 repeats, pools and results beyond 2^31 | 900 |
| portable | the table on the portable kernels alone, where `parity` failed: are those to be trusted? | 600 |
| probe | latencies, launch times and rates of the card, by kernels of a few lines | 60 |
| benchmark | every case, native; limits of the card in the same run | 900 |
| model | the time model against those rows, with this card's own constants | 120 |
| benchmark_portable | the headline cases on the portable kernels | 300 |
| memcheck | the small cases under compute-sanitizer | 600 |
| synccheck | the pairs of sanitizer_cover.py, which launch every kernel, under it too | 150 |

A step that fails or runs out of time does not stop the others. Written: `summary.json`, `report.txt` (the same in words, with the end of every log) and a log a step.
Any NVIDIA GPU will do: on one that is no Blackwell, the report is about the kernels that it takes. Exit status: 0 if every step passed.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON = sys.executable
LEFT_OUT = 3  # exit status of run.py and sanitize.py: nothing failed, but there was no time for some cases
QUICK_CASES = "uniform_,ragged_1-,e8m0_"
WORDS = {
    0: "passed",
    LEFT_OUT: "nothing failed, cases left out for lack of time",
    "time": "out of time",
    "missing": "a program is missing",
}
LOG_LINES = 12  # of a step's log in report.txt


def commands(out, quick=False):
    """step -> (command, limit in seconds)"""
    run, bench = [PYTHON, HERE / "run.py"], [PYTHON, ROOT / "benchmarks" / "run.py"]
    model = [PYTHON, ROOT / "benchmarks" / "model.py", out / "block_scores.json"]
    table = {
        "doctor": ([PYTHON, "-m", "jax_fp4_indexer", "doctor"], 60),
        "parity": (
            [*run, "--extra", "inside_jit,past_2_31", "--time-limit", "840", "--json", out / "parity.json"],
            900,
        ),
        "portable": (
            [
                *run,
                "--impl",
                "portable_decode,portable_prefill",
                "--time-limit",
                "540",
                "--json",
                out / "portable.json",
            ],
            600,
        ),
        "probe": ([PYTHON, ROOT / "benchmarks" / "probe.py", "--out", out / "probe.json"], 60),
        "benchmark": ([*bench, "--out", out / "block_scores.json", "--time-limit", "840"], 900),
        "model": (model, 120),
        "benchmark_portable": (
            [
                *bench,
                "--quick",
                "--implementation",
                "portable",
                "--out",
                out / "portable_scores.json",
                "--time-limit",
                "240",
            ],
            300,
        ),
        "memcheck": (
            [PYTHON, HERE / "sanitize.py", "--rows", "small", "--time-limit", "560", "--json", out / "memcheck.json"],
            600,
        ),
        "synccheck": (
            [
                PYTHON,
                HERE / "sanitize.py",
                "--rows",
                "variants",
                "--tool",
                "synccheck",
                "--time-limit",
                "130",
                "--json",
                out / "synccheck.json",
            ],
            150,
        ),
    }
    if quick:
        table |= {
            "parity": (
                [
                    *run,
                    "--filter",
                    QUICK_CASES,
                    "--size",
                    "small",
                    "--repeats",
                    "2",
                    "--time-limit",
                    "8",
                    "--json",
                    out / "parity.json",
                ],
                25,
            ),
            "portable": (
                [
                    *run,
                    "--filter",
                    QUICK_CASES,
                    "--size",
                    "small",
                    "--repeats",
                    "2",
                    "--impl",
                    "portable_decode,portable_prefill",
                    "--time-limit",
                    "8",
                    "--json",
                    out / "portable.json",
                ],
                20,
            ),
            "benchmark": (
                [
                    *bench,
                    "decode_8k",
                    "decode_b1_128k",
                    "--quick",
                    "--formats",
                    "nvfp4",
                    "--out",
                    out / "block_scores.json",
                    "--time-limit",
                    "25",
                ],
                40,
            ),
            "benchmark_portable": (
                [
                    *bench,
                    "decode_b1_128k",
                    "--quick",
                    "--formats",
                    "nvfp4",
                    "--implementation",
                    "portable",
                    "--out",
                    out / "portable_scores.json",
                ],
                30,
            ),
            "memcheck": (
                [PYTHON, HERE / "sanitize.py", "--rows", "small", "--time-limit", "8", "--json", out / "memcheck.json"],
                30,
            ),
            "synccheck": (
                [
                    PYTHON,
                    HERE / "sanitize.py",
                    "--rows",
                    "variants",
                    "--tool",
                    "synccheck",
                    "--time-limit",
                    "8",
                    "--json",
                    out / "synccheck.json",
                ],
                30,
            ),
        }
    return table


def step(name, command, limit, out):
    """{"status", "seconds"}; the output goes to <out>/<name>.log. Status: an exit status, "time" or "missing". What a step started ends with it."""
    start = time.monotonic()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    with open(out / f"{name}.log", "w") as log:
        try:
            process = subprocess.Popen(
                [str(c) for c in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
        except FileNotFoundError as e:
            log.write(str(e))
            return {"status": "missing", "seconds": 0.0}
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = "time"
        finally:  # and what it started: left alone, those would work on during the next step
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    return {"status": status, "seconds": round(time.monotonic() - start, 1)}


def described(name, found):
    """A line about a step."""
    return f"{name}: {WORDS.get(found['status'], 'failed, exit status ' + str(found['status']))} ({found['seconds']} s)"


def report(summary, out):
    """report.txt: what happened, in words."""
    lines = [described(*item) for item in summary.items()]
    for name in summary:
        log = (out / f"{name}.log").read_text(errors="replace").splitlines()
        lines += [
            "",
            f"==== {name}, the last of {len(log)} lines",
            *(log if name in ("doctor", "model") else log[-LOG_LINES:]),
        ]
    (out / "report.txt").write_text("\n".join(lines) + "\n")


def main(argv=None, table=None):
    """table: other commands than `commands`, for tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "card_report")
    parser.add_argument(
        "--steps", default="", help="comma-separated; default: all, `portable` only where `parity` failed"
    )
    parser.add_argument("--quick", action="store_true", help="every step on a few cases: does it work here?")
    args = parser.parse_args(argv)
    out = args.out.resolve()
    if (out / "summary.json").exists():  # an earlier report: its rows are not this card's
        shutil.rmtree(out)
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out: {out} holds other files; expected an empty folder or an earlier report")
    out.mkdir(parents=True, exist_ok=True)
    table = table or commands(out, args.quick)
    wanted = [s for s in args.steps.split(",") if s] or list(table)
    unknown = [s for s in wanted if s not in table]
    if unknown:
        parser.error(f"--steps: got {', '.join(unknown)}, expected some of {', '.join(table)}")
    accepted = (0, LEFT_OUT) if args.quick else (0,)
    summary = {}
    for name in wanted:
        if name == "portable" and not args.steps and "parity" in summary and summary["parity"]["status"] in accepted:
            continue
        summary[name] = step(name, *table[name], out)
        print(described(name, summary[name]), flush=True)
        (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        report(summary, out)
    archive = out.parent / f"{out.name}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(out, out.name)
    print(f"send {archive}")
    return int(any(s["status"] not in accepted for s in summary.values()))


if __name__ == "__main__":
    sys.exit(main())
