"""What a variant of the sm_90a decode kernel for up to 16 packed rows is made of, and where everything lies in shared
memory."""

import dataclasses

from ...configs.block_scores import CODE_BYTES, PAGE
from ..operands import s8_tables
from .sm90_decode_runs import MOST_WARPS, TABLE_BYTES
from .sm90_decode_start import WARPS, RingConfig

ROWS = 16  # packed (query head, query) rows of one sequence and KV head that are worked at a time
WIDE_BYTES = 8 * 512  # a tile of queries in f16


@dataclasses.dataclass(frozen=True)
class DecodeConfig(RingConfig):
    """One variant. A warpgroup shares a range of units; each of its warps has a page of its own in shared memory.

    pieces: a page's codes come in so many copies, 1, 2 or 4; a piece's place is refilled as soon as its keys are
    done. Scales come with the first and have two places."""

    warpgroups: int = 4
    pieces: int = 2

    @property
    def name(self):
        return f"block_scores.decode.{self.format}.{self.scale_layout}.n{ROWS}"

    def fits(self):
        """None, or why this variant cannot run."""
        if self.pieces not in (1, 2, 4):
            return f"{self.pieces} pieces of a page of four slices"
        if not 1 <= self.warps <= MOST_WARPS:
            return f"{self.warps} warps, of 1 to {MOST_WARPS}: each has a word after the table of the sequences"
        return super().fits()

    @property
    def warps(self):
        return self.warpgroups * WARPS

    # ---- shared memory: a page of every warp, the table of the sequences, the tables of operands/s8_tables.py,
    # mxfp4's queries in f16, barriers

    @property
    def scale_bytes(self):
        return PAGE * self.groups

    @property
    def warp_bytes(self):
        return PAGE * CODE_BYTES + 2 * self.scale_bytes

    @property
    def warpgroup_bytes(self):
        return WARPS * self.warp_bytes

    @property
    def sequences(self):
        return self.warps * self.warp_bytes

    @property
    def tables(self):
        return self.sequences + TABLE_BYTES

    @property
    def wide(self):  # [warps][8 steps][32 lanes][4 registers]
        return self.tables + s8_tables.TABLE_BYTES

    @property
    def barriers(self):  # [warps][pieces] of 8 bytes
        return self.wide + (self.warps * WIDE_BYTES if self.format == "mxfp4" else 0)

    @property
    def shared_bytes(self):
        return self.barriers + self.warps * self.pieces * 8
