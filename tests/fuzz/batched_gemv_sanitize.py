"""Every shape of the batched GEMV's fuzzer once under compute-sanitizer, in short processes side by side.

    PYTHONPATH=.:tests python -m fuzz.batched_gemv_sanitize --seed 1 --record

Exit status: 0 all clean, 1 errors or deaths, 3 time ran out before the end.
"""

import argparse
import sys

from .sanitize import FuzzSanitizer, sanitize


class GemvSanitizer(FuzzSanitizer):
    def chunks(self, names):
        """Shapes far apart: large ones are spread over the processes."""
        return [names[i :: self.args.processes] for i in range(min(self.args.processes, len(names)))]

    @property
    def claim(self):
        return f"batched_gemv_fuzz_{self.args.tool}"

    def program(self, names):
        seed = str(self.args.seed)
        return ["-m", "fuzz.batched_gemv", "--bare", "--workers", "1", "--seed", seed, "--shape", ",".join(names)]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="fuzz.batched_gemv_sanitize")
    sanitize.add_arguments(p, jobs=8)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--cases", type=int, default=100, help="shapes, of the 100 that a seed has")
    p.add_argument("--processes", type=int, default=16)
    p.set_defaults(rows="fuzzed", control=False)
    return GemvSanitizer(p.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
