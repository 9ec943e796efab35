"""The fuzzer's loop: cases made ahead in threads, run one by one under a watchdog, judged, counted."""

import collections
import concurrent.futures
import json
import os
import threading
import time
import traceback
from pathlib import Path

import numpy as np

from . import cases, expected, metadata, shapes, values

LOST = ("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "illegal memory access", "unspecified launch failure", "misaligned address")


class Fuzzer:
    """implementations: names of tests/support/calls.py, or "reference". reference_every: every how many cases the reference runs as well (0: never)."""

    def __init__(
        self,
        seed,
        implementations,
        *,
        match="",
        reference_every=0,
        workers=4,
        hang_limit=30.0,
        json_path=None,
        programs=None,
        time_limit=1e9,
    ):
        self.seed, self.match, self.buckets, self.pools = seed, match, shapes.buckets(match), cases.Pools(seed)
        self.implementations, self.reference_every = list(implementations), reference_every
        self.workers, self.hang_limit, self.json_path, self.end = (
            workers,
            hang_limit,
            json_path,
            time.monotonic() + time_limit,
        )
        self.counts, self.faults, self.slots = collections.Counter(), collections.Counter(), collections.Counter()
        self.runs = collections.defaultdict(lambda: [0, 0])  # implementation -> [right, wrong]
        self.failures, self.seconds = [], {}
        self.programs = programs if programs is not None else {}

    def bucket(self, index):
        return cases.bucket_of(self.seed, index, self.buckets)

    def with_reference(self, index):
        return self.reference_every and index % self.reference_every == 0

    # -- programs ----------------------------------------------------------------------------------------------------------
    def compile(self, indices):
        """The programs of these cases, side by side."""
        from .programs import Program

        start = time.monotonic()

        def one(key):
            bucket, reference = key
            for number in range(values.POOLS):
                pool = self.pools.get(bucket, number)
            return key, Program(bucket, pool, ["reference"] if reference else self.implementations)

        keys = [(self.bucket(i), False) for i in indices] + [
            (self.bucket(i), True) for i in indices if self.with_reference(i)
        ]
        keys = [key for key in dict.fromkeys(keys) if key not in self.programs]
        with concurrent.futures.ThreadPoolExecutor(self.workers) as pool:
            self.programs.update(pool.map(one, keys))
        self.seconds["compile"] = self.seconds.get("compile", 0) + time.monotonic() - start

    # -- cases -------------------------------------------------------------------------------------------------------------
    def run(self, indices):
        """Every case of `indices`; stops early where the device is lost or time is out. Returns whether all went well."""
        indices = list(indices)
        self.compile(indices)
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.workers) as pool:
            made = collections.deque()
            for i in indices:
                made.append(pool.submit(self.prepare, i))
                if len(made) > 8 * self.workers and not self.take(made.popleft()):
                    break
            else:
                while made and self.take(made.popleft()):
                    pass
            for left in made:
                left.cancel()
            self.counts["not run"] += len(indices) - self.counts["cases"]
        self.seconds["cases"] = time.monotonic() - start
        return not self.failures and not self.counts["not run"]

    def prepare(self, index):
        case = cases.make(self.seed, index, self.buckets, self.pools)
        return case, expected.expect(case.pool, case.metadata)

    def take(self, future):
        """Run one case. False: no further case makes sense."""
        case, truth = future.result()
        if time.monotonic() > self.end:
            return False
        self.counts["cases"] += 1
        self.counts["invalid" if case.invalid else "valid"] += 1
        self.counts["falls"] += truth.falls
        self.faults.update(case.metadata.faults)
        if case.invalid and not case.metadata.faults:
            self.fail(case, "generator", f"ragged.validate refuses a valid batch: {case.invalid}")
        watchdog = threading.Timer(self.hang_limit, self.leave, [case])
        watchdog.daemon = True
        watchdog.start()
        try:
            outs = self.programs[case.bucket, False](case.pool, case.metadata)
            if self.with_reference(case.index):
                outs |= self.programs[case.bucket, True](case.pool, case.metadata)
        except Exception as error:
            self.fail(case, "all", f"{type(error).__name__}: {str(error).strip()[:600]}")
            traceback.print_exc(limit=-3)
            return not any(word in str(error) for word in LOST)
        finally:
            watchdog.cancel()
        for name, out in outs.items():
            problem = expected.judge(np.asarray(out), case.pool, truth)
            self.runs[name][bool(problem)] += 1
            self.slots[name] += out.size
            if problem:
                self.fail(case, name, problem)
        return True

    def fail(self, case, implementation, what):
        repro = f"PYTHONPATH=.:tests python -m fuzz --seed {self.seed} --case {case.index}" + (
            f" --buckets {self.match}" if self.match else ""
        )
        self.failures.append(dict(case=str(case), implementation=implementation, what=what, repro=repro))
        print(f"FAIL {case} {implementation}: {what}\n     {repro}", flush=True)

    def leave(self, case):
        """A hung kernel cannot be interrupted, only left."""
        self.fail(case, "all", f"no end after {self.hang_limit:.0f} s: hung")
        self.write()
        os._exit(4)

    # -- what was found ----------------------------------------------------------------------------------------------------
    def summary(self):
        import jax

        device = jax.devices()[0]
        return dict(
            seed=self.seed,
            device=device.device_kind,
            jax=jax.__version__,
            buckets=len({b for b, _ in self.programs}),
            counts=dict(self.counts),
            right_and_wrong=dict(self.runs),
            slots_compared={k: int(n) for k, n in self.slots.items()},
            faults=dict(sorted(self.faults.items())),
            faults_known=len(metadata.FAULTS),
            seconds={k: round(s, 2) for k, s in self.seconds.items()},
            failures=self.failures,
        )

    def write(self):
        if self.json_path:
            Path(self.json_path).write_text(json.dumps(self.summary(), indent=1) + "\n")

    def show(self):
        s, n = self.seconds.get("cases", 0), self.counts["cases"]
        print(
            f"seed {self.seed}: {n} cases, {self.counts['invalid']} of them invalid ({self.counts['falls']} with a sum that falls), {sum(self.slots.values())} slots compared; programs in {self.seconds.get('compile', 0):.1f} s, cases in {s:.1f} s"
        )
        for name, (right, wrong) in sorted(self.runs.items()):
            print(f"  {name} {right}/{right + wrong} cases")
        print(f"{len(self.failures)} failures, {self.counts['not run']} cases not run", flush=True)
