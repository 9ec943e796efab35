"""Clocks.

A program is one jitted function with `iters` calls in it, each on its own page list, so that L2 is cold and Python is out of the way.
*burst*: the slope between a program and one twice as long, each run after an idle pause (the power cap has not bitten yet).
*sustained*: programs back to back for `seconds`; the median of the second half.
Both are host clocks around work long enough that the launch of the program itself does not show (its constant part cancels in the slope).
"""
import statistics
import subprocess
import threading
import time

import jax
import jax.numpy as jnp


def program(call, iters, keep_outputs):
    """(data) -> results of `iters` calls; `keep_outputs` False keeps one number of each (for outputs too large to hold)."""
    def run(data):
        outs = [call(data, data.kv_indices[i]) for i in range(iters)]
        return outs if keep_outputs else [o.ravel()[:1] for o in outs]
    return jax.jit(run)


def _once(fn, *args):
    start = time.perf_counter()
    jax.block_until_ready(fn(*args))
    return time.perf_counter() - start


def measure(call, data, iters, repeats, warmup=2, out_bytes=0, seconds=0.25, idle=0.06):
    """-> dict(burst_us, burst_spread_us, sustained_us, first_s): microseconds a call."""
    keep = out_bytes * iters * 3 < 24e9
    short, long = (program(call, n, keep) for n in (iters, 2 * iters))
    first = _once(short, data)
    _once(long, data)
    for _ in range(warmup):
        _once(short, data)
    slopes = []
    for _ in range(repeats):
        time.sleep(idle)
        a = _once(short, data)
        time.sleep(idle)
        b = _once(long, data)
        slopes.append((b - a) / iters)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 4:
        times.append(_once(long, data) / (2 * iters))
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
