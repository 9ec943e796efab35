"""A table as aot/variants.py has, of toy kernels for two archs."""
from jax_fp4_indexer.aot.variants import Kernel, Variant, kernels_of

ARCHS = ("sm_80", "sm_90a")


def fill(arch, factor):
    return Kernel("aot_toys:Fill", arch, (("factor", factor),))


VARIANTS = tuple(v for arch in ARCHS for v in (
    Variant("decode", "nvfp4", "public", arch, (fill(arch, 1), Kernel("aot_toys:Matrix", arch)), max_columns=16,
            implementation="portable" if arch == "sm_80" else "native"),
    Variant("decode", "nvfp4", "public", arch, (fill(arch, 2),), implementation="portable"),
))
KERNELS = kernels_of(VARIANTS)
