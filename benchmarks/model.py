"""A static time model: what the kernels' SASS and the machine's rates predict for every named case, and how that compares with what was measured.

    python benchmarks/model.py                                              sm_100a and sm_103a: predictions for a B200 and a B300
    python benchmarks/model.py benchmarks/results/h200/block_scores.json    sm_90a: the same method against measured rows

For each tile (128 query rows by one page; at decode the packed rows of a sequence are one tile) the busiest of these decides:

    tensor     matrix instructions at their rate            tmem    columns read at 128 lanes a clock
    alu        2 clk an instruction and sub-partition       issue   1 clk an instruction; a sub-partition also carries the warps of the other roles
    shared     operand reads and copies at 128 bytes a clk  memory  bytes of the page at the card's read rate (a case: all its logical bytes)

plus a fixed time for launch, metadata, the first page and the last store. Ignored: waiting between roles, imbalance, the clock's fall under the power cap
(the clock is a parameter; with measured rows it is that of the row). Of sm_90a only the prefill is read from its SASS: decode's issue clocks are counted by hand,
and both fixed times were read off an H200, so rows of decode check the arithmetic of the model more than its prediction.
"""
import dataclasses
import json
import math
import pathlib
import sys

from jax_fp4_indexer.aot import inspect, manifest
from jax_fp4_indexer.aot.loops import Code
from jax_fp4_indexer.bench import shapes

DECODE_FIXED_US = 5.5       # H200: from launch to the steady state of the decode kernel, read off its own clocks (docs/tuning.md)
PREFILL_FIXED_US = 8.0      # H200: plan and key pre-pass before the product, 4 to 5 us, and the same start


@dataclasses.dataclass(frozen=True)
class Machine:
    """read_gbs: what a read of 2 GiB reaches (B200, B300: the 6.5 of 8 TB/s that the best published decode kernel reaches); mhz: boost clock."""
    name: str
    arch: str
    sms: int
    read_gbs: float
    mhz: float


MACHINES = {m.arch: m for m in (Machine("H200", "sm_90a", 132, 4375, 1980), Machine("B200", "sm_100a", 148, 6500, 1900), Machine("B300", "sm_103a", 148, 6500, 1900))}


@dataclasses.dataclass(frozen=True)
class Cost:
    """Clocks of an SM for one tile, by resource. masked: of a tile with a mask, of which a causal tile of 128 tokens has one (0: the same)."""
    clocks: dict
    fixed_us: float
    masked: float = 0.0

    @property
    def binding(self):
        return max(self.clocks, key=self.clocks.get)


def code_of(arch, name, folder=manifest.DEFAULT_FOLDER):
    return Code(inspect.disassemble(pathlib.Path(folder) / arch / f"{name}.cubin"))


def blackwell(arch, path, fmt, layout):
    """The kernel of kernels/sm100: a reducing warp a sub-partition and tile; the multiplying and the loading warp share sub-partitions 1 and 0."""
    code = code_of(arch, f"block_scores.{path}.{fmt}.{layout}")
    reduce = code.mix(code.loop("LDTM.STAT" if arch == "sm_103a" else "LDTM.x128"))
    heads = 4 if path == "prefill" else 1
    multiply_loop = code.mix(code.loop("UTCOMMA"))
    multiply = multiply_loop.total / (multiply_loop.opcodes["UTCOMMA"] / 2)
    load = code.mix(code.loop("UTMALDG")).total / heads
    page_bytes = 128 * (64 + shapes.SCALE_BYTES[fmt])
    clocks = {
        "tensor": 2 * 64,                                           # M 128, N 128, K 64: 64 clk
        "tmem": 128,
        "alu": 2 * reduce["alu"],
        "issue": reduce.total + max(multiply, load),
        "shared": (2 * 2 * 4096 + page_bytes / heads) / 128,        # both operands (4 KB each) of both products, and the page coming in
    }
    # 32 columns at a time; of a diagonal tile a warp reads one to four of the four pieces
    masked = 2 * code.mix(code.loop("LDTM.x32"))["alu"] * 2.5 / 4
    return Cost(clocks, DECODE_FIXED_US, masked)


def hopper(path, fmt, layout):
    """Staged prefill: bf16 operands, m64n128k16 takes 64 clk. Decode: issue clocks a page, mma.sync 6 each, counted by hand from the form that runs (docs/tuning.md)."""
    if path == "prefill":
        code = code_of("sm_90a", f"block_scores.prefill.{fmt}.{layout}")
        mix = code.mix(code.loop("HGMMA"))
        tiles = mix.opcodes["HGMMA"] / 16                           # a warpgroup's turn of each form of the loop is one tile
        return Cost({"tensor": 16 * 64, "alu": 2 * mix["alu"] / tiles, "issue": mix.total / tiles}, PREFILL_FIXED_US)
    return Cost({"issue": 516 if fmt == "nvfp4" else 330}, DECODE_FIXED_US)


def is_decode(case):
    return max(case.q_lens) <= 8 and case.heads_q // case.heads_kv <= 16


def predict(case, fmt, cost, machine, mhz=None, read_gbs=None):
    """(microseconds, what binds)"""
    tiles = case.pages * case.heads_kv * math.ceil(max(case.q_lens) * case.heads_q / case.heads_kv / 128) if is_decode(case) else case.tiles()
    clocks = tiles * max(cost.clocks.values())
    if case.causal and not is_decode(case):
        clocks += case.heads_q * sum(math.ceil(q / 128) for q in case.q_lens) * max(cost.masked - max(cost.clocks.values()), 0)
    arithmetic = clocks / machine.sms / (mhz or machine.mhz)
    memory = case.logical_bytes(fmt) / (read_gbs or machine.read_gbs) / 1e3
    return max(arithmetic, memory) + cost.fixed_us, "memory" if memory > arithmetic else cost.binding


def predictions(arch):
    machine = MACHINES[arch]
    print(f"{machine.name}: {machine.sms} SMs at {machine.mhz:.0f} MHz, {machine.read_gbs:.0f} GB/s; derived from SASS, nothing was run")
    for path in ("prefill", "decode"):
        for fmt in ("nvfp4", "mxfp4"):
            clocks = blackwell(arch, path, fmt, "preordered_mma").clocks
            print(f"  {path} {fmt}, clk a tile: " + ", ".join(f"{k} {v:.0f}" for k, v in clocks.items()))
    print(f"  {'case':22} {'format':6} {'us':>8}  {'binds':8} published B200")
    for case in shapes.CASES.values():
        for fmt in case.formats:
            cost = blackwell(arch, "decode" if is_decode(case) else "prefill", fmt, "preordered_mma")
            us, binds = predict(case, fmt, cost, machine)
            print(f"  {case.name:22} {fmt:6} {us:8.1f}  {binds:8} {case.published_us.get(fmt, '')}")


def check(rows):
    """Print predicted against measured; returns the ratios."""
    ratios = []
    print(f"{'case':22} {'format':6} {'predicted':>9} {'measured':>9} {'ratio':>6}  binds")
    for row in rows:
        case, fmt = shapes.CASES[row["case"]], row["format"]
        if row["scale_layout"] != "preordered_mma" or case.int8_share(fmt) > 0 and not is_decode(case):
            continue
        cost = hopper("decode" if is_decode(case) else "prefill", fmt, "preordered_mma")
        us, binds = predict(case, fmt, cost, MACHINES["sm_90a"], row.get("sm_mhz"), row["limits"].get("burst", row["limits"])["read_gbs"])
        ratios.append(us / row["median_us"])
        print(f"{case.name:22} {fmt:6} {us:9.1f} {row['median_us']:9.1f} {ratios[-1]:6.2f}  {binds}")
    print(f"{sum(abs(r - 1) <= 0.25 for r in ratios)} of {len(ratios)} within 25 %")
    return ratios


if __name__ == "__main__":
    if len(sys.argv) > 1:
        check(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    else:
        for name in ("sm_100a", "sm_103a"):
            predictions(name)
