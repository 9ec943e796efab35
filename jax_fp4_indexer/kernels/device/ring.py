"""Stages of a ring buffer in shared memory: which stage comes next, and with which parity its barriers are waited
for."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32


@cute.jit
def advance(stage: Int32, parity: Int32, stages: cutlass.Constexpr[int]):
    """(next stage, its parity): the parity turns over where the ring begins anew."""
    stage = stage + 1
    if stage == stages:
        stage = Int32(0)
        parity = parity ^ 1
    return stage, parity
