"""The buckets of one run shared over several processes: compiling and judging are Python, and one process is one core of it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def part(fuzzer, indices, which):
    """Those of `indices` whose bucket belongs to part "i/n"."""
    i, n = map(int, which.split("/"))
    place = {bucket: at for at, bucket in enumerate(fuzzer.buckets)}
    return [index for index in indices if place[fuzzer.bucket(index)] % n == i]


def merged(parts):
    """Summaries of run.py as one: numbers are added, the longest time counts, all failures are kept."""
    total = parts[0]
    for other in parts[1:]:
        for field in ("counts", "slots_compared", "faults"):
            for name, n in other[field].items():
                total[field][name] = total[field].get(name, 0) + n
        for name, runs in other["right_and_wrong"].items():
            total["right_and_wrong"][name] = [a + b for a, b in zip(total["right_and_wrong"].get(name, [0, 0]), runs)]
        for name, seconds in other["seconds"].items():
            total["seconds"][name] = max(total["seconds"].get(name, 0), seconds)
        total["buckets"] += other["buckets"]
        total["failures"] += other["failures"]
    return total | {"faults": dict(sorted(total["faults"].items())), "processes": len(parts)}


def _without_record(argv):
    """The parts write none: the whole does."""
    at = argv.index("--record") if "--record" in argv else None
    if at is None:
        return [word for word in argv if not word.startswith("--record=")]
    return argv[:at] + argv[at + (2 if argv[at + 1 :] and not argv[at + 1].startswith("--") else 1) :]


def run(argv, processes, json_path, record=None):
    """The command line `argv` in `processes` parts; the largest of their exit statuses.

    They share a GPU: each takes memory as it needs it. What JAX takes beforehand, three quarters of what is free, leaves a fifth process none."""
    argv = _without_record(argv)
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    with tempfile.TemporaryDirectory(prefix="fuzz_") as folder:
        files = [Path(folder, f"{i}.json") for i in range(processes)]
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fuzz",
                    *argv,
                    "--processes",
                    "1",
                    "--part",
                    f"{i}/{processes}",
                    "--json",
                    str(files[i]),
                ],
                env=environment,
            )
            for i in range(processes)
        ]
        status = max(abs(process.wait()) for process in running)
        parts = [json.loads(file.read_text()) for file in files if file.exists()]
    if parts:
        total = merged(parts)
        counts = total["counts"]
        print(
            f"all: {counts['cases']} cases, {counts.get('invalid', 0)} of them invalid, {len(total['failures'])} failures, {counts.get('not run', 0)} not run; "
            + ", ".join(
                f"{name} {right}/{right + wrong}" for name, (right, wrong) in sorted(total["right_and_wrong"].items())
            ),
            flush=True,
        )
        if record is not None:
            from .__main__ import write_record

            print("record:", write_record(total, record), flush=True)
        if json_path:
            Path(json_path).write_text(json.dumps(total, indent=1) + "\n")
    return status if len(parts) == processes else status or 1
