"""The maximum of a block of keys, of partial maxima that lie in the registers of a warp."""

from ..device.ptx_math import and_, fmax_nan, select_f32
from ..device.ptx_warp import shfl_xor_f32


def over_row_groups(values, lane):
    """Maxima over the 8 row groups (lane / 4) of a warp. values: the columns' maxima of this lane's group, a list
    whose length is a power of two.

    A transposing butterfly: each of its three steps halves the list as long as there is more than one value, so that
    a lane ends with len(values) / 8 columns (one at least), those whose numbers its bits 4, 3, 2 choose."""
    for bit in (16, 8, 4):
        half = len(values) // 2
        if half:
            flag = and_(lane, bit)
            keep = [select_f32(b, a, flag) for a, b in zip(values[:half], values[half:])]
            send = [select_f32(a, b, flag) for a, b in zip(values[:half], values[half:])]
            values = [fmax_nan(a, shfl_xor_f32(b, bit)) for a, b in zip(keep, send)]
        else:
            values = [fmax_nan(values[0], shfl_xor_f32(values[0], bit))]
    return values
