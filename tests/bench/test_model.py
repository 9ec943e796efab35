"""The time model: against every measured row of the H200, and the bars that the kernels for Blackwell are to meet in it, on the cubins that are built."""

import json
import pathlib
import sys

import pytest

from jax_fp4_indexer.bench.cases import all_cases, block_scores

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import model  # noqa: E402
import model_blackwell  # noqa: E402
import model_hopper  # noqa: E402
import model_plan  # noqa: E402

H200 = BENCHMARKS / "results" / "h200"


@pytest.fixture(scope="module")
def probe():
    return json.loads((H200 / "probe.json").read_text())


def test_every_row_of_the_h200_comes_within_the_tolerance(probe):
    rows = json.loads((H200 / "block_scores.json").read_text())
    found = model.compare(rows, probe)
    assert len(found) == len(rows) >= 46
    outside = {}
    for row, launches in found:
        ratio = model.longest(launches)[0] / row["median_us"]
        if abs(ratio - 1) > model.TOLERANCE:
            outside[row["case"], row["format"], row["commit"]] = round(ratio, 2)
    assert not outside


def test_rows_of_a_card_without_native_kernels(probe):
    row = {"card": "NVIDIA A100", "method": "device clock", "implementation": "auto"}
    with pytest.raises(
        ValueError, match="got rows of NVIDIA A100, expected a card of compute capability 9.0, 10.0 or 10.3"
    ):
        model.compare([row], probe | {"capability": [8, 0]})


def test_rows_of_a_blackwell_card_are_held_against_its_own_kernels(probe):
    row = {
        "card": "NVIDIA B200",
        "case": "decode_64k",
        "format": "nvfp4",
        "scale_layout": "public",
        "method": "device clock",
        "implementation": "auto",
        "sm_mhz": 1900.0,
        "limits": {"burst": {"read_gbs": 6500}},
    }
    ((_, launches),) = model.compare(
        [row, row | {"implementation": "portable"}], probe | {"capability": [10, 0], "sms": 148}
    )
    assert model.longest(launches) == model.longest(
        model.predict("sm_100a", all_cases()["decode_64k"], "nvfp4", "public")
    )


def test_the_table_replaces_itself(probe, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{model.BEGIN}\nold\n{model.END}\nafter\n")
    found = model.compare(json.loads((H200 / "block_scores.json").read_text())[:2], probe)
    for _ in range(2):
        model.write_table(found, page)
        text = page.read_text()
        assert text.startswith("before\n") and text.endswith(f"{model.END}\nafter\n") and "old" not in text
        assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][2:] == [
            f"| {row['case']}" for row, _ in found
        ]


def test_no_resource_without_work_and_no_launch_without_time(probe):
    card = model.Card(probe, 1800, 4500)
    for case in block_scores.CASES:
        for fmt in case.formats:
            for time in model_hopper.launches(card, case, fmt, "preordered_mma"):
                assert time.fixed > 0.5 and all(us > 0 for us in time.work.values()), (case.name, time)


def test_a_slower_clock_and_slower_memory_take_longer(probe):
    """What binds is what a row depends on: the clock for products; memory for a decode, once it is slow."""
    us = lambda name, fmt, mhz, gbs: model.longest(
        model_hopper.launches(model.Card(probe, mhz, gbs), all_cases()[name], fmt, "preordered_mma")
    )[0]
    assert us("prefill_q8k_k8k", "nvfp4", 900, 4500) == pytest.approx(
        2 * us("prefill_q8k_k8k", "nvfp4", 1800, 4500), rel=0.02
    )
    assert us("prefill_q8k_k64k", "nvfp4", 1800, 2250) < 1.01 * us("prefill_q8k_k64k", "nvfp4", 1800, 4500)
    assert us("decode_64k", "mxfp4", 1800, 1125) == pytest.approx(2 * us("decode_64k", "mxfp4", 1800, 2250), rel=0.02)


def test_groups_that_take_turns():
    assert model_hopper.side_by_side(256, 341, 1) == 597 and model_hopper.side_by_side(256, 341, 4) == 4 * 256 + 341


def test_steps_of_a_plan(monkeypatch):
    """As the kernels' own plan counts them (32 x 16 queries: one item a sequence and KV head)."""
    steps = lambda name: model_plan.plan(all_cases()[name])
    ragged = steps("prefill_ragged").steps
    # what docs/tuning.md has of two other rules, counted on the device: the least power of two that holds the queries, and the narrowest width of the fewest items
    widths = lambda q, heads: range(3, max(3, min((q - 1).bit_length(), 7)) + 1)
    for rule, counted in (
        (lambda q, heads: max(widths(q, heads)), 322_784),
        (lambda q, heads: min(widths(q, heads), key=lambda x: model_plan.items_of(q, heads, x)), 299_028),
    ):
        with monkeypatch.context() as other:
            other.setattr(model_plan, "tile_log2", rule)
            assert steps("prefill_ragged").steps == counted
    assert 299_028 < ragged < 300_000
    assert (steps("prefill_q16_k8k").items, steps("prefill_q16_k8k").steps) == (128, 8192) and steps(
        "prefill_q9_k8k"
    ).steps == 8192
    whole = steps("prefill_q8k_k8k")
    assert (whole.items, whole.steps, whole.masked, whole.entries) == (4 * 8 * 64, 4 * 8 * 64 * 65 // 2, 4 * 8 * 64, 32)
    # one head a KV head: items of 256 tokens, whose last two pages are masked
    assert steps("prefill_h8_8").steps == 8 * sum(range(2, 65, 2)) and steps("prefill_h8_8").masked == 8 * 32 * 2
    assert model_plan.tile_log2(1, 1) == 3 and model_plan.tile_log2(64, 16) == 6 and model_plan.tile_log2(1000, 1) == 8
    assert (
        model_plan.passes(all_cases()["prefill_q8k_k8k"], "nvfp4") == (1, 64)
        and model_plan.passes(all_cases()["prefill_ragged"], "mxfp4")[0] == 2
    )


def test_sectors_of_the_fill():
    assert model_plan.fill_sectors(all_cases()["decode_64k"]) == 0
    # 4 queries a sequence: the long one shares its first sector with the next sequence, which needs it
    assert model_plan.fill_sectors(all_cases()["decode_skewed_1m"]) == 4 * 64 * (8192 - 64)
    assert model_plan.fill_sectors(block_scores.Case("x", (8, 8), (1024, 128), 2, 1, False)) == 2 * 7


def test_tiles_on_blackwell():
    assert model_blackwell.tiles_of(all_cases()["prefill_q8k_k8k"]) == (64 * 64 * 65 // 2, 64 * 64)
    assert (
        model_blackwell.tiles_of(all_cases()["prefill_q16_k8k"])[0] == 64 * 32 * 64
    )  # 16 of 128 rows, and a tile all the same
    assert model_blackwell.tiles_of(all_cases()["decode_64k"]) == (128 * 512, 0)


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_predictions_for_blackwell(arch, fmt):
    """Prefill: at most 160 clk a tile, 110 us for the published case. Decode: bound by memory, issue slots at most 60 % of a page's time at 6.5 TB/s."""
    machine = model.MACHINES[arch]
    assert machine.read_gbs >= 6500
    card = model.blackwell_card(machine)
    prefill, decode = (
        model_blackwell.tile_clocks(card, arch, path, fmt, "preordered_mma")[0] for path in ("prefill", "decode")
    )
    assert max(prefill.values()) <= 160
    assert model.longest(model.predict(arch, all_cases()["prefill_q8k_k8k"], fmt))[0] <= 110
    page = 128 * (64 + block_scores.SCALE_BYTES[fmt]) * machine.sms / machine.read_gbs * machine.mhz / 1e3
    assert decode["issue"] <= 0.6 * page and max(decode.values()) < page
    for name in ("decode_8k", "decode_16k", "decode_32k", "decode_64k"):
        assert model.longest(model.predict(arch, all_cases()[name], fmt))[1] == "decode: memory"
