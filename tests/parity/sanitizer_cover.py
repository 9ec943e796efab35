"""The fewest pairs of a case and a variant that launch every kernel of a GPU with something to do. For the tools that take long over a launch."""

import functools
import re
import subprocess

import runner
from jax_fp4_indexer.primitives import runtime
from support import cases

DECODE, PREFILL = ("decode", "portable_decode"), ("prefill_direct", "prefill_staged", "portable_prefill")
# (row, implementations, in what respect new): a pair is taken if it launches a kernel that no earlier one launched in that respect.
# All are ragged batches with tails and causal masks, and long enough that few CTAs go round their rings several times.
ROWS = (
    ("k_lengths_causal", DECODE, "units"),  # 4 columns, 41 pages, every tail
    ("q_lengths_causal", DECODE, "units"),  # 18 columns, 0 to 9 queries, two KV heads
    (
        "forms_mixed",
        ("decode", *PREFILL),
        "units",
    ),  # MXFP4: int8 and bf16 pages side by side, NaN, bad page ids; tiles of columns
    ("ragged_1", ("decode", *PREFILL), "units"),  # 516 columns: many tiles of queries, 12 pages
    ("wide_0", (*DECODE, *PREFILL), "wide"),  # MXFP4: exponents out of every window, the general forms and the fixup
    (
        "max_seqlen_q_too_small",
        ("decode",),
        "tiles",
    ),  # 80 rows in the kernel of 16 columns: a page against several tiles
)


@functools.cache
def _case(name):
    found = [c for c in cases.table(match=name) if c.name == name]
    if not found:
        raise LookupError(f"sanitizer_cover: no row {name!r} in the case table")
    return found[0], found[0].build()


def launches(unit, capability):
    """Kernels that a unit launches on a GPU of that capability: "CASE" (all its variants) or "CASE=IMPLEMENTATION.LAYOUT"."""
    name, _, variant = unit.partition("=")
    case, inp = _case(name)
    _, heads_q, heads_kv, *_ = inp.shape
    found = set()
    for (implementation, layout), call in runner.calls(
        inp, runner.IMPLEMENTATIONS, only=[variant] if variant else None
    ).items():
        kind = "portable" if implementation.startswith("portable") else "auto"
        path = "decode" if implementation.endswith("decode") else "prefill"
        found |= set(
            runtime.choose_variant(
                capability,
                "block_scores",
                path=path,
                format=case.fmt,
                scale_layout=layout,
                implementation=kind,
                bound=call["max_seqlen_q"] * (heads_q // heads_kv),
            )[2]
        )
    return found


def pairs(capability):
    """The cover of a GPU of that capability: ["CASE=IMPLEMENTATION.LAYOUT"]."""
    names = {c.name for c in cases.table("small")}
    chosen, seen = [], set()
    for row, implementations, respect in ROWS:
        for fmt in ("nvfp4", "mxfp4"):
            if f"{row}-{fmt}" not in names:
                continue
            for implementation in implementations:
                for layout in runner.LAYOUTS:
                    unit = f"{row}-{fmt}={implementation}.{layout}"
                    new = {(kernel, respect) for kernel in launches(unit, capability)} - seen
                    if new:
                        chosen.append(unit)
                        seen |= new
    return chosen


def capability_here():
    """(major, minor) of the first GPU."""
    text = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", "0"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return tuple(int(n) for n in re.findall(r"\d+", text)[:2])
