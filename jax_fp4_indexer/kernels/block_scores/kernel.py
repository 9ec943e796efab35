"""The base of the block-score kernels, and the dataclass of their arguments (docs/architecture.md says what each
field holds)."""

from ...specs.block_scores import SPEC
from ..device.args import args_of
from ..device.kernel import OpKernel

BlockScoresArgs = args_of(SPEC)


class BlockScoresKernel(OpKernel):
    spec = SPEC
