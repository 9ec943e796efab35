"""The fuzzer under compute-sanitizer, in short processes side by side (tests/parity/sanitize.py says why).

    PYTHONPATH=.:tests python -m fuzz.sanitize --seed 2 --cases 1000 --json OUT

Exit status: 0 all clean, 1 errors or deaths, 3 time ran out before the end.
"""

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "parity")]

import sanitize  # noqa: E402

from .cases import RUN  # noqa: E402


class FuzzSanitizer(sanitize.Sanitizer):
    def names(self):
        return [str(i) for i in range(self.args.first, self.args.first + self.args.cases)]

    def chunks(self, names):
        """Whole buckets: a process compiles few programs."""
        size = max(RUN, self.args.cases // self.args.processes // RUN * RUN)
        return [names[i : i + size] for i in range(0, len(names), size)]

    @property
    def claim(self):
        return f"fuzz_{self.args.tool}"

    def counted(self):
        return {"seed": self.args.seed}

    def further(self, names):
        return {"seed": self.args.seed}

    def program(self, names):
        return ["-m", "fuzz", "--seed", str(self.args.seed), "--workers", "1", "--case", ",".join(names)]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="fuzz.sanitize")
    sanitize.add_arguments(p, jobs=8)
    p.add_argument("--seed", type=int, default=2)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--cases", type=int, default=1000)
    p.add_argument("--processes", type=int, default=16)
    p.set_defaults(rows="fuzzed", control=False)
    return FuzzSanitizer(p.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
