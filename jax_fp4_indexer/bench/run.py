"""Run cases and print them: time, rates, share of the limit measured in the same run, plain XLA beside it."""
import datetime
import json
import os
import pathlib
import subprocess
import time

import jax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jax_fp4_indexer.bench import clock, data, limits, timing

BURST_US = 4e3              # of calls in a burst: longer, and the power cap sets in
RESULT_BYTES = 16e9         # of the results that a program holds at once


def _commit():
    """Of the sources, or what JFI_COMMIT says where they lie without their history."""
    if os.environ.get("JFI_COMMIT"):
        return os.environ["JFI_COMMIT"]
    try:
        here = pathlib.Path(__file__).parent
        return subprocess.run(["git", "-C", str(here), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def counts(case, fmt, iters):
    """((calls before timing, calls timed) of a burst, the most calls that a sustained program may want and whose results fit)."""
    estimate_us = case.logical_bytes(fmt) / 3e6 + case.flops() / 7e8
    fit = max(2, int(RESULT_BYTES / (4 * case.heads_q * case.k_tiles * case.tokens)))
    n = max(1, min(iters, int(BURST_US / estimate_us), fit // 2))
    return (max(1, n // 3), n), min(fit, timing.SUSTAINED_CALLS, int(3 * timing.SUSTAINED_S * 1e6 / estimate_us))


def run_case(case, fmt, layout, implementation, *, rates, warmup, iters, repeats, xla):
    """One row; its keys are told in benchmarks/README.md. Times in microseconds."""
    groups, more = counts(case, fmt, iters)
    lists = max(sum(groups), more) if clock.available() else 2 * groups[1]          # by the host's clock: programs of n and of 2n calls
    start = time.perf_counter()
    inputs = data.make(case, fmt, layout, lists)
    made = time.perf_counter()
    times = timing.measure(data.op(case, fmt, layout, implementation), inputs, groups, repeats, warmup, more=more)
    timed = time.perf_counter()
    xla_us = None
    baseline = data.plain_xla(case, fmt) if xla else None
    if baseline is not None:
        public = inputs if layout == "public" else data.make(case, fmt, "public", 6)
        xla_us = timing.measure(baseline, public, (1, 2), 3, 1, seconds=0.05).burst_us
    seconds = {"data": made - start, "time": timed - made, "xla": time.perf_counter() - timed}
    row = {"op": "block_scores", "case": case.name, "format": fmt, "scale_layout": layout, "implementation": implementation or "auto",
           "median_us": times.burst_us, "spread_us": times.burst_spread_us, "limit": None, "limit_us": None, "fraction": None,
           "sustained_us": times.sustained_us, "sustained_spread_us": times.sustained_spread_us, "sustained_limit_us": None, "sustained_fraction": None,
           "tflops": case.flops() / times.burst_us / 1e6, "gbs": case.logical_bytes(fmt) / times.burst_us / 1e3, "xla_us": xla_us,
           "published_us": case.published_us.get(fmt), "clocks_per_tile": None, "sustained_clocks_per_tile": None,
           "sm_mhz": times.burst_mhz, "sustained_sm_mhz": times.sustained_mhz, "card_burst": times.card.get("burst", {}), "card_sustained": times.card.get("sustained", {}),
           "busy": times.busy,
           "method": times.method, "calls": groups, "first_call_s": times.first_s, "took_s": seconds,
           "card": jax.devices()[0].device_kind, "jax": jax.__version__, "commit": _commit(), "date": datetime.date.today().isoformat()}
    if times.burst_mhz and max(case.q_lens) > 8:
        for prefix, us, mhz in (("", times.burst_us, times.burst_mhz), ("sustained_", times.sustained_us, times.sustained_mhz)):
            row[f"{prefix}clocks_per_tile"] = us * mhz * clock.multiprocessors() / case.tiles()
    if rates:
        name, burst = limits.floor_us(case, fmt, rates["burst"])
        _, sustained = limits.floor_us(case, fmt, rates["sustained"])
        row.update(limit=name, limit_us=burst, fraction=burst / times.burst_us, sustained_limit_us=sustained, sustained_fraction=sustained / times.sustained_us, limits=rates)
    return row


COLUMNS = (             # heading, key, format
    ("case", "case", "s"), ("format", "format", "s"), ("layout", "scale_layout", "s"), ("burst", "median_us", ".1f"), ("spread", "spread_us", ".1f"),
    ("sustained", "sustained_us", ".1f"), ("limit", "limit_us", ".1f"), ("burst of limit", "fraction", ".0%"), ("sustained of limit", "sustained_fraction", ".0%"),
    ("TFLOP/s", "tflops", ".4g"), ("GB/s", "gbs", ".4g"), ("MHz", "sustained_sm_mhz", ".0f"), ("plain XLA", "xla_us", ".0f"), ("published B200", "published_us", ".1f"))


def table(rows):
    shown = Table(title="block scores: microseconds a call, cold L2; GB/s and TFLOP/s of the burst, MHz sustained")
    for heading, _, form in COLUMNS:
        shown.add_column(heading, justify="left" if form == "s" else "right")
    for row in rows:
        shown.add_row(*("-" if row[key] is None else format(row[key], form) for _, key, form in COLUMNS))
    return shown


def describe(rates):
    """One line of the rates of `limits.measure`."""
    burst, sustained = rates["burst"], rates["sustained"]
    units = {"read_gbs": "read {:.0f} / {:.0f} GB/s", "bf16_tflops": "bf16 GEMM {:.0f} / {:.0f} TFLOP/s", "int8_tops": "int8 GEMM {:.0f} / {:.0f} TOP/s"}
    return "burst / sustained: " + ", ".join(text.format(burst[key], sustained[key]) for key, text in units.items())


def run(cases, formats, layouts, implementation, *, warmup, iters, repeats, xla, rates, json_path):
    """Rows of every case x format x layout, printed as a table. `rates`: of `limits.measure`, or None: rows without a limit."""
    console = Console(width=180)
    console.print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, implementation {implementation or 'auto'}. {describe(rates) if rates else ''}")
    todo = [(case, fmt, layout) for case in cases for fmt in formats if fmt in case.formats for layout in layouts]
    rows = []
    for case, fmt, layout in track(todo, description="timing", console=console, transient=True):
        rows.append(run_case(case, fmt, layout, implementation, rates=rates, warmup=warmup, iters=iters, repeats=repeats, xla=xla))
    console.print(table(rows))
    if json_path:
        path = pathlib.Path(json_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
        console.print(f"wrote {path}")
    return rows
