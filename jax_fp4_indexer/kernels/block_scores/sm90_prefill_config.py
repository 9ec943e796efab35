"""What the sm_90a prefill kernels are made of, and where everything lies in shared memory."""

import dataclasses

from ...configs.arch import ARCHS, REGISTERS_PER_SM
from ...configs.block_scores import HEAD_DIM, PAGE
from .sm90_prefill_maxima import TILE_ROWS
from .sm90_prefill_queries import DESCRIPTION, ROWS, SLOT_BYTES

ROWS_LOG2 = 8  # log2 of the query rows of an item
TILES = ROWS // TILE_ROWS  # WGMMA tiles of an item
COPIERS = 3  # warps that copy queries, in kernels with staged keys


@dataclasses.dataclass(frozen=True)
class PrefillConfig:
    """One variant.

    int8            products in int8, else in bf16
    stages, slots   of the ring of key pages, of the ring of queries
    tiles           WGMMA tiles of a consumer warpgroup
    registers       of a thread of the producers, of the consumers
    slot_bytes      of the ring of queries
    q_arrivals      a phase of q_full
    pattern_bytes   of what the fill writes (epilogues/fill_by_copy_engine.py)
    """

    int8: bool
    stages: int
    slots: int
    tiles: int
    registers: tuple
    producer_warps: int
    slot_bytes: int
    q_arrivals: int
    pattern_bytes: int = 0

    def fits(self):
        """None, or why this variant cannot run."""
        # The registers that a CTA starts with are all that it gets: setmaxnreg waits for ever for more. Registers
        # come in eights a thread.
        wanted = 32 * (self.producer_warps * self.registers[0] + self.consumer_warps * self.registers[1])
        if wanted > REGISTERS_PER_SM // self.threads // 8 * 8 * self.threads:
            return f"registers {self.registers} are more than {self.threads} threads start with"
        limit = ARCHS["sm_90a"].shared_per_cta
        if self.shared_bytes > limit:
            return f"{self.shared_bytes} bytes of shared memory of {limit}"
        return None

    @property
    def consumer_warps(self):
        return 4 * TILES // self.tiles

    @property
    def threads(self):
        return 32 * (self.producer_warps + self.consumer_warps)

    @property
    def row_bytes(self):  # of a row of keys or queries as an operand
        return HEAD_DIM * (1 if self.int8 else 2)

    @property
    def page_bytes(self):
        return PAGE * self.row_bytes

    # ---- shared memory
    @property
    def k_ring(self):
        return 0

    @property
    def q_ring(self):
        return self.k_ring + self.stages * self.page_bytes

    @property
    def items(self):  # descriptions of the items in the ring of queries
        return self.q_ring + self.slots * self.slot_bytes

    @property
    # 16 bytes a stage: place of its page in the pass, of the item's next page, factor of the page
    def infos(self):
        return self.items + self.slots * DESCRIPTION

    @property
    def k_full(self):  # barriers, 8 bytes each
        return self.infos + self.stages * 16

    @property
    def k_empty(self):
        return self.k_full + self.stages * 8

    @property
    def q_full(self):
        return self.k_empty + self.stages * 8

    @property
    def q_empty(self):
        return self.q_full + self.slots * 8

    @property
    def pattern(self):
        return (self.q_empty + self.slots * 8 + 127) // 128 * 128

    @property
    def shared_bytes(self):
        return self.pattern + self.pattern_bytes


# Queries lie in the ring as they are
_STAGED = dict(producer_warps=1 + COPIERS, slot_bytes=SLOT_BYTES, q_arrivals=32 * COPIERS + 1)
CONFIGS = {
    "bf16": PrefillConfig(False, stages=5, slots=3, tiles=2, registers=(56, 224), pattern_bytes=1536, **_STAGED),
    "int8": PrefillConfig(True, stages=10, slots=3, tiles=1, registers=(32, 112), pattern_bytes=4096, **_STAGED),
    "direct": PrefillConfig(
        False,
        stages=3,
        slots=2,
        tiles=2,
        registers=(56, 200),
        producer_warps=8,
        slot_bytes=ROWS * HEAD_DIM * 2,
        q_arrivals=8,
    ),
}
