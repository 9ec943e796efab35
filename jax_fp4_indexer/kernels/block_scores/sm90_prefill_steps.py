"""Which steps a prefill kernel works: AllSteps, all steps of the schedule; StepsOfPrecision, those of one precision
(kernels/block_scores/sm90_choose_precision.py).

In StepsOfPrecision an item's `page` is the index into `lists` of its first page; its pages stand one after the
other there.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...configs.block_scores import Scratch
from ..addressing.shares import even_share
from ..device.ptx_memory import ldg32, ldg64, ldg_v4
from . import prefill_items
from .prefill_items import Item
from .sm90_choose_precision import RECORD_BYTES


@dataclasses.dataclass(frozen=True)
class PrecisionCursor:
    """record = entry * heads_kv + KV head, head group, half = 0 for the first tile of the pair, 1 for the second. The
    half has a step in this precision."""

    record: Int32
    group: Int32
    half: Int32


class AllSteps:
    share, start, load_item = (
        staticmethod(prefill_items.share),
        staticmethod(prefill_items.start),
        staticmethod(prefill_items.load_item),
    )

    @staticmethod
    def next_cursor(args, layout, at, item, step):
        """The cursor after that of `item`."""
        return prefill_items.next_cursor(args, at, item)


class StepsOfPrecision:
    def __init__(self, precision):
        self.precision = precision

    def total(self, args):
        """Steps of this precision."""
        return ldg64(args.scratch.toint(), 16 + 8 * self.precision)

    def record(self, args, layout, index):
        """Address of this precision's half of record `index`."""
        return args.scratch.toint() + layout.head_steps + Int64(index) * RECORD_BYTES + 32 * self.precision

    @cute.jit
    def share(self, args, worker: Int32, workers: Int32):
        """(first step, number of steps) of a worker: an even cut of the total."""
        return even_share(self.total(args), worker, workers)

    @cute.jit
    def start(self, args, layout, step: Int64):
        """(position, pages of its item to skip) of a step below the total; all lanes of a warp. Of records that start
        at the same step only the last has steps."""
        low = prefill_items.last_before(
            self.record(args, layout, Int32(0)) + 16, ldg32(args.scratch.toint() + 12) * args.heads_kv, step
        )
        at = self.record(args, layout, low)
        _, pages_a, _, pages_b = ldg_v4(at)
        group, half, skip = prefill_items.within_pair(step - ldg64(at, 16), pages_a, pages_b)
        return PrecisionCursor(low, group, half), skip

    @cute.jit
    def load_item(self, args, layout, at: PrecisionCursor, skip: Int32, rows_log2: cutlass.Constexpr):
        """The item at a position, without its first `skip` pages."""
        entry_index = at.record // args.heads_kv
        kv = at.record - entry_index * args.heads_kv
        entry = args.scratch.toint() + layout.entries + Int64(entry_index) * Scratch.ENTRY_BYTES
        w = ldg_v4(entry) + ldg_v4(entry, 16) + ldg_v4(entry, 32) + ldg_v4(entry, 48)
        page_a, pages_a, page_b, pages_b = ldg_v4(self.record(args, layout, at.record))
        token, key, page, pages = w[2], w[10], page_a, pages_a
        if at.half == 1:
            token, key, page, pages = w[3], w[11], page_b, pages_b
        log2, groups = w[12], w[13]
        ratio = args.heads_q // args.heads_kv
        head = kv * ratio + (at.group << (rows_log2 - log2))
        return Item(
            token, w[4], head, kv * ratio + ratio, kv, log2, page + skip, pages - skip, w[8], w[9], key, groups, pages_b
        )

    @cute.jit
    def next_cursor(self, args, layout, at: PrecisionCursor, item: Item, step: Int64):
        """The position after that of `item`, where step `step` stands; below the total."""
        record, group, half = at.record, at.group, Int32(0)
        if (half == at.half) & (item.pages_b > 0):
            half = Int32(1)
        else:
            group = group + 1
            if group == item.groups:
                group = Int32(0)
                record = record + 1
            _, pages_a, _, pages_b = ldg_v4(self.record(args, layout, record))
            if pages_a + pages_b == 0:
                found, _ = self.start(args, layout, step)
                record = found.record
                _, pages_a, _, pages_b = ldg_v4(self.record(args, layout, record))
            if pages_a == 0:
                half = Int32(1)
        return PrecisionCursor(record, group, half)
