"""Ways through a kernel's SASS, and what they cost: which instructions a page takes, and how long one warp alone needs for them. Nothing is run.

    flow = Flow.read(path)
    page = flow.turn("HMMA", ["HMMA", "STS"])       the shortest way around the loop of the products that passes both, in this order
    flow.mix(page).total, flow.alone(page, LATENCIES)

Which way a valid, uniform page takes through code with many branches is not marked in a cubin. The rule here: the *shortest* way, in instructions, that passes the
named instructions in the named order. What a page does not need (other forms of the arithmetic, the end of a run, a page that does not exist, spinning at a barrier, code for
diverged warps) only adds instructions to a way, and lies behind branches for that reason; what it does need is named. Names are opcodes, so that neither addresses nor
the compiler's order of blocks matter.

How long a warp needs alone comes from the scheduling fields that ptxas writes into every instruction, upper half of the 128 bits: 41..44 clocks until the next one may issue,
46..48 the scoreboard that its result releases, 52..57 the scoreboards it waits for (7: none). NVIDIA does not document them; tests/aot/test_flow.py holds them against known code.
"""

import collections
import functools
import heapq
import pathlib
import re
import struct

from . import inspect
from .loops import PIPE_OF, TARGET, Code, Mix

NO_SCOREBOARD = 7
_JUMPS = ("BRA", "EXIT", "RET")
# Opcodes whose result comes by a scoreboard -> key of the table of latencies; others take "other"
_LATENCY_OF = {
    "LDS": "lds",
    "LDSM": "lds",
    "SHFL": "shfl",
    "REDUX": "redux",
    "LDG": "global",
    "SYNCS": "lds",
    "S2R": "shfl",
    "S2UR": "shfl",
}


class Flow(Code):
    """Code with its control flow. `blocks`: first instruction -> one past the last, of every stretch without a branch into or out of it."""

    def __init__(self, sass, text=b""):
        super().__init__(sass)
        self.names = [super(Flow, self).opcode(i) for i in range(len(self.lines))]
        self.words = [upper for _, upper in struct.iter_unpack("<QQ", text)]
        if self.words and len(self.words) < len(self.lines):
            raise ValueError(f"flow: {len(self.words)} instructions in the cubin, {len(self.lines)} in its disassembly")
        leaders = {0, *self.labels.values()} | {
            i + 1 for i in range(len(self.lines)) if self.opcode(i).startswith(_JUMPS)
        }
        leaders = sorted(i for i in leaders if i < len(self.lines))
        self.blocks = dict(zip(leaders, leaders[1:] + [len(self.lines)]))

    def opcode(self, i):
        return self.names[i]

    @classmethod
    def read(cls, path):
        return cls(inspect.disassemble(path), inspect.text_of(pathlib.Path(path).read_bytes()))

    @functools.cache
    def following(self, block):
        """Blocks that may come after. A branch for diverged warps (BRA.DIV) is not taken; a call comes back."""
        end = self.blocks[block]
        text, name = self.lines[end - 1], self.opcode(end - 1)
        free = not (text.startswith("@") or re.search(r"BRA\S*\s+!?U?P\d", text))
        if name.startswith("BRA"):
            after = [] if ".DIV" in name else [self.labels[TARGET.search(text)[1]]]
            return after if free and ".DIV" not in name and ".ANY" not in name else [*after, end]
        if name.startswith(_JUMPS):
            return [] if free else [end]
        return [end]

    def _passed(self, block, through, done):
        """How many of `through` have been passed behind `block`, if `done` were before it."""
        for i in range(block, self.blocks[block]):
            while done < len(through) and self.opcode(i).startswith(through[done]):
                done += 1
        return done

    def way(self, start, end, through):
        """Blocks of the shortest way from block `start` to block `end` (not included; None: as far as the last of `through`) that passes the opcodes of `through` in
        order. ValueError if there is none."""
        heap, seen = [(self.blocks[start] - start, start, self._passed(start, through, 0), (start,))], set()
        while heap:
            length, block, done, way = heapq.heappop(heap)
            if (block, done) in seen:
                continue
            seen.add((block, done))
            if end is None and done == len(through):
                return way
            for after in self.following(block):
                if after == end and done == len(through):
                    return way
                if after in self.blocks:
                    heapq.heappush(
                        heap,
                        (length + self.blocks[after] - after, after, self._passed(after, through, done), (*way, after)),
                    )
        raise ValueError(f"no way from instruction {start} to {end} past {', '.join(through)}")

    def turn(self, opcode, through):
        """The shortest way once around the loop of the first `opcode` past `through`."""
        head = self.loop(opcode)[0]
        return self.way(head, head, through)

    def turn_of(self, opcodes, through):
        """The shortest way past `through` once around the shortest loop that holds all of `opcodes`."""
        places = [self.find(opcode) for opcode in opcodes]
        around = [
            (last - first, first)
            for first, last in self.loops
            if all(any(first <= i <= last for i in found) for found in places)
        ]
        if not around:
            raise ValueError(f"no loop holds {', '.join(opcodes)}")
        head = min(around)[1]
        return self.way(head, head, through)

    def reach(self, through):
        """The shortest way from the kernel's entry to the last of `through`."""
        return self.way(0, None, through)

    def instructions(self, way):
        return [i for block in way for i in range(block, self.blocks[block]) if self.opcode(i) != "NOP"]

    def mix_of(self, way):
        """Mix of the instructions of a way."""
        opcodes = collections.Counter(self.opcode(i).split(".")[0] for i in self.instructions(way))
        pipes = collections.Counter()
        for name, n in opcodes.items():
            pipes[PIPE_OF.get(name, "other")] += n
        return Mix(sum(opcodes.values()), dict(pipes), dict(opcodes))

    def alone(self, way, latencies, wgmma=0.0):
        """Clocks that one warp alone takes for a way.

        latencies   clocks by "lds", "shfl", "redux", "global", "barrier" (BAR.SYNC) and "other"; "copy" from the last bulk copy of the way to the next test of an
                    mbarrier (0: what the copy brings is there). What comes from other warps is taken to be there
        wgmma       clocks of one warpgroup instruction; a wait for a group of them (WARPGROUP.DEPBAR) ends when they have run one after the other
        """
        now, ready, tensor, groups, copied = 0.0, [0.0] * 6, 0.0, [], 0.0
        for block in way:
            for i in range(block, self.blocks[block]):
                word, name = self.words[i], self.opcode(i)
                now = max([now] + [ready[b] for b in range(6) if word >> 52 + b & 1])
                kind = name.split(".")[0]
                if kind in ("HGMMA", "IGMMA"):
                    tensor = max(tensor, now) + wgmma
                    if "gsb0" in self.lines[i]:
                        groups.append(tensor)
                elif name.startswith("WARPGROUP.DEPBAR"):
                    left = int(self.lines[i].rsplit(",", 1)[1].split()[0], 16)
                    now, groups = max([now] + groups[: len(groups) - left]), groups[len(groups) - left :]
                elif name.startswith("BAR.SYNC"):
                    now += latencies["barrier"]
                elif kind in ("UBLKCP", "UTMALDG"):
                    copied = now + latencies["copy"]
                elif name.startswith("SYNCS.PHASECHK"):
                    now = max(now, copied)
                board = word >> 46 & 7
                if board != NO_SCOREBOARD:
                    ready[board] = max(ready[board], now + latencies[_LATENCY_OF.get(kind, "other")])
                now += max(1, word >> 41 & 15)
        return now
