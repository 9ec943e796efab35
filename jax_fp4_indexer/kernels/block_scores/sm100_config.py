"""What a variant of the sm_100a / sm_103a kernel is made of, and where everything lies in shared memory and TMEM."""

import dataclasses

from ...configs.arch import ARCHS
from ...configs.block_scores import CODE_BYTES, GROUPS, PAGE
from ..addressing.ragged import TABLE_BYTES

SHARED_LIMIT = ARCHS["sm_100a"].shared_per_cta  # sm_103a has the same
TMEM_COLUMNS = 512
ROWS = 128  # query rows of a tile: lanes of TMEM
Q_STAGES = 2  # query tiles of a segment being worked, and of the next
ACC_STAGES = 3  # accumulators [128, 128] f32 in TMEM
FULL = 2 * ACC_STAGES  # barriers of complete tiles: even, see sm100_compute.py
SFK_SETS = 1 + ACC_STAGES  # column sets for key scales: see sm100_compute.py
SEGMENTS = 4  # ring of segment records
SEGMENT_BYTES = 64
ALIGN = 1024  # of a swizzled operand

# Warps by role. Four warps make a warpgroup, whose registers are set together.
REDUCE, LOAD, MMA, GATHER, WARPS = 0, 8, 9, 10, 12
# Two warpgroups and one; 384 threads start with 168, and tcgen05.ld.x128 alone takes 146
REDUCE_REGISTERS, OTHER_REGISTERS = 216, 72
GATHER_WARPS = WARPS - GATHER
SEGMENT_READERS = (LOAD - REDUCE) + 1 + GATHER_WARPS


@dataclasses.dataclass(frozen=True)
class Config:
    """One variant.

    packed   rows of a tile are (token, query head) pairs of one KV head (decode); else a tile is 128 tokens of one
             head, and up to `heads` tiles of consecutive heads share every key page (prefill)
    stages   key pages in the ring
    ld_red   sm_103a: tcgen05.ld.red takes the maximum while it loads
    """

    format: str = "nvfp4"
    scale_layout: str = "public"
    packed: bool = False
    stages: int = 8
    heads: int = 4
    ld_red: bool = False

    @classmethod
    def choose(cls, format, scale_layout, path, arch):
        """The variant of a path: decode has nothing to share a page with, and gets a deep ring instead."""
        packed = path == "decode"
        return cls(format, scale_layout, packed, 18 if packed else 8, 1 if packed else 4, arch == "sm_103a")

    def fits(self):
        """None, or why this variant cannot run."""
        if self.format not in GROUPS or self.scale_layout not in ("public", "preordered_mma"):
            return f"unknown format {self.format!r} or scale layout {self.scale_layout!r}"
        if self.packed and self.heads != 1:
            return f"packed with {self.heads} heads: rows already hold all heads of a KV head"
        if self.tmem_used > TMEM_COLUMNS:
            return f"{self.tmem_used} TMEM columns of {TMEM_COLUMNS}"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory of {SHARED_LIMIT}"
        return None

    @property
    def name(self):
        path = "decode" if self.packed else "prefill"
        return f"block_scores.{path}.{self.format}.{self.scale_layout}"

    @property
    def groups(self):
        return GROUPS[self.format]

    @property
    def words(self):
        """32-bit words of scales a row = atoms of 512 bytes for 128 rows."""
        return self.groups // 4

    @property
    def scale_bytes(self):
        """Scales of 128 rows."""
        return PAGE * self.groups

    @property
    def threads(self):
        return WARPS * 32

    # ---- TMEM columns: accumulators, query scales [stage, head], key scales [set]
    @property
    def sf_columns(self):
        return 4 * self.words

    @property
    def sfq_column(self):
        return ACC_STAGES * 128

    @property
    def sfk_column(self):
        return self.sfq_column + Q_STAGES * self.heads * self.sf_columns

    @property
    def tmem_used(self):
        return self.sfk_column + SFK_SETS * self.sf_columns

    # ---- shared memory, byte offsets
    @property
    def q_codes(self):
        return 0

    @property
    def k_codes(self):
        return self.q_codes + Q_STAGES * self.heads * ROWS * CODE_BYTES

    @property
    def q_scales(self):
        return self.k_codes + self.stages * PAGE * CODE_BYTES

    @property
    def k_scales(self):
        return self.q_scales + Q_STAGES * self.heads * self.scale_bytes

    @property
    def barriers(self):
        return self.k_scales + self.stages * self.scale_bytes

    @property
    def segments(self):
        """Segment records, after the barriers of sm100_protocol.py."""
        count = 2 * Q_STAGES + 2 * self.stages + ACC_STAGES + FULL + 2 * SEGMENTS
        return (self.barriers + count * 8 + 63) // 64 * 64

    @property
    def tmem_address(self):
        return self.segments + SEGMENTS * SEGMENT_BYTES

    @property
    def table(self):
        return self.tmem_address + 16

    @property
    def shared_bytes(self):
        return self.table + TABLE_BYTES + ALIGN  # the base is only known to be 128-byte aligned
