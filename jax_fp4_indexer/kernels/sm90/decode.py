"""Block scores, packed-query decode, sm_90a, up to 16 packed rows (decode_wide.py: more):

    scores[hq, kb, tq] = max over the visible keys of page kb of q[tq, hq] . k[key, hq // R], times head_scale[hq]

Every page's maximum stands alone, so the units (page, KV head), flattened over the sequences, are cut evenly over all warpgroups of the grid and nothing is
reduced between them. A warpgroup walks its units in order; its warps are coupled by one named barrier a page and nothing else:

| who | does |
|---|---|
| every warp | a slice of 32 keys: codes -> f16 or s8 operands in registers -> mma.sync with the queries, which stay in registers -> maxima to shared memory |
| warp w, page ordinal o with o % 4 == w, after its slice of page o + 1 | reduces the four warps' maxima of page o, refills its ring stage (a lane a page: `Ring`), stores the scores |
| every warp, on a slice that some row does not see whole, or that is not regular | the same maxima again in the general form, for the rows concerned |
| all threads of the grid, if there is anything: before the main loop, behind it where the result is large | -inf of blocks past a sequence and of padding tokens |

Copies are cp.async.bulk (codes, then scales, one mbarrier a stage); four pages a warpgroup are under way. A page's stage is free once its four warps have
arrived, and no warp gets four pages ahead, because each of them waits once in four pages. That wait comes a page late, when the others have long
arrived: without the delay a page's reduction stands between the reducing warp and its next page, whose reduction waits for that warp, and so on in turn.

mma.sync and not wgmma: with A from registers and 16 columns a wgmma keeps a scheduler from issuing anything else for 13 clocks, two mma.sync of the same
work for 12, and warps of their own need no agreement: each takes the form that its keys allow, without asking the others.

A score is a function of its own query row and its block alone: a row takes the general form on a slice if it does not see all 32 keys, or if a scale of its
own or of these keys asks for it, whatever the other rows are; the other forms are exact, so they give the same bits. Rows beyond 16 are
worked in further tiles, page by page, the page staying in its stage.

The start is what a short call feels: prefix sums laid out for few dependent steps (decode_runs.py), no branch that waits for a load, each warpgroup's first
page asked for before anything else, then the queries, then the other pages, behind which both would wait for microseconds. Page ids are asked for beside the
prefix sums, on the guess that the list ends with the last sequence's pages, and the first pages are on their way to L2 before anybody has found their sequence.
A little of -inf fits under the pages' way; much of it, written there or between pages, makes memory turn from reads to writes and back, which costs more than what it hides.
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, const_expr

from ..common.asm import bar_arrive, bar_sync, bits_f32, cta_here, fmax_nan, fmul, imad, lds128_f32, mad_wide, mbarrier_wait, opaque, select_f32, shfl_xor_f32, shr, stg32_streaming, stg_f32_if, sts_f32_if, thread_here
from ..common.args import BlockScoresArgs
from ..common.decode_fill import fill_invisible
from ..common.kernel import BlockScoresKernel
from . import decode_int8
from .decode_config import ROWS, WIDE_BYTES, DecodeConfig
from .decode_pages import Ring, Slice
from .decode_queries import Queries
from .decode_runs import runs_from
from .decode_start import WARPS, Warp, cut

STORES_BEFORE = 64              # of the result a thread, up to which the -inf are written while the first pages are on their way


class RowsWarp(Warp):
    """With the places of a row's maxima and queries."""

    def __init__(self, config, shared, lane, index, tokens):
        super().__init__(config, shared, lane, index, tokens)
        self.tables = shared + config.tables

    def maxima(self, stage):
        """Shared address of the four warps' maxima of this lane's own row."""
        return self.base + self.c.maxima + stage * (ROWS * WARPS * 4) + (self.g + 8 * (self.t & 1)) * (WARPS * 4)

    def wide(self, run):
        """Shared address of this lane's 16 bytes of the first step of a run's queries in f16; steps are 512 bytes apart. For code off the main loop."""
        return self.shared + (opaque(self.index) >> 2) * self.c.warpgroup_bytes + self.c.wide + (run & 1) * WIDE_BYTES + opaque(self.lane) * 16

    def raw(self):
        """Shared address of this lane's word of the raw queries; words are 128 bytes apart. For code off the main loop."""
        return self.shared + self.c.raw + opaque(self.index) * self.c.raw_bytes + opaque(self.lane) * 4


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
        c = self.c
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        w = RowsWarp.here(c, args)
        seqs = runs_from(args, w.shared + c.sequences)
        ring, part, queries = Ring(c, args, seqs), Slice(c, w), Queries(c, args)
        # Page ids, asked for before anybody knows how many units there are: with one KV head a unit is its list index, and most lists have nothing behind the last page
        shares, share = ctas * c.warpgroups, w.group * ctas + cta
        guess, beyond = cut(seqs.indices, shares, share)
        if args.heads_kv > 1:
            beyond = guess
        early = ring.ask(w, guess + w.warp, beyond, Int32(0))
        if const_expr(c.format == "mxfp4"):
            decode_int8.store_tables(w.tables, thread)
        w.make_barriers([(c.ready, WARPS)])
        seqs.load(thread, c.threads)
        if w.warp == 0:
            ring.announce(early, guess)
        cute.arch.sync_threads()

        # This warpgroup's units [u, stop). Neighbouring shares lie on different SMs: the spare units too are spread evenly
        u, stop = cut(seqs.total_units(), shares, share)
        state = seqs.state(w.lane)
        if state > 1:                                   # a sum falls: nothing but NaN
            stop = u
        run = seqs.run(u, stop, w.lane)
        u, end, block = run[0], run[1], run[4]
        # The first pages first, alone: the others would delay them by microseconds, and the queries too, which are asked for in between
        asked = [cutlass.min(end, early[0]), early[1], early[2]]
        if (u != guess) | (stop != beyond):
            asked = ring.ask(w, u + w.warp, end, run[5] - u)
        cursor = ring.take(w, u + w.warp, asked, run[3], Int32(0))
        if w.warp == 0:
            cursor = ring.refill(w, cursor, Int32(0))
        loaded = queries.load(w, seqs, run, Int32(0))
        if w.warp != 0:
            cursor = ring.refill(w, ring.settle(w, cursor, stop), w.warp)
        if state != 0:
            if self.much(args, ctas) == 0:
                self.fill(args, seqs, state, cta * c.threads + w.index * 32 + w.lane, ctas * c.threads)

        ordinal, tile, runs = Int32(0), Int32(0), Int32(0)
        # Opaque: ptxas would work them out again for every page
        bars, codes, scales = opaque(w.base + c.barriers), opaque(w.base + part.code_offset), opaque(w.base + 8192 + part.scale_offset)
        while u < stop:
            a, own, fast, fits = queries.prepare(w, loaded, runs)
            first_unit = u - block                      # of block 0
            release = Int32(1)
            if loaded[13] > 1:                          # page by page, against every tile of the queries
                end = u + 1
                if tile + 1 < loaded[13]:
                    release = Int32(0)
            shift = block - ordinal                     # one counter for both
            last, full = end - first_unit - shift, fast - shift
            due = Int32(0)
            while ordinal < last:
                stage = ordinal & 3
                mine = Int32(stage == w.warp)
                if (mine != 0) & (cursor[0] >= cursor[1]):     # this page's reduction refills
                    cursor = ring.settle(w, cursor, opaque(stop))
                mbarrier_wait(imad(stage, 8, bars), shr(ordinal, 2) & 1)
                lo, hi, factor = part.maxima(w, imad(stage, c.page_bytes, codes), imad(stage, c.page_bytes, scales), a, fits, runs)
                value = self.own_row(w, lo, hi)
                if const_expr(c.format == "mxfp4"):
                    value = fmul(fmul(value, bits_f32(factor)), bits_f32(own[3]))
                if (ordinal > full) | (factor == 0):
                    value = self.exact(w, part, stage, a, own, value, factor, opaque(ordinal) + shift)
                if due != 0:
                    cursor = self.reduce(w, ring, own, (ordinal - 1) & 3, ordinal - 1 + shift, release, cursor)
                sts_f32_if(Int32(w.t < 2), w.maxima(stage) + w.warp * 4, value)
                due = mine
                if (due == 0) & (release != 0):
                    bar_arrive(w.barrier + stage, 128)
                ordinal = ordinal + 1
            stage = (ordinal - 1) & 3
            if release == 0:                            # the same stage comes next: nobody may be ahead
                bar_sync(w.barrier + stage, 128)
            if due != 0:
                cursor = self.reduce(w, ring, own, stage, ordinal - 1 + shift, release, cursor)
            u = first_unit + ordinal + shift
            tile, runs = tile + 1, runs + 1
            if release != 0:
                tile = Int32(0)
            else:                                       # the same page again; what was read is overwritten only now
                bar_sync(w.barrier + stage, 128)
                u, ordinal = u - 1, ordinal - 1
            loaded = queries.nothing()                  # the old ones need no registers any more
            if u < stop:
                following = seqs.run(u, stop, opaque(w.lane))
                u, end, block = following[0], following[1], following[4]
                if u < stop:
                    loaded = queries.load(w, seqs, following, tile)
        self.fill_behind(args, seqs, opaque(w.lane))

    @cute.jit
    def fill_behind(self, args, seqs, lane):
        """For code behind the main loop, which has no register for what is read again here. Where nothing is to do it is a few instructions: more would be fetched late."""
        state = seqs.state(lane)
        if state != 0:
            cta, ctas = cta_here()
            if self.much(args, ctas) != 0:
                self.fill(args, seqs, state, cta * self.c.threads + thread_here(), ctas * self.c.threads)

    @cute.jit
    def much(self, args, ctas):
        """Whether the result is large for its grid: what of it is -inf is then written behind the pages, not before them."""
        return Int32(Int64(args.heads_q) * Int64(args.k_tiles) * Int64(args.tokens) > Int64(ctas) * (self.c.threads * STORES_BEFORE))

    def fill(self, args, seqs, state, thread, threads):
        fill_invisible(seqs, shr(state, 1), args.scores.toint(), args.heads_q, thread, threads, stg32_streaming)

    @cute.jit
    def exact(self, w, part, stage, a, own, value, factor, kb):
        """The own row's maximum over this warp's slice of block kb: `value`, unless the row, or the slice, asks for the general form."""
        aside = w.aside()
        first_key = kb * 128 + aside.warp * 32
        lo, hi = part.general(aside, aside.base + opaque(stage) * self.c.page_bytes, a, first_key, own[1])
        general = self.own_row(aside, lo, hi)
        if (own[1] < first_key + 32) | (factor == 0) | (own[3] == 0):
            value = general
        return value

    def own_row(self, w, lo, hi):
        """Maxima over the quad's keys: of row g for even t, of row g + 8 for odd t (lanes t and t ^ 2 hold the same)."""
        odd = w.t & 1
        value = fmax_nan(select_f32(hi, lo, odd), shfl_xor_f32(select_f32(lo, hi, odd), 1))
        return fmax_nan(value, shfl_xor_f32(value, 2))

    @cute.jit
    def reduce(self, w, ring, own, stage, kb, release, cursor):
        """One warp of the four: a page's maxima to scores, and the next page into its stage. Returns the cursor."""
        bad = cursor[5]
        if release != 0:
            bar_sync(w.barrier + stage, 128)
        four = lds128_f32(w.maxima(stage))
        r = fmax_nan(fmax_nan(four[0], four[1]), fmax_nan(four[2], four[3]))
        if release != 0:
            cursor = ring.refill(w, cursor, stage)
        if const_expr(self.c.format == "nvfp4"):
            r = fmul(r, Float32(16384.0))               # exact, so once a page will do
        r = fmul(r, bits_f32(own[2]))
        if bad != 0:
            r = Float32(float("nan"))
        if own[1] <= kb * 128:
            r = Float32(float("-inf"))
        stg_f32_if(Int32((own[0] != 0) & (w.t < 2)), mad_wide(kb, w.tokens * 4, own[0]), r)
        return cursor
