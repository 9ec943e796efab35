"""What the sm_90a decode kernels have in common: the shape of a CTA (warpgroups, each with a ring of pages), and how it begins."""
import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...configs.block_scores import CODE_BYTES, GROUPS, PAGE
from ..device.fixed import Fixed
from ..device.ptx_barriers import fence_async_shared, fence_mbarrier_init, mbarrier_init
from ..device.ptx_math import bcast_half, e4m3x2_to_f16x2, opaque, shr, udiv
from ..device.ptx_warp import shfl_idx

SHARED_LIMIT = 227 * 1024       # bytes a CTA may use on sm_90
STAGES = 4                      # pages in a warpgroup's ring, one refilled by each of its warps (of wide kernels)
WARPS = 4                       # of a group


@dataclasses.dataclass(frozen=True)
class RingConfig:
    """A variant. Subclasses have `warpgroups`, and say where everything lies: `barriers` (in a warpgroup's part), `warpgroup_bytes`, `shared_bytes`."""
    format: str = "nvfp4"
    scale_layout: str = "public"

    def fits(self):
        """None, or why this variant cannot run."""
        if self.format not in GROUPS or self.scale_layout not in ("public", "preordered_mma"):
            return f"unknown format {self.format!r} or scale layout {self.scale_layout!r}"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory of {SHARED_LIMIT}"
        return None

    @property
    def groups(self):
        return GROUPS[self.format]

    @property
    def threads(self):
        return self.warpgroups * WARPS * 32

    @property
    def page_bytes(self):       # codes, then scales
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
        return cls(config, shfl_idx(shared, Int32(0)), shfl_idx(thread & 31, thread & 31), shfl_idx(shr(thread, 5), Int32(0)), args.tokens)

    def aside(self):
        """The same place, for code off the main loop: its addresses are computed there, so that the main loop has the registers."""
        return type(self)(self.c, self.shared, opaque(self.lane), opaque(self.index), self.tokens)

    @cute.jit
    def make_barriers(self):
        """The mbarriers of the ring's stages. A barrier of the CTA must follow."""
        if (self.warp == 0) & (self.lane == 0):
            for s in cutlass.range_constexpr(STAGES):
                mbarrier_init(self.base + self.c.barriers + s * 8, 1)
            fence_mbarrier_init()
            fence_async_shared()


@cute.jit
def cut(total, shares, share):
    """Units [u, stop) of a share: each as even as can be, and neighbouring shares together too. total: below 2^31; shares: below 2^15."""
    each = udiv(total, shares)
    spare = total - each * shares
    return each * share + udiv(spare * share, shares), each * (share + 1) + udiv(spare * (share + 1), shares)


def nvfp4_scales(raw):
    """Two scale bytes, of a lane's first and last 16 codes -> each as f16, twice in a word."""
    pair = e4m3x2_to_f16x2(raw)
    return [bcast_half(pair, False), bcast_half(pair, True)]
