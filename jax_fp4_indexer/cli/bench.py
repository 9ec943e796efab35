"""Runs benchmark cases and prints them as a table."""

import json
import pathlib

import jax
from rich.progress import track

from jax_fp4_indexer.bench import limits as ceilings
from jax_fp4_indexer.bench import run as rows_of
from jax_fp4_indexer.bench import table
from jax_fp4_indexer.cli.screen import console


def run(
    todo, *, limits: bool, baselines: bool, warmup: int, iters: int, repeats: int, json_path: str | None = None
) -> list[dict]:
    """The rows of `todo`, a list of (case, How), printed as a table and written to `json_path`. `limits`: measure the
    device's rates first."""
    screen = console()
    rates = ceilings.measure() if limits else None
    screen.print(
        f"{jax.devices()[0].device_kind}, jax {jax.__version__}. {rows_of.describe(rates) if rates else ''}",
        highlight=False,
    )
    rows = [
        rows_of.run_case(case, how, rates=rates, warmup=warmup, iters=iters, repeats=repeats, baselines=baselines)
        for case, how in track(todo, description="timing", console=screen, transient=True)
    ]
    screen.print(
        "Microseconds a call, cold L2; shares and SM clock sustained, plain XLA and reference in a burst.",
        highlight=False,
    )
    screen.print(table.text(rows, screen.width), highlight=False, markup=False, soft_wrap=True)
    if json_path:
        path = pathlib.Path(json_path)
        path.write_text(json.dumps(rows, indent=1) + "\n")
        screen.print(f"wrote {path}", markup=False, soft_wrap=True)
    return rows
