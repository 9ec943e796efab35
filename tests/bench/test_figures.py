"""What makes the figures of a row, on times that are made up: every column from numbers that are worked out here by
hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_fp4_indexer.bench import card, clock, figures, host, limits, run, table, timing
from jax_fp4_indexer.bench.cases import How
from jax_fp4_indexer.bench.cases.block_scores import uniform

RATES = {
    "burst": {"read_gbs": 100.0, "bf16_tflops": 2.0, "int8_tops": 5.0},
    "sustained": {"read_gbs": 50.0, "bf16_tflops": 1.0, "int8_tops": 4.0},
}
TIMES = timing.Times(
    burst_us=10.0,
    burst_spread_us=1.5,
    sustained_us=12.5,
    sustained_spread_us=0.25,
    burst_mhz=1500.0,
    sustained_mhz=1000.0,
    busy=0.875,
    first_s=0.5,
    method="device clock",
    card={"burst": {"sm_mhz": 1980}, "sustained": {"power_w": 700.0, "reasons": ["power cap"]}},
)
# 128 queries of 2 heads over 256 keys, causal: 129 .. 256 keys are visible, so 24,640 pairs a head; 4 tiles of 128
# rows by a page
CASE = uniform("x", 1, 128, 256, 2, 1, True, nvfp4=7.5)
FLOPS = 2 * 2 * 128 * 24_640
BYTES = {
    "nvfp4": 128 * 2 * 72 + 256 * 72 + 4 * (2 + 6) + 4 * 2 * 2 * 128,
    "mxfp4": 128 * 2 * 68 + 256 * 68 + 4 * (2 + 6) + 4 * 2 * 2 * 128,
}


@pytest.fixture
def faked(monkeypatch):
    """A device of 100 multiprocessors and compute capability 9.0, on which every call of the op takes TIMES and a
    baseline 40 or 80 us."""
    asked = []

    def measure(call, args, counts, repeats, warmup=2, seconds=0.4, idle=0.08, more=None):
        asked.append(
            {
                "counts": counts,
                "repeats": repeats,
                "warmup": warmup,
                "more": more,
                "scales": args.k_scale.ndim,
                "lists": len(args.kv_indices),
            }
        )
        return TIMES

    def burst(call, args):
        asked.append({"scales": args.k_scale.ndim, "lists": len(args.kv_indices)})
        return 40.0 * (len(asked) - 1)

    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(timing, "burst", burst)
    monkeypatch.setattr(timing, "chain", lambda call, args, n, repeats: 11.0 + n)
    monkeypatch.setattr(clock, "available", lambda: True)
    monkeypatch.setattr(clock, "multiprocessors", lambda: 100)
    monkeypatch.setattr(run.runtime, "capability_of", lambda device: (9, 0))
    monkeypatch.setattr(card.Card, "identity", lambda self: {"uuid": "GPU-1", "power_limit_w": 700.0})
    monkeypatch.setenv("JFI_COMMIT", "abc1234")
    return asked


def test_every_column_of_a_row(faked):
    row = run.run_case(CASE, How("nvfp4", "preordered_mma"), rates=RATES, warmup=3, iters=6, repeats=4)
    expected = {
        "op": "block_scores",
        "case": "x",
        "format": "nvfp4",
        "scale_layout": "preordered_mma",
        "implementation": "auto",
        "median_us": 10.0,
        "spread_us": 1.5,
        "sustained_us": 12.5,
        "sustained_spread_us": 0.25,
        "busy": 0.875,
        "chain_us": 19.0,
        "tflops": FLOPS / 10e-6 / 1e12,
        "gbs": BYTES["nvfp4"] / 10e-6 / 1e9,
        # a read of the bytes at 100 GB/s, at 50 GB/s; a GEMM at 2 and at 1 TFLOP/s; four tiles of 1,024 clocks on 100
        # multiprocessors
        "read_share": BYTES["nvfp4"] / 100e9 / 10e-6,
        "sustained_read_share": BYTES["nvfp4"] / 50e9 / 12.5e-6,
        "gemm_share": FLOPS / 2e12 / 10e-6,
        "sustained_gemm_share": FLOPS / 1e12 / 12.5e-6,
        "tensor_share": 4 * 1024 / (10e-6 * 1500e6 * 100),
        "sustained_tensor_share": 4 * 1024 / (12.5e-6 * 1000e6 * 100),
        "limit": "bf16 gemm",
        "limit_us": FLOPS / 2e12 * 1e6,
        "sustained_limit_us": FLOPS / 1e12 * 1e6,
        "xla_us": 40.0,
        "reference_us": 80.0,
        "published_us": 7.5,
        "sm_mhz": 1500.0,
        "sustained_sm_mhz": 1000.0,
        "card_burst": {"sm_mhz": 1980},
        "card_sustained": {"power_w": 700.0, "reasons": ["power cap"]},
        "method": "device clock",
        "calls": (2, 6),
        "first_call_s": 0.5,
        "card": jax.devices()[0].device_kind,
        "card_identity": {"uuid": "GPU-1", "power_limit_w": 700.0},
        "capability": (9, 0),
        "multiprocessors": 100,
        "jax": jax.__version__,
        "commit": "abc1234",
        "limits": RATES,
    }
    assert set(row) - set(expected) == {"took_s", "date"}
    for name, value in expected.items():
        assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    op, xla, reference = faked
    assert (
        op["counts"] == (2, 6)
        and op["repeats"] == 4
        and op["warmup"] == 3
        and op["lists"] == op["more"] == timing.SUSTAINED_CALLS
        and op["scales"] == 6
    )
    assert xla["scales"] == reference["scales"] == 4  # the baselines take public scales


def test_shares_of_an_int8_case_and_of_one_bound_by_memory():
    of = lambda case, fmt, **other: figures.figures(
        case,
        How(fmt, "public"),
        burst_us=10.0,
        sustained_us=12.5,
        burst_mhz=1500.0,
        sustained_mhz=1000.0,
        rates=RATES,
        multiprocessors=100,
        **{"capability": (9, 0), **other},
    )
    int8 = of(CASE, "mxfp4")
    assert int8["limit"] == "int8 gemm" and int8["gemm_share"] == pytest.approx(FLOPS / 5e12 / 10e-6)
    assert int8["sustained_tensor_share"] == pytest.approx(4 * 512 / (12.5e-6 * 1000e6 * 100))
    decode = of(uniform("x", 1, 4, 256, 1, 1, False), "nvfp4")
    assert decode["limit"] == "read" and decode["tensor_share"] is None and decode["sustained_tensor_share"] is None
    assert (
        decode["limit_us"]
        == pytest.approx((4 * 72 + 256 * 72 + 4 * 8 + 4 * 2 * 4) / 100e9 * 1e6)
        == pytest.approx(10 * decode["read_share"])
    )
    assert of(CASE, "nvfp4", capability=(10, 0))["tensor_share"] is None  # a card whose rate is not known
    bare = figures.figures(CASE, How("nvfp4", "public"), burst_us=10.0, sustained_us=12.5)
    assert bare["tflops"] and not any(
        bare[name] for name in ("read_share", "gemm_share", "tensor_share", "limit", "limit_us", "sustained_limit_us")
    )


def test_kept_busy():
    assert (
        figures.kept_busy({"busy": 0.96})
        and not figures.kept_busy({"busy": 0.75})
        and not figures.kept_busy({"busy": None})
        and not figures.kept_busy({})
    )


@pytest.mark.parametrize("method, burst", [("device clock", 100.0), ("host clock", 200.0)])
def test_rates_of_the_device(monkeypatch, method, burst):
    calls = []

    def measure(call, args, counts, repeats, seconds):
        calls.append((call, args))
        return timing.Times(**{**vars(TIMES), "burst_us": 100.0, "sustained_us": 200.0, "method": method})

    monkeypatch.setattr(timing, "measure", measure)
    rates = limits.measure()
    read, bf16, int8 = calls
    words, (size, depth) = read[1][0].size, bf16[1][0].shape
    for kind, us in (("burst", burst), ("sustained", 200.0)):
        assert rates[kind] == {
            "read_gbs": pytest.approx(4 * words / us / 1e3),
            "bf16_tflops": pytest.approx(2 * size * size * depth / us / 1e6),
            "int8_tops": pytest.approx(2 * size * size * depth / us / 1e6),
        }
    # what is timed is a read of everything and whole products, of numbers that are not zeros
    assert int(read[0](read[1], 1)) == int(np.max(np.arange(words) ^ 1)) and int(read[0](read[1], 0)) == words - 1
    for (call, (a,)), exact in ((bf16, False), (int8, True)):
        wide = np.asarray(a).astype(np.float64)
        assert np.mean(wide == 0) < 0.1
        np.testing.assert_allclose(
            np.asarray(call((a,), 0)).astype(np.float64),
            wide @ wide.T,
            rtol=0 if exact else 2**-8,
            atol=0 if exact else 0.05,
        )


def test_gemm_is_a_peer_of_each_type_of_work():
    rates = RATES["burst"]
    assert limits.gemm_us({"bf16": 2e12, "int8": 5e12}, rates) == pytest.approx(2e6)
    assert limits.floor(1e3, {"bf16": 2e12, "int8": 8e12}, rates) == ("80% int8 + 20% bf16 gemm", pytest.approx(2.6e6))
    assert limits.floor(1e12, {"bf16": 1.0}, rates) == ("read", pytest.approx(1e7))
    assert limits.tensor_clocks({"bf16": 4096.0, "int8": 4096.0}, (9, 0)) == 1.5


# ---- medians
def test_a_burst_is_the_median_and_sustained_that_of_the_second_half(monkeypatch):
    """Runs of the given microseconds a call: two to warm up, five bursts, then sustained ones of which the last three
    of six count."""
    durations = iter([99, 99, 7, 9, 20, 8, 30, 50, 50, 50, 12, 10, 11, 1])

    def program(call, counts):
        return lambda args: (next(durations), counts)

    monkeypatch.setattr(timing, "program", program)
    monkeypatch.setattr(timing, "per_call", lambda ticks, counts: (float(ticks[0]), 1000.0 + ticks[0]))
    monkeypatch.setattr(timing.np, "asarray", lambda ticks: ticks)
    monkeypatch.setattr(timing.np, "stack", lambda runs: runs)
    monkeypatch.setattr(clock, "available", lambda: True)
    monkeypatch.setattr(clock, "busy", lambda runs: len(runs) / 10)
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    found = timing.measure(None, (), (1, 2), repeats=5, warmup=1, seconds=0)
    assert (found.burst_us, found.burst_spread_us, found.burst_mhz) == (9.0, 23.0, 1009.0)
    assert (found.sustained_us, found.sustained_spread_us, found.sustained_mhz, found.busy) == (11.0, 2.0, 1011.0, 0.3)
    assert found.method == "device clock"


def test_by_the_hosts_clock_a_burst_is_the_median_of_slopes(monkeypatch):
    """A program of n calls takes n * x + 100 us after a pause; x is another one after every second pause."""
    slopes, pauses = [5.0, 4.0, 2.0, 9.0, 3.0], []
    monkeypatch.setattr(host, "program", lambda call, n: n)
    monkeypatch.setattr(
        host,
        "once",
        lambda n, *args: 1e-3 if callable(n) else (n * slopes[max(0, (len(pauses) - 1) // 2)] + 100) * 1e-6,
    )
    monkeypatch.setattr(host.time, "sleep", pauses.append)
    found = host.measure(None, (), 2, 5, 1, 0, 0.08)
    assert pauses == [0.08] * 10
    assert found["burst_us"] == pytest.approx(4.0) and found["burst_spread_us"] == pytest.approx(7.0)


@pytest.mark.parametrize(
    "durations, expected, left", [([1, 900, 99, 8, 6, 30], 8.0, 0), ([1, 60_000, 99, 8], 60_000.0, 2)]
)
def test_a_baseline_is_a_median_or_one_slow_call(monkeypatch, durations, expected, left):
    runs = iter(durations)
    monkeypatch.setattr(timing, "program", lambda call, counts: lambda args: (next(runs), counts))
    monkeypatch.setattr(
        timing, "per_call", lambda ticks, counts: (float(ticks[0]), 1.0) if ticks[1] == counts else None
    )
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(clock, "available", lambda: True)
    assert timing.burst(None, ()) == expected and len(list(runs)) == left


def test_calls_of_a_chain_wait_for_one_another(monkeypatch):
    """With a result of NaN each call changes the codes that the next one reads; with any other result none does."""
    monkeypatch.setattr(clock, "stamp", lambda x, *after: (x, x[:1]))
    args = (jnp.array([6, 7], jnp.uint8), jnp.float32(0))
    seen = lambda value: (
        np.asarray(timing.chain_program(lambda arguments, i: arguments[0].astype(jnp.float32) * 0 + value, 3)(args))
        .ravel()
        .tolist()
    )
    assert seen(jnp.nan) == [6, 7, 6, 6] and seen(1.0) == [6, 6, 6, 6]


def test_a_chain_is_the_median_of_its_runs(monkeypatch):
    durations = iter([99, 99, 8, 6, 30])
    monkeypatch.setattr(timing, "chain_program", lambda call, n: lambda args: next(durations))
    monkeypatch.setattr(timing, "per_call", lambda ticks, counts: (float(ticks), 1.0) if counts == (1, 5, 0) else None)
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(clock, "available", lambda: False)
    assert timing.chain(None, (), 5, 3) is None
    monkeypatch.setattr(clock, "available", lambda: True)
    assert timing.chain(None, (), 5, 3) == 8.0


# ---- printing
def test_a_table_fits_its_width_or_becomes_lines():
    row = {
        "case": "decode_8k",
        "format": "nvfp4",
        "scale_layout": "public",
        "sustained_us": 24.017,
        "median_us": 23.36,
        "busy": 0.752,
        "sustained_tensor_share": None,
        "sustained_gemm_share": 1.17,
        "xla_us": 421.4,
    }
    wide, narrow = table.text([row, row], 200), table.text([row, row], 60)
    assert (
        wide.count("\n") == 2
        and "24.02" in wide
        and "75%" in wide
        and "117%" in wide
        and "421" in wide
        and " - " in wide
    )
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert (
        narrow.splitlines()[0] == "decode_8k nvfp4 public"
        and "sustained us 24.02; burst us 23.36;" in narrow
        and "of XLA's GEMM 117%" in narrow
    )
