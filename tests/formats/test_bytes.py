"""Every E2M1 code and every scale byte against ml_dtypes; the index formulas of the tiled scale order."""

import ml_dtypes
import numpy as np
import pytest

from jax_fp4_indexer.formats import e2m1, scale_layout, scales

ALL = np.arange(256, dtype=np.uint8)


def test_e2m1_values_are_the_ml_dtypes_values_signs_included():
    theirs = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert e2m1.VALUES.tobytes() == theirs.tobytes()
    assert np.abs(e2m1.VALUES).max() == e2m1.MAX


def test_midpoints_and_tie_rule_follow_from_the_values():
    magnitudes = e2m1.VALUES[:8].astype(np.float64)
    np.testing.assert_array_equal(e2m1.MIDPOINTS, (magnitudes[:-1] + magnitudes[1:]) / 2)
    assert e2m1.TIE_GOES_UP == tuple(code % 2 == 1 for code in range(7))


def test_low_nibble_is_the_even_element():
    np.testing.assert_array_equal(e2m1.unpack(np.array([[0x21, 0xF7]])), [[1, 2, 7, 15]])
    assert [e2m1.position(d) for d in (0, 1, 127)] == [(0, 0), (0, 4), (63, 4)]
    np.testing.assert_array_equal(e2m1.pack(e2m1.unpack(ALL)), ALL)


def test_e8m0_every_byte():
    np.testing.assert_array_equal(scales.e8m0_value(ALL), ALL.view(ml_dtypes.float8_e8m0fnu).astype(np.float64))
    assert scales.e8m0_value(0) == 2.0**-127 and np.isnan(scales.e8m0_value(255))


def test_ue4m3_every_byte_bit_7_plays_no_part():
    positive = (ALL & 0x7F).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(scales.ue4m3_value(ALL), positive)
    assert (
        np.isnan(scales.ue4m3_value(0xFF))
        and scales.ue4m3_value(0x7E) == scales.UE4M3_MAX
        and scales.ue4m3_value(1) == scales.UE4M3_MIN
    )


@pytest.mark.parametrize("fmt", scales.FORMATS.values(), ids=lambda f: f.name)
def test_format_facts(fmt):
    assert fmt.value(fmt.one) == 1 and fmt.groups(128) * fmt.group_size == 128
    assert np.dtype(getattr(ml_dtypes, fmt.scale_dtype)).itemsize == 1


def test_tiled_offset_as_published():
    assert scale_layout.tiled_offset(33, 5, 8) == 533
    assert np.prod(scale_layout.tiled_shape(130, 8)) == 2048


@pytest.mark.parametrize("rows, groups", [(1, 4), (33, 8), (127, 4), (128, 8), (129, 8), (260, 4), (5, 6)])
def test_tiled_index_offset_and_storage_agree(rows, groups):
    values = np.arange(rows * groups, dtype=np.int32).reshape(rows, groups) + 1  # a different value everywhere
    tiled = scale_layout.to_tiled(values, fill=-7)
    assert tiled.shape == scale_layout.tiled_shape(rows, groups)
    for row in range(rows):
        for group in range(groups):
            assert tiled.reshape(-1)[scale_layout.tiled_offset(row, group, groups)] == values[row, group]
    assert (tiled == -7).sum() == tiled.size - values.size
    np.testing.assert_array_equal(scale_layout.from_tiled(tiled, rows, groups), values)
