"""What a variant of the sm_90a decode kernel for up to 16 packed rows is made of, and where everything lies in shared memory."""
import dataclasses

from ...configs.block_scores import CODE_BYTES, GROUPS, PAGE
from . import decode_int8
from .decode_runs import TABLE_BYTES

SHARED_LIMIT = 227 * 1024       # bytes a CTA may use on sm_90
NAMED_BARRIERS = 16
STAGES = 4                      # pages in a warpgroup's ring, one refilled by each of its warps; their maxima have as many slots
ROWS = 16                       # packed (query head, query) rows of one sequence and KV head that are worked at a time
WARPS = 4                       # of a group
WIDE_BYTES = 8 * 512            # a tile of queries in f16


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """One variant. A warpgroup shares a ring of pages."""
    format: str = "nvfp4"
    scale_layout: str = "public"
    warpgroups: int = 4

    def fits(self):
        """None, or why this variant cannot run."""
        if self.format not in GROUPS or self.scale_layout not in ("public", "preordered_mma"):
            return f"unknown format {self.format!r} or scale layout {self.scale_layout!r}"
        if not 1 <= self.warpgroups * STAGES <= NAMED_BARRIERS:
            return f"{self.warpgroups} warpgroups need {self.warpgroups * STAGES} named barriers of {NAMED_BARRIERS}"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory of {SHARED_LIMIT}"
        return None

    @property
    def groups(self):
        return GROUPS[self.format]

    @property
    def name(self):
        return f"block_scores.decode.{self.format}.{self.scale_layout}.n{ROWS}"

    @property
    def threads(self):
        return self.warpgroups * WARPS * 32

    @property
    def page_bytes(self):       # codes, then scales
        return PAGE * (CODE_BYTES + self.groups)

    # ---- shared memory: the warpgroups' parts, the table of the sequences, the tables of decode_int8.py. In a warpgroup's part: the ring, then
    @property
    def maxima(self):           # [STAGES][ROWS][WARPS] f32
        return STAGES * self.page_bytes

    @property
    def barriers(self):         # 8 bytes a stage
        return self.maxima + STAGES * ROWS * WARPS * 4

    @property
    def ready(self):            # mxfp4, 8 bytes: the run's queries in f16 have been written
        return self.barriers + STAGES * 8

    @property
    def wide(self):             # mxfp4: the queries in f16, of this run and of the one before: [2][8 steps][32 lanes][4 registers]
        return (self.ready + 8 + 127) // 128 * 128

    @property
    def warpgroup_bytes(self):
        return self.wide + (2 * WIDE_BYTES if self.format == "mxfp4" else 0)

    @property
    def sequences(self):
        return self.warpgroups * self.warpgroup_bytes

    @property
    def tables(self):
        return self.sequences + TABLE_BYTES

    @property
    def raw(self):              # mxfp4: the queries as they came, of every warp
        return self.tables + decode_int8.TABLE_BYTES

    @property
    def raw_bytes(self):        # [8 words of codes, 2 of scales][32 lanes]
        return 10 * 128 if self.format == "mxfp4" else 0

    @property
    def shared_bytes(self):
        return self.raw + self.warpgroups * WARPS * self.raw_bytes
