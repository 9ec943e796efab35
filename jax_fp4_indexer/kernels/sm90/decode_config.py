"""What a variant of the sm_90a decode kernel for up to 16 packed rows is made of, and where everything lies in shared memory."""
import dataclasses

from . import decode_int8
from .decode_runs import TABLE_BYTES
from .decode_start import STAGES, WARPS, RingConfig

ROWS = 16                       # packed (query head, query) rows of one sequence and KV head that are worked at a time
WIDE_BYTES = 8 * 512            # a tile of queries in f16


@dataclasses.dataclass(frozen=True)
class DecodeConfig(RingConfig):
    """One variant. A warpgroup shares a ring of pages."""
    warpgroups: int = 4

    @property
    def name(self):
        return f"block_scores.decode.{self.format}.{self.scale_layout}.n{ROWS}"

    # ---- shared memory: the warpgroups' parts, the table of the sequences, the tables of decode_int8.py. In a warpgroup's part: the ring, then
    @property
    def maxima(self):           # [STAGES][ROWS][WARPS] f32
        return STAGES * self.page_bytes

    @property
    def barriers(self):         # 8 bytes a stage
        return self.maxima + STAGES * ROWS * WARPS * 4

    @property
    def ready(self):            # 8 bytes: the run's queries in f16 have been written
        return self.barriers + STAGES * 8

    @property
    def wide(self):             # the queries in f16, of this run and of the one before: [2][8 steps][32 lanes][4 registers]
        return (self.ready + 8 + 127) // 128 * 128

    @property
    def warpgroup_bytes(self):
        return self.wide + 2 * WIDE_BYTES

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
