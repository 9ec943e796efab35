"""Variants of `nvfp4_batched_gemv`: one kernel each."""

from ...configs.arch import ARCHS
from ...specs.batched_gemv import SPEC
from ..table import Kernel, Variant

EXPECT = {"1": (("IDP", 32),), "8": (("HMMA", 8),)}


def gemv(arch: str, columns: str, k_multiple: str, scale_layout: str) -> Variant:
    config = (("columns", int(columns)), ("scale_layout", scale_layout), ("any_k", k_multiple == "16"), ("arch", arch))
    kernel = Kernel(
        "jax_fp4_indexer.kernels.batched_gemv.kernel:GemvKernel",
        arch,
        config,
        "GemvConfig.choose",
        expect=EXPECT[columns],
    )
    return Variant(
        SPEC.name,
        (("columns", columns), ("k_multiple", k_multiple), ("scale_layout", scale_layout)),
        arch,
        (kernel,),
        "portable",
    )


_CHOICES = SPEC.choices()
VARIANTS = tuple(
    gemv(arch, columns, k_multiple, scale_layout)
    for arch in ARCHS
    for columns in _CHOICES["columns"]
    for k_multiple in _CHOICES["k_multiple"]
    for scale_layout in _CHOICES["scale_layout"]
)
