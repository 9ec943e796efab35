"""The case table under compute-sanitizer: many short processes side by side, since one long one has died with a segmentation fault.

    python tests/parity/sanitize.py [--tool memcheck] [--size small] [--oracle DIR] [--time-limit 300] [--json OUT] [--done EARLIER.json]

A process that dies is run again in halves until the case is found. With --done, cases that an earlier run found clean are left out.
Exit status: 0 all clean, 1 errors or deaths, 3 time ran out before the end.
"""
import argparse
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


class Sanitizer:
    def __init__(self, args):
        self.args, self.end = args, time.monotonic() + args.time_limit
        self.found = {"clean": [], "errors": [], "died": [], "not_run": []}
        self.runs = 0                   # case-variant pairs

    def names(self):
        command = [sys.executable, str(RUN), "--list", *(["--size", self.args.size] if self.args.size else [])]
        listing = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}).stdout
        done = set(json.loads(Path(self.args.done).read_text())["clean"]) if self.args.done else set()
        return [name for name in re.findall(r"^(\S+-(?:nvfp4|mxfp4)) ", listing, re.M) if name not in done]

    def check(self, names):
        left = self.end - time.monotonic()
        if left <= 0:
            self.found["not_run"] += names
            return
        command = ["compute-sanitizer", "--tool", self.args.tool, sys.executable, str(RUN), "--repeats", "1", "--scrambles", "0", "--workers", "1", "--filter", ",".join(names)]
        command += ["--oracle", self.args.oracle] if self.args.oracle else []
        try:
            text = subprocess.run(command, capture_output=True, text=True, timeout=left, env={**os.environ, **ENVIRONMENT}).stdout
        except subprocess.TimeoutExpired:
            self.found["not_run"] += names
            return
        summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
        if summary is None and len(names) > 1:
            self.check(names[:len(names) // 2])
            self.check(names[len(names) // 2:])
        elif summary is None:
            self.found["died"] += names
        elif int(summary[1]) or not re.search(r"^0 failures", text, re.M):
            self.found["errors"].append({"cases": names, "output": text[-4000:]})
        else:
            self.found["clean"] += names
            self.runs += sum(int(n) for n in re.findall(r"(\d+)/\d+ cases", text))

    def run(self):
        names = self.names()
        chunks = [names[i::max(1, len(names) // 16)] for i in range(max(1, len(names) // 16))]
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            list(pool.map(self.check, chunks))
        print(f"{self.args.tool}: {len(self.found['clean'])} cases clean ({self.runs} case-variant pairs), {len(self.found['errors'])} processes with errors, "
              f"{len(self.found['died'])} cases whose process died, {len(self.found['not_run'])} not run")
        for error in self.found["errors"]:
            print(error["cases"], error["output"], sep="\n")
        if self.args.json:
            Path(self.args.json).write_text(json.dumps(self.found, indent=1))
        return 1 if self.found["errors"] or self.found["died"] else 3 if self.found["not_run"] else 0


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--tool", default="memcheck", choices=("memcheck", "racecheck", "synccheck", "initcheck"))
    p.add_argument("--size", choices=("small", "large"))
    p.add_argument("--oracle", help="folder of run.py --make-oracle")
    p.add_argument("--time-limit", type=float, default=86400, help="seconds")
    p.add_argument("--jobs", type=int, default=5, help="processes side by side")
    p.add_argument("--json", help="write what was found to this file")
    p.add_argument("--done", help="file of an earlier --json: its clean cases are left out")
    return Sanitizer(p.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
