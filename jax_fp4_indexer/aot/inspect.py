"""What a cubin says of itself, and the gates every cubin must pass.

Everything is read from the ELF file, so that a build needs no disassembler. The layout of the `.nv.info` records and
the opcode numbers are not documented by NVIDIA; `tests/aot/test_inspect.py` holds them against nvdisasm and cuobjdump
for every arch.
"""

import collections
import dataclasses
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

from ..configs.arch import (
    ARCHS,
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_CTA,
    REGISTER_UNIT_PER_WARP,
    REGISTERS_PER_SM,
)

OPCODE_MASK = 0x1FF  # low 9 bits of an instruction; bits 9..11 say which operand forms it takes
OPCODES = {
    0x026: "IDP",
    0x03C: "HMMA",
    0x037: "IMMA",
    0x1F0: "HGMMA",
    0x1F1: "IGMMA",
    0x1C5: "WARPGROUP",
    0x183: "LDL",
    0x187: "STL",
    0x118: "NOP",
    0x1EA: "UTCOMMA",
    0x1EE: "LDTM",
    0x1E7: "UTCCP",
    0x1B4: "UTMALDG",
}
DEPBAR_BIT = 47  # WARPGROUP.DEPBAR if set, WARPGROUP.ARRIVE if not
STAT_BIT = 1  # of the upper word: LDTM.STAT if set, which reduces what it loads

# .nv.info: records (format u8, attribute u8, u16 value or size); format 4 is followed by `size` bytes
_INFO_SIZED = 4
_INFO_FRAME_SIZE = 0x11  # u32 symbol, u32 bytes of stack a thread
_INFO_KERNEL_PARAM = 0x17  # u32, u16 ordinal, u16 offset, u32 with the size in bits 18..
_INFO_REGISTERS = 0x2F  # u32 symbol, u32 registers a thread


@dataclasses.dataclass(frozen=True)
class Cubin:
    """Facts of a cubin with one kernel. `counts`: how often each of OPCODES occurs, WARPGROUP split into
    WARPGROUP.ARRIVE and WARPGROUP.DEPBAR, LDTM into LDTM and LDTM.STAT."""

    symbol: str
    registers: int
    stack_bytes: int
    static_shared_bytes: int
    param_bytes: tuple
    instructions: int
    counts: dict


def _sections(data):
    """(name, header, bytes) of every section of a 64-bit little-endian ELF; header fields as in Elf64_Shdr."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"cubin: got {data[:6]!r} as the first bytes, expected a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    count, names_index = struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    names = data[headers[names_index][4] :][: headers[names_index][5]]
    for header in headers:
        kind, offset, size = header[1], header[4], header[5]
        nobits = kind == 8
        yield (
            names[header[0] : names.index(b"\0", header[0])].decode(),
            header,
            b"" if nobits else data[offset : offset + size],
        )


def _info_records(data):
    at = 0
    while at < len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind == _INFO_SIZED:
            yield attribute, data[at : at + size]
            at += size


def _count(text):
    counts, total = collections.Counter(), 0
    for word, upper in struct.iter_unpack("<QQ", text):
        name = OPCODES.get(word & OPCODE_MASK)
        if name == "WARPGROUP":
            name = "WARPGROUP.DEPBAR" if word >> DEPBAR_BIT & 1 else "WARPGROUP.ARRIVE"
        if name == "LDTM" and upper >> STAT_BIT & 1:
            name = "LDTM.STAT"
        if name:
            counts[name] += 1
        total += name != "NOP"
    counts.pop("NOP", None)
    return dict(sorted(counts.items())), total


def text_of(data):
    """The instructions, 16 bytes each, of a cubin with exactly one kernel."""
    (text,) = [body for name, _, body in _sections(data) if name.startswith(".text.")]
    return text


def read_cubin(data):
    """`data` (bytes of a cubin with exactly one kernel) -> Cubin. Raises ValueError for anything else."""
    sections = {name: (header, body) for name, header, body in _sections(data)}
    kernels = [name[len(".text.") :] for name in sections if name.startswith(".text.")]
    if len(kernels) != 1:
        raise ValueError(f"cubin: got {len(kernels)} kernels, expected 1")
    symbol = kernels[0]
    registers, stack, params = None, 0, {}
    for attribute, body in _info_records(sections[".nv.info"][1]):
        if attribute == _INFO_REGISTERS:
            registers = struct.unpack("<II", body)[1]
        elif attribute == _INFO_FRAME_SIZE:
            stack = max(stack, struct.unpack("<II", body)[1])
    for attribute, body in _info_records(sections[".nv.info." + symbol][1]):
        if attribute == _INFO_KERNEL_PARAM:
            _, ordinal, _, packed = struct.unpack("<IHHI", body)
            params[ordinal] = packed >> 18
    if registers is None:
        raise ValueError("cubin: no register count in .nv.info; the file format changed, see tests/aot/test_inspect.py")
    shared = sections.get(".nv.shared." + symbol)
    counts, instructions = _count(sections[".text." + symbol][1])
    return Cubin(
        symbol,
        registers,
        stack,
        shared[0][5] if shared else 0,
        tuple(params[i] for i in sorted(params)),
        instructions,
        counts,
    )


# ---- gates
def param_sizes(params):
    """Bytes of each entry of a manifest `params` list."""
    return tuple(4 if "i32" in p else 8 if "i64" in p or "buffer" in p else 128 for p in params)


def problems(cubin, launch, arch):
    """Why a cubin may not be shipped: a list of sentences, empty if all is well.

    cubin   Cubin
    launch  the kernel's launch facts as in the manifest: block, cluster, grid, dynamic_shared_bytes, params; and
    `expect`:
            {"HGMMA": 16} at least 16 of them, {"HGMMA": (16, 32)} from 16 to 32
    arch    "sm_90a"
    """
    target, found = ARCHS[arch], []
    threads = launch["block"][0] * launch["block"][1] * launch["block"][2]
    if cubin.stack_bytes or cubin.counts.get("LDL") or cubin.counts.get("STL"):
        found.append(
            f"spills: {cubin.stack_bytes} bytes of stack a thread, {cubin.counts.get('LDL', 0)} LDL, "
            f"{cubin.counts.get('STL', 0)} STL; "
            f"expected none (use fewer live values, or roll a loop)"
        )
    if threads > MAX_THREADS_PER_CTA or threads % 32:
        found.append(
            f"block {list(launch['block'])} has {threads} threads; expected whole warps, at most {MAX_THREADS_PER_CTA}"
        )
    warp_registers = -(-cubin.registers * 32 // REGISTER_UNIT_PER_WARP) * REGISTER_UNIT_PER_WARP
    if cubin.registers > MAX_REGISTERS_PER_THREAD or warp_registers * -(-threads // 32) > REGISTERS_PER_SM:
        found.append(f"registers: {cubin.registers} a thread for {threads} threads; an SM has {REGISTERS_PER_SM}")
    shared = cubin.static_shared_bytes + launch["dynamic_shared_bytes"]
    if shared > target.shared_per_cta:
        found.append(
            f"shared memory: {cubin.static_shared_bytes} static + {launch['dynamic_shared_bytes']} dynamic bytes; "
            f"{arch} allows {target.shared_per_cta} a CTA"
        )
    elif "per_sm" in launch["grid"]:
        fits = target.ctas_per_sm(threads, cubin.registers, shared)
        if fits < launch["grid"]["per_sm"]:
            found.append(
                f"grid: {launch['grid']['per_sm']} CTAs an SM requested, {fits} fit "
                f"({threads} threads, {cubin.registers} registers, {shared} bytes)"
            )
    sizes = param_sizes(launch["params"])
    if sizes != cubin.param_bytes:
        found.append(
            f"parameters: the cubin takes {list(cubin.param_bytes)} bytes, the manifest's list has {list(sizes)}"
        )
    for name, bound in launch.get("expect", {}).items():
        low, high = bound if isinstance(bound, (tuple, list)) else (bound, None)
        n = cubin.counts.get(name, 0)
        if n < low or (high is not None and n > high):
            found.append(f"instructions: {n} {name}; expected {low} {'or more' if high is None else f'to {high}'}")
    return found + wgmma_problems(cubin.counts)


def wgmma_problems(counts):
    """The compiler serialises WGMMA silently (an arrive and a wait around every one) when it cannot prove that
    accumulators are left alone."""
    matrix = counts.get("HGMMA", 0) + counts.get("IGMMA", 0)
    arrive, wait = counts.get("WARPGROUP.ARRIVE", 0), counts.get("WARPGROUP.DEPBAR", 0)
    if matrix > 1 and max(arrive, wait) >= matrix:
        return [
            f"WGMMA is serialised: {matrix} matrix instructions, {arrive} WARPGROUP.ARRIVE, {wait} WARPGROUP.DEPBAR; "
            "expected one of each for a whole chain "
            "(keep accumulator reads out of branches and of the loop's back edge)"
        ]
    return []


# What ptxas says where WGMMA does not overlap: C7512 and its like name the reason.
SERIALISED = re.compile(r"C75(?:12|14|17)\b|wgmma\S* instructions are serialized|wgmma\.wait_group is injected")


def matrix_kernel(cubin: Cubin) -> bool:
    """Whether a kernel uses WGMMA, which the two gates below are about."""
    return bool(cubin.counts.get("HGMMA") or cubin.counts.get("IGMMA"))


def ptxas_problems(ptx: str, arch: str) -> tuple[list[str], list[str]]:
    """What ptxas of the wheel nvidia-cuda-nvcc says of WGMMA in `ptx`: (problems, what could not be checked),
    sentences."""
    ptxas = package_tool("ptxas")
    if not ptxas:
        return [], [
            "ptxas was not asked whether it serialises WGMMA: it is not in this Python; pip install nvidia-cuda-nvcc"
        ]
    with tempfile.TemporaryDirectory() as tmp:
        source = os.path.join(tmp, "kernel.ptx")
        with open(source, "w") as f:
            f.write(ptx)
        done = subprocess.run(
            [ptxas, f"-arch={arch}", "-v", source, "-o", os.path.join(tmp, "kernel.cubin")],
            capture_output=True,
            text=True,
        )
    text = done.stdout + done.stderr
    if done.returncode:
        return [], [
            f"ptxas was not asked whether it serialises WGMMA: {ptxas} does not take the PTX "
            f"({' '.join(text.split())[:200]}); "
            "pip install --upgrade nvidia-cuda-nvcc"
        ]
    return [
        f"ptxas: {line.partition(':')[2].strip() or line.strip()}"
        for line in text.splitlines()
        if SERIALISED.search(line)
    ], []


def hazard_problems(data: bytes) -> tuple[list[str], list[str]]:
    """`clobbers` of the bytes of a cubin: (problems, what could not be checked), sentences."""
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "kernel.cubin")
        with open(path, "wb") as f:
            f.write(data)
        try:
            found = clobbers(disassemble(path))
        except FileNotFoundError:
            return [], [
                "nvdisasm did not look for registers that are written while a WGMMA uses them: "
                "it is not in this Python; pip install nvidia-cuda-nvdisasm"
            ]
    if not found:
        return [], []
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return [
        f"WGMMA in flight: R{found[0][1]} is written before the wait, by {found[0][0]!r}{more}; "
        "the result differs from run to run (read accumulators and write operands only after the wait)"
    ], []


# ---- disassembly, for people and for tests
def package_tool(name: str) -> str | None:
    """Path of a program of NVIDIA's wheels (nvidia-cuda-nvcc, -nvdisasm, -cuobjdump) on sys.path. None if absent."""
    for folder in sys.path:
        for version in ("cu13", "cu12", "cuda_nvcc", "cuda_nvdisasm", "cuda_cuobjdump"):
            path = os.path.join(folder, "nvidia", version, "bin", name)
            if os.access(path, os.X_OK):
                return path
    return None


def tool(name: str) -> str | None:
    """The same of nvdisasm or cuobjdump, else the one on PATH."""
    return package_tool(name) or shutil.which(name)


def disassemble(path):
    """SASS of the cubin at `path`, as text. Raises FileNotFoundError with a remedy where there is no nvdisasm."""
    nvdisasm = tool("nvdisasm")
    if not nvdisasm:
        raise FileNotFoundError("nvdisasm: not found on PATH nor in site-packages; pip install nvidia-cuda-nvdisasm")
    return subprocess.run([nvdisasm, "-c", str(path)], capture_output=True, text=True, check=True).stdout


A_REGISTERS = 4  # a thread's part of a 64-row operand A in registers, of any type


def clobbers(sass: str) -> list[tuple[str, int]]:
    """Registers that ordinary instructions write while a WGMMA in flight uses them, as accumulator or as operand A:
    [(instruction, register)].

    `sass` is text of `disassemble`. The scan is linear (branches are not followed), from the first matrix instruction
    of a chain to the wait that completes it. Such a kernel gives different bits in every run, without a spill or a
    warning from the compiler.
    """
    groups, open_group, found = [], set(), []
    for line in sass.splitlines():
        match = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line)
        if not match:
            continue
        text = re.sub(r"^@!?U?P\w+\s+", "", match[1])
        matrix = re.match(r"[HI]GMMA\.64x(\d+)x\d+\S*\s+R(\d+),\s+(?:R(\d+),)?", text)
        wait = re.match(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\w+)", text)
        if matrix:
            # 64 x N accumulators of 4 bytes over 128 threads: N / 2 registers
            open_group |= set(range(int(matrix[2]), int(matrix[2]) + int(matrix[1]) // 2))
            if matrix[3]:
                open_group |= set(range(int(matrix[3]), int(matrix[3]) + A_REGISTERS))
            if "gsb0" in text:
                groups.append(open_group)
                open_group = set()
        elif wait:
            left = int(wait[1], 16)
            groups = groups[len(groups) - left :] if left else []
        else:
            written = _written(text)
            busy = set().union(open_group, *groups)
            found += [(text.strip(), r) for r in sorted(written & busy)]
    return found


_NO_REGISTER_RESULT = (
    "ST",
    "BAR",
    "SYNCS",
    "ISETP",
    "FSETP",
    "HSETP",
    "DSETP",
    "RED",
    "UTMA",
    "UBLKCP",
    "MEMBAR",
    "FENCE",
    "CCTL",
    "PLOP3",
    "R2UR",
    "R2P",
    "WARPGROUP",
    "BSSY",
    "BSYNC",
)


def _written(text):
    """Registers that an instruction writes; a predicate may stand before the result (SHFL, LOP3)."""
    match = re.match(r"([A-Z0-9_.]+)\s+(?:U?P\w+,\s*)?R(\d+)\b", text)
    if not match or match[1].startswith(_NO_REGISTER_RESULT):
        return set()
    name, first = match[1], int(match[2])
    wide = 4 if ".128" in name else 2 if ".64" in name or ".WIDE" in name else 1
    if name.startswith("LDSM"):
        wide = int(name[-1]) if name[-1] in "24" else 1
    return set(range(first, first + wide))
