"""Copies of pages into shared memory: what looks up a warp's page ids long before their turn, and requests the pages.

`Ring` serves a warpgroup whose warps work each page together (sm90_decode_wide.py), `Feed` a warp that has a page of
its own (sm90_decode.py). Copies are cp.async.bulk, codes, then scales.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..device.fixed import Fixed
from ..device.ptx_barriers import expect_elected, fence_async_shared, mbarrier_arrive, mbarrier_expect_tx
from ..device.ptx_copies import bulk_load, bulk_load_elected, bulk_prefetch
from ..device.ptx_math import mad_wide, opaque, shr, unseen
from ..device.ptx_memory import ldg32, ldg32_if, sts_v4
from ..device.ptx_warp import ballot_le, redux, shfl_idx

# The value that createpolicy.fractional.L2::evict_first 1.0 makes: an immediate costs less in the main loop
EVICT_FIRST = 0x12F0000000000000
NO_PAGE, BAD_PAGE = -1, -2  # of a lane of a Feed's cursor
NAN_SCALES = {"nvfp4": 0x7F7F7F7F, "mxfp4": -1}


@dataclasses.dataclass(frozen=True)
class Asked:
    """Page ids of a batch of units, on their way: the end of the batch, this lane's unit and its page id."""

    end: Int32
    unit: Int32
    page_id: Int32


@dataclasses.dataclass(frozen=True)
class BatchCursor:
    """Where a warp of a `Ring` is. A batch is up to 32 of the warp's units in one run; each lane looks up the page of
    one of them.

    unit     the warp's next unit
    end      end of its batch
    mine     this lane's unit, -1 for none
    page     index of this lane's page in the pool
    unknown  lanes whose page id is out of range, a bit each
    bad      1 where the page that it brought last, which is the one that it reduces next, has such an id
    """

    unit: Int32
    end: Int32
    mine: Int32
    page: Int32
    unknown: Int32
    bad: Int32


@dataclasses.dataclass(frozen=True)
class PageCursor:
    """Where a warp of a `Feed` is.

    unit  its next unit
    end   end of its run, or of its batch of page ids
    mine  this lane's unit, -1 for none
    page  index of this lane's page in the pool, NO_PAGE, or BAD_PAGE where the page id is out of range
    """

    unit: Int32
    end: Int32
    mine: Int32
    page: Int32


class PageIds(Fixed):
    """Looks up page ids of a warp's units, a batch at a time: `batch` units at most, a lane each."""

    batch = 32

    def __init__(self, config, args, seqs):
        self.c, self.seqs = config, seqs
        self.k, self.k_scale, self.ids = args.k.toint(), args.k_scale.toint(), args.kv_indices.toint()
        self.num_pages, self.heads_kv = args.num_pages, args.heads_kv

    @cute.jit
    def leave(self, w, u, end, stop):
        """Unit u, which is past its run's end, by as many existing units after the beginning of the next run. Returns
        [unit, end of its run, KV head, how far its list index is ahead of it]."""
        head, delta = Int32(0), Int32(0)
        while (u >= end) & (end < stop):
            beyond = u - end
            u, end, _, head, _, index = self.seqs.find_run(end, stop, opaque(w.lane))
            delta = index - u
            u = u + beyond
        return u, end, head, delta

    def ask(self, w, u, end, delta):
        """The page ids of a batch from unit u of a run on, on their way (Asked)."""
        lane = opaque(w.lane)
        end = cutlass.min(end, u + 4 * self.batch)
        turn = u + ((lane - shr(u, 2)) & 31) * 4  # lane (unit / 4) % 32 has a unit
        return Asked(end, turn, ldg32_if(Int32(turn < end), self.ids + Int64(turn + delta) * 4))


class Ring(PageIds):
    """Copies of a warpgroup's pages. Warp w issues those of page ordinals o with o % 4 == w: each lane looks up one
    page of the warp's batch, long before the page's turn, and issues that page's copies."""

    @cute.jit
    def start(self, w, u, end, head, delta, stop):
        """The cursor on the warp's first unit (that of page ordinal w), u being the warpgroup's first, in a run of
        this KV head up to `end`; unit + delta is its list index."""
        return self.settle(w, self.take(w, u + w.warp, self.ask(w, u + w.warp, end, delta), head, Int32(0)), stop)

    @cute.jit
    def settle(self, w, cursor, stop):
        """A cursor that has left its batch takes the next one, a run's end being left by as many existing units as it
        was overrun."""
        if (cursor.unit >= cursor.end) & (cursor.end < stop):
            u, end, head, delta = self.leave(w, cursor.unit, cursor.end, stop)
            cursor = self.take(w, u, self.ask(w, u, end, delta), head, cursor.bad)
        return cursor

    @cute.jit
    def take(self, w, u, asked, head, bad):
        """The cursor on unit u, the first of a batch that was requested."""
        mine, page, wrong = Int32(-1), Int32(0), Int32(0)
        if (asked.page_id < 0) | (asked.page_id >= self.num_pages):
            wrong = Int32(asked.unit < asked.end)
        elif asked.unit < asked.end:
            # 32 bits, unsigned: 2^32 pages would be 36 TB
            mine, page = asked.unit, asked.page_id * self.heads_kv + head
        return BatchCursor(u, asked.end, mine, page, ballot_le(Int32(1), wrong), bad)

    @cute.jit
    def refill(self, w, cursor, stage):
        """Copy the cursor's page into a stage, and move on by four units (`settle` before the next refill)."""
        c = self.c
        u = cursor.unit
        bar = w.base + c.barriers + stage * 8
        buffer = w.base + stage * c.page_bytes
        bad = Int32(0)
        if cursor.mine == u:
            policy = Int64(EVICT_FIRST)
            mbarrier_expect_tx(bar, c.page_bytes)
            bulk_load(buffer, mad_wide(cursor.page, Int32(8192), self.k), 8192, bar, policy)
            bulk_load(
                buffer + 8192, mad_wide(cursor.page, Int32(128 * c.groups), self.k_scale), 128 * c.groups, bar, policy
            )
        if cursor.unknown != 0:
            bad = (cursor.unknown >> ((u >> 2) & 31)) & 1
            # Nothing to read: the block is NaN where it is visible. Plain scales keep it off the any-scale path
            if (bad != 0) & (u < cursor.end):
                one = Int32(0x38383838)
                for i in cutlass.range_constexpr(c.groups // 4):
                    sts_v4(buffer + 8192 + i * 512 + w.lane * 16, [one, one, one, one])
                fence_async_shared()
                cute.arch.sync_warp()
                if w.lane == 0:
                    mbarrier_arrive(bar)
        return dataclasses.replace(cursor, unit=u + 4, bad=bad)


class Feed(PageIds):
    """A warp's copies into its own page, which come in pieces: codes in equal ones, scales with the first. Scales
    have two places, for a piece is requested while others of the page before are still worked. All lanes of a warp
    call everything here together."""

    batch = 31  # so that the unit after the last belongs to a lane that has none

    def __init__(self, config, args, seqs):
        super().__init__(config, args, seqs)
        self.code_bytes, self.scale_bytes, nothing = Int32(8192), Int32(config.scale_bytes), Int64(0)
        if config.format == "nvfp4":  # registers for instructions: mxfp4 has none left
            self.code_bytes, self.scale_bytes, nothing = (
                unseen(8192, self.num_pages),
                unseen(config.scale_bytes, self.num_pages),
                Int64(shr(self.num_pages, 31)),
            )
        self.pieces = [self.k + nothing + i * (8192 // config.pieces) for i in range(config.pieces)]
        self.scales = self.k_scale + nothing

    @cute.jit
    def announce(self, asked, u):
        """Into L2 what `asked`, the page ids of one KV head's units, has at unit u: pages for which no warp waits
        yet, and which may turn out not to be needed."""
        if (asked.unit == u) & (u < asked.end) & (asked.page_id >= 0) & (asked.page_id < self.num_pages):
            for base, nbytes in ((self.k, 8192), (self.k_scale, 128 * self.c.groups)):
                bulk_prefetch(mad_wide(asked.page_id, Int32(nbytes), base), nbytes)

    @cute.jit
    def settle(self, w, cursor, stop):
        """As Ring.settle; with one KV head a unit is its list index whatever run it is in, so that ids requested in
        the run before still serve."""
        if (cursor.unit >= cursor.end) & (cursor.end < stop):
            u, end, head, delta = self.leave(w, cursor.unit, cursor.end, stop)
            if (self.heads_kv > 1) | (shfl_idx(cursor.mine, shr(u, 2)) != u):
                batch = end
                if self.heads_kv == 1:
                    batch = stop
                cursor = self.take(w, u, self.ask(w, u, batch, delta), head, end)
            else:
                cursor = PageCursor(u, cutlass.min(end, redux("max", cursor.mine + 1) + 3), cursor.mine, cursor.page)
        return cursor

    @cute.jit
    def take(self, w, u, asked, head, end):
        """The cursor on unit u, the first of a batch that was requested, in a run up to `end`."""
        mine, page = asked.unit, Int32(NO_PAGE)
        if mine < asked.end:
            page = self.page(asked.page_id, head)
        else:
            mine = Int32(-1)
        return PageCursor(u, cutlass.min(end, asked.end), mine, page)

    @cute.jit
    def page(self, page_id, head):
        """Index of a KV head's page, or BAD_PAGE."""
        page = page_id * self.heads_kv + head
        if (page_id < 0) | (page_id >= self.num_pages):
            page = Int32(BAD_PAGE)
        return page

    def index(self, entry, head):
        """As `page`, of an entry of the list."""
        return self.page(ldg32(self.ids + Int64(entry) * 4), head)

    def next(self, w, cursor, kept):
        """The page of the cursor's unit, the same in all lanes, and the cursor on the unit after it (`settle` before
        the next one). kept: -1 for no page, the cursor staying; else 0."""
        found = shfl_idx(cursor.page, shr(cursor.unit, 2)) | kept
        return found, dataclasses.replace(cursor, unit=cursor.unit + 4 + 4 * kept)

    def copy(self, w, page, piece, scales):
        """Request piece `piece` of a page, with the first one the scales too, which go to shared address `scales`."""
        c = self.c
        nbytes = 8192 // c.pieces
        bar, policy = w.bar + piece * 8, Int64(EVICT_FIRST)
        expect_elected(bar, nbytes + (0 if piece else c.scale_bytes))
        bulk_load_elected(
            w.own + piece * nbytes, mad_wide(page, self.code_bytes, self.pieces[piece]), nbytes, bar, policy
        )
        if piece == 0:
            bulk_load_elected(scales, mad_wide(page, self.scale_bytes, self.scales), c.scale_bytes, bar, policy)

    @cute.jit
    def no_copy(self, w, page, scales):
        """In a bad page's place, the whole of which is free, zeros with NaN for scales: its block is NaN where it is
        visible."""
        c = self.c
        if page == BAD_PAGE:
            nan, zero = Int32(NAN_SCALES[c.format]), Int32(0)
            for i in cutlass.range(16, unroll=1):
                sts_v4(w.own + i * 512 + w.lane * 16, [zero, zero, zero, zero])
            for i in cutlass.range_constexpr(c.groups // 4):
                sts_v4(scales + i * 512 + w.lane * 16, [nan, nan, nan, nan])
            fence_async_shared()
            cute.arch.sync_warp()
            if w.lane == 0:
                for piece in cutlass.range_constexpr(c.pieces):
                    mbarrier_arrive(w.bar + piece * 8)
