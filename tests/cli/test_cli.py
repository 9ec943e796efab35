"""The command line as a user calls it, on whatever this machine has."""
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from jax_fp4_indexer import demo
from jax_fp4_indexer.cli import main


def run(*args, status=0):
    result = CliRunner().invoke(main, args)
    assert result.exit_code == status, (result.exit_code, result.output, result.exception)
    return result.output


def test_demo_finds_what_was_planted_and_draws_it(tmp_path):
    text = run("demo", "--context", "8192", "--out", str(tmp_path))
    rows = {name: line for line in text.splitlines() for name in ("nvfp4", "mxfp4") if f"│ {name}" in line}
    for name, low in (("nvfp4", 75), ("mxfp4", 75)):
        planted, recall = (float(x) for x in re.findall(r"([\d.]+)%", rows[name])[:2])
        assert planted == 100.0 and low <= recall <= 100.0, rows[name]
        picture = (tmp_path / f"block_scores_{name}.png").read_bytes()
        assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) > 10_000


def test_demo_refuses_a_context_too_short_to_plant_in():
    assert "8192" in run("demo", "--context", "100", status=2)


def test_demo_refuses_a_folder_it_cannot_make_before_the_work():
    assert "--out: got /proc/nowhere, expected a folder" in run("demo", "--out", "/proc/nowhere", status=2)


def test_demo_notices_a_lost_passage(monkeypatch, tmp_path):
    """Exit status 1 when a planted block is not among the chosen: here the choice is of the worst blocks."""
    right = demo.top_blocks
    monkeypatch.setattr(demo, "top_blocks", lambda scores, k: right(np.where(np.isneginf(scores), scores, -scores), k))
    assert "planted passage was not among" in run("demo", "--context", "8192", "--out", str(tmp_path), status=1)


def test_top_blocks_pads_with_minus_one_and_breaks_ties_low():
    scores = np.array([[1, 3, 3, -np.inf]], np.float32)[:, :, None]
    assert demo.top_blocks(scores, 4).tolist() == [[[1, 2, 0, -1]]]


def test_doctor_names_the_machine_and_every_kind_of_call():
    text = " ".join(run("doctor").split())
    for part in ("jaxlib", "FFI library", "cubins", "block scores, decode, nvfp4", "block scores, prefill, mxfp4"):
        assert part in text, part


def test_bench_lists_its_cases():
    text = run("bench", "--list-cases")
    for name in ("prefill_q8k_k8k", "prefill_q8k_k64k", "decode_uniform", "decode_skewed", "decode_8k", "decode_64k"):
        assert name in text


def test_bench_of_an_own_shape_writes_rows(tmp_path):
    path = tmp_path / "rows.json"
    run("bench", "--b", "1", "--sq", "4", "--skv", "256", "--head-kv", "1", "--qhead-per-kv", "2", "--iters", "2", "--repeats", "2", "--warmup", "1",
        "--scale-layout", "both", "--json", str(path))
    rows = json.loads(path.read_text())
    assert [r["scale_layout"] for r in rows] == ["public", "preordered_mma"]
    for row in rows:
        assert {"op", "case", "format", "scale_layout", "implementation", "median_us", "spread_us", "limit", "limit_us", "fraction", "xla_us", "published_us", "card", "jax",
                "commit", "date"} <= set(row)
        # A burst is a difference of two times: where the machine is busy it may come out below zero.
        assert np.isfinite(row["median_us"]) and row["sustained_us"] > 0 and np.isfinite(row["xla_us"])


@pytest.mark.parametrize("args, part", [
    (("--case", "no_such"), "--list-cases"), (("--b", "2"), "--skv"), (("--format", "fp8"), "nvfp4"), (("--b", "0", "--sq", "1", "--skv", "1"), "0 is not in the range"),
    (("--b", "1", "--sq", "1", "--skv", "1", "--head-kv", "0"), "0 is not in the range"),
    (("--json", "/proc/nowhere/rows.json"), "--json: got /proc/nowhere, expected a folder")])
def test_bench_says_what_is_wrong(args, part):
    assert part in run("bench", *args, status=2)
