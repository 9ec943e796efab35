"""The time model of the sm_100a and sm_103a kernels, which have run nowhere yet: as model_hopper.py, with the constants of an H200 where no probe of the card is at hand."""

import functools
import math
import pathlib

import model_plan
from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.aot.flow import Flow
from jax_fp4_indexer.bench.cases import How
from jax_fp4_indexer.bench.cases.block_scores import SCALE_BYTES
from model_hopper import ALU, Time

PRODUCT = 64  # clocks of an SM for block-scaled M 128, N 128, K 64
TMEM = 128  # for 128 columns of 128 lanes
SHARED = 128  # bytes a clock
HEADS = {"prefill": 4, "decode": 1}  # query tiles that share a page
REDUCERS = 2  # warpgroups, each with every second tile


@functools.cache
def flow_of(arch, path, fmt, layout, folder=manifest.DEFAULT_FOLDER):
    return Flow.read(pathlib.Path(folder) / arch / f"block_scores.{path}.{fmt}.{layout}.cubin")


def tile_clocks(card, arch, path, fmt, layout):
    """Clocks of an SM for a tile of 128 query rows by one page, by resource; "masked" alone: of a tile with a mask."""
    flow = flow_of(arch, path, fmt, layout)
    latencies = card.latencies() | {"global": card.probe["lds"]}  # a row's head scale, again and again: L1
    reduce = flow.turn("LDTM.STAT" if arch == "sm_103a" else "LDTM.x128", ["LDTM", "STG"])
    multiply, load = flow.turn("UTCOMMA", ["UTCOMMA"]), flow.turn("UTMALDG", ["UTMALDG"])
    tiles, heads = flow.mix_of(multiply).opcodes["UTCOMMA"] / 2, HEADS[path]
    mix = flow.mix_of(reduce)
    page_bytes = 128 * (64 + SCALE_BYTES[fmt])
    clocks = {
        "matrix": 2 * PRODUCT,
        "tmem": TMEM,
        "alu": ALU * mix["alu"],
        # of the multiplying and the loading warp, which are on different schedulers, the one with more
        "issue": mix.total + max(flow.mix_of(multiply).total / tiles, flow.mix_of(load).total / heads),
        "shared": (2 * 2 * 4096 + page_bytes / heads)
        / SHARED,  # both operands of both products, and the page coming in
        "chain": max(
            flow.alone(multiply, latencies) / tiles,
            flow.alone(load, latencies) / heads,
            flow.alone(reduce, latencies) / REDUCERS,
        ),
    }
    # 32 columns at a time; of a diagonal tile a warp reads one to four of the four pieces
    return clocks, ALU * flow.mix(flow.loop("LDTM.x32"))["alu"] * 2.5 / 4


def tiles_of(case):
    """(tiles of a call, how many of them have a mask). Decode: packed rows. Prefill: 128 tokens of one head, however few there are."""
    if model_plan.path(case) == "decode":
        return case.pages * case.heads_kv * math.ceil(model_plan.columns(case) / 128), 0
    whole = masked = 0
    for q, k in zip(case.q_lens, case.k_lens):
        pages, offset = math.ceil(k / 128), k - q if case.causal else k
        for first in range(0, q, 128):
            seen = min(pages, max(0, (min(first + 127 + offset, k - 1) >> 7) + 1))
            plain = min(seen, max(0, min(first + offset, k - 1) + 1 >> 7))
            whole, masked = whole + plain, masked + seen - plain
    return case.heads_q * (whole + masked), case.heads_q * masked


def launches(card, arch, case, fmt, layout):
    """[Time] of the one launch of a call."""
    path = model_plan.path(case)
    clocks, masked = tile_clocks(card, arch, path, fmt, layout)
    flow, latencies = flow_of(arch, path, fmt, layout), card.latencies(card.copy)
    pages, queries = (
        flow.reach(way)
        for way in (["LDG", "BAR", "LDS", "UTMALDG"], ["LDG", "BAR", "LDS", "LDG.E.128", "SYNCS.ARRIVE"])
    )
    start = max(flow.alone(pages, latencies) + card.copy, flow.alone(queries, latencies)) + card.code(
        max(flow.mix_of(pages).total, flow.mix_of(queries).total)
    )
    end = max(clocks.values())  # of the last tile, through three roles
    tiles, with_mask = tiles_of(case)
    busiest = math.ceil(tiles / card.probe["sms"])
    work = {name: busiest * x / card.mhz for name, x in clocks.items()}
    work["alu"] += with_mask / card.probe["sms"] * max(masked - clocks["alu"], 0) / card.mhz
    work["memory"] = case.bytes(How(fmt, "public")) / card.read_gbs / 1e3
    return [Time(path, card.launch("1x384+200") + (start + 3 * end) / card.mhz, work)]
