"""Runs a decoded kernel over buffers.

    memory = Memory()
    address = memory.add("x", numpy.zeros(32, numpy.float32), align=16, write=True)
    result = run(program, memory, [struct.pack("<Q", address)], grid=(1, 1, 1), block=(32, 1, 1))
    print(result)

A SimError ends the launch; reports are collected in the result.
"""

import ctypes as C
import dataclasses
import re
import time

import numpy as np

from . import native, tensor_map
from .decode.operands import PARAM_WINDOW, SHARED_CONSTANT, SMEM_BASE

# In the order of the R_ constants of core/sim.h.
KINDS = [
    "uninit-branch",
    "uninit-store",
    "uninit-address",
    "race",
    "proxy-fence",
    "wgmma-read",
    "wgmma-write",
    "wgmma-fence",
    "wgmma-move",
    "global-race",
    "mbarrier-init",
    "exit",
    "barrier-left",
    "uninit-sync",
    "mbarrier-twice",
    "lane-race",
    "wgmma-count",
    "tmem-race",
    "tmem-left",
    "tmem-lane",
    "tmem-fence",
    "tmem-early",
    "late",
]
NOTES = {"wgmma-move", "tmem-fence", "tmem-early"}  # worth a look, not a fault
NO_INSTRUCTION = {"barrier-left", "wgmma-count", "tmem-left", "late"}
MODES = {"eager": 0, "lazy": 1, "random": 2}
M64 = (1 << 64) - 1
REGISTERS = 1 << 16  # of an SM. A kernel that moves them starts with as many a thread as fit, in eights


class SimError(Exception):
    """A fault of the kernel that ends the launch; the text says what and where. `reports`: those collected before it."""

    reports = ()


class Deadlock(SimError):
    """No warp can run; the text says who waits for what."""


@dataclasses.dataclass
class Finding:
    kind: str
    text: str
    at: str  # line and text of the instruction
    count: int

    def __str__(self):
        return f"[{self.kind} x{self.count}] {self.text}\n    at {self.at}"


@dataclasses.dataclass
class Statistics:
    """What a launch was made of, for stats.py."""

    by_warp: np.ndarray  # [warps of a CTA, instructions]: how often each ran, over all CTAs
    banks: np.ndarray  # [instructions, 3]: accesses of shared memory by ld, st, ldmatrix, stmatrix; their wavefronts; the fewest possible

    def __add__(self, other):
        return Statistics(self.by_warp + other.by_warp, self.banks + other.banks)


@dataclasses.dataclass
class Result:
    findings: list  # all Findings, notes included
    hits: np.ndarray  # executions of each instruction
    insts: int  # warp instructions
    seconds: float
    bulk_bytes: int
    wgmmas: int
    mmas: int
    ummas: int
    phases: dict  # shared offset of an mbarrier -> phases it completed in a CTA, at most
    statistics: Statistics = None  # where they were asked for

    @property
    def faults(self):
        return [f for f in self.findings if f.kind not in NOTES]

    def __str__(self):
        rate = self.insts / max(self.seconds, 1e-9) / 1e6
        head = f"{self.insts} warp instructions in {self.seconds:.3f} s ({rate:.1f} M/s), {(self.hits > 0).mean():.0%} of the kernel, {self.wgmmas} wgmma, {self.mmas} mma, {self.ummas} tcgen05.mma"
        return "\n".join([head, *("  " + str(f) for f in self.findings)])


class Memory:
    """Global buffers, far from each other. An address is a multiple of `align` and of nothing more, so that a kernel that hopes for more is caught."""

    def __init__(self):
        self.buffers, self._next = [], 0x7F30_0000_0000

    def add(self, name, array, align=256, write=False, undefined=False, at=None):
        """Returns the address. The contiguous NumPy array is used in place.

        write      stores are allowed
        undefined  the contents count as undefined until something is stored
        at         the address, in the gigabyte behind the buffer before it; default: one beyond that
        """
        if not array.flags.c_contiguous:
            raise ValueError(f"buffer {name!r}: the array has to be contiguous")
        base, words = at or self._next + align, array.nbytes // 4 + 2
        self._next += 0 if at else (align + array.nbytes + 0x40FF_FFFF) & ~0xFF_FFFF
        arrays = {"p": array.reshape(-1).view(np.uint8)}
        if write:
            arrays |= {
                "owner": np.full(words, -1, np.int32),
                "clock": np.zeros(words, np.uint32),
                "writer": np.zeros(words, np.uint16),
            }
        if undefined:
            arrays["init"] = np.zeros(array.nbytes + 8, np.uint8)
        self.buffers.append((base, name, arrays))
        return base

    def _table(self):
        table = (native.Buffer * max(len(self.buffers), 1))()
        for entry, (base, name, arrays) in zip(table, self.buffers):
            entry.base, entry.size, entry.name = base, arrays["p"].nbytes, name.encode()
            for field, array in arrays.items():
                setattr(entry, field, array.ctypes.data)
            if "owner" in arrays:
                arrays["owner"].fill(-1)
        return table


def _constants(program, params):
    value, kind = np.zeros(len(program.constants) + 1, np.uint64), np.zeros(len(program.constants) + 1, np.uint8)
    for i, (what, v) in enumerate(program.constants):
        if what == "special":
            kind[i] = v
        elif what == "param":
            index, offset, size, signed = v
            value[i] = int.from_bytes(params[index][offset : offset + size], "little", signed=signed) & (
                (1 << (32 if size <= 4 else 64)) - 1
            )
        else:
            value[i] = v & M64
            kind[i] = SHARED_CONSTANT if what == "shared" else 0
    return value, kind


def _tensor_maps(params):
    maps = [(i, tensor_map.decode(raw)) for i, raw in enumerate(params) if len(raw) == 128]
    table, address = (native.TensorMap * max(len(maps), 1))(), np.zeros(max(len(maps), 1), np.uint64)
    for j, (i, t) in enumerate(maps):
        table[j].base, table[j].rank, table[j].bits, table[j].swizzle, table[j].integer32 = (
            t.base,
            len(t.dims),
            t.bits,
            t.swizzle,
            t.integer32,
        )
        for field in ("dims", "strides", "box"):
            values = getattr(t, field)
            getattr(table[j], field)[: len(values)] = values
        address[j] = PARAM_WINDOW + 4096 * i
    return table, address, len(maps)


def run(
    program,
    memory,
    params,
    grid=(1, 1, 1),
    block=(32, 1, 1),
    dynamic_shared_bytes=0,
    cluster=(1, 1, 1),
    *,
    mode="eager",
    seed=0,
    races=True,
    max_insts=2 * 10**8,
    elect_last=False,
    statistics=False,
):
    """Run one launch. Returns a Result.

    params      bytes of each kernel parameter; one of 128 bytes is a tensor map
    mode        eager, lazy or random: when asynchronous work happens; random also shuffles the warps, by `seed`
    races       check happens-before on shared and global memory (costs about half the speed)
    max_insts   warp instructions before it counts as a livelock
    elect_last  elect.sync elects the last lane instead of the first
    statistics  count by warp, and bank conflicts: Result.statistics

    Raises SimError (Deadlock): what is wrong, at which instruction. ValueError for parameters that are not the kernel's.
    """
    sizes = [size for _, size in program.params]
    if [len(p) for p in params] != sizes:
        raise ValueError(f"{program.name}: parameters of {[len(p) for p in params]} bytes, the kernel takes {sizes}")
    if any(g % c for g, c in zip(grid, cluster)):
        raise ValueError(f"{program.name}: grid {grid} is not made of clusters {cluster}")
    library, s = native.load(), native.Sim()
    value, kind = _constants(program, params)
    buffers = memory._table()
    maps, map_address, nmaps = _tensor_maps(params)
    warps = int(np.prod(block)) // 32 if statistics else 1
    coverage, reports = np.zeros((warps, len(program.table) + 1), np.uint64), (native.Report * native.MAX_REPORTS)()
    pointers = dict(
        code=program.table,
        pool=program.pool,
        const_value=value,
        const_kind=kind,
        map_address=map_address,
        coverage=coverage,
    )
    for field, array in pointers.items():
        setattr(s, field, array.ctypes.data)
    for field, array in dict(buf=buffers, maps=maps, reports=reports).items():
        setattr(s, field, C.addressof(array))
    s.npc, s.nreg, s.npred, s.nconst = (
        len(program.table),
        program.num_registers,
        program.num_predicates,
        len(program.constants),
    )
    s.nbuf, s.nmaps, s.max_reports = len(memory.buffers), nmaps, native.MAX_REPORTS
    s.grid[:], s.block[:], s.cluster[:] = grid, block, cluster
    s.smem = program.dynamic_base - SMEM_BASE + dynamic_shared_bytes
    s.mode, s.races, s.elect_last, s.local = MODES[mode], races, elect_last, (program.local_bytes + 15) & -16
    s.rng = (seed * 0x9E3779B97F4A7C15 + 0x1234567) & M64 or 1
    s.max_insts = max_insts
    s.registers = REGISTERS // (int(np.prod(block)) * program.ctas) & -8
    phases = np.zeros((SMEM_BASE + s.smem) // 8 + 8, np.uint32)
    s.phases = phases.ctypes.data
    banks = np.zeros((len(program.table), 3), np.uint64)
    s.by_warp, s.bank_use = statistics, banks.ctypes.data if statistics else None
    start = time.perf_counter()
    failed = library.sim_run(C.byref(s))
    seconds = time.perf_counter() - start
    findings = [
        Finding(
            KINDS[r.kind],
            r.text.decode(),
            "the end of a CTA" if KINDS[r.kind] in NO_INSTRUCTION else program.at(r.pc),
            r.count,
        )
        for r in reports[: s.nreports]
    ]
    if failed:
        raise _error(program, s, findings)
    by_warp = coverage[:, :-1].astype(np.int64)
    return Result(
        findings,
        by_warp.sum(0),
        s.insts,
        seconds,
        s.bulk_bytes,
        s.wgmmas,
        s.mmas,
        s.ummas,
        {8 * int(i) - SMEM_BASE: int(phases[i]) - 1 for i in np.nonzero(phases)[0]},
        Statistics(by_warp, banks.astype(np.int64)) if statistics else None,
    )


def _error(program, s, findings):
    text = re.sub(r"pc#(\d+)", lambda m: program.at(int(m.group(1))), s.err.decode(errors="replace"))
    if s.errpc >= 0:
        text += f"\n  at {program.at(s.errpc)}"
    text += f"\n  in CTA (or cluster) {s.cta_index} of the launch"
    if findings:
        text += "\n  reported before:" + "".join(f"\n  {f}" for f in findings[:6])
    error = (Deadlock if s.errpc == -2 else SimError)(text)
    error.reports = findings
    return error
