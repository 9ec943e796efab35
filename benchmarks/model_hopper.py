"""The time model of the sm_90a kernels: one function a kernel, from its SASS, the shapes of the call and the card's constants. See model.py."""

import dataclasses
import functools
import math
import pathlib

import model_plan
from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.aot.flow import Flow
from jax_fp4_indexer.aot.loops import TARGET
from jax_fp4_indexer.bench.cases import How
from jax_fp4_indexer.bench.cases.block_scores import SCALE_BYTES

MMA_SYNC = 6  # clocks of a scheduler for one mma.sync m16n8k16 or m16n8k32 (docs/facts.md)
WGMMA_N128 = 64  # clocks of an SM for m64n128k16 and m64n128k32, wherever A is
WGMMA_REGISTERS = {32: 16, 64: 32}  # m64nNk16 with A in registers (docs/facts.md)
ALU = 2  # clocks of a scheduler for an instruction of that pipe
WARPGROUPS = {16: 4, 32: 3, 64: 2}  # of the decode kernel of that width
SECTOR = 32  # bytes
PREPARE_CTAS = 2  # an SM


@dataclasses.dataclass(frozen=True)
class Card:
    """Constants of a card: `probe` as benchmarks/probe.py writes it; mhz and read_gbs of the run."""

    probe: dict
    mhz: float
    read_gbs: float

    def latencies(self, copy=0.0):
        p = self.probe
        return {
            "lds": p["lds"],
            "shfl": p["shfl"],
            "redux": p["redux"],
            "barrier": p["barrier"],
            "other": p["shfl"],
            "global": p["dram"],
            "copy": copy,
        }

    @property
    def copy(self):
        """Clocks of a page's copy while every SM asks for one."""
        return self.probe["copy"]["1 on all"][0]

    def launch(self, shape):
        """us from a launch to the next one of a kernel of that shape that ends with stores and does nothing else."""
        us = self.probe["launch_us"]
        return us[shape] + us["1x512+190, a store a warp"] - us["1x512+190"]

    def code(self, instructions):
        """Clocks that instructions take to be fetched when a kernel meets them first, beyond their issue."""
        return instructions * (self.probe["code"]["again"] - self.probe["code"]["warm"]) / 2048


@dataclasses.dataclass(frozen=True)
class Time:
    """us of one launch: its own start and end (`fixed`), the -inf that it writes before its work (`fill`), what its work takes of every resource."""

    name: str
    fixed: float
    work: dict
    fill: float = 0.0

    @property
    def binding(self):
        parts = self.work | {"-inf": self.fill, "fixed": 0.0}
        return max(parts, key=parts.get)

    @property
    def us(self):
        return self.fixed + self.fill + max(self.work.values(), default=0.0)


@functools.cache
def flow_of(name, folder=manifest.DEFAULT_FOLDER):
    return Flow.read(pathlib.Path(folder) / "sm_90a" / f"block_scores.{name}.cubin")


def side_by_side(service, think, customers):
    """Clocks in which each of `customers` is served once, that take turns between `service` clocks at one resource and `think` clocks elsewhere.

    They start together, with the first page, and a resource that serves all who are there at once, each at his share of its rate, lets all finish together again: nothing moves
    them apart. The probe has it (`wgmma_turns`): four warpgroups with 256 clocks of wgmma and 216 of other work take 1,225 clocks, of which this says 1,240; spread at
    random (mean value analysis) it were 1,033."""
    return customers * service + think


# ---- decode
@dataclasses.dataclass(frozen=True)
class DecodePage:
    """What a page of a decode kernel takes: ways through its code, each so many times a page on average. start: from the entry to the first product; last: what the last page still
    takes once all else is done; warps: that take turns on a scheduler."""

    flow: Flow
    ways: tuple  # (way, times)
    start: tuple
    last: tuple  # (way, times)
    mma: float
    warps: int

    def count(self, of):
        return sum(times * of(way) for way, times in self.ways)

    def alone(self, latencies, ways):
        return sum(
            times * self.flow.alone(way, latencies, 0.0 if self.mma == MMA_SYNC else self.mma) for way, times in ways
        )


@functools.cache
def decode_page(fmt, layout, width):
    flow = flow_of(f"decode.{fmt}.{layout}.n{width}")
    # prefix sums into shared memory, the search there, page id, copy, queries
    if width == 16:  # a warp a page: four slices in two pieces, one slice of each on the way that passes both
        mma = "HMMA" if fmt == "nvfp4" else "IMMA"
        piece = [
            "SYNCS.PHASECHK",
            mma,
            "UBLKCP",
        ]  # a page that some row does not see whole waits for both pieces at once
        # the loop that a branch right behind a page's store goes around (other code between its lines makes smaller loops of the same opcodes)
        (head,) = {
            flow.labels[to[1]]
            for i in flow.find("STG")
            for line in flow.lines[i + 1 : i + 9]
            if "BRA" in line
            and (to := TARGET.search(line))
            and any(flow.labels[to[1]] < copy < i for copy in flow.find("UBLKCP"))
        }
        page = flow.way(head, head, [*piece, *piece, "STG"])
        ways = ((page, 1), (flow.turn(mma, [mma]), 2))
        return DecodePage(
            flow,
            ways,
            flow.reach(["LDG", "STS.128", "BAR", "LDS.128", "UBLKCP", "LDG", mma]),
            ways,
            MMA_SYNC,
            WARPGROUPS[width],
        )
    # four warps a page, whose maxima one of them reduces between the products of the next page
    mma = "HGMMA"
    page, reduced = flow.turn(mma, [mma, "STS.128", mma]), flow.turn(mma, [mma, "STS.128", "STG", mma, "UBLKCP"])
    return DecodePage(
        flow,
        ((page, 0.75), (reduced, 0.25)),
        flow.reach(["LDG", "STS", "BAR", "LDS", "UBLKCP", "LDG", mma]),
        ((reduced, 1),),
        WGMMA_REGISTERS[width],
        WARPGROUPS[width],
    )


def decode_clocks(card, fmt, layout, width):
    """Clocks of a scheduler for one page of one of its warps, by resource, where as many warps take turns as there are warpgroups."""
    page = decode_page(fmt, layout, width)
    matrix = page.count(lambda way: page.flow.mix_of(way)["tensor"])
    slots = page.count(lambda way: page.flow.mix_of(way).total) - matrix
    matrix *= page.mma
    # mma.sync leaves the other warps alone; a wgmma needs all four of its group, so that each page waits for its reducing warp
    alone = page.alone(card.latencies(), page.ways if width == 16 else page.last)
    busy = {
        "issue": slots + matrix,
        "alu": ALU * page.count(lambda way: page.flow.mix_of(way)["alu"]) + matrix,
        "matrix": matrix,
    }
    return {
        name: side_by_side(clocks, max(alone - clocks, 0), page.warps) / page.warps for name, clocks in busy.items()
    }


def decode(card, case, fmt, layout, width):
    page = decode_page(fmt, layout, width)
    units = case.pages * case.heads_kv * math.ceil(model_plan.columns(case) / width)
    shares = (
        card.probe["sms"] * WARPGROUPS[width]
    )  # with a page a warp a scheduler's warps have as many pages as a warpgroup; else each warp has its part of all of them
    busiest = math.ceil(units / shares) * (1 if width == 16 else page.warps)
    work = {name: busiest * clocks / card.mhz for name, clocks in decode_clocks(card, fmt, layout, width).items()}
    sectors = model_plan.fill_sectors(case)
    mix = page.flow.mix_of(page.start)
    clocks = (
        page.flow.alone(page.start, card.latencies(card.copy), WGMMA_REGISTERS.get(width, 0))
        + card.code(mix.total)
        + page.alone(card.latencies(), page.last)
    )
    work["memory"] = case.bytes(How(fmt, "public")) / card.read_gbs / 1e3
    return Time(
        f"decode.n{width}",
        card.launch("1x512+190") + clocks / card.mhz,
        work,
        sectors * SECTOR / card.probe["write_gbs"] / 1e3,
    )


# ---- prefill: launches before and after the products
def small(card, name, through, launch, again=0.0):
    """A launch whose time is one warp's way; again: clocks of what is done more than once."""
    flow = flow_of(name)
    way = flow.reach(through)
    clocks = flow.alone(way, card.latencies()) + card.code(flow.mix_of(way).total) + again
    return Time(name, card.launch(launch) + clocks / card.mhz, {})


PLAN_WAY = ["LDG", "STS", "BAR", "LDG", "BAR", "STG"]


def prepare(card, case, fmt, layout, pages):
    """CTA 0 writes the plan; the others widen pages, each unit after the one before: list position, page id, page."""
    flow = flow_of(f"prepare.{fmt}.{layout}")
    first = flow.reach(["LDG", "LDG", "LDG", "STG.E.128"])
    unit = flow.turn("STG.E.128", ["LDG", "LDG", "STG.E.128"])
    units = pages * case.heads_kv
    each = math.ceil(units / (PREPARE_CTAS * card.probe["sms"] - 1))
    moved = units * 128 * (64 + SCALE_BYTES[fmt] + (384 if fmt == "mxfp4" else 256))
    latencies = card.latencies()
    clocks = flow.alone(first, latencies) + card.code(flow.mix_of(first).total)
    work = {
        "memory": moved / card.read_gbs / 1e3,
        "chain": each * flow.alone(unit, latencies) / card.mhz,
        "issue": each * PREPARE_CTAS * 2 * flow.mix_of(unit).total / card.mhz,
    }
    return Time("prepare", card.launch("2x256+8") + clocks / card.mhz, work)


# ---- prefill: products
@dataclasses.dataclass(frozen=True)
class Form:
    """kernel; instruction; warpgroups and their tiles of 64 rows; blocks of 8 rows of queries that are in flight at once"""

    kernel: str
    mma: str
    groups: int
    tiles: int
    blocks: int


FORMS = {
    "bf16": Form("prefill", "HGMMA", 2, 2, 32),
    "int8": Form("prefill_int8", "IGMMA", 4, 1, 32),
    "direct": Form("prefill_direct", "HGMMA", 2, 2, 16),
}


PAGE = [
    "LDG.E.128",
    "STS.128",
    "SYNCS.ARRIVE",
]  # what a producer of the direct form does with one, of which no other loop does all


def step_clocks(card, form, fmt, layout):
    """Clocks of an SM for a page against 256 query rows, by resource."""
    f = FORMS[form]
    flow = flow_of(f"{f.kernel}.{fmt}.{layout}")
    turn = flow.turn(f.mma, [f.mma, "STG"])
    mix = flow.mix_of(turn)
    service = mix["tensor"] * WGMMA_N128
    think = flow.alone(turn, card.latencies(), WGMMA_N128) - service
    clocks = {
        "matrix": side_by_side(service, think, f.groups),
        "issue": f.groups * mix.total,
        "alu": ALU * f.groups * mix["alu"],
    }
    if form == "direct":  # two producer warps a scheduler
        page = flow.mix_of(flow.turn_of(PAGE, PAGE))
        clocks["issue"] += 2 * page.total
        clocks["alu"] += 2 * ALU * page["alu"]
    return clocks


def products(card, case, form, fmt, layout, share=1.0):
    """share: of the steps that are in this form; 0: the launch finds that there is nothing to do."""
    f, plan, sms = FORMS[form], model_plan.plan(case), card.probe["sms"]
    flow, latencies = flow_of(f"{f.kernel}.{fmt}.{layout}"), card.latencies()
    launch = card.launch("1x384+200" if form == "int8" else "1x512+190")
    if share == 0:
        nothing = flow.reach(["BAR", "LDG"])
        return Time(
            f.kernel, launch + (flow.alone(nothing, latencies) + card.code(flow.mix_of(nothing).total)) / card.mhz, {}
        )
    start = ["BAR", "LDG", "LDG", "LDG", "STS.128", "SYNCS.ARRIVE"]
    if form == "direct":
        start += ["STS.128", "SYNCS.ARRIVE"]
    start, turn = flow.reach(start), flow.turn(f.mma, [f.mma, "STG"])
    # the first item's rows come in as many batches, one way through which is part of the start
    batches = math.ceil(32 / f.blocks) - 1
    clocks = (
        flow.alone(start, latencies)
        + card.code(flow.mix_of(start).total)
        + batches * latencies["global"]
        + flow.alone(turn, latencies, WGMMA_N128)
    )
    steps = math.ceil(plan.steps * share / sms)
    work = {name: steps * x / card.mhz for name, x in step_clocks(card, form, fmt, layout).items()}
    work["memory"] = case.bytes(How(fmt, "public")) / card.read_gbs / 1e3
    return Time(f.kernel, launch + clocks / card.mhz, work)


# ---- calls
def launches(card, case, fmt, layout, folder=manifest.DEFAULT_FOLDER):
    """[Time] of every launch of a call, in order: those of the variant that the handler takes."""
    variant, _ = manifest.choose(
        manifest.read(folder),
        (9, 0),
        op="block_scores",
        select={"path": model_plan.path(case), "format": fmt, "scale_layout": layout},
        bound=model_plan.columns(case),
    )
    names = [name.removeprefix("block_scores.") for name in variant["launches"]]
    passes, pages = model_plan.passes(case, fmt) if variant["repeat"] else (1, case.pages)
    int8 = case.int8_share(fmt)
    times = []
    for name in names * passes:
        kernel = name.split(".")[0]
        if kernel == "decode":
            times.append(decode(card, case, fmt, layout, int(name.rsplit("n", 1)[1])))
        elif kernel == "prepare":
            times.append(prepare(card, case, fmt, layout, pages))
        elif kernel in ("plan", "portable_plan"):
            times.append(small(card, name, PLAN_WAY, "2x256+8"))
        elif kernel == "forms":
            times.append(small(card, name, ["LDG", "STG", "BAR", "LDG", "STG", "BAR", "STG"], "1x256+8"))
        elif kernel == "portable_fixup":
            times.append(small(card, name, ["LDG", "EXIT"], "1x256+8"))
        else:
            form = {f.kernel: form for form, f in FORMS.items()}[kernel]
            share = {"bf16": 1 - int8 if fmt == "mxfp4" else 1.0, "int8": int8, "direct": 1.0}[form]
            times.append(products(card, case, form, fmt, layout, share / passes))
    return times
