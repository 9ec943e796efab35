"""A table as those of aot/variants, of toy kernels for two archs."""

from jax_fp4_indexer.aot.variants import Kernel, Variant, kernels_of

ARCHS = ("sm_80", "sm_90a")
SELECT = (("path", "decode"), ("format", "nvfp4"), ("scale_layout", "public"))


def fill(arch, factor):
    return Kernel("aot_toys:Fill", arch, (("factor", factor),))


VARIANTS = tuple(
    v
    for arch in ARCHS
    for v in (
        Variant(
            "block_scores",
            SELECT,
            arch,
            (fill(arch, 1), Kernel("aot_toys:Matrix", arch)),
            bound=16,
            implementation="portable" if arch == "sm_80" else "native",
        ),
        Variant("block_scores", SELECT, arch, (fill(arch, 2),), implementation="portable"),
    )
)
KERNELS = kernels_of(VARIANTS)
