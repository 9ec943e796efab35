"""Runs cases: a row a case, format and scale layout, as benchmarks/README.md describes it."""

import datetime
import os
import pathlib
import subprocess
import time

import jax

from jax_fp4_indexer.bench import clock, timing
from jax_fp4_indexer.bench.card import Card
from jax_fp4_indexer.bench.cases import BenchCase, How
from jax_fp4_indexer.bench.figures import figures
from jax_fp4_indexer.primitives import runtime

BURST_US = 4e3  # of calls in a burst: longer, and the power cap sets in
RESULT_BYTES = 16e9  # of the results that a program holds at once
CHAIN_CALLS = 8  # dependent calls in a program


def commit() -> str | None:
    """Of the sources, or what JFI_COMMIT says where they lie without their history."""
    if os.environ.get("JFI_COMMIT"):
        return os.environ["JFI_COMMIT"]
    try:
        here = pathlib.Path(__file__).parent
        asked = subprocess.run(["git", "-C", str(here), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        return asked.stdout.strip() or None
    except OSError:
        return None


def counts(case: BenchCase, how: How, iters: int) -> tuple[tuple[int, int], int]:
    """((calls before timing, calls timed) of a burst, the most calls that a sustained program may want and whose
    results fit)."""
    estimate_us = case.bytes(how) / 3e6 + sum(case.work(how).values()) / 7e8
    fit = max(2, int(RESULT_BYTES / case.result_bytes()))
    n = max(1, min(iters, int(BURST_US / estimate_us), fit // 2))
    return (max(1, n // 3), n), min(fit, timing.SUSTAINED_CALLS, int(3 * timing.SUSTAINED_S * 1e6 / estimate_us))


def run_case(
    case: BenchCase,
    how: How,
    *,
    rates: dict | None,
    warmup: int = 5,
    iters: int = 20,
    repeats: int = 5,
    baselines: bool = True,
) -> dict:
    """One row. `rates`: of `limits.measure`, or None: a row without shares of them. Times in microseconds."""
    groups, more = counts(case, how, iters)
    calls = (
        max(sum(groups), more) if clock.available() else 2 * groups[1]
    )  # by the host's clock: programs of n and of 2n calls
    start = time.perf_counter()
    inputs = case.make(how, calls)
    made = time.perf_counter()
    times = timing.measure(case.call(how), inputs, groups, repeats, warmup, more=more)
    chain_us = timing.chain(case.call(how), inputs, min(CHAIN_CALLS, calls), repeats)
    timed = time.perf_counter()
    others = _baselines(case, how, inputs) if baselines else {}
    seconds = {"data": made - start, "time": timed - made, "baselines": time.perf_counter() - timed}
    device = jax.devices()[0]
    capability, multiprocessors = runtime.capability_of(device), clock.multiprocessors() if clock.available() else None
    return {
        "op": case.op,
        "case": case.name,
        "format": how.format,
        "scale_layout": how.scale_layout,
        "implementation": how.implementation or "auto",
        "sustained_us": times.sustained_us,
        "sustained_spread_us": times.sustained_spread_us,
        "busy": times.busy,
        "median_us": times.burst_us,
        "spread_us": times.burst_spread_us,
        "chain_us": chain_us,
        **figures(
            case,
            how,
            burst_us=times.burst_us,
            sustained_us=times.sustained_us,
            burst_mhz=times.burst_mhz,
            sustained_mhz=times.sustained_mhz,
            rates=rates,
            multiprocessors=multiprocessors,
            capability=capability,
        ),
        **{"xla_us": None, "reference_us": None, **{f"{name}_us": us for name, us in others.items()}},
        "published_us": case.published_us.get(how.format),
        "sm_mhz": times.burst_mhz,
        "sustained_sm_mhz": times.sustained_mhz,
        "card_burst": times.card.get("burst", {}),
        "card_sustained": times.card.get("sustained", {}),
        "method": times.method,
        "calls": groups,
        "first_call_s": times.first_s,
        "took_s": seconds,
        "card": device.device_kind,
        "card_identity": Card().identity(),
        "capability": capability,
        "multiprocessors": multiprocessors,
        "jax": jax.__version__,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        **({"limits": rates} if rates else {}),
    }


def _baselines(case, how, inputs):
    """{name: microseconds of a burst} of what the case names for comparison."""
    public = inputs if how.scale_layout == "public" else case.make(How(how.format, "public", how.implementation), 6)
    return {name: timing.burst(call, public) for name, call in case.baselines(how).items()}


def describe(rates: dict) -> str:
    """One line of the rates of `limits.measure`."""
    burst, sustained = rates["burst"], rates["sustained"]
    units = {
        "read_gbs": "read {:.0f} / {:.0f} GB/s",
        "bf16_tflops": "XLA's bf16 GEMM {:.0f} / {:.0f} TFLOP/s",
        "int8_tops": "XLA's int8 GEMM {:.0f} / {:.0f} TOP/s",
    }
    return "burst / sustained: " + ", ".join(text.format(burst[key], sustained[key]) for key, text in units.items())
