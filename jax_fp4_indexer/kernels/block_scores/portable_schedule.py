"""The launch that writes the plan of the portable prefill: CTA 0 the item table, all warps the pages of the tokens
(kernels/block_scores/prefill_schedule.py)."""

import cutlass
import cutlass.cute as cute

from .kernel import BlockScoresKernel
from .portable import PORTABLE_ITEM_ROWS
from .prefill_schedule import schedule_shared_bytes, scratch_layout, write_table, write_token_pages

THREADS = 256


class PortableSchedule(BlockScoresKernel):
    def __init__(self, *, item_rows=PORTABLE_ITEM_ROWS):
        self.rows_log2 = item_rows.bit_length() - 1
        self.name = f"block_scores.portable_plan.rows{item_rows}"
        self.block = (THREADS, 1, 1)
        self.grid = {"per_sm": 1}
        self.dynamic_shared_bytes = schedule_shared_bytes(THREADS)

    @cute.kernel
    def kernel(self, args):
        """CTA 0 writes the table, all warps the pages of the tokens."""
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        layout = scratch_layout(args)
        if cta == 0:
            write_table(args, layout, tid, cute.arch.get_dyn_smem(cutlass.Uint8, 16).toint(), self.rows_log2, THREADS)
        write_token_pages(
            args, layout, cta * (THREADS // 32) + tid // 32, ctas * (THREADS // 32), tid % 32, self.rows_log2
        )
