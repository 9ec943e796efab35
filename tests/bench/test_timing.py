"""Reading the device's clocks, and programs that hold them."""
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from jax_fp4_indexer.bench import clock, data, limits, shapes, timing

ROOT = pathlib.Path(__file__).parents[2]


def ticks(times_ns, mhz, order):
    """What stamps would write on multiprocessors `order`, whose counters start apart: uint32 [stamps, multiprocessors, 6]."""
    numbers = np.zeros((len(times_ns), len(order), 3), np.uint64)
    for stamp, ns in enumerate(times_ns):
        for cta, sm in enumerate(np.roll(order, stamp)):
            late = 32 * cta                     # CTAs do not start at once
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
    assert timing.per_call(ticks([0, 10_000, 20_000, 33_000, 36_000], 1980, [0, 1]), (1, 1, 1, 0))[0] == pytest.approx((7 + 10) / 2)


def test_a_program_orders_calls_by_data(monkeypatch):
    monkeypatch.setattr(clock, "multiprocessors", lambda: 132)
    case = shapes.uniform("x", 2, 4, 256, 4, 1, False)
    lowered = timing.program(data.op(case, "nvfp4", "public", None), (2, 3, 0)).trace(data.make(case, "nvfp4", "public", 5)).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line.strip() for line in lowered.splitlines() if "@jax_fp4_indexer." in line]
    assert ["clock" if "clock.v1" in line else "call" for line in calls] == ["clock", "call", "call", "clock", "call", "call", "call", "clock", "clock"]
    results = [line.split(" = ")[0].split(":")[0] for line in calls]
    operands = [line.partition("(")[2].partition(")")[0] for line in calls]
    assert all(f"{results[0]}#0" in operands[i] for i in (1, 2)) and all(f"{results[3]}#0" in operands[i] for i in (4, 5, 6))        # calls wait for the stamp before them
    assert all(f"{results[i]}#0" in operands[3] for i in (1, 2)) and all(f"{results[i]}#0" in operands[7] for i in (4, 5, 6))        # and stamps for the calls before them
    assert f"{results[7]}#0" in operands[8] and "operand_index = 0" in calls[0]


def test_floor_of_a_case():
    rates = {"read_gbs": 4000.0, "bf16_tflops": 700.0, "int8_tops": 1400.0}
    prefill, mixed = (shapes.CASES[name] for name in ("prefill_q8k_k8k", "prefill_q8k_k8k_mixed"))
    bf16 = prefill.flops() / 700e6
    assert limits.floor_us(prefill, "nvfp4", rates) == ("bf16 gemm", pytest.approx(bf16))
    assert limits.floor_us(prefill, "mxfp4", rates) == ("int8 gemm", pytest.approx(bf16 / 2))
    assert limits.floor_us(mixed, "mxfp4", rates) == ("90% int8, 10% bf16 gemm", pytest.approx(0.9 * bf16 / 2 + 0.1 * bf16))
    decode = shapes.CASES["decode_8k"]
    assert limits.floor_us(decode, "nvfp4", rates) == ("read", pytest.approx(decode.logical_bytes("nvfp4") / 4e6))


def test_the_table_shows_the_results_that_are_there():
    done = subprocess.run([sys.executable, "benchmarks/report.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_report(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import report
    import roofline
    rows = json.loads((ROOT / "benchmarks" / "results" / "h200" / "block_scores.json").read_text())
    text = report.replaced(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow", rows)
    assert text.startswith("above\n") and text.endswith("\nbelow") and "old" not in text
    shown = [r for r in rows if r["scale_layout"] == "preordered_mma"]
    assert text.count("\n| ") == len(shown) + 1 and all(f"| {r['case']} | {r['format']} |" in text for r in shown)
    assert report.replaced(text, rows) == text
    for broken in ("", report.END + report.BEGIN, report.BEGIN, text + text):
        with pytest.raises(ValueError, match="markers"):
            report.replaced(broken, rows)
    assert [report.number(x) for x in (None, 9988.6, 717.6, 31.94, 9.481)] == ["-", "9,989", "718", "31.9", "9.48"]
    roofline.plot(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_measure_on_this_machine_by_the_host():
    assert jax.default_backend() == "cpu" and not clock.available()
    case = shapes.uniform("x", 1, 2, 128, 1, 1, False)
    times = timing.measure(data.op(case, "nvfp4", "public", None), data.make(case, "nvfp4", "public", 8), (1, 2), repeats=2, warmup=1, seconds=0.01, idle=0.0)
    assert times.method == "host clock" and times.sustained_us > 0 and times.first_s > 0 and times.burst_mhz is None and times.card == {}
