"""Everything worth knowing of a card on which the kernels have not run yet, in one archive to send back.

    make card-report                                        all of it: an hour at most, and a CUDA toolkit for the last step
    python tests/parity/card_report.py --steps doctor,parity --out report

| step | what | limit, seconds |
|---|---|---|
| doctor | driver, capability, which kernel each call takes | 60 |
| parity | the whole case table, native and portable kernels, 20 repeats, pools and results beyond 2^31 | 900 |
| portable | the table on the portable kernels alone, where `parity` failed: are those to be trusted? | 600 |
| benchmark | every case, native; limits of the card in the same run | 900 |
| benchmark_portable | the headline cases on the portable kernels | 300 |
| memcheck | the small cases under compute-sanitizer | 900 |

A step that fails or runs out of time does not stop the others. Exit status: 0 if every step passed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tarfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON = sys.executable


def commands(out):
    """step -> (command, limit in seconds)"""
    run, bench = [PYTHON, HERE / "run.py"], [PYTHON, ROOT / "benchmarks" / "run.py"]
    return {
        "doctor": ([PYTHON, "-m", "jax_fp4_indexer.cli", "doctor"], 60),
        "parity": ([*run, "--extra", "contexts,huge", "--time-limit", "840", "--json", out / "parity.json"], 900),
        "portable": ([*run, "--impl", "portable_decode,portable_prefill", "--time-limit", "540", "--json", out / "portable.json"], 600),
        "benchmark": ([*bench, "--out", out / "block_scores.json", "--time-limit", "840"], 900),
        "benchmark_portable": ([*bench, "--quick", "--implementation", "portable", "--out", out / "portable_scores.json", "--time-limit", "240"], 300),
        "memcheck": ([PYTHON, HERE / "sanitize.py", "--rows", "small", "--time-limit", "840", "--json", out / "memcheck.json"], 900),
    }


def step(name, command, limit, out):
    """{"status", "seconds"}; the output goes to <out>/<name>.log. Status: an exit status, "time" or "missing"."""
    start = time.monotonic()
    with open(out / f"{name}.log", "w") as log:
        try:
            status = subprocess.run([str(c) for c in command], stdout=log, stderr=subprocess.STDOUT, timeout=limit, cwd=ROOT).returncode
        except subprocess.TimeoutExpired:
            status = "time"
        except FileNotFoundError as e:
            log.write(str(e))
            status = "missing"
    return {"status": status, "seconds": round(time.monotonic() - start, 1)}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "card_report")
    parser.add_argument("--steps", default="", help="comma-separated; default: all, `portable` only where `parity` failed")
    args = parser.parse_args(argv)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    table = commands(out)
    wanted = [s for s in args.steps.split(",") if s] or list(table)
    unknown = [s for s in wanted if s not in table]
    if unknown:
        parser.error(f"--steps: got {', '.join(unknown)}, expected some of {', '.join(table)}")
    summary = {}
    for name in wanted:
        if name == "portable" and not args.steps and summary["parity"]["status"] == 0:
            continue
        summary[name] = step(name, *table[name], out)
        print(f"{name}: {summary[name]['status']} after {summary[name]['seconds']} s", flush=True)
        (out / "summary.json").write_text(json.dumps(summary, indent=1))
    archive = out.with_suffix(".tar.gz")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(out, out.name)
    print(f"send {archive}")
    return int(any(s["status"] != 0 for s in summary.values()))


if __name__ == "__main__":
    sys.exit(main())
