"""Even cuts of numbered work over workers."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..device.ptx_math import udiv


@cute.jit
def even_share(total: Int64, worker: Int32, workers: Int32):
    """(first of the worker's numbers, how many it has, at most 2^31 - 1) of 0 .. total - 1."""
    low = total * Int64(worker) // Int64(workers)
    return low, Int32(cutlass.min(total * Int64(worker + 1) // Int64(workers) - low, Int64(2**31 - 1)))


@cute.jit
def cut(total, shares, share):
    """Numbers [first, stop) of a share: each share as even as can be, and neighbouring shares together too. total:
    below 2^31; shares: below 2^15."""
    each = udiv(total, shares)
    spare = total - each * shares
    return each * share + udiv(spare * share, shares), each * (share + 1) + udiv(spare * (share + 1), shares)
