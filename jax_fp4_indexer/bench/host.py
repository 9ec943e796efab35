"""Times by the host's clock, for devices without `clock.stamp`.

A program is `n` calls; it returns one number that hangs on every result. Burst: the slope between a program of n and
of 2n calls, so that the time to start a program and to wait for it cancels; what XLA does on the host for each call
stays in it.
"""

import statistics
import time

import jax
import jax.numpy as jnp


def program(call, n):
    """Jitted (args) -> one number that depends on every one of n calls."""

    def run(args):
        # the barrier keeps XLA from computing only the one slot that is used
        first = lambda result: jax.tree.leaves(jax.lax.optimization_barrier(result))[0].ravel()[0].astype(jnp.float32)
        return sum(first(call(args, i)) for i in range(n))

    return jax.jit(run)


def once(fn, *args):
    """Seconds of a run, result waited for."""
    start = time.perf_counter()
    jax.block_until_ready(fn(*args))
    return time.perf_counter() - start


def measure(call, args, n, repeats, warmup, seconds, idle):
    """-> dict of the fields of timing.Times that a host clock can give."""
    short, long = program(call, n), program(call, 2 * n)
    first = once(short, args)
    for fn in (long, *(short, long) * warmup):
        once(fn, args)

    def after_pause(fn):
        time.sleep(idle)
        return statistics.median([once(fn, args) for _ in range(4)][1:])

    slopes = [(after_pause(long) - after_pause(short)) / n * 1e6 for _ in range(repeats)]
    queue = max(2, int(0.02 / max(once(long, args), 1e-6)))
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 4:
        times.append(once(lambda a: [long(a) for _ in range(queue)], args) / (queue * 2 * n) * 1e6)
    times = times[len(times) // 2 :]
    return {
        "burst_us": statistics.median(slopes),
        "burst_spread_us": max(slopes) - min(slopes),
        "sustained_us": statistics.median(times),
        "sustained_spread_us": max(times) - min(times),
        "first_s": first,
    }
