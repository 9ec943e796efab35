"""Walking the plan: every role of a prefill CTA steps through the same items
(kernels/block_scores/prefill_schedule.py writes what is read here)."""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...configs.block_scores import Scratch
from ..addressing.shares import even_share
from ..device.ptx_memory import ldg32, ldg64, ldg_v4
from ..device.ptx_warp import count_le, lane_here


@dataclasses.dataclass(frozen=True)
class TableCursor:
    """Where in the table an item stands: entry, unit = kv head * head groups + head group, half = 0 for the first
    tile of the pair, 1 for the second."""

    entry: Int32
    unit: Int32
    half: Int32


@dataclasses.dataclass(frozen=True)
class Item:
    """Row r of the item is head `head + (r >> log2)` (valid below head_end), token `token + (r & (2^log2 - 1))`
    (valid below token_end). Token token + j sees the keys up to min(k_len - 1 - j, key) + j. Pages page .. page +
    pages - 1 of the sequence, list position flat + page."""

    token: Int32
    token_end: Int32
    head: Int32
    head_end: Int32
    kv: Int32
    log2: Int32
    page: Int32
    pages: Int32
    flat: Int32
    k_len: Int32
    key: Int32
    groups: Int32
    pages_b: Int32


@cute.jit
def share(args, worker: Int32, workers: Int32):
    """(first step, number of steps) of a worker: an even cut of the total."""
    return even_share(ldg64(args.scratch.toint()), worker, workers)


@cute.jit
def last_before(first: Int64, count: Int32, step: Int64):
    """The last of `count` ascending int64, ENTRY_BYTES apart from address `first` on, that is <= step; the first is.
    All lanes of a warp, same step: each looks at one place, so that a short table costs one memory latency at the
    start of a kernel."""
    low, span = Int32(0), count
    while span > 1:
        width = (span + 31) >> 5
        i = lane_here() * width
        later = Int32(1)
        if i < span:
            later = Int32(ldg64(first + Int64(low + i) * Scratch.ENTRY_BYTES) > step)
        i = (count_le(later, Int32(0)) - 1) * width
        low, span = low + i, cutlass.min(width, span - i)
    return low


@cute.jit
def within_pair(rest: Int64, pages_a: Int32, pages_b: Int32):
    """(unit, half, pages of its tile before it) of step `rest` of a pair of tiles: a unit has the pages of the first tile, then those of the second."""
    pages = Int64(pages_a + pages_b)
    unit = rest // pages
    skip = Int32(rest - unit * pages)
    half = Int32(0)
    if skip >= pages_a:
        skip = skip - pages_a
        half = Int32(1)
    return Int32(unit), half, skip


@cute.jit
def start(args, layout, step: Int64):
    """(position, pages of its item to skip) of a step below the total. All lanes of a warp, same step."""
    scratch = args.scratch.toint()
    table = scratch + layout.entries
    low = last_before(table, ldg32(scratch + 12), step)
    entry = table + Int64(low) * Scratch.ENTRY_BYTES
    pages_a, pages_b = ldg32(entry, 24), ldg32(entry, 28)
    unit, half, skip = within_pair(step - ldg64(entry), pages_a, pages_b)
    return TableCursor(low, unit, half), skip


@cute.jit
def load_item(args, layout, at: TableCursor, skip: Int32, rows_log2: cutlass.Constexpr):
    """The item at a position, without its first `skip` pages."""
    entry = args.scratch.toint() + layout.entries + Int64(at.entry) * Scratch.ENTRY_BYTES
    w = ldg_v4(entry) + ldg_v4(entry, 16) + ldg_v4(entry, 32) + ldg_v4(entry, 48)
    token, pages, key = w[2], w[6], w[10]
    if at.half == 1:
        token, pages, key = w[3], w[7], w[11]
    log2, groups = w[12], w[13]
    kv = at.unit // groups
    ratio = args.heads_q // args.heads_kv
    head = kv * ratio + ((at.unit - kv * groups) << (rows_log2 - log2))
    return Item(
        token, w[4], head, kv * ratio + ratio, kv, log2, w[5] + skip, pages - skip, w[8], w[9], key, groups, w[7]
    )


@cute.jit
def next_cursor(args, at: TableCursor, item: Item):
    """The position after that of `item`. The caller knows from its share whether there is one."""
    entry, unit, half = at.entry, at.unit, Int32(0)
    if (at.half == 0) & (item.pages_b > 0):
        half = Int32(1)
    else:
        unit = unit + 1
        if unit == args.heads_kv * item.groups:
            unit = Int32(0)
            entry = entry + 1
    return TableCursor(entry, unit, half)
