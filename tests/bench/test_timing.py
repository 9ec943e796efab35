"""Reading the device's clocks, and programs that hold them."""

import jax
import numpy as np
import pytest

from jax_fp4_indexer.bench import clock, timing
from jax_fp4_indexer.bench.cases import How
from jax_fp4_indexer.bench.cases.block_scores import uniform

PUBLIC = How("nvfp4", "public")


def ticks(times_ns, mhz, order):
    """What stamps would write on multiprocessors `order`, whose counters start apart: uint32 [stamps, multiprocessors,
    6]."""
    numbers = np.zeros((len(times_ns), len(order), 3), np.uint64)
    for stamp, ns in enumerate(times_ns):
        for cta, sm in enumerate(np.roll(order, stamp)):
            late = 32 * cta  # CTAs do not start at once
            numbers[stamp, cta] = sm, 10**9 * sm + (ns + late) * mhz // 1000, 10**12 + ns + late
    return numbers.view(np.uint32).reshape(len(times_ns), len(order), clock.WORDS)


def test_read_gives_times_between_stamps_and_the_clock_rate():
    us, mhz = clock.read(ticks([0, 40_000, 100_000], 1500, [3, 0, 2, 1]))
    np.testing.assert_allclose(us, [40, 60])
    np.testing.assert_allclose(mhz, 1500, rtol=1e-3)


def test_read_of_multiprocessors_that_no_two_stamps_share():
    apart = ticks([0, 1000], 1500, [0, 1])
    apart.view(np.uint64)[1, :, 0] += 10
    us, mhz = clock.read(apart)
    assert us == [1.0] and np.isnan(mhz).all()


def test_what_a_stamp_costs_cancels():
    # lead 2 calls, 5 calls of 7 us, nothing: each stamp costs 3 us
    us, mhz = timing.per_call(ticks([0, 17_000, 55_000, 58_000], 1980, [0, 1, 2]), (2, 5, 0))
    assert us == pytest.approx(7.0) and mhz == pytest.approx(1980, rel=1e-3)
    assert timing.per_call(ticks([0, 10_000, 20_000, 33_000, 36_000], 1980, [0, 1]), (1, 1, 1, 0))[0] == pytest.approx(
        (7 + 10) / 2
    )


def test_a_program_orders_calls_by_data(monkeypatch):
    monkeypatch.setattr(clock, "multiprocessors", lambda: 132)
    case = uniform("x", 2, 4, 256, 4, 1, False)
    lowered = (
        timing.program(case.call(PUBLIC), (2, 3, 0))
        .trace(case.make(PUBLIC, 5))
        .lower(lowering_platforms=("cuda",))
        .as_text()
    )
    calls = [line.strip() for line in lowered.splitlines() if "@jax_fp4_indexer." in line]
    assert ["clock" if "clock.v1" in line else "call" for line in calls] == [
        "clock",
        "call",
        "call",
        "clock",
        "call",
        "call",
        "call",
        "clock",
        "clock",
    ]
    results = [line.split(" = ")[0].split(":")[0] for line in calls]
    operands = [line.partition("(")[2].partition(")")[0] for line in calls]
    assert all(f"{results[0]}#0" in operands[i] for i in (1, 2)) and all(
        f"{results[3]}#0" in operands[i] for i in (4, 5, 6)
    )  # calls wait for the stamp before them
    assert all(f"{results[i]}#0" in operands[3] for i in (1, 2)) and all(
        f"{results[i]}#0" in operands[7] for i in (4, 5, 6)
    )  # and stamps for the calls before them
    assert f"{results[7]}#0" in operands[8] and "operand_index = 0" in calls[0]


def test_a_chain_lowers_for_a_gpu_with_its_calls_in_order(monkeypatch):
    monkeypatch.setattr(clock, "multiprocessors", lambda: 132)
    case = uniform("x", 2, 4, 256, 4, 1, False)
    lowered = (
        timing.chain_program(case.call(PUBLIC), 3)
        .trace(case.make(PUBLIC, 3))
        .lower(lowering_platforms=("cuda",))
        .as_text()
    )
    calls = ["clock" if "clock.v1" in line else "call" for line in lowered.splitlines() if "@jax_fp4_indexer." in line]
    assert calls == ["clock", "call", "clock", "call", "call", "call", "clock", "clock"]


def test_measure_on_this_machine_by_the_host():
    assert jax.default_backend() == "cpu" and not clock.available()
    case = uniform("x", 1, 2, 128, 1, 1, False)
    times = timing.measure(case.call(PUBLIC), case.make(PUBLIC, 8), (1, 2), repeats=2, warmup=1, seconds=0.01, idle=0.0)
    assert (
        times.method == "host clock"
        and times.sustained_us > 0
        and times.first_s > 0
        and times.burst_mhz is None
        and times.card == {}
    )
