"""Kernels that are not what they should be, for compute-sanitizer: the package's own cubins and manifest, altered, in a folder of their own.

| alteration | what becomes of the kernels | why |
|---|---|---|
| stores | every 4-byte store to global memory goes 8 MB too far | memcheck has to say so |
| cta_barriers | barriers of the whole CTA do nothing | racecheck has to say so |
| named_barriers | named barriers do nothing, who arrives and who waits; but number 1, on which no data depends in prefill | racecheck has to say so |
| arrivals | who arrived at a named barrier waits at it as well | synccheck has to say so (facts.md); racecheck, which does not follow arrivals, sees an order |

`cubins` names a folder with other kernels to begin with (racecheck_build.py). With `ctas`, kernels that fill the GPU are launched with that many CTAs for each that they ask of a multiprocessor. A process has one manifest: `load` comes first in it.
"""

import atexit
import hashlib
import json
import struct
import tempfile
from pathlib import Path

import jax_fp4_indexer as jfi
from jax_fp4_indexer.aot import inspect
from jax_fp4_indexer.primitives import runtime

OPCODE, BAR, STG, NOP = (
    0xFFF,
    0x11D,
    0x186,
    0x918,
)  # STG and BAR: the low 9 bits, as in aot/inspect.py; NOP: with the form of its operands
BAR_ALL, BAR_REGISTER = (
    0xB1D,
    0x51D,
)  # low 12 bits of BAR with the number at once, as the barrier of the CTA has it, and in a register
NUMBER = 54  # where the number begins that is given at once
ARRIVE, WAIT = 1 << 13, 1 << 16  # of the upper word: BAR.ARV, BAR.SYNC.DEFER_BLOCKING
OFFSET = 40  # STG: where the 24-bit offset begins; of the upper word, bits 9 to 11: log2 of the bytes, from 4 for 4
FAR = 0x7FF000


def stores(low, high):
    if low & inspect.OPCODE_MASK == STG and high >> 9 & 7 == 4:
        low = low & ~(0xFFFFFF << OFFSET) | FAR << OFFSET
    return low, high


def cta_barriers(low, high):
    if low & OPCODE == BAR_ALL and low >> 32 == 0 and high & WAIT:
        low, high = _nothing(low, high)
    return low, high


def named_barriers(low, high):
    if low & OPCODE == BAR_REGISTER or (low & OPCODE == BAR_ALL and low >> NUMBER & 15 > 1):
        low, high = _nothing(low, high)
    return low, high


def _nothing(low, high):
    return low & 0xF000 | NOP, high & ~0x1FFFFFF


def arrivals(low, high):
    if low & inspect.OPCODE_MASK == BAR and high & ARRIVE:
        high = high & ~ARRIVE | WAIT
    return low, high


ALTERATIONS = {f.__name__: f for f in (stores, cta_barriers, named_barriers, arrivals)}


def alter(cubin, how):
    """The cubin (bytes) with its instructions replaced: (low, high) = how(low, high). Returns (bytes, how many changed)."""
    out, changed = bytearray(cubin), 0
    for name, header, body in inspect._sections(cubin):
        if name.startswith(".text."):
            for at, (low, high) in enumerate(struct.iter_unpack("<QQ", body)):
                new = how(low, high)
                if new != (low, high):
                    changed += 1
                    struct.pack_into("<QQ", out, header[4] + 16 * at, *new)
    return bytes(out), changed


def build(folder, names=(), ctas=0, given=None):
    """Writes <folder>/cubins, of the kernels in `given` (default: the package's). Returns how many instructions each alteration changed."""
    given, cubins = Path(given or runtime.find("cubins/manifest.json").parent), Path(folder, "cubins")
    manifest, counts = json.loads((given / "manifest.json").read_text()), dict.fromkeys(names, 0)
    for kernel in manifest["kernels"]:
        if ctas and "per_sm" in kernel["grid"]:
            kernel["grid"] = {"fixed": [ctas * kernel["grid"]["per_sm"] * kernel["cluster"][0], 1, 1]}
        to = cubins / kernel["cubin"]
        to.parent.mkdir(parents=True, exist_ok=True)
        if not names:
            to.symlink_to((given / kernel["cubin"]).resolve())
            continue
        code = (given / kernel["cubin"]).read_bytes()
        for name in names:
            code, changed = alter(code, ALTERATIONS[name])
            counts[name] += changed
        to.write_bytes(code)
        kernel["sha256"] = hashlib.sha256(code).hexdigest()
    (cubins / "manifest.json").write_text(json.dumps(manifest))
    return counts


def load(names=(), ctas=0, given=None):
    """The library of this process with such kernels."""
    if "library" in runtime._state:
        raise RuntimeError("altered_kernels.load: the library has its manifest already; call this first in the process")
    folder = tempfile.TemporaryDirectory(prefix="jfi-altered-")
    atexit.register(folder.cleanup)
    for name, changed in build(folder.name, names, ctas, given).items():
        if not changed:
            raise RuntimeError(
                f"altered_kernels.load: {name} changed no instruction; the encoding is not the one known here (nvdisasm -hex shows it)"
            )
    runtime.load([folder.name, *jfi.__path__])
