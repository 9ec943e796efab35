"""A static time model: what the kernels' SASS and a card's constants say a call takes, and how that compares with what was measured.

    python benchmarks/model.py                                              predictions for a B200 and a B300
    python benchmarks/model.py benchmarks/results/h200/block_scores.json    predicted against measured, row by row; the kernels are those of the rows' card
        --table docs/model.md                                               the same as the table of that page

A launch takes

    launch + way to the first product + max over resources of (units of the busiest SM x clocks a unit) + way of the last unit

and a call the sum of its launches. Nothing in it is taken from the rows that it is held against:

| part | where it comes from |
|---|---|
| which launches, units (pages, steps, tiles) | the manifest's variant; counted from the shapes (model_plan.py) |
| instructions of a page or a step, the ways | SASS: the shortest way past named instructions (aot/flow.py) |
| clocks that a warp alone takes for a way: dependent loads, barriers, stalls | ptxas' scheduling fields, with the latencies of the probe |
| `matrix` | 6 clocks a scheduler and mma.sync, 16 or 32 an SM for wgmma with A in registers (docs/facts.md), 64 for m64n128 from shared memory (the rated peak, which the probe's chains reach); warps and warpgroups take turns at this and the next two side by side (model_hopper.side_by_side) |
| `issue` | one clock a scheduler and instruction; time in the tensor core adds up with it for mma.sync and wgmma from registers (docs/facts.md) |
| `alu` | two clocks a scheduler and instruction of that pipe (docs/facts.md) |
| `chain` | what one warp needs alone for a unit, where units follow one another (prepare; the roles of a Blackwell kernel) |
| `memory` | all logical bytes of the call at the read rate that XLA's own reduction reached in the same run (`limits`), never by these kernels |
| `-inf` | 32-byte sectors of the fill that decode writes before its pages, at the probe's rate of stores |
| launch, latencies, time to fetch code that a launch meets first, a page's first copy | benchmarks/probe.py on the same kind of card (results/<card>/probe.json) |
| clock | measured in the row; predictions take the boost clock |

Left out: imbalance beyond whole units, bank conflicts, what stores cost beside loads, the clock's fall under the power cap.
"""

import argparse
import dataclasses
import json
import pathlib

import model_blackwell
import model_hopper
from jax_fp4_indexer.bench.cases import all_cases
from jax_fp4_indexer.bench.cases.block_scores import CASES
from jax_fp4_indexer.configs.arch import runs_on
from model_hopper import Card

RESULTS = pathlib.Path(__file__).parent / "results"
TOLERANCE = 0.25


@dataclasses.dataclass(frozen=True)
class Machine:
    """read_gbs: the 6.5 of 8 TB/s that the best published decode kernel reaches on a B200; mhz: boost clock."""

    name: str
    arch: str
    sms: int
    read_gbs: float
    mhz: float


MACHINES = {
    m.arch: m for m in (Machine("B200", "sm_100a", 148, 6500, 1900), Machine("B300", "sm_103a", 148, 6500, 1900))
}


def probe_of(folder):
    """Constants of results/<folder>, of an H200 where that card was not probed; the SMs are then the caller's to set."""
    for name in (folder, "h200"):
        if (RESULTS / name / "probe.json").exists():
            return json.loads((RESULTS / name / "probe.json").read_text())
    raise FileNotFoundError(f"{RESULTS}: no probe.json; run python benchmarks/probe.py on the card")


def blackwell_card(machine):
    return Card(probe_of(machine.name.lower()) | {"sms": machine.sms}, machine.mhz, machine.read_gbs)


def predict(arch, case, fmt, layout="preordered_mma"):
    """[Time] of a call on one of MACHINES."""
    return model_blackwell.launches(blackwell_card(MACHINES[arch]), arch, case, fmt, layout)


def longest(times):
    """(us of the call, "launch: what binds it" of the longest launch)"""
    time = max(times, key=lambda t: t.us)
    return sum(t.us for t in times), f"{time.name}: {time.binding}"


def predictions(arch):
    machine = MACHINES[arch]
    card = blackwell_card(machine)
    print(
        f"{machine.name}: {machine.sms} SMs at {machine.mhz:.0f} MHz, {machine.read_gbs:.0f} GB/s; latencies of an {card.probe['card']}; derived from SASS, nothing was run"
    )
    for path in ("prefill", "decode"):
        for fmt in ("nvfp4", "mxfp4"):
            clocks, masked = model_blackwell.tile_clocks(card, arch, path, fmt, "preordered_mma")
            print(
                f"  {path} {fmt}, clk a tile: "
                + ", ".join(f"{k} {v:.0f}" for k, v in clocks.items())
                + f"; alu with a mask {masked:.0f}"
            )
    print(f"  {'case':22} {'format':6} {'us':>8}  {'binds':18} published B200")
    for case in CASES:
        for fmt in case.formats:
            us, binds = longest(predict(arch, case, fmt))
            print(f"  {case.name:22} {fmt:6} {us:8.1f}  {binds:18} {case.published_us.get(fmt, '')}")


def compare(rows, probe):
    """[(row, [Time] of its launches)] of every row of a native kernel by the device's clock. ValueError for a card whose kernels the model does not know."""
    arch = next((arch for arch in ("sm_90a", *MACHINES) if runs_on(arch, probe["capability"])), None)
    if arch is None:
        raise ValueError(
            f"model: got rows of {rows[0]['card']}, expected a card of compute capability 9.0, 10.0 or 10.3: those of the native kernels"
        )
    found = []
    for row in rows:
        if (
            row["method"] != "device clock"
            or row["implementation"] != "auto"
            or row.get("op", "block_scores") != "block_scores"
        ):
            continue
        case, fmt, layout = all_cases()[row["case"]], row["format"], row["scale_layout"]
        card = Card(probe, row["sm_mhz"], row["limits"]["burst"]["read_gbs"])
        launches = (
            model_hopper.launches(card, case, fmt, layout)
            if arch == "sm_90a"
            else model_blackwell.launches(card, arch, case, fmt, layout)
        )
        found.append((row, launches))
    return found


COLUMNS = ("case", "format", "scales", "predicted", "measured", "ratio", "binds", "us of the launches, fixed + work")
BEGIN, END = "<!-- made by benchmarks/model.py: begin -->", "<!-- made by benchmarks/model.py: end -->"


def table(found):
    """(lines of text under COLUMNS, how many are within the tolerance) of what `compare` returns."""
    lines, within = [], 0
    for row, launches in found:
        us, binds = longest(launches)
        ratio = us / row["median_us"]
        within += abs(ratio - 1) <= TOLERANCE
        parts = ", ".join(f"{t.name.split('.')[0]} {t.fixed:.1f} + {t.us - t.fixed:.1f}" for t in launches)
        lines.append(
            (
                row["case"],
                row["format"],
                row["scale_layout"].removesuffix("_mma"),
                f"{us:.1f}",
                f"{row['median_us']:.1f}",
                f"{ratio:.2f}",
                binds,
                parts,
            )
        )
    return lines, within


def report(found):
    """Print predicted against measured."""
    lines, within = table(found)
    for line in (COLUMNS, *lines):
        print("{:22} {:6} {:10} {:>9} {:>9} {:>6}  {:24} {}".format(*line))
    print(f"{within} of {len(lines)} within {TOLERANCE:.0%}")


def write_table(found, path):
    """The table between the marks of a page."""
    lines, within = table(found)
    commits = ", ".join(sorted({str(row["commit"]) for row, _ in found}))
    made = [
        BEGIN,
        f"{found[0][0]['card']}, rows of {found[0][0]['date']} (commits {commits}): {within} of {len(lines)} within {TOLERANCE:.0%}.",
        "",
    ]
    made += ["| " + " | ".join(line) + " |" for line in (COLUMNS, ["---"] * len(COLUMNS), *lines)]
    before, rest = path.read_text().split(BEGIN)
    path.write_text(before + "\n".join([*made, END]) + rest.split(END)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=pathlib.Path, help="block_scores.json of benchmarks/run.py")
    parser.add_argument(
        "--probe", type=pathlib.Path, help="probe.json (default: beside the rows, else that of the H200)"
    )
    parser.add_argument("--table", type=pathlib.Path, help="write the table into this page instead of printing it")
    args = parser.parse_args()
    if args.rows is None:
        for arch in MACHINES:
            predictions(arch)
        return
    beside = args.probe or args.rows.parent / "probe.json"
    probe = json.loads(beside.read_text()) if beside.exists() else probe_of("h200")
    found = compare(json.loads(args.rows.read_text()), probe)
    if args.table:
        write_table(found, args.table)
    else:
        report(found)


if __name__ == "__main__":
    main()
