"""Block scores, packed-query decode, sm_90a, up to 16 packed rows (sm90_decode_wide.py: more):

    scores[hq, kb, tq] = max over the visible keys of page kb of q[tq, hq] . k[key, hq // R], times head_scale[hq]

Every page's maximum stands alone. So the units (page, KV head), numbered through the sequences, are cut evenly over
all warpgroups of the grid, and nothing is reduced between them. A warp has a page of its own, and nothing couples it
to another warp after the start:

| warps | do |
|---|---|
| the warp of turn t of a warpgroup, units t, t + 4, ... of its share | a page, four slices of 32 keys: codes -> f16 or s8 operands in registers -> mma.sync with the queries, which stay in registers -> a maximum a row -> scores |
| the same warp, when it is done with a piece (half) of its page | requests that piece of its next page, into the same place (`Feed`) |
| every warp, on a page that some row does not see whole | the same with a limit on the keys |
| every warp, mxfp4, on a page or with a row that is not regular | the same maxima again by the any-scale path, from global memory: the page's place belongs to the next page by then |
| all threads of the grid, if there is anything to fill: before the main loop, or after it where the result is large | -inf in blocks after a sequence's end and for padding tokens |

Copies are cp.async.bulk. A piece is requested as soon as the warp's own lanes have read the last one in its place, so
a warp needs neither a ring nor a barrier with others. What a page costs in addition to its keys (a wait, an address,
three shuffles, a store) is paid once for 128 keys. While one warp waits, the three others of its scheduler work. The
turns of the warps begin elsewhere in every warpgroup, so that schedulers have equal work where a warpgroup has few
pages.

The matrix instruction is mma.sync: with A in registers and 16 columns, two of them take a scheduler 12 clocks, one
wgmma 13, and warps of their own need no agreement on the format of operands.

A score is a function of its own query row and its block alone: a row takes the any-scale path on a block if a scale
of its own or of the block requires it, whatever the other rows are; the other paths are exact, so they give the same
bits. Rows beyond 16 are worked in further tiles, page by page, the page staying where it is.

The start decides the time of a short call. Prefix sums are requested first, and are laid out for few dependent steps
(sm90_decode_runs.py). No branch waits for a load before the CTA's barrier. Then come each warpgroup's first page, the
queries, and the other pages: in another order the first page and the queries would wait for microseconds. Page ids
are requested early, on the guess that the list ends with the last sequence's pages, and the first pages are on their
way to L2 before their sequence is known. The shares of an SM follow one another: a change of sequence costs its warps
about a page's time, and so no SM has many more of them than another. A small fill is written while the first pages
are on their way; a large one only after the last page, because it makes memory turn from reads to writes and back.
docs/notebook/sm90_decode.md has what was tried.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ..addressing.shares import cut
from ..device.ptx_barriers import fence_async_shared, fence_mbarrier_init, mbarrier_init, mbarrier_wait
from ..device.ptx_math import bits_f32, fmax_nan, fmul, mad_wide, opaque, select_f32, shr
from ..device.ptx_memory import stg32_streaming, stg_f32_if
from ..device.ptx_warp import cta_here, redux, shfl_idx, shfl_xor_f32, thread_here
from ..epilogues.fill_ragged import fill_invisible
from ..operands import s8_tables
from .kernel import BlockScoresArgs, BlockScoresKernel
from .sm90_decode_config import WIDE_BYTES, DecodeConfig
from .sm90_decode_pages import Page, join
from .sm90_decode_queries import Queries, QueryTile
from .sm90_decode_ring import Feed
from .sm90_decode_runs import Run, runs_from
from .sm90_decode_start import Warp

# Of the result a thread, up to which the -inf are written while the first pages are on their way
STORES_BEFORE = 64


class RowsWarp(Warp):
    """With its turn in its warpgroup (another one in each, so that the schedulers have equal work where a warpgroup
    has few pages), and its places in shared memory."""

    def __init__(self, config, shared, lane, index, tokens):
        super().__init__(config, shared, lane, index, tokens)
        self.tables = shared + config.tables
        self.turn = (self.warp - self.group) & 3
        self.own = shared + index * config.warp_bytes
        self.bar = shared + config.barriers + index * (8 * config.pieces)

    @cute.jit
    def make_barriers(self):
        """Those of the warp's page. A barrier of the CTA must follow: what they are is written for the copy engine,
        too."""
        if self.lane == 0:
            for i in cutlass.range_constexpr(self.c.pieces):
                mbarrier_init(self.bar + i * 8, 1)
            fence_mbarrier_init()
            fence_async_shared()

    def wide(self):
        """Shared address of this lane's 16 bytes of the first step of the queries in f16; steps are 512 bytes apart.
        For code off the main loop."""
        return self.shared + self.c.wide + opaque(self.index) * WIDE_BYTES + opaque(self.lane) * 16


class DecodeKernel(BlockScoresKernel):
    cluster = (1, 1, 1)
    grid = {"per_sm": 1}

    def __init__(self, config: DecodeConfig):
        reason = config.fits()
        if reason:
            raise ValueError(f"block_scores decode sm_90a, {config}: {reason}")
        self.c = config
        self.name = config.name
        self.block = (config.threads, 1, 1)
        self.dynamic_shared_bytes = config.shared_bytes

    @cute.kernel
    def kernel(self, args: BlockScoresArgs):
        """One CTA: the start, then the loop over this warp's units."""
        c = self.c
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        w = RowsWarp.here(c, args)
        seqs = runs_from(args, w.shared + c.sequences)
        feed, page, queries = Feed(c, args, seqs), Page(c, w), Queries(c, args)
        sums = seqs.ask(thread, c.threads)
        # Hide the latency of the page ids: request them before the number of units is known. With one KV head, unit u
        # is entry u of the page list, and most lists end with the last sequence's pages, so this share is usually the
        # right one. If it is not (checked below), request again.
        shares, share = ctas * c.warpgroups, cta * c.warpgroups + w.group
        guess, beyond = cut(seqs.indices, shares, share)
        if args.heads_kv > 1:
            beyond = guess
        if const_expr(c.format == "mxfp4"):
            s8_tables.store_tables(w.tables, thread)
        w.make_barriers()
        seqs.load(sums, thread, c.threads)
        # After the sums: the wait for them would be for these, too
        early = feed.ask(w, guess + w.turn, beyond, Int32(0))
        cute.arch.sync_threads()
        if w.turn == 0:
            feed.announce(early, guess)

        # This warpgroup's units [first, stop). Those of an SM follow one another, so that none has much more than one
        # change of sequence.
        first, stop, total = guess, beyond, seqs.total_units()
        if (total != seqs.indices) | (args.heads_kv > 1):
            first, stop = cut(total, shares, share)
        state = seqs.state(w.lane)
        if state > 1:  # a sum decreases: nothing but NaN
            stop = first
        run = seqs.run(first, stop, w.lane)
        # The first pages first, alone: the others would delay them by microseconds, and the queries too, which are
        # requested in between.
        asked = early
        if (run.unit != guess) | (stop != beyond):
            batch = run.end
            if args.heads_kv == 1:
                batch = stop
            asked = feed.ask(w, run.unit + w.turn, batch, run.index - run.unit)
        cursor = feed.take(w, run.unit + w.turn, asked, run.kv_head, run.end)
        if w.turn == 0:
            cursor = self.first(w, feed, cursor)
        u = run.unit + w.turn
        if (u >= run.end) & (run.end < stop):
            u, run = self.advance(seqs, u, run.end, stop, w.lane)
        loaded = queries.load(w, seqs, run, Int32(0))
        if w.turn != 0:
            cursor = self.first(w, feed, feed.settle(w, cursor, stop))
        if state != 0:
            if self.much(args, ctas) == 0:
                self.fill(args, seqs, state, cta * c.threads + w.index * 32 + w.lane, ctas * c.threads)

        tile, phase, place = Int32(0), Int32(0), Int32(0)
        while u < stop:
            a, own, full, fits = queries.prepare(w, loaded)
            zero, run_end = run.unit - run.block, run.end  # the unit of block 0
            end, full = run_end, full + zero
            kept = Int32(0)  # -1: the page is needed again
            if loaded.tiles > 1:  # page by page, against every tile of the queries
                end = u + 1
                if tile + 1 < loaded.tiles:
                    kept = Int32(-1)
            at, step = mad_wide(u - zero, w.tokens * 4, own.address), Int64(w.tokens) * 16
            holds = Int32((own.address != 0) & (w.t < 2))
            while u < end:
                if cursor.unit >= cursor.end:
                    cursor = feed.settle(w, cursor, opaque(stop))
                coming, cursor = feed.next(w, cursor, kept)
                value, scale, regular = self.page(
                    w, feed, page, a, own, fits, Int32(u <= full), u - zero, phase, place, coming
                )
                if const_expr(c.format == "mxfp4"):
                    value = fmul(value, bits_f32(own.factor))
                    if redux("or", Int32((regular == 0) | (own.factor == 0))) != 0:
                        value = self.exact(
                            w, feed, seqs, queries, page, own, value, regular, u, opaque(stop), tile, u - zero
                        )
                else:
                    value = fmul(value, Float32(16384.0))  # exact, so once a page will do
                stg_f32_if(holds, at, fmul(value, bits_f32(scale)))
                phase, place = phase ^ (kept + 1), place ^ ((kept + 1) * c.scale_bytes)
                at, u = at + step, u + 4
            tile = tile + 1
            if kept == 0:
                tile = Int32(0)
            else:  # the same page again
                u = u - 4
            u, run = self.advance(seqs, u, run_end, stop, opaque(w.lane))
            loaded = QueryTile.none()  # the old ones need no registers any more
            if u < stop:
                loaded = queries.load(w, seqs, run, tile)
        self.fill_behind(args, seqs, opaque(w.lane))

    @cute.jit
    def first(self, w, feed, cursor):
        """Request the warp's first page."""
        coming, cursor = feed.next(w, cursor, Int32(0))
        scales = w.own + 8192
        if coming >= 0:
            for piece in cutlass.range_constexpr(self.c.pieces):
                feed.copy(w, coming, piece, scales)
        else:
            feed.no_copy(w, coming, scales)
        return cursor

    @cute.jit
    def page(self, w, feed, page, a, own, fits, whole, kb, phase, place, coming):
        """The own row's maximum over the warp's page, block kb, what the row's scores are multiplied by, and whether
        the page is regular. In its pieces' places page `coming` is on its way then. whole: whether every row sees all
        of its keys; phase: of the pieces' barriers; place: of the page's scales."""
        c = self.c
        best, regular, scale = [Float32(float("-inf"))] * 2, Int32(1), own.scale
        codes, scales, other = page.codes, page.scales + place, w.own + 8192 + (place ^ c.scale_bytes)
        slices = 4 // c.pieces
        if whole != 0:
            for piece in cutlass.range_constexpr(c.pieces):
                mbarrier_wait(w.bar + piece * 8, phase)
                # Rolled: four slices one after the other are fewer instructions and slower
                for _ in cutlass.range(slices, unroll=1):
                    lo, hi, fine = page.slice_maxima(w, codes, scales, a, fits, None)
                    best, regular = join(best, [lo, hi]), regular & fine
                    codes, scales = codes + 2048, scales + page.slice
                cute.arch.sync_warp()
                if coming >= 0:
                    feed.copy(w, coming, piece, other)
                elif const_expr(piece == c.pieces - 1):
                    feed.no_copy(w, coming, other)
        else:
            for piece in cutlass.range_constexpr(c.pieces):
                mbarrier_wait(w.bar + piece * 8, phase)
            for i in cutlass.range(4, unroll=1):
                first_key = kb * 128 + i * 32 + 2 * w.t
                limits = [shfl_idx(own.visible, w.lane - w.t + r) - first_key for r in range(2)]
                lo, hi, fine = page.slice_maxima(w, codes, scales, a, fits, limits)
                best, regular = join(best, [lo, hi]), regular & fine
                codes, scales = codes + 2048, scales + page.slice
            cute.arch.sync_warp()
            if coming >= 0:
                for piece in cutlass.range_constexpr(c.pieces):
                    feed.copy(w, coming, piece, other)
            else:
                feed.no_copy(w, coming, other)
            if own.visible <= kb * 128:  # -inf, whatever the factor
                scale = Int32(0x3F800000)
        return self.own_row(w, best[0], best[1]), scale, regular

    @cute.jit
    def advance(self, seqs, u, end, stop, lane):
        """Unit u and the run that it is in, u being counted from a run that goes up to `end`: one beyond that is as
        many existing units after the beginning of the next run."""
        at = cutlass.min(u, end)
        run, searching = Run.none(), Int32(1)
        while searching != 0:
            beyond = u - at
            run = seqs.run(at, stop, lane)
            u, at = run.unit + beyond, run.end
            searching = Int32((u >= at) & (at < stop))
        return u, run

    @cute.jit
    def fill_behind(self, args, seqs, lane):
        """For code after the main loop, which has no register for what is read again here. Where nothing is to do it
        is a few instructions: more would be fetched late."""
        state = seqs.state(lane)
        if state != 0:
            cta, ctas = cta_here()
            if self.much(args, ctas) != 0:
                self.fill(args, seqs, state, cta * self.c.threads + thread_here(), ctas * self.c.threads)

    @cute.jit
    def much(self, args, ctas):
        """Whether the result is large for its grid: what of it is -inf is then written after the pages, not before
        them."""
        return Int32(
            Int64(args.heads_q) * Int64(args.k_tiles) * Int64(args.tokens)
            > Int64(ctas) * (self.c.threads * STORES_BEFORE)
        )

    def fill(self, args, seqs, state, thread, threads):
        """This thread's part of the -inf (or NaN) of what no page reaches."""
        fill_invisible(seqs, shr(state, 1), args.scores.toint(), args.heads_q, thread, threads, stg32_streaming)

    @cute.jit
    def exact(self, w, feed, seqs, queries, page, own, value, regular, u, stop, tile, kb):
        """mxfp4: the own row's maximum over unit u, block kb: `value`, unless the row, or the page, requires the
        any-scale path."""
        aside = w.aside()
        run = seqs.run(opaque(u), stop, aside.lane)
        general, index = Float32(float("nan")), feed.index(run.index, run.kv_head)
        if index >= 0:
            codes, scales = (
                mad_wide(index, Int32(8192), feed.k),
                mad_wide(index, Int32(self.c.scale_bytes), feed.k_scale),
            )
            lo, hi = page.general(
                aside, queries.load(aside, seqs, run, opaque(tile)), codes, scales, kb * 128, own.visible
            )
            general = self.own_row(aside, lo, hi)
        elif own.visible <= kb * 128:
            general = Float32(float("-inf"))
        if (regular == 0) | (own.factor == 0):
            value = general
        return value

    def own_row(self, w, lo, hi):
        """Maxima over the quad's keys: of row g for even t, of row g + 8 for odd t (lanes t and t ^ 2 hold the same)."""
        odd = w.t & 1
        value = fmax_nan(select_f32(hi, lo, odd), shfl_xor_f32(select_f32(lo, hi, odd), 1))
        return fmax_nan(value, shfl_xor_f32(value, 2))
