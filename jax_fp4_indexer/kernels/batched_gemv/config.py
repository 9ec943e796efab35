"""What a variant of the GEMV kernel is made of, and where everything lies in shared memory.

Words: a *row* is a row of `a`; a *piece* is the part of K whose dequantised `b` is held in shared memory at a time;
a *segment* is the part of a piece that a stage holds; a *stage* is a slot of the ring: `rows` rows of `a`, one
segment of each, codes and scales.
"""

import dataclasses

from ...configs.arch import ARCHS

WARPS = 16  # that compute; one more warp copies
CHUNK = 1024  # codes of a row that a warp takes at a time with one column: 32 of each lane
SLICE = 128  # codes of 16 rows that a warp takes at a time with eight columns
BARRIER_BYTES = 256  # of 16 stages


@dataclasses.dataclass(frozen=True)
class GemvConfig:
    """One variant.

    columns       1 (integer dot products) or 8 (matrix instructions): columns of b that it takes, at most
    scale_layout  "public" or "preordered_mma" any_k         K is a multiple of 16; otherwise of 256, which makes
    every row of codes and of scales start on 16 bytes arch          "sm_80" copies by cp.async and converts scales
    by integer arithmetic; later ones copy by cp.async.bulk piece         codes of a piece stages        slots of
    the ring unit          rows that a warp takes together (one column) feeders       warps that copy
    """

    columns: int = 1
    scale_layout: str = "public"
    any_k: bool = False
    arch: str = "sm_90a"
    piece: int = 16384
    stages: int = 4
    unit: int = 4
    feeders: int = 1

    @classmethod
    def choose(cls, columns, scale_layout, any_k, arch):
        """The variant that ships."""
        small = ARCHS[arch].shared_per_cta < 200 * 1024
        tiled = scale_layout == "preordered_mma"
        if columns == 8:
            return cls(columns, scale_layout, any_k, arch, 2048 if small else 8192, 2 if small else 4, feeders=4)
        feeders = 4 if tiled or any_k or small else 1
        if small:
            return cls(
                columns,
                scale_layout,
                any_k,
                arch,
                4096 if tiled else 8192,
                2 if tiled else 3,
                4 if tiled else 2,
                feeders,
            )
        return cls(columns, scale_layout, any_k, arch, 16384, 4 if tiled else 5, 4 if tiled else 2, feeders)

    def fits(self):
        """None, or why this variant cannot run."""
        if self.columns not in (1, 8) or self.scale_layout not in ("public", "preordered_mma"):
            return f"{self.columns} columns, of 1 and 8, or scale layout {self.scale_layout!r}"
        if self.tiled and self.columns == 1 and self.unit != 4:
            return f"{self.unit} rows a warp, expected 4: 16 bytes of the tiled scales belong to 4 rows"
        if self.stages > BARRIER_BYTES // 16:
            return f"{self.stages} stages, of {BARRIER_BYTES // 16}"
        limit = ARCHS[self.arch].shared_per_cta
        if self.shared_bytes > limit:
            return f"{self.shared_bytes} bytes of shared memory, of {limit}"
        return None

    @property
    def name(self):
        return f"batched_gemv.{self.scale_layout}.n{self.columns}.k{16 if self.any_k else 256}"

    @property
    def bulk(self):
        return self.arch != "sm_80"

    @property
    def convert(self):  # cvt.rn.f16x2.e4m3x2
        return self.arch != "sm_80"

    @property
    def tiled(self):
        return self.scale_layout == "preordered_mma"

    @property
    def threads(self):
        return (WARPS + self.feeders) * 32

    @property
    def segment(self):  # codes of a stage's rows, at most
        return self.piece if self.columns == 1 else min(self.piece, WARPS * SLICE)

    @property
    def segments(self):  # of a whole piece
        return self.piece // self.segment

    @property
    def most_rows(self):  # of a stage
        return WARPS * self.unit if self.columns == 1 else 16

    @property
    def pass_rows(self):  # whose sums are in shared memory at a time; with one column fewer where K is long
        return 512 if self.columns == 1 else 128

    # ---- a stage
    @property
    def slack(self):  # bytes that a copy of unaligned data may be longer
        return 16 if self.any_k else 0

    @property
    def code_bytes(self):
        """Of a stage. One column: as many rows as make WARPS * unit chunks. Eight: 16 rows, 64 bytes apart modulo 128,
        so that two rows hit all banks.
        """
        if self.columns == 1:
            return max(self.most_rows * (CHUNK // 2 + self.slack), self.code_pitch)
        return 16 * self.code_pitch

    @property
    def code_pitch(self):  # eight columns, and b
        return self.segment // 2 + (64 if self.columns == 8 else self.slack)

    @property
    def scale_pitch(self):  # eight columns, and b
        return self.segment // 16 + 16

    @property
    def b_rows(self):  # rows of a stage that holds b: a column each, with eight columns two segments
        return 2 * self.columns if self.columns == 8 else 1

    @property
    def b_segment(self):  # codes of a column in a stage that holds b
        return self.segment * self.b_rows // self.columns

    @property
    def scale_bytes(self):
        if self.columns == 1:
            return max(self.most_rows * (CHUNK // 16 + self.slack), self.scale_pitch)
        return 16 * self.scale_pitch

    @property
    def stage_bytes(self):
        return self.code_bytes + self.scale_bytes

    # ---- shared memory: barriers, b, its scales, partial sums, sums, ring
    @property
    def full(self):
        return 0

    @property
    def empty(self):  # next to `full`
        return 8 * self.stages

    @property
    def b(self):
        return BARRIER_BYTES

    @property
    def b_bytes(self):
        return self.piece * 2 * self.columns

    @property
    def b_scales(self):  # f32, one column only
        return self.b + self.b_bytes

    @property
    def parts(self):
        return self.b_scales + (self.piece // 4 if self.columns == 1 else 0)

    @property
    def part_words(self):
        return 2048 if self.columns == 1 else 2 * WARPS * 128  # eight columns: two tiles

    @property
    def sums(self):
        return self.parts + self.part_words * 4

    @property
    def ring(self):
        return self.sums + self.pass_rows * self.columns * 4

    @property
    def shared_bytes(self):
        return self.ring + self.stages * self.stage_bytes
