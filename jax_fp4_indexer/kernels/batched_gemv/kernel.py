"""NVFP4 batched GEMV: y[l, m, n] = ga * gb * sum over k of a[l, m, k] * sfa[l, m, k / 16] * b[l, n, k] * sfb[l, n, k /
16], at most 8 columns n.

One CTA an SM. The rows of all batches are cut evenly over the CTAs (problem.py):

| warps | do |
|---|---|
| 0 .. 15 | dequantise b into shared memory, then wait for a stage, multiply and add, release it (one_column.py, eight_columns.py); at a pass's end add up and store |
| 16 and on | copy b, then rows of a, with their scales, into the ring, as far ahead as the ring is long (feed.py) |

| barrier | arrivals | completes |
|---|---|---|
| full[stage] | the copying warps' and their bytes | the stage holds its rows |
| empty[stage] | 16, one of each warp that computes | the stage may be overwritten |
| named 1 | 512 threads | b is there; sums of all warps are there |

The bytes of a are the work: 9/16 of a byte each code. Everything else is hidden after them, as long as a word of 8
codes takes less than 32 issue slots.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...specs.batched_gemv import SPEC
from ..device.kernel import OpKernel
from ..device.ptx_barriers import fence_async_shared, fence_mbarrier_init, mbarrier_init
from ..device.ptx_math import shr
from ..device.ptx_warp import shfl_idx
from .config import WARPS, GemvConfig
from .eight_columns import EightColumns
from .feed import Feed, arrivals
from .one_column import OneColumn
from .problem import Problem


class GemvKernel(OpKernel):
    spec = SPEC

    def __init__(self, config: GemvConfig):
        reason = config.fits()
        if reason:
            raise ValueError(f"batched_gemv, {config}: {reason}")
        self.c = config
        self.name = config.name
        self.block = (config.threads, 1, 1)
        self.dynamic_shared_bytes = config.shared_bytes

    @cute.kernel
    def kernel(self, args):
        c = self.c
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        warp, lane = shfl_idx(shr(thread, 5), Int32(0)), thread & 31
        shared = cute.arch.get_dyn_smem(cutlass.Uint8, 128).toint()
        if thread == 0:
            for s in cutlass.range_constexpr(c.stages):
                mbarrier_init(shared + c.full + s * 8, arrivals(c))
                mbarrier_init(shared + c.empty + s * 8, WARPS)
            if cutlass.const_expr(c.bulk):
                fence_mbarrier_init()
                fence_async_shared()
        problem = Problem(c, args)
        first, stop = problem.share(cta, ctas, lane)
        cute.arch.sync_threads()
        if warp >= WARPS:
            Feed(c, problem, args, shared, warp - WARPS, lane).work(first, stop)
        else:
            kind = OneColumn if c.columns == 1 else EightColumns
            kind(c, problem, args, shared, warp, lane).work(first, stop)
