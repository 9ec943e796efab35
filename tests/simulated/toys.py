"""A small kernel for sm_100a on the whole path that kernels of Blackwell take: K codes by a tensor map that the launcher encodes, scales by bulk
copies, tcgen05 cp, block-scaled mma, commit, loads of tensor memory. Written as the kernels of the tree are: addresses and single PTX instructions.

    scores[kb, t] = max over the 128 keys of page kv_indices[kb] of q[t] . k       one head, preordered scales, up to 128 tokens, any number of pages

One CTA. Warps 0 to 3 gather the query codes, then reduce: a lane a query row. Warp 4 loads, warp 5 multiplies. Two stages of keys, two accumulators of 128
columns, three sets of columns for key scales: the set that a page overwrites was read by a product that a reducing warp has seen finished.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from jax_fp4_indexer.kernels.block_scores.kernel import BlockScoresArgs, BlockScoresKernel
from jax_fp4_indexer.kernels.device.ptx import asm
from jax_fp4_indexer.kernels.device.ptx_barriers import (
    fence_async_shared,
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_wait,
)
from jax_fp4_indexer.kernels.device.ptx_copies import bulk_load
from jax_fp4_indexer.kernels.device.ptx_math import fmax_nan
from jax_fp4_indexer.kernels.device.ptx_memory import evict_first, ldg32, ldg_v4, lds32, stg_f32, sts_v4

STAGES, SETS, ROWS = 2, 3, 128
CODES = ROWS * 64  # bytes of a tile of codes
ACCUMULATORS = STAGES * 128  # columns


# ---- instructions
def descriptor(addr, swizzled):
    """K-major operand of 64-byte rows that a tensor map with a swizzle of 64 bytes wrote; or an atom of scales: 32 rows of 16 bytes."""
    stride, layout = (512, 4) if swizzled else (128, 0)
    high = (stride >> 4) | 1 << 14 | layout << 29
    return asm(
        "{ .reg .b32 a; shr.u32 a, $1, 4; and.b32 a, a, 0x3fff; mov.b64 $0, {a, $2}; }",
        [Int64],
        [addr, Int32(high - (1 << 32) if high >> 31 else high)],
        "=l,r,r",
    )


def one_lane(text):
    return "{ .reg .pred e; elect.sync _|e, 0xffffffff; @e " + text + " }"


def alloc(addr):
    asm("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [$0], 512;", [], [addr], "r")
    asm("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", [], [], "")


def dealloc(tmem):
    asm("tcgen05.dealloc.cta_group::1.sync.aligned.b32 $0, 512;", [], [tmem], "r")


def scales_to_tmem(column, desc):
    asm(one_lane("tcgen05.cp.cta_group::1.32x128b.warpx4 [$0], $1;"), [], [column, desc], "r,l")


def multiply(acc, a, b, shape, sfa, sfb, groups, accumulate):
    asm(
        "{ .reg .pred e, p; setp.ne.b32 p, " + str(int(accumulate)) + ", 0; elect.sync _|e, 0xffffffff; "
        f"@e tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block{groups} [$0], $1, $2, $3, [$4], [$5], p; }}",
        [],
        [acc, a, b, shape, sfa, sfb],
        "r,l,l,r,r,r",
    )


def commit(bar):
    asm(one_lane("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [$0];"), [], [bar], "r")


def fence_before():
    asm("tcgen05.fence::before_thread_sync;", [], [], "")


def fence_after():
    asm("tcgen05.fence::after_thread_sync;", [], [], "")


def load_columns(addr):
    """32 columns of this lane. The wait is in the same block: nothing uses a register before it."""
    regs = ", ".join(f"${i}" for i in range(32))
    return asm(
        f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{regs}}}, [$32]; tcgen05.wait::ld.sync.aligned;",
        [Float32] * 32,
        [addr],
        ",".join(["=f"] * 32 + ["r"]),
        pure=False,
    )


def fmax3_nan(a, b, c):
    return asm("max.NaN.f32 $0, $1, $2, $3;", [Float32], [a, b, c], "=f,f,f,f")


def maximum(values):
    """In a tree of three inputs each, which the architecture has an instruction for; a NaN wins."""
    while len(values) > 2:
        end = len(values) // 3 * 3
        values = [fmax3_nan(*values[j : j + 3]) for j in range(0, end, 3)] + values[end:]
    return fmax_nan(*values) if len(values) == 2 else values[0]


class PageMaxima(BlockScoresKernel):
    block = (192, 1, 1)
    grid = {"fixed": [1, 1, 1]}

    def __init__(self, format="nvfp4"):
        self.format, self.group = format, 16 if format == "nvfp4" else 32
        self.atoms = 128 // self.group // 4  # of 512 bytes: the scales of 128 rows
        self.scale_bytes = 512 * self.atoms
        self.name = f"toy.page_maxima.{format}"
        self.codes_k = CODES
        self.scales_q = self.codes_k + STAGES * CODES
        self.scales_k = self.scales_q + self.scale_bytes
        self.barriers = (
            self.scales_k + STAGES * self.scale_bytes
        )  # query scales; per stage: keys full, empty, accumulator full, empty
        self.hold = self.barriers + 8 * (1 + 4 * STAGES)
        self.dynamic_shared_bytes = self.hold + 8

    @property
    def params(self):
        return [
            *super().params,
            {
                "tensor_map": {
                    "buffer": "k",
                    "dtype": "u8",
                    "dims": [64, 128, "num_pages*heads_kv"],
                    "strides": [64, 8192],
                    "box": [64, 128, 1],
                    "swizzle": "64",
                    "l2_promotion": "128",
                }
            },
        ]

    def keys_layout(self):
        return cute.make_composed_layout(cute.make_swizzle(2, 4, 3), 0, cute.make_layout((128, 64), stride=(64, 1)))

    @cute.jit
    def __call__(self, args: BlockScoresArgs):
        # A shape without run-time values leaves the map alone as a parameter, behind those of args; the launcher's recipe gives the real extents.
        pages = cute.make_tensor(args.k, cute.make_layout((128, 64, 1 << 24), stride=(64, 1, 8192)))
        atom, pages = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), pages, self.keys_layout(), (128, 64)
        )
        self.kernel(args, atom, pages).launch(
            grid=(1, 1, 1), block=self.block, smem=self.dynamic_shared_bytes, min_blocks_per_mp=1
        )

    @cute.kernel
    def kernel(self, args: BlockScoresArgs, atom: cute.CopyAtom, pages: cute.Tensor):
        thread = cute.arch.thread_idx()[0]
        warp, lane = cute.arch.make_warp_uniform(thread // 32), thread % 32
        pointer = cute.arch.get_dyn_smem(cutlass.Uint8, 1024)
        base = pointer.toint()
        bars = base + self.barriers
        if thread == 0:
            mbarrier_init(bars, 1)
            for s in cutlass.range_constexpr(3 * STAGES):
                mbarrier_init(bars + 8 + 8 * s, 1)
            for s in cutlass.range_constexpr(STAGES):
                mbarrier_init(bars + 8 + 8 * (3 * STAGES + s), 4)
            fence_mbarrier_init()
        if warp == 5:
            alloc(base + self.hold)
        if warp < 4:
            self.gather(args, base, thread)
        fence_async_shared()
        fence_before()
        cute.arch.sync_threads()
        fence_after()
        tmem = lds32(base + self.hold)
        if warp == 4:
            self.load(args, atom, pages, pointer, base, bars, lane)
        if warp == 5:
            self.products(args, base, bars, tmem)
        if warp < 4:
            self.reduce(args, bars, tmem, warp, thread)
        fence_before()
        cute.arch.sync_threads()
        fence_after()
        if warp == 5:
            dealloc(tmem)

    @cute.jit
    def gather(self, args, base, row):
        """Query codes of a row, 16 bytes at a time, where the swizzle puts them; zeros past the last token."""
        for c in cutlass.range_constexpr(4):
            words = [Int32(0)] * 4
            if row < args.tokens:
                words = list(ldg_v4(args.q.toint() + Int64(row) * 64, 16 * c))
            sts_v4(base + row * 64 + 16 * (c ^ (row // 2 % 4)), words)

    @cute.jit
    def load(self, args, atom, pages, pointer, base, bars, lane):
        keys = cute.make_tensor(
            cute.recast_ptr(pointer + self.codes_k, cute.make_swizzle(2, 4, 3), dtype=cutlass.Uint8),
            cute.make_layout((128, 64, STAGES), stride=(64, 1, CODES)),
        )
        to, of = cpasync.tma_partition(
            atom,
            0,
            cute.make_layout(1),
            cute.group_modes(keys, 0, 2),
            cute.group_modes(cute.local_tile(pages, (128, 64), (0, 0, None)), 0, 2),
        )
        bar = cute.recast_ptr(pointer + self.barriers, dtype=cutlass.Int64)
        policy = evict_first()
        if lane == 0:
            mbarrier_expect_tx(bars, self.scale_bytes)
            bulk_load(base + self.scales_q, args.q_scale.toint(), self.scale_bytes, bars, policy)
        for i in cutlass.range(args.num_indices, unroll=1):
            s, phase = i % STAGES, (i // STAGES) % 2
            page = ldg32(args.kv_indices.toint() + Int64(i) * 4)
            mbarrier_wait(bars + 8 + 8 * (STAGES + s), phase ^ 1)
            if lane == 0:
                mbarrier_expect_tx(bars + 8 + 8 * s, CODES + self.scale_bytes)
                bulk_load(
                    base + self.scales_k + s * self.scale_bytes,
                    args.k_scale.toint() + Int64(page) * self.scale_bytes,
                    self.scale_bytes,
                    bars + 8 + 8 * s,
                    policy,
                )
            cute.copy(atom, of[None, page], to[None, s], tma_bar_ptr=bar + 1 + s)
        # the commits that release the last stages come while this warp is here, not after the CTA
        for i in cutlass.range(cutlass.max(args.num_indices - STAGES, 0), args.num_indices, unroll=1):
            mbarrier_wait(bars + 8 + 8 * (STAGES + i % STAGES), (i // STAGES) % 2)

    @cute.jit
    def products(self, args, base, bars, tmem):
        shape = (
            1 << 7 | 1 << 10 | 128 >> 3 << 17 | 128 >> 4 << 24 | (self.format == "mxfp4") << 23
        )  # E2M1 both, N, M, E8M0 scales
        columns, sfq = 4 * self.atoms, tmem + ACCUMULATORS
        mbarrier_wait(bars, Int32(0))
        fence_after()
        for x in cutlass.range_constexpr(self.atoms):
            scales_to_tmem(sfq + 4 * x, descriptor(base + self.scales_q + 512 * x, False))
        for i in cutlass.range(args.num_indices, unroll=1):
            s, phase = i % STAGES, (i // STAGES) % 2
            sfk, acc = sfq + columns * (1 + i % SETS), tmem + 128 * s
            mbarrier_wait(bars + 8 + 8 * s, phase)
            mbarrier_wait(bars + 8 + 8 * (3 * STAGES + s), phase ^ 1)
            fence_after()
            for x in cutlass.range_constexpr(self.atoms):
                scales_to_tmem(sfk + 4 * x, descriptor(base + self.scales_k + s * self.scale_bytes + 512 * x, False))
            for k in cutlass.range_constexpr(
                2
            ):  # 64 codes an instruction; MXFP4: two scales each of the one word of a row
                x, scale_id = (k, 0) if self.format == "nvfp4" else (0, 2 * k)
                which = shape | scale_id << 29 | scale_id << 4
                multiply(
                    acc,
                    descriptor(base + 32 * k, True),
                    descriptor(base + self.codes_k + s * CODES + 32 * k, True),
                    Int32(which),
                    sfq + 4 * x,
                    sfk + 4 * x,
                    self.group,
                    k > 0,
                )
            commit(bars + 8 + 8 * (2 * STAGES + s))
            commit(bars + 8 + 8 * (STAGES + s))

    @cute.jit
    def reduce(self, args, bars, tmem, warp, row):
        for i in cutlass.range(args.num_indices, unroll=1):
            s = i % STAGES
            mbarrier_wait(bars + 8 + 8 * (2 * STAGES + s), (i // STAGES) % 2)
            fence_after()
            best = Float32(0)
            for c in cutlass.range_constexpr(4):
                values = list(load_columns(tmem + 128 * s + 32 * c + (warp << 21)))
                best = maximum(values if c == 0 else [best, *values])
            fence_before()
            cute.arch.sync_warp()
            if row % 32 == 0:
                mbarrier_arrive(bars + 8 + 8 * (3 * STAGES + s))
            if row < args.tokens:
                stg_f32(args.scores.toint() + (Int64(i) * Int64(args.tokens) + Int64(row)) * 4, best)
