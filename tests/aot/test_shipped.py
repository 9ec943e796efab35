"""The real table and the cubins of this checkout (`make cubins` brings them up to date)."""
import pytest

from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.aot.variants import FORMATS, KERNELS, SCALE_LAYOUTS, VARIANTS
from jax_fp4_indexer.configs.arch import ARCHS


def test_the_cubins_are_what_the_sources_make():
    assert manifest.stale(manifest.DEFAULT_FOLDER, KERNELS, VARIANTS) == []


def test_no_shipped_kernel_spills_and_every_one_has_its_matrix_instruction():
    data = manifest.read(manifest.DEFAULT_FOLDER)
    assert len(data["kernels"]) == len(KERNELS)
    assert [k["name"] for k in data["kernels"] if k["spill_bytes"]] == []
    unguarded = {k.source for k in KERNELS if not k.expect} - {k.source for k in KERNELS if any(f":{name}(" in k.source for name in ("Prepare", "PortableSchedule", "ChoosePrecision"))}
    assert not unguarded, "kernels without a gate on their matrix instruction"


@pytest.mark.parametrize("path", ["decode", "prefill"])
@pytest.mark.parametrize("arch", list(ARCHS))
def test_every_arch_serves_every_call(arch, path):
    """Any number of columns, both formats and scale layouts, and a portable kernel beside every native one."""
    for format in FORMATS:
        for layout in SCALE_LAYOUTS:
            of_call = [v for v in VARIANTS if (v.arch, v.path, v.format, v.scale_layout) == (arch, path, format, layout)]
            assert "portable" in {v.implementation for v in of_call}
            for kind in {v.implementation for v in of_call}:
                bounds = [v.max_columns for v in of_call if v.implementation == kind]
                assert bounds.count(0) == 1 and len(set(bounds)) == len(bounds)


@pytest.mark.parametrize("warpgroups", (0, 5))
def test_a_decode_of_no_or_too_many_warps_is_refused(warpgroups):
    """Five warpgroups would fit shared memory, and write beside their tables."""
    from jax_fp4_indexer.kernels.block_scores.sm90_decode import DecodeKernel
    from jax_fp4_indexer.kernels.block_scores.sm90_decode_config import DecodeConfig
    from jax_fp4_indexer.kernels.block_scores.sm90_decode_wide_config import WideDecodeConfig
    with pytest.raises(ValueError, match=f"{4 * warpgroups} warps, of 1 to 16"):
        DecodeKernel(DecodeConfig(warpgroups=warpgroups))
    assert WideDecodeConfig(warpgroups=warpgroups).fits()
