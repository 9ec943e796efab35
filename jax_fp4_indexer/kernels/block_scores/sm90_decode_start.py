"""What the sm_90a decode kernels have in common: the shape of a CTA (warpgroups, each with a ring of pages), and how
it begins."""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...configs.arch import ARCHS
from ...configs.block_scores import CODE_BYTES, GROUPS, PAGE
from ..device.fixed import Fixed
from ..device.ptx_barriers import fence_async_shared, fence_mbarrier_init, mbarrier_init
from ..device.ptx_math import opaque, shr
from ..device.ptx_warp import shfl_idx

STAGES = 4  # pages in a warpgroup's ring, one refilled by each of its warps (of wide kernels)
WARPS = 4  # of a group

# mxfp4: with these bases one factor serves a page or a row, and no group's term leaves the range of f32
KEY_BASES = (47, 180)  # of a slice of keys
QUERY_BASES = (8, 180)  # of a query row
FACTOR_BIAS = 134  # a row's factor is 2^(base - 134)


@dataclasses.dataclass(frozen=True)
class RingConfig:
    """A variant. Subclasses have `warpgroups`, and say where everything lies: `barriers` (in a warpgroup's part),
    `warpgroup_bytes`, `shared_bytes`."""

    format: str = "nvfp4"
    scale_layout: str = "public"

    def fits(self):
        """None, or why this variant cannot run."""
        if self.format not in GROUPS or self.scale_layout not in ("public", "preordered_mma"):
            return f"unknown format {self.format!r} or scale layout {self.scale_layout!r}"
        limit = ARCHS["sm_90a"].shared_per_cta
        if self.shared_bytes > limit:
            return f"{self.shared_bytes} bytes of shared memory of {limit}"
        return None

    @property
    def groups(self):
        return GROUPS[self.format]

    @property
    def threads(self):
        return self.warpgroups * WARPS * 32

    @property
    def page_bytes(self):  # codes, then scales
        return PAGE * (CODE_BYTES + self.groups)


class Warp(Fixed):
    """A warp's place. tokens: the batch's, the distance of a score from the next block's."""

    def __init__(self, config, shared, lane, index, tokens):
        self.c, self.shared, self.lane, self.index, self.tokens = config, shared, lane, index, tokens
        self.g, self.t = shr(lane, 2), lane & 3
        self.group, self.warp = shr(index, 2), index & 3
        self.base = shared + self.group * config.warpgroup_bytes
        self.barrier = self.group * STAGES

    @classmethod
    def here(cls, config, args):
        """The place of the warp that runs this, in a CTA that has `shared_bytes` of dynamic shared memory.

        Through shuffles: ptxas would rather read special registers again than keep the values, 20 clocks each time."""
        thread, _, _ = cute.arch.thread_idx()
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, 128).toint()
        return cls(
            config,
            shfl_idx(shared, Int32(0)),
            shfl_idx(thread & 31, thread & 31),
            shfl_idx(shr(thread, 5), Int32(0)),
            args.tokens,
        )

    def aside(self):
        """The same place, for code off the main loop: its addresses are computed there, so that the main loop has the
        registers."""
        return type(self)(self.c, self.shared, opaque(self.lane), opaque(self.index), self.tokens)

    @cute.jit
    def make_barriers(self):
        """The mbarriers of the ring's stages. A barrier of the CTA must follow."""
        if (self.warp == 0) & (self.lane == 0):
            for s in cutlass.range_constexpr(STAGES):
                mbarrier_init(self.base + self.c.barriers + s * 8, 1)
            fence_mbarrier_init()
            fence_async_shared()
