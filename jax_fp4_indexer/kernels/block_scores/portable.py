"""Block scores on any GPU since Ampere: scores[hq, kb, tq] = max over the visible keys of block kb of q[tq, hq] . k,
times head_scale[hq].

mma.sync m16n8k16 on operands that a warp loads for itself, 16 bytes a lane; no barrier after the start, nothing that
sm_80 lacks. Every warp has the same role. It goes through *visits*: some pages of one KV head of one sequence against
query columns of that head, up to 8 * column_tiles of them at a time (their operands stay in registers), more of them
one group after the other. What a column sees is decided per column, so a visit is right for any number of queries and
heads. `ahead` tiles of 16 keys are in flight while one is multiplied.

| role | visits come from | columns of a warp | -inf fill |
|---|---|---|---|
| decode | all (page, KV head) units, cut evenly over CTAs, dealt to their warps round-robin | (head, query) of the whole sequence, query fastest | fill_ragged |
| prefill | the plan's steps (kernels/block_scores/prefill_schedule.py), cut evenly over warps | one item's rows | fill_by_table |
| fixup | as prefill, only if the header says so; scores only what the window of the fast prefill excludes | an item's rows, 8 * column_tiles at a time | none |

`portable_operands.py` says how bytes become operands. A page whose keys all count for all columns takes `plain_page`;
any other page, and in mxfp4 a page with a scale byte outside the operand window, takes `careful_page`, which decides
per key and column. Both give the same bits.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, const_expr

from ..addressing.ragged import TABLE_BYTES, table_from
from ..device.ptx_memory import evict_first, ldg32
from ..epilogues.fill_by_table import fill_rest
from ..epilogues.fill_ragged import fill_invisible
from .kernel import BlockScoresKernel
from .portable_pages import TILE_BYTES, Pages, Tile
from .prefill_items import TableCursor, load_item, next_cursor, share, start
from .prefill_schedule import scratch_layout

ROLES = ("decode", "prefill", "fixup")
PORTABLE_ITEM_ROWS = 32  # rows_per_item of the plan that goes with the prefill role


@dataclasses.dataclass(frozen=True)
class Config:
    """One variant.

    role          "decode", "prefill" or "fixup"
    column_tiles  n8 tiles of a warp
    convert       the target has E4M3 conversions (sm_89 and later)
    item_rows     query rows of an item of the schedule (prefill, fixup)
    """

    role: str
    format: str
    scale_layout: str
    column_tiles: int
    convert: bool = False
    item_rows: int = PORTABLE_ITEM_ROWS

    def __post_init__(self):
        if self.role not in ROLES:
            raise ValueError(f"portable block scores: role must be one of {ROLES}, got {self.role!r}")
        if self.column_tiles not in (1, 2, 4):
            raise ValueError(
                f"portable block scores: column_tiles must be 1, 2 or 4 (a lane keeps one column), got {self.column_tiles}"
            )
        if self.role != "decode" and (self.item_rows % self.columns or self.item_rows & (self.item_rows - 1)):
            raise ValueError(
                f"portable block scores: item_rows must be a power of two and a multiple of {self.columns}, got {self.item_rows}"
            )

    @property
    def columns(self):
        return 8 * self.column_tiles

    @property
    def warps(self):
        """As many as the registers allow: 168 a thread with 12 warps, 255 with 8 (the any-scale path of mxfp4 in
        addition to the columns; 32 columns keep 64 registers of queries)."""
        return 12 if self.format == "nvfp4" and self.column_tiles < 4 else 8

    @property
    def ahead(self):
        """m16 tiles (16 keys) that a warp has in flight. 2 or 4: whole 32-row pieces of a page. Four do not fit in
        addition to 64 registers of queries."""
        return 2 if self.column_tiles == 4 else 4


class PortableKernel(BlockScoresKernel):
    """One kernel of the family; keyword arguments are Config's (column_tiles: 2 in the decode role, else 4, if not
    given)."""

    def __init__(self, *, role, format, scale_layout, column_tiles=None, **config):
        self.c = c = Config(role, format, scale_layout, column_tiles or (2 if role == "decode" else 4), **config)
        self.name = f"block_scores.portable_{role}.{format}.{scale_layout}.n{c.columns}"
        self.block = (32 * c.warps, 1, 1)
        self.grid = {"per_sm": 1}
        self.tiles_at = (TABLE_BYTES + 15) // 16 * 16 if role == "decode" else 0
        self.dynamic_shared_bytes = self.tiles_at + c.warps * TILE_BYTES
        self.pages = Pages(c)

    @cute.kernel
    def kernel(self, args):
        """One CTA: every warp has the same role."""
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(tid // 32)
        if const_expr(self.c.role == "decode"):
            self.decode(args, tid, cta, ctas, warp)
        else:
            self.prefill(args, tid, cta, ctas, warp)

    def slot(self):
        """Shared address of this warp's tile."""
        tid, _, _ = cute.arch.thread_idx()
        return cute.arch.get_dyn_smem(cutlass.Uint8, 16).toint() + self.tiles_at + tid // 32 * TILE_BYTES

    # ------------------------------------------------------------ decode
    @cute.jit
    def decode(self, args, tid, cta, ctas, warp):
        """Units are cut evenly over CTAs, and dealt to their warps round-robin."""
        W = self.c.warps
        seqs = table_from(args, cute.arch.get_dyn_smem(cutlass.Uint8, 16).toint())
        seqs.load(tid, W * 32)
        cute.arch.sync_threads()
        falls = seqs.falls(tid % 32, W * 32)
        total = Int64(seqs.total_units() * (1 - falls))
        lo = Int32(total * Int64(cta) // Int64(ctas))
        hi = Int32(total * Int64(cta + 1) // Int64(ctas))
        policy = evict_first()
        u = lo + warp
        while u < hi:
            u = self.run_of_units(args, seqs, u, hi, policy, tid % 32)
        fill_invisible(seqs, falls, args.scores.toint(), args.heads_q, cta * (W * 32) + tid, ctas * (W * 32))

    @cute.jit
    def run_of_units(self, args, seqs, u, stop, policy, lane):
        """This warp's turns (every W-th unit) in the first run of units from its turn u on. Returns its next turn."""
        W = self.c.warps
        first, end, b, kv, kb, index = seqs.find_run(u, stop, lane)
        # units that do not exist are passed over by whole rounds, so that every warp keeps its turn
        skip = (first - u + W - 1) // W * W - (first - u)
        u = first + skip
        if u < end:
            token, q_len = seqs.queries(b)
            k_len = seqs.key_count(b)
            ratio = args.heads_q // args.heads_kv
            tile = Tile(
                Int32(0),
                q_len,
                token,
                token + q_len,
                kv * ratio,
                kv * ratio + ratio,
                k_len,
                seqs.offset(b, k_len, q_len),
                kv,
                index - kb,
            )
            count = (end - u + W - 1) // W
            while tile.first < q_len * ratio:
                self.pages.visit(args, tile, self.slot(), kb + skip, count, W, policy, lane)
                tile = dataclasses.replace(tile, first=tile.first + self.c.columns)
            u = u + count * W
        return u

    # ------------------------------------------------------------ prefill, fixup
    @cute.jit
    def prefill(self, args, tid, cta, ctas, warp):
        """Steps are cut evenly over warps. The fixup leaves at once where the header says that nothing needs it."""
        c = self.c
        rows_log2 = c.item_rows.bit_length() - 1
        lane = tid % 32
        layout = scratch_layout(args)
        worker, workers = cta * c.warps + warp, ctas * c.warps
        step, left = share(args, worker, workers)
        if const_expr(c.role == "fixup"):
            if ldg32(args.scratch.toint(), 8) == 0:
                left = Int32(0)
        at, skip = TableCursor(Int32(0), Int32(0), Int32(0)), Int32(0)
        if left > 0:
            at, skip = start(args, layout, step)
        while left > 0:
            item = load_item(args, layout, at, skip, rows_log2)
            count = cutlass.min(item.pages, left)
            left = left - count
            at = next_cursor(args, at, item)
            skip = Int32(0)
            for part in cutlass.range(c.item_rows // c.columns, unroll=1):
                tile = Tile(
                    part * c.columns,
                    item.log2,
                    item.token,
                    item.token_end,
                    item.head,
                    item.head_end,
                    item.k_len,
                    item.key,
                    item.kv,
                    item.flat,
                )
                if (count > 0) & (item.head + (tile.first >> item.log2) < item.head_end):
                    self.pages.visit(args, tile, self.slot(), item.page, count, 1, Int64(0), lane)
        if const_expr(c.role == "prefill"):
            if args.first_page == 0:
                fill_rest(args, layout, Int64(worker), Int64(workers), lane)
