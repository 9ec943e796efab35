"""Run cases and print them: time, rates as the seed counts them, share of the limit measured in the same run, plain XLA beside it."""
import datetime
import json
import os
import pathlib
import subprocess

import jax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jax_fp4_indexer.bench import data, timing


def _commit():
    """Of the sources, or what JFI_COMMIT says where they lie without their history."""
    if os.environ.get("JFI_COMMIT"):
        return os.environ["JFI_COMMIT"]
    try:
        here = pathlib.Path(__file__).parent
        return subprocess.run(["git", "-C", str(here), "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def limit_us(case, fmt, limits):
    """The larger of bytes / read rate and flops / GEMM rate, with its name."""
    memory = case.logical_bytes(fmt) / limits["read_gbs"] / 1e3
    arithmetic = case.flops() / limits["gemm_tflops"] / 1e6
    return ("read", memory) if memory > arithmetic else ("bf16 gemm", arithmetic)


def run_case(case, fmt, layout, implementation, *, limits, warmup, iters, repeats, xla):
    """One row; its keys are told in benchmarks/README.md. Times in microseconds."""
    out_bytes = 4 * case.heads_q * case.k_tiles * case.tokens                 # of one call; a program holds the results of all of its calls
    estimate_us = case.logical_bytes(fmt) / 4e6 + case.flops() / 7e8
    iters = max(2, min(iters, int(3e4 / max(1.0, estimate_us)), int(16e9 / out_bytes)))
    inputs = data.make(case, fmt, layout, 2 * iters)
    with timing.CardState() as card:
        times = timing.measure(data.op(case, fmt, layout, implementation), inputs, iters, repeats, warmup)
    xla_us = None
    baseline = data.plain_xla(case, fmt) if xla else None
    if baseline is not None:
        public = inputs if layout == "public" else data.make(case, fmt, "public", 4)
        xla_us = timing.measure(baseline, public, 2, 3, 1, seconds=0.05)["burst_us"]
    row = {"op": "block_scores", "case": case.name, "format": fmt, "scale_layout": layout, "implementation": implementation or "auto",
           "median_us": times["burst_us"], "spread_us": times["burst_spread_us"], "sustained_us": times["sustained_us"], "first_call_s": times["first_s"],
           "limit": None, "limit_us": None, "fraction": None, "tflops": case.flops() / times["burst_us"] / 1e6,
           "gbs": case.logical_bytes(fmt) / times["burst_us"] / 1e3, "xla_us": xla_us, "published_us": case.published_us.get(fmt),
           "card": jax.devices()[0].device_kind, "jax": jax.__version__, "commit": _commit(), "date": datetime.date.today().isoformat(), **card.summary()}
    if limits:
        name, us = limit_us(case, fmt, limits)
        row.update(limit=name, limit_us=us, fraction=us / times["burst_us"], limits=limits)
    return row


def run(cases, formats, layouts, implementation, *, warmup, iters, repeats, xla, limits, json_path):
    """All combinations; prints a table and writes JSON if asked. Returns the rows."""
    console = Console(width=150)
    ceilings = timing.limits() if limits else None
    if ceilings:
        console.print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, implementation {implementation or 'auto'}: "
                      f"copy {ceilings['copy_gbs']:.0f} GB/s, read {ceilings['read_gbs']:.0f} GB/s, bf16 GEMM {ceilings['gemm_tflops']:.1f} TFLOP/s")
    todo = [(case, fmt, layout) for case in cases for fmt in formats if fmt in case.formats for layout in layouts]
    rows = []
    for case, fmt, layout in track(todo, description="timing", console=console, transient=True):
        rows.append(run_case(case, fmt, layout, implementation, limits=ceilings, warmup=warmup, iters=iters, repeats=repeats, xla=xla))
    table = Table(title="block scores: microseconds a call (device time, cold L2)")
    for name in ("case", "format", "layout", "burst", "spread", "sustained", "limit", "of limit", "TFLOP/s", "GB/s", "plain XLA", "published B200"):
        table.add_column(name, justify="left" if name in ("case", "format", "layout") else "right")
    show = lambda x, form: "-" if x is None else format(x, form)
    for r in rows:
        table.add_row(r["case"], r["format"], r["scale_layout"], show(r["median_us"], ".1f"), show(r["spread_us"], ".1f"), show(r["sustained_us"], ".1f"),
                      show(r["limit_us"], ".1f"), show(r["fraction"], ".0%"), show(r["tflops"], ".4g"), show(r["gbs"], ".4g"), show(r["xla_us"], ".0f"), show(r["published_us"], ".1f"))
    console.print(table)
    if json_path:
        path = pathlib.Path(json_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
        console.print(f"wrote {path}")
    return rows
