"""Variants of `fp4_indexer_block_scores`. Adding a kernel is one line here."""

import dataclasses

from ...configs.arch import ARCHS
from ...configs.block_scores import DIRECT_COLUMNS, Scratch
from ...specs.block_scores import SPEC
from ...specs.expr import sizes
from ..table import Kernel, Variant

FORMATS = SPEC.choices()["format"]
SCALE_LAYOUTS = SPEC.choices()["scale_layout"]
PORTABLE_COLUMNS = (8, 16)  # of a visit of a warp; the last serves any number (32 would spill)
PREFILL_TILES = 2  # n8 tiles of a visit of a warp
SM90_COLUMNS = (16, 32, 64)  # width of the matrix instruction; the last serves any number
SM100_ARCHS = ("sm_100a", "sm_103a")
SM90_ITEM_ROWS = 256  # query rows of an item in the sm_90a prefills: the fixup works the same items

SCRATCH = Scratch.layout(*sizes("num_seqs tokens heads_kv pages_per_pass"))
DECODE_SCRATCH = 16  # bytes; no decode kernel uses them


def variant(path, format, scale_layout, arch, launches, implementation="native", bound=0):
    """A variant that takes the whole page list at once: a prefill uses the plan, which lies before the dequantised pages."""
    select = (("path", path), ("format", format), ("scale_layout", scale_layout))
    scratch = DECODE_SCRATCH if path == "decode" else SCRATCH.wide
    return Variant(SPEC.name, select, arch, launches, implementation, bound, scratch=scratch)


def portable(arch, role, format, scale_layout, expect=(("HMMA", 1),), **config):
    """Direct-load mma.sync kernel. sm_80 code also runs on 8.0, which has no E4M3 conversions."""
    config = {"role": role, "format": format, "scale_layout": scale_layout, "convert": arch != "sm_80", **config}
    return Kernel(
        "jax_fp4_indexer.kernels.block_scores.portable:PortableKernel", arch, tuple(config.items()), expect=expect
    )


def sm90(module, name, format, scale_layout, expect=(), **config):
    config = (("format", format), ("scale_layout", scale_layout), *config.items())
    return Kernel(f"jax_fp4_indexer.kernels.block_scores.{module}:{name}", "sm_90a", config, expect=expect)


def sm90_decode(format, scale_layout, columns):
    config = (("format", format), ("scale_layout", scale_layout))
    if columns == 16:
        return Kernel(
            "jax_fp4_indexer.kernels.block_scores.sm90_decode:DecodeKernel",
            "sm_90a",
            config,
            "DecodeConfig",
            expect=(("HMMA", 16), ("IMMA", 16)) if format == "mxfp4" else (("HMMA", 32),),
        )
    return Kernel(
        "jax_fp4_indexer.kernels.block_scores.sm90_decode_wide:WideDecodeKernel",
        "sm_90a",
        (*config, ("columns", columns)),
        "WideDecodeConfig.choose",
        expect=(("HGMMA", 16),),
    )


def by_columns(make, widths):
    """(bound, kernel) of every width; the widest has no bound."""
    return [(0 if width == widths[-1] else width, make(width)) for width in widths]


def portable_decode(arch, f, s):
    kernels = by_columns(lambda width: portable(arch, "decode", f, s, column_tiles=width // 8), PORTABLE_COLUMNS)
    return [variant("decode", f, s, arch, (kernel,), "portable", bound) for bound, kernel in kernels]


def portable_prefill(arch, f, s):
    plan = Kernel("jax_fp4_indexer.kernels.block_scores.portable_schedule:PortableSchedule", arch)
    return [
        variant("prefill", f, s, arch, (plan, portable(arch, "prefill", f, s, column_tiles=PREFILL_TILES)), "portable")
    ]


def native_decode(f, s):
    return [
        variant("decode", f, s, "sm_90a", (kernel,), bound=bound)
        for bound, kernel in by_columns(lambda width: sm90_decode(f, s, width), SM90_COLUMNS)
    ]


def native_prefill(f, s):
    """By the query rows of a KV head. Few (NVFP4): the decode kernels, right for any queries, which read a page once. More: plan, and products with keys that are widened
    where they are used. Many: plan and widened keys, then products; in MXFP4 a launch that chooses the precision of each step, those in int8, those in bf16.
    MXFP4 ends with what bf16 does not hold. Each launch exits at once if there is nothing for it."""
    few = [
        variant("prefill", f, s, "sm_90a", (sm90_decode(f, s, width),), bound=width)
        for width in SM90_COLUMNS
        if f == "nvfp4"
    ]
    direct, bf16 = (
        sm90(module, name, f, s, expect=(("HGMMA", 16),))
        for module, name in (("sm90_prefill_direct", "PrefillDirect"), ("sm90_prefill", "Prefill"))
    )
    plan = Kernel(
        "jax_fp4_indexer.kernels.block_scores.portable_schedule:PortableSchedule",
        "sm_90a",
        (("item_rows", SM90_ITEM_ROWS),),
    )
    int8, fixup = (), ()
    if f == "mxfp4":
        plan = sm90("sm90_prepare", "Prepare", f, s, widen=False)
        int8 = (
            Kernel("jax_fp4_indexer.kernels.block_scores.sm90_choose_precision:ChoosePrecision", "sm_90a"),
            sm90("sm90_prefill", "Prefill", f, s, expect=(("IGMMA", 8),), precision="int8"),
        )
        fixup = (portable("sm_90a", "fixup", f, s, column_tiles=PREFILL_TILES, item_rows=SM90_ITEM_ROWS),)
    staged = variant("prefill", f, s, "sm_90a", (sm90("sm90_prepare", "Prepare", f, s), *int8, bf16, *fixup))
    return [
        *few,
        variant("prefill", f, s, "sm_90a", (plan, direct, *fixup), bound=DIRECT_COLUMNS[f]),
        dataclasses.replace(staged, repeat=True, scratch=SCRATCH.size(f)),
    ]


def sm100(arch, path, f, s):
    """Block-scaled tcgen05: one kernel serves a path."""
    config = (("format", f), ("scale_layout", s), ("path", path), ("arch", arch))
    reads = ("LDTM.STAT", 1) if arch == "sm_103a" else ("LDTM", 1)
    kernel = Kernel(
        "jax_fp4_indexer.kernels.block_scores.sm100:Sm100Kernel",
        arch,
        config,
        "Config.choose",
        expect=(("UTCOMMA", 2), reads),
    )
    return variant(path, f, s, arch, (kernel,))


PAIRS = [(f, s) for f in FORMATS for s in SCALE_LAYOUTS]
VARIANTS = tuple(
    [v for pair in PAIRS for v in native_decode(*pair) + native_prefill(*pair)]
    + [sm100(arch, path, *pair) for arch in SM100_ARCHS for path in ("decode", "prefill") for pair in PAIRS]
    + [v for arch in ARCHS for pair in PAIRS for v in portable_decode(arch, *pair) + portable_prefill(arch, *pair)]
)
