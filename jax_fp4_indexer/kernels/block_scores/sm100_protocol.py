"""Barriers of a CTA, and walking its segments: what every role of the sm_100a / sm_103a kernel shares.

| barrier | arrivals | meaning |
|---|---|---|
| q_full[s] | GATHER_WARPS (one each) | codes and scales of a segment's query tiles are in stage s, visible to the tensor core |
| q_empty[s] | 1 (commit) | every instruction that reads them is complete |
| k_full[s] | 1 + bytes (public scales: + 32) | codes and scales of a page are in stage s |
| k_empty[s] | 1 (commit) | every copy and product that reads them is complete |
| acc_full[f] | 1 (commit) | the tile of that number modulo FULL is complete |
| acc_empty[a] | 4 (a warp of the owner each) | accumulator a is in registers |
| segment_full[i] | 1 | record i is written |
| segment_empty[i] | SEGMENT_READERS (a warp each) | record i has been read |
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, const_expr

from ..device.fixed import Fixed
from ..device.ptx_barriers import fence_mbarrier_init, mbarrier_arrive, mbarrier_init, mbarrier_wait
from ..device.ptx_memory import lds128, sts_v4
from .sm100_config import ACC_STAGES, FULL, GATHER_WARPS, Q_STAGES, SEGMENT_BYTES, SEGMENT_READERS, SEGMENTS


class Shared(Fixed):
    """Shared addresses (Int32) of everything that Config lays out, from a base aligned to ALIGN."""

    def __init__(self, config, base):
        self.c, self.base = config, base
        at = base + config.barriers
        self.q_full = at
        self.q_empty = self.q_full + 8 * Q_STAGES
        self.k_full = self.q_empty + 8 * Q_STAGES
        self.k_empty = self.k_full + 8 * config.stages
        self.acc_full = self.k_empty + 8 * config.stages
        self.acc_empty = self.acc_full + 8 * FULL
        self.segment_full = self.acc_empty + 8 * ACC_STAGES
        self.segment_empty = self.segment_full + 8 * SEGMENTS
        self.segments = base + config.segments
        self.tmem_address = base + config.tmem_address
        self.table = base + config.table

    def init_barriers(self):
        """One thread."""
        key_arrivals = 33 if self.c.scale_layout == "public" else 1
        for first, count, arrivals in (
            (self.q_full, Q_STAGES, GATHER_WARPS),
            (self.q_empty, Q_STAGES, 1),
            (self.k_full, self.c.stages, key_arrivals),
            (self.k_empty, self.c.stages, 1),
            (self.acc_full, FULL, 1),
            (self.acc_empty, ACC_STAGES, 4),
            (self.segment_full, SEGMENTS, 1),
            (self.segment_empty, SEGMENTS, SEGMENT_READERS),
        ):
            for i in range(count):
                mbarrier_init(first + 8 * i, arrivals)
        fence_mbarrier_init()


@dataclasses.dataclass(frozen=True)
class Segment:
    """Consecutive pages of one query tile (of up to `heads` tiles of consecutive heads) that one CTA works.

    pages     pages to compute, from block `block` on; -1: no more segments. Page j is entry index + j of kv_indices
    plain     the first of them that every row sees whole
    kv        KV head
    head      first query head; `heads` of them are live
    token     first token; `tokens` of them are live
    k_len     keys of the sequence
    key       token token + j sees keys up to min(k_len - 1, key + j)
    fill      blocks from here on are -inf for the tile, to be written with this segment
    """

    pages: Int32
    plain: Int32
    block: Int32
    index: Int32
    kv: Int32
    head: Int32
    heads: Int32
    token: Int32
    tokens: Int32
    k_len: Int32
    key: Int32
    fill: Int32


WORDS = len(dataclasses.fields(Segment))
assert WORDS * 4 <= SEGMENT_BYTES and WORDS % 4 == 0


@cute.jit
def next_segment(shared, turn: Int32, lane: Int32):
    """Segment number `turn` of the CTA; the whole warp reads it, and hands the record back."""
    slot = turn % SEGMENTS
    mbarrier_wait(shared.segment_full + slot * 8, (turn // SEGMENTS) & 1)
    words = []
    for i in cutlass.range_constexpr(WORDS // 4):
        words = words + lds128(shared.segments + slot * SEGMENT_BYTES, 16 * i)
    cute.arch.sync_warp()
    if lane == 0:
        mbarrier_arrive(shared.segment_empty + slot * 8)
    return Segment(*words)


@cute.jit
def tiles_of(config: cutlass.Constexpr, segment):
    """Tiles that share a page of the segment."""
    return Int32(1) if const_expr(config.packed) else segment.heads


@cute.jit
def announce(shared, turn: Int32, words, lane: Int32):
    """Write segment number `turn` for the other roles."""
    slot = turn % SEGMENTS
    mbarrier_wait(shared.segment_empty + slot * 8, ((turn // SEGMENTS) & 1) ^ 1)
    cute.arch.sync_warp()
    if lane == 0:
        for i in cutlass.range_constexpr(WORDS // 4):
            sts_v4(shared.segments + (slot * SEGMENT_BYTES + 16 * i), words[4 * i : 4 * i + 4])
        mbarrier_arrive(shared.segment_full + slot * 8)
