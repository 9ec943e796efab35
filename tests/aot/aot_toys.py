"""Small kernels to exercise the build with: they take the real parameter list and compile in a fraction of a second."""

import cutlass.cute as cute
from cutlass import Float32, Int32

from jax_fp4_indexer.kernels.block_scores.kernel import BlockScoresArgs, BlockScoresKernel
from jax_fp4_indexer.kernels.device.args import params_of
from jax_fp4_indexer.kernels.device import wgmma
from jax_fp4_indexer.kernels.device.mma import mma_m16n8k16
from jax_fp4_indexer.kernels.device.ptx import asm


class Fill(BlockScoresKernel):
    """scores[i] = factor for i < tokens."""

    block = (128, 1, 1)

    def __init__(self, factor=1):
        self.factor = factor
        self.name = f"toy.fill.x{factor}"

    @cute.kernel
    def kernel(self, args: BlockScoresArgs):
        i = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
        scores = cute.make_tensor(args.scores, cute.make_layout(1 << 20))
        if i < args.tokens:
            scores[i] = Float32(self.factor)


class Spill(BlockScoresKernel):
    """An array indexed at run time, which only the stack can hold."""

    name = "toy.spill"

    @cute.kernel
    def kernel(self, args: BlockScoresArgs):
        target = args.scores.toint() + cute.arch.thread_idx()[0] * 4
        value = asm(
            "{ .local .align 4 .b32 x[64]; .reg .b64 a, b; mov.u64 a, x; mad.wide.u32 b, $1, 4, a; st.local.b32 [b], $2; "
            "mad.wide.u32 b, $2, 4, a; ld.local.b32 $0, [b]; }",
            [Int32],
            [args.first_page, args.pages_per_pass],
            "=r,r,r",
            pure=False,
        )
        asm("st.global.b32 [$0], $1;", [], [target, value], "l,r")


class Matrix(BlockScoresKernel):
    """One mma.sync."""

    name = "toy.matrix"
    expect = {"HMMA": (1, 1)}

    @cute.kernel
    def kernel(self, args: BlockScoresArgs):
        i = cute.arch.thread_idx()[0]
        scores = cute.make_tensor(args.scores, cute.make_layout(1 << 20))
        zero = Float32(0)
        word = Int32(args.heads_q) + i
        for j, x in enumerate(mma_m16n8k16([word, word, word, word], word, word, [zero, zero, zero, zero])):
            scores[4 * i + j] = x


class NoMatrix(Fill):
    """Promises a matrix instruction that it does not have."""

    expect = {"HMMA": 1}

    def __init__(self):
        super().__init__()
        self.name = "toy.no_matrix"


class TooMuchShared(Fill):
    dynamic_shared_bytes = 100 * 1024  # fits an A100, not the other 8.x

    def __init__(self):
        super().__init__()
        self.name = "toy.too_much_shared"


class Crowded(Fill):
    grid = {"per_sm": 40}

    def __init__(self):
        super().__init__()
        self.name = "toy.crowded"


class WrongParams(Fill):
    params = params_of(BlockScoresKernel.spec)[:-1]

    def __init__(self):
        super().__init__()
        self.name = "toy.wrong_params"


class DoesNotTrace(Fill):
    def __init__(self):
        super().__init__()
        self.name = "toy.does_not_trace"

    @cute.kernel
    def kernel(self, args: BlockScoresArgs):
        raise ValueError("planted mistake in the kernel")


class Dies(Fill):
    """Takes the compiler process with it."""

    def compile(self):
        import os

        os.abort()


class Serialised(BlockScoresKernel):
    """Two WGMMAs whose accumulator is changed between them: ptxas puts a wait there."""

    name = "toy.serialised"

    @cute.kernel
    def kernel(self, args: BlockScoresArgs):
        i = cute.arch.thread_idx()[0]
        scores = cute.make_tensor(args.scores, cute.make_layout(1 << 20))
        words, descriptor = [Int32(args.heads_q) + i] * 4, wgmma.operand_descriptor(Int32(0))
        d = wgmma.mma([Float32(0)] * 4, words, descriptor, 8, True)
        d = wgmma.mma([x + Float32(i) for x in d], words, descriptor, 8, True)
        wgmma.commit()
        for j, x in enumerate(wgmma.wait(d, 0)):
            scores[4 * i + j] = x
