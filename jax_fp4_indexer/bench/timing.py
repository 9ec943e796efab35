"""Microseconds a call: in a burst, and sustained.

On a CUDA GPU the device's clock is read inside the program (`clock.stamp`), so neither the host's clock nor what the
host does to start a program is in a figure. A program is

    stamp, `lead` calls, stamp, n calls, stamp, stamp

and a call takes ((third - second) - (fourth - third)) / n: from the start of one call to the start of the next; what a
stamp costs cancels. The calls of a program read different memory (`BenchCase.make`), so that L2 is cold and XLA cannot
compute two calls once; stamps and calls are ordered by data.

burst       one run after a pause, in which the card cools and its clock recovers; median of several. The calls before
            the second stamp wake it up.
sustained   programs of `SUSTAINED_S` or `SUSTAINED_CALLS`, run after run for a while, so that the power cap sets the
            clock; median of the second half of that time. `busy` is the share of it between first and last stamps. Two
            runs are in flight, except of short calls: then runs alternate between two sets of buffers, XLA captures
            the graph anew for each, and that takes the host `CAPTURE_US` a call. For the same reason no run's result
            is kept.

Elsewhere (`host.py`) both are differences of host clocks.
"""

import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from jax_fp4_indexer.bench import clock, host
from jax_fp4_indexer.bench.card import Card

IDLE_S = 0.08  # after it the clock was at its maximum in every run
SUSTAINED_S, SUSTAINED_CALLS = 0.012, 160  # of a program
CAPTURE_US = 25  # 23 us were seen
SLOW_US = 50e3


@dataclasses.dataclass(frozen=True)
class Times:
    """Microseconds a call: medians and ranges (largest - smallest). MHz are those of the SMs' own counters; `card`
    maps "burst" and "sustained" to `Card.summary`. What a host clock cannot tell is None."""

    burst_us: float
    burst_spread_us: float
    sustained_us: float
    sustained_spread_us: float
    burst_mhz: float | None
    sustained_mhz: float | None
    busy: float | None
    first_s: float
    method: str
    card: dict


def program(call, counts):
    """Jitted (args) -> ticks: a stamp before each of the groups of calls that `counts` names, and one at the end.

    call(args, i) -> array or arrays, computes call number i of the program. `args` is a pytree; its first leaf carries
    the order: every call must use it.
    """

    def run(args):
        (x, *rest), tree = jax.tree.flatten(args)
        ticks, results, i = [], [], 0
        for count in (*counts, None):
            x, now = clock.stamp(x, *jax.tree.leaves(results))
            ticks.append(now)
            if count is not None:
                ordered = jax.tree.unflatten(tree, (x, *rest))
                results = [call(ordered, i + j) for j in range(count)]
                i += count
        return jnp.stack(ticks)

    return jax.jit(run)


def per_call(ticks, counts):
    """(us a call, MHz) of a run of `program(call, (lead, *timed, 0))`."""
    us, mhz = clock.read(ticks)
    timed = counts[1:-1]
    return float(sum(us[1:-1]) - len(timed) * us[-1]) / sum(timed), float(np.mean(mhz[1:-1]))


def measure(call, args, counts, repeats, warmup=2, seconds=0.4, idle=IDLE_S, more=None):
    """-> Times of `call(args, i)` (see `program`).

    counts: calls before timing, then one or more timed groups. `more`: the most calls that a program of the sustained
    time may have (default: no more than the burst's). first_s includes XLA's compilation.
    """
    counts = (*counts, 0)
    if not clock.available():
        return Times(
            **host.measure(call, args, sum(counts[1:]), repeats, warmup, seconds, idle),
            burst_mhz=None,
            sustained_mhz=None,
            busy=None,
            method="host clock",
            card={},
        )
    fn, card = program(call, counts), Card()
    start = time.perf_counter()
    jax.block_until_ready(fn(args))
    first = time.perf_counter() - start
    for _ in range(warmup):
        jax.block_until_ready(fn(args))
    bursts = []
    for _ in range(repeats):
        time.sleep(idle)
        ticks = fn(args)
        card.sample()  # while it runs
        bursts.append(per_call(ticks, counts))
    us, mhz = zip(*bursts)
    burst_us, state = statistics.median(us), {"burst": card.summary()}

    calls = int(min(SUSTAINED_S * 1e6 / burst_us, SUSTAINED_CALLS, more or 0))
    if calls > 2 * sum(counts):
        counts = (1, calls - 1, 0)
        fn = program(call, counts)
        for _ in range(1 + warmup):
            jax.block_until_ready(fn(args))
    in_flight, runs, end = [fn(args)] if burst_us > CAPTURE_US else [], [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(runs) < 6:
        in_flight.append(fn(args))
        card.sample()
        runs.append(np.asarray(in_flight.pop(0)))
    jax.block_until_ready(in_flight)
    state["sustained"] = card.summary()
    runs = np.stack(runs[len(runs) // 2 :])
    sustained_us, sustained_mhz = zip(*(per_call(ticks, counts) for ticks in runs))
    return Times(
        burst_us,
        max(us) - min(us),
        statistics.median(sustained_us),
        max(sustained_us) - min(sustained_us),
        statistics.median(mhz),
        statistics.median(sustained_mhz),
        clock.busy(runs),
        first,
        "device clock",
        state,
    )


def burst(call, args, counts=(1, 2), repeats=3, idle=IDLE_S):
    """Microseconds a call in a burst, and nothing else: for baselines, of which a call may take seconds. One of
    `SLOW_US` is timed once, alone."""
    if not clock.available():
        fn = host.program(call, 1)
        host.once(fn, args)
        return statistics.median(host.once(fn, args) for _ in range(repeats)) * 1e6
    alone = (0, 1, 0)
    fn = program(call, alone)
    jax.block_until_ready(fn(args))
    us = per_call(fn(args), alone)[0]
    if us > SLOW_US:
        return us
    counts = (*counts, 0)
    fn, found = program(call, counts), []
    jax.block_until_ready(fn(args))
    for _ in range(repeats):
        time.sleep(idle)
        found.append(per_call(fn(args), counts)[0])
    return statistics.median(found)


def chain(call, args, n, repeats, idle=IDLE_S):
    """Microseconds a call of n calls that each wait for the one before, as a model's layers do; None without a device
    clock.

    A link is a call and a small kernel that makes the next call's codes depend on its result. Median of `repeats`
    runs, each after a pause.
    """
    if not clock.available():
        return None
    program, found = chain_program(call, n), []
    for _ in range(2):
        jax.block_until_ready(program(args))
    for _ in range(repeats):
        time.sleep(idle)
        found.append(per_call(program(args), (1, n, 0))[0])
    return statistics.median(found)


def chain_program(call, n):
    """Jitted (args) -> ticks as of `program(call, (1, n, 0))`, whose calls wait for one another."""

    def run(args):
        (x, *rest), tree = jax.tree.flatten(args)
        ticks = []
        for count in (1, n):  # one call to wake the device up
            x, now = clock.stamp(x)
            ticks.append(now)
            for i in range(count):
                x = _after(x, call(jax.tree.unflatten(tree, (x, *rest)), i))
        for _ in range(2):
            x, now = clock.stamp(x)
            ticks.append(now)
        return jnp.stack(ticks)

    return jax.jit(run)


def _after(x, results):
    """The integers `x`, of which one waits for the first of `results`: it is flipped where that is NaN in its first
    place."""
    first = jax.tree.leaves(results)[0].ravel()[0]
    return x.at[(0,) * x.ndim].set(x[(0,) * x.ndim] ^ jnp.isnan(first).astype(x.dtype))
