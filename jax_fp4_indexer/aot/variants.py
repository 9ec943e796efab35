"""Which kernels exist, for which arch, and how launches combine into variants. Adding a kernel is one line here.

Names only: nothing here imports the DSL, so the list can be read anywhere.
"""
import dataclasses

from ..configs.arch import ARCHS


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One cubin: `target` ("module:Class"), built with `config` for `arch`.

    config       ((name, value), ...): keyword arguments of the class, or of `config_class` (in the same module) if that is given
    expect       ((instruction, bound), ...): gate on the SASS, beside what the class itself declares as `expect`; see inspect.problems
    """
    target: str
    arch: str
    config: tuple = ()
    config_class: str = ""
    expect: tuple = ()

    @property
    def module(self):
        return self.target.partition(":")[0]

    @property
    def source(self):
        """The expression that makes the kernel, e.g. "pkg.decode:Decode(DecodeConfig(columns=16))": its identity within an arch."""
        inner = ", ".join(f"{k}={v!r}" for k, v in self.config)
        return f"{self.target}({self.config_class}({inner}))" if self.config_class else f"{self.target}({inner})"


@dataclasses.dataclass(frozen=True)
class Variant:
    """What one call runs: `launches` (Kernels) in order. Fields as in the manifest, see docs/architecture.md."""
    path: str
    format: str
    scale_layout: str
    arch: str
    launches: tuple
    implementation: str = "native"
    max_columns: int = 0
    passes: str = "once"
    op: str = "block_scores"


def kernels_of(variants):
    """Every kernel that `variants` launch, once, in order."""
    return tuple(dict.fromkeys(k for v in variants for k in v.launches))


FORMATS = ("nvfp4", "mxfp4")
SCALE_LAYOUTS = ("public", "preordered_mma")

VARIANTS = ()
KERNELS = kernels_of(VARIANTS)
