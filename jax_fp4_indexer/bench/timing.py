"""Clocks.

A program is one jitted function with `iters` calls in it, each on its own page list, so that L2 is cold and Python is out of the way. It returns one
number that hangs on every result: no call can be left out, and results stay in XLA's own memory, at the same addresses in every run.
*burst*: the slope between a program and one twice as long, both run a few times right after an idle pause (the power cap has not bitten yet); the
time to start a program and to wait for it cancels. *sustained*: programs queued back to back for a while; the second half of that time counts.
"""
import statistics
import subprocess
import threading
import time

import jax
import jax.numpy as jnp


def program(call, iters):
    """(data) -> one number that depends on every one of `iters` calls."""
    def run(data):
        # the barrier keeps XLA from computing only the one slot that is used
        return sum(jax.lax.optimization_barrier(call(data, data.kv_indices[i]))[0, 0, 0] for i in range(iters))
    return jax.jit(run)


def _once(fn, *args):
    start = time.perf_counter()
    jax.block_until_ready(fn(*args))
    return time.perf_counter() - start


def _burst(fn, data, idle, runs=4):
    """Seconds of a run: the median of a few right after a pause, without the first, which wakes the card up."""
    time.sleep(idle)
    return statistics.median([_once(fn, data) for _ in range(runs)][1:])


def measure(call, data, iters, repeats, warmup=2, seconds=0.3, idle=0.06):
    """-> dict(burst_us, burst_spread_us, sustained_us, first_s): microseconds a call; first_s includes XLA's compilation of the program."""
    short, long = program(call, iters), program(call, 2 * iters)
    first = _once(short, data)
    for fn in (long, *(short, long) * warmup):
        _once(fn, data)
    slopes = [(_burst(long, data, idle) - _burst(short, data, idle)) / iters for _ in range(repeats)]
    queue = max(2, int(0.02 / max(_once(long, data), 1e-6)))           # 20 ms of work in flight
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 4:
        times.append(_once(lambda d: [long(d) for _ in range(queue)], data) / (queue * 2 * iters))
    return {"burst_us": statistics.median(slopes) * 1e6, "burst_spread_us": (max(slopes) - min(slopes)) * 1e6,
            "sustained_us": statistics.median(times[len(times) // 2:]) * 1e6, "first_s": first}


def limits():
    """Measured ceilings of the default device: copy and read GB/s (bytes read plus written), bf16 GEMM TFLOP/s."""
    on_gpu = jax.default_backend() == "gpu"
    n = (1 << 30) if on_gpu else (1 << 24)
    size = 8192 if on_gpu else 512
    x = jnp.arange(n, dtype=jnp.uint32)
    copy = jax.jit(lambda x: x + jnp.uint32(1))
    read = jax.jit(jnp.max)
    a = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
    gemm = jax.jit(lambda a: jnp.dot(a, a.T))
    result = {}
    for name, fn, arg, work in (("copy_gbs", copy, x, 8 * n), ("read_gbs", read, x, 4 * n), ("gemm_tflops", gemm, a, 2 * size ** 3 / 1e3)):
        _once(fn, arg)
        times = [_once(lambda v: [fn(v) for _ in range(4)], arg) / 4 for _ in range(5)]
        result[name] = work / statistics.median(times) / 1e9
    return result


class CardState:
    """Samples clock, power and the reason of any limit through nvidia-smi while a block of code runs."""
    FIELDS = "clocks.sm,power.draw.instant,clocks_event_reasons.active"

    def __enter__(self):
        self.samples, self._stop = [], threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self):
        while not self._stop.is_set():
            try:
                line = subprocess.run(["nvidia-smi", f"--query-gpu={self.FIELDS}", "--format=csv,noheader,nounits", "-i", "0"],
                                      capture_output=True, text=True, timeout=5).stdout.strip()
            except (OSError, subprocess.TimeoutExpired):
                return
            parts = [p.strip() for p in line.split(",")]
            if len(parts) == 3:
                self.samples.append(parts)
            self._stop.wait(0.1)

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def summary(self):
        """{} where there is no nvidia-smi."""
        if not self.samples:
            return {}
        clocks, power = ([float(s[i]) for s in self.samples] for i in (0, 1))
        return {"sm_clock_mhz": statistics.median(clocks), "power_w": max(power), "limit_reasons": sorted({s[2] for s in self.samples})}
