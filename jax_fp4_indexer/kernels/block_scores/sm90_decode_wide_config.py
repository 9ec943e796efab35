"""What a variant of the sm_90a decode kernel is made of, and where everything lies in shared memory."""

import dataclasses

from ...configs.arch import MAX_REGISTERS_PER_THREAD, REGISTERS_PER_SM
from ...configs.block_scores import CODE_BYTES
from ..addressing.ragged import TABLE_BYTES
from .sm90_decode_start import STAGES, RingConfig

NAMED_BARRIERS = 16


@dataclasses.dataclass(frozen=True)
class WideDecodeConfig(RingConfig):
    """One variant. `columns` is the width of the matrix instruction: packed (query head, query) rows of one sequence
    and KV head."""

    columns: int = 32
    warpgroups: int = 3

    @classmethod
    def choose(cls, format, scale_layout, columns):
        """The variant of a width: as many warpgroups as registers and shared memory allow."""
        return cls(format, scale_layout, columns, {32: 3, 64: 2}[columns])

    def fits(self):
        """None, or why this variant cannot run."""
        if self.columns not in (32, 64):
            return f"columns {self.columns}: must be 32 or 64"
        if not 1 <= self.warpgroups * STAGES <= NAMED_BARRIERS:
            return f"{self.warpgroups} warpgroups need {self.warpgroups * STAGES} named barriers of {NAMED_BARRIERS}"
        # Two accumulators, one tile's keys, and about 60 for addresses and state
        need = self.columns + 32 + self.columns // 4 + 60
        if need > min(self.registers, MAX_REGISTERS_PER_THREAD):
            return f"about {need} registers a thread of {self.registers}"
        return super().fits()

    @property
    def name(self):
        return f"block_scores.decode.{self.format}.{self.scale_layout}.n{self.columns}"

    @property
    def registers(self):
        return REGISTERS_PER_SM // self.threads // 8 * 8

    # ---- shared memory: the table of the sequences, then per warpgroup (offsets from the warpgroup's base; a
    # multiple of 128)

    @property
    def operand(self):  # queries as f16, see device/wgmma.py
        return STAGES * self.page_bytes

    @property
    def maxima(self):  # [4 pages][columns / 16][4 warps][32 lanes] x 4 f32
        return self.operand + self.columns * 256

    @property
    def raw_codes(self):  # mxfp4: the columns' packed codes, 64 bytes each
        return self.maxima + STAGES * self.columns * 128

    @property
    def outputs(self):  # 16 bytes a column: address of its score of block 0 (0: none), visible keys, head scale
        return self.raw_codes + (self.columns * CODE_BYTES if self.format == "mxfp4" else 0)

    @property
    def limits(self):  # 8 bytes a column: visible keys, keys that the fast path serves
        return self.outputs + self.columns * 16

    @property
    def factors(self):  # mxfp4, 4 bytes a column: power of two of the column's exponent base
        return self.limits + self.columns * 8

    @property
    def raw_scales(self):  # mxfp4, 4 bytes a column: E8M0 bytes
        return self.factors + self.columns * 4

    @property
    def barriers(self):  # 8 bytes a stage
        return self.raw_scales + self.columns * 4

    @property
    def warpgroup_bytes(self):
        return (self.barriers + STAGES * 8 + 127) // 128 * 128

    @property
    def shared_bytes(self):
        return self.warpgroups * self.warpgroup_bytes + TABLE_BYTES
