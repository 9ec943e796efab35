"""Block scores on sm_100a / sm_103a, one kernel for prefill and decode:

    scores[hq, kb, tq] = max over the visible keys of page kb of q[tq, hq] . k[key, hq // R], times head_scale[hq]

Query rows are the M side of a block-scaled tcgen05.mma (lanes of TMEM), the 128 keys of a page the N side (columns),
so a block's maximum is a maximum over the columns of a lane: no exchange between threads. Persistent CTAs work even
shares of one list of pages (sm100_schedule.py).

| role | warps | does |
|---|---|---|
| reduce | 0-3 even tiles, 4-7 odd ones | TMEM to registers, maximum, head scale, one store a row |
| load | 8 | finds the segments of the CTA's share; page codes by tensor map (64-byte swizzle) and scales into `stages` ring stages |
| multiply | 9 | scales to TMEM, two products (d = 64 each) a tile into ACC_STAGES accumulators |
| gather | 10-11 | query rows and their scales, any start and either layout, into Q_STAGES stages; -inf blocks |

Counted, not measured (no such card here): walls of a 128 x 128 tile are the product 128 clk, TMEM reads 128, the
maximum 2 * (64 + a few) clk of the ALU (none with tcgen05.ld.red), shared memory 128 + 72 / heads. Packed rows cost
decode nothing: a page comes every 400 clk at 6.5 TB/s.
"""

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from ...configs.block_scores import CODE_BYTES, PAGE
from ..addressing.ragged import table_from
from ..device import tcgen05
from ..device.ptx_memory import evict_first, lds32
from .kernel import BlockScoresArgs, BlockScoresKernel
from .sm100_compute import multiply_tiles, reduce_tiles
from .sm100_config import ALIGN, GATHER, LOAD, MMA, OTHER_REGISTERS, REDUCE_REGISTERS, TMEM_COLUMNS, Config
from .sm100_operands import KeyMap, gather_queries, load_pages, stage_layout
from .sm100_protocol import Shared
from .sm100_schedule import Schedule

# Codes of the pool: 64 bytes, 128 keys, (page, KV head)
KEY_MAP = {
    "tensor_map": {
        "buffer": "k",
        "dtype": "u8",
        "dims": [CODE_BYTES, PAGE, "num_pages*heads_kv"],
        "strides": [CODE_BYTES, PAGE * CODE_BYTES],
        "box": [CODE_BYTES, PAGE, 1],
        "swizzle": "64",
        "l2_promotion": "256",
    }
}


class Sm100Kernel(BlockScoresKernel):
    grid = {"per_sm": 1}
    tmem_columns = TMEM_COLUMNS

    def __init__(self, config: Config):
        reason = config.fits()
        if reason:
            raise ValueError(f"block_scores sm_100a, {config}: {reason}")
        self.c = config
        self.name = config.name
        self.block = (config.threads, 1, 1)
        self.dynamic_shared_bytes = config.shared_bytes

    @property
    def params(self):
        return [KEY_MAP, *super().params]

    @cute.jit
    def __call__(self, args: BlockScoresArgs):
        # A parameter of 128 bytes that the launcher fills from KEY_MAP; the shape here only has to be of that rank
        pool = cute.make_tensor(
            args.k, cute.make_layout((CODE_BYTES, PAGE, 1 << 20), stride=(1, CODE_BYTES, PAGE * CODE_BYTES))
        )
        atom, coordinates = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), pool, stage_layout(), (CODE_BYTES, PAGE, 1)
        )
        self.kernel(atom, coordinates, args).launch(
            grid=self.cluster,
            block=self.block,
            cluster=self.cluster,
            smem=self.dynamic_shared_bytes,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, atom: cute.CopyAtom, coordinates: cute.Tensor, args: BlockScoresArgs):
        """One CTA: barriers and tensor memory, then a branch on the role of the warp."""
        c = self.c
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        warp, lane = cute.arch.make_warp_uniform(thread // 32), thread % 32
        base = (cute.arch.get_dyn_smem(cutlass.Uint8, 128).toint() + (ALIGN - 1)) & -ALIGN
        shared = Shared(c, base)
        seqs = table_from(args, shared.table)
        seqs.load(thread, c.threads)
        if thread == LOAD * 32:
            shared.init_barriers()
        if warp == MMA:
            tcgen05.tmem_alloc(shared.tmem_address, TMEM_COLUMNS)
        cute.arch.sync_threads()
        tcgen05.fence_after()
        tmem = lds32(shared.tmem_address)
        falls = seqs.falls(lane, c.threads)
        if warp >= LOAD:
            cute.arch.setmaxregister_decrease(OTHER_REGISTERS)
            if warp == LOAD:
                load_pages(
                    c,
                    shared,
                    args,
                    Schedule(c, args, seqs.unless(falls)),
                    KeyMap(atom, coordinates, evict_first()),
                    cta,
                    ctas,
                    lane,
                )
            if warp == MMA:
                multiply_tiles(c, shared, tmem, lane)
            if warp >= GATHER:
                gather_queries(c, shared, args, thread - GATHER * 32, lane, falls)
        else:
            cute.arch.setmaxregister_increase(REDUCE_REGISTERS)
            reduce_tiles(c, shared, args, tmem, warp, lane)
        cute.arch.sync_threads()
        if warp == MMA:
            tcgen05.tmem_dealloc(tmem, TMEM_COLUMNS)
