"""What the build needs to know of a kernel, in addition to its code."""

import cutlass.cute as cute

from ...specs.spec import OpSpec
from .args import example_args, params_of


class OpKernel:
    """Base of the kernels of every op.

    An op's base class sets `spec`. A kernel's class sets, in `__init__`, the launch facts that the manifest carries,
    and defines `kernel(self, args)` decorated with `@cute.kernel`, where `args` is of the dataclass `args_of(spec)`:

    spec                  the op's OpSpec: it gives the parameters
    name                  unique within an arch: "<op>.<what>.<format>.<scale_layout>[.<config>]"
    block                 threads of a CTA, e.g. (512, 1, 1)
    cluster               CTAs of a cluster, (1, 1, 1) if none
    grid                  {"per_sm": n} or {"fixed": [x, y, z]}; the kernel reads gridDim and is right for any number
                          of CTAs
    dynamic_shared_bytes  all shared memory it uses
    tmem_columns          tensor memory it allocates (sm_100 and later)
    """

    spec: OpSpec
    name = ""
    block = (128, 1, 1)
    cluster = (1, 1, 1)
    grid = {"per_sm": 1}
    dynamic_shared_bytes = 0
    tmem_columns = 0

    @property
    def params(self) -> list[dict]:
        """The manifest's `params` list. A class whose kernel takes more than `args` (a tensor map, say) overrides it."""
        return params_of(self.spec)

    @cute.jit
    def __call__(self, args):
        # The grid given here is only for the compiler: the launcher takes the manifest's rule. Several CTAs an SM
        # bound the registers; without a carve-out (which the launcher does not set either) the DSL would then ask a
        # GPU for its shared memory.
        several = self.grid.get("per_sm", 1)
        how = {} if several == 1 else {"preferred_smem_carveout": 0}
        self.kernel(args).launch(
            grid=self.cluster,
            block=self.block,
            cluster=self.cluster,
            smem=self.dynamic_shared_bytes,
            min_blocks_per_mp=several,
            **how,
        )

    def compile(self):
        """The compiled kernel, with its PTX and cubin as artifacts."""
        return cute.compile(self, example_args(self.spec))
