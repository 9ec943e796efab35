"""One launch of a prefill alone, over scratch as the launches before it would have left it: what it writes, against a plain model of it.

Counts, sizes and places that no call of a test would reach (hundreds of records, 2^32 steps) then cost some ten thousand instructions, and what differs shows without going through the scores.
`prepass_precision.py`, `prepass_pages.py` and `prepass_plan.py` say what the launches have to write.

    for problem in prepass_plan.problems(kernel):
        insts, wrong = problem.run(kernel, "random:1")
"""

import numpy as np

from ptxsim.launch import Memory, SimError
from ptxsim.launch import run as launch

from . import launches


class Area:
    """Bytes of scratch from `start` on, and which of them are defined. Others are random."""

    def __init__(self, start, size, seed):
        self.start, self.data = start, np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
        self.defined, self.free = np.zeros(size, bool), np.zeros(size, bool)

    def put(self, at, values, dtype=np.uint32):
        raw = np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8)
        at -= self.start
        if not 0 <= at <= self.data.size - raw.size:
            raise ValueError(f"{raw.size} bytes at {at} are not in an area of {self.data.size}")
        self.data[at : at + raw.size], self.defined[at : at + raw.size] = raw, True

    def ignore(self, at, size):
        """Nobody asks what the launch leaves there."""
        self.free[at - self.start : at - self.start + size] = True

    def compare(self, got, written):
        """A sentence on what is wrong, or "": `got` is what the launch left in place of this, `written` the bytes that are defined."""
        for what, wrong in (
            ("not written", self.defined & ~written),
            ("written, and nothing belongs there", written & ~self.defined),
            ("differ", got != self.data),
        ):
            wrong = wrong & ~self.free
            if wrong.any():
                at = int(np.argmax(wrong)) & ~3
                words = [int(x[at : at + 4].view(np.uint32)[0]) for x in (got, self.data)]
                return f"{int(wrong.sum())} bytes {what}; at byte {self.start + at} of scratch {words[0]:#x}, expected {words[1]:#x}"
        return ""


def run(kernel, given, want, sizes, arrays, schedule, multiprocessors, max_insts):
    """(warp instructions, problems) of one launch.

    given, want     Areas of scratch, in order, before and after; there is no memory between them
    sizes           {name: int} of BlockScoresArgs
    arrays          {name: array} of its buffers; the others have 16 bytes
    """
    mode, _, seed = schedule.partition(":")
    memory, none, align = Memory(), np.zeros(16, np.uint8), kernel.alignments
    address = {name: memory.add(name, arrays.get(name, none), align[name]) for name in align if name != "scratch"}
    for area in given:
        at = memory.add(
            f"scratch from {area.start} on",
            area.data,
            align["scratch"],
            write=True,
            undefined=True,
            at=address["scratch"] + area.start if area.start else None,
        )
        address.setdefault("scratch", at)
    marks = [buffer[2]["init"] for buffer in memory.buffers[-len(given) :]]
    for area, mark in zip(given, marks):
        mark[: area.defined.size] = area.defined
    grid = (kernel.grid["per_sm"] * multiprocessors, 1, 1) if "per_sm" in kernel.grid else tuple(kernel.grid["fixed"])
    try:
        result = launch(
            kernel.program,
            memory,
            [launches.bytes_of(p, address, sizes) for p in kernel.params],
            grid,
            kernel.block,
            kernel.dynamic_shared_bytes,
            mode=mode,
            seed=int(seed or 0),
            max_insts=max_insts,
        )
    except SimError as e:
        return 0, [f"{type(e).__name__}: {e}"]
    kernel.count(result)
    found = [
        after.compare(before.data, mark[: before.data.size].astype(bool))
        for before, after, mark in zip(given, want, marks)
    ]
    return result.insts, [f"{kernel.name}: {f}" for f in result.faults] + [f for f in found if f]
