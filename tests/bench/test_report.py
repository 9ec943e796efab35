"""The pages that benchmarks/report.py makes of rows, on rows that are made here."""

import json
import pathlib
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import report  # noqa: E402
import roofline  # noqa: E402

RATES = {"read_gbs": 4600.0, "bf16_tflops": 700.0, "int8_tops": 1300.0}


def row(case, fmt, burst, sustained, **other):
    """A row as run.py writes it, without what follows from other columns."""
    return {
        "op": "block_scores",
        "case": case,
        "format": fmt,
        "scale_layout": "preordered_mma",
        "implementation": "auto",
        "median_us": burst,
        "spread_us": 1.0,
        "sustained_us": sustained,
        "busy": 0.999,
        "sm_mhz": 1800.0,
        "sustained_sm_mhz": 1600.0,
        "xla_us": None,
        "published_us": None,
        "limits": {"burst": RATES, "sustained": RATES},
        "card": "NVIDIA H200",
        "jax": "0.11.2",
        "commit": "abc",
        "date": "2026-11-30",
        "card_sustained": {"power_w": 700.0, "reasons": ["power cap"]},
        "tflops": 800.0,
        "gbs": 300.0,
        **other,
    }


ROWS = [
    row("prefill_q8k_k8k", "nvfp4", 613.0, 667.0, xla_us=9105.0),
    row("prefill_q8k_k8k", "mxfp4", 342.0, 364.0),
    row("decode_8k", "nvfp4", 23.4, 24.0, busy=0.75),
    row("decode_64k", "nvfp4", 151.0, 163.0, chain_us=166.0),
    row("decode_b1_128k", "nvfp4", 6.68, 6.91),
    row("decode_8k", "nvfp4", 23.4, 24.0, scale_layout="public"),
]


def test_figures_of_rows_are_worked_out_anew():
    dispatch = {"modes": {"command buffers": [{"case": "decode_8k", "format": "nvfp4", "chain_us": 24.9}]}}
    prefill, mxfp4, decode, long, one, public = report.completed(ROWS, dispatch)
    tiles = 64 * 64 * 65 // 2
    assert prefill["sustained_tensor_share"] == pytest.approx(tiles * 1024 / (667 * 1600 * 132)) and mxfp4[
        "tensor_share"
    ] == pytest.approx(tiles * 512 / (342 * 1800 * 132))
    assert (
        decode["chain_us"] == 24.9
        and long["chain_us"] == 166.0
        and public["chain_us"] is None
        and one["chain_us"] is None
    )
    assert decode["sustained_read_share"] == pytest.approx(0.69, abs=0.01) and decode["sustained_tensor_share"] is None


def test_headlines_and_table():
    rows = report.completed(ROWS)
    text = report.headlines(rows).splitlines()
    assert text[0].startswith("NVIDIA H200 (") and max(map(len, text[:3])) < 120 and len(text) == text.index("") + 8
    assert "69% of the read rate" in text[-3]
    assert (
        "| prefill: 8,192 queries x 8,192 keys, 64/4 heads | NVFP4 | 667 "
        "| 97% of the bf16 tensor cores | 613 | - | 9,105 | - |" in text
    )
    table = report.table(rows).splitlines()
    assert len(table) == 2 + 5  # a row for each case and format: public scales are not shown
    assert "| 75% (paused) |" in table[4] and "1600 (power cap)" in table[2] and "| 700 |" in table[2]


def test_a_share_above_all_is_told():
    fast = report.completed([row("prefill_q8k_k8k", "nvfp4", 300.0, 667.0)])
    assert report.too_high(report.completed(ROWS)) == []
    assert len(report.too_high(fast)) == 1 and report.too_high(fast)[0].startswith(
        "prefill_q8k_k8k nvfp4: tensor_share is 1"
    )


def test_the_caption_says_which_card():
    assert report.caption(ROWS) == "NVIDIA H200 (UUID not recorded), 700 W at most, jax 0.11.2, 2026-11-30, commit abc."
    known = [{**ROWS[0], "card_identity": {"uuid": "GPU-12", "power_limit_w": 650.0}}]
    assert report.caption(known) == "NVIDIA H200 (GPU-12), power cap 650 W, jax 0.11.2, 2026-11-30, commit abc."


def test_a_table_replaces_itself():
    text = report.replaced(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow", "| new |", "page.md")
    assert (
        text == f"above\n{report.BEGIN}\n| new |\n{report.END}\nbelow"
        and report.replaced(text, "| new |", "page.md") == text
    )
    for broken in ("", report.END + report.BEGIN, report.BEGIN, text + text):
        with pytest.raises(ValueError, match="page.md.*markers"):
            report.replaced(broken, "", "page.md")
    assert [report.number(x) for x in (None, 9988.6, 717.6, 31.94, 9.481)] == ["-", "9,989", "718", "31.9", "9.48"]


def test_check_compares_the_pages_with_the_record(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "docs/benchmarks.md"):
        (tmp_path / page).write_text(f"{report.BEGIN}\n{report.END}\n")
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "block_scores.json").write_text(json.dumps(ROWS))
    (tmp_path / "h200" / "fuzz.json").write_text("{}")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "SHOWN", tmp_path / "h200")
    monkeypatch.setattr(report, "RESULTS", tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["report.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        report.main()
    assert "README.md: its table is not that of" in ended.value.code and "benchmarks.md" in ended.value.code
    monkeypatch.setattr(sys, "argv", ["report.py"])
    with pytest.raises(SystemExit) as ended:
        report.main()
    assert ended.value.code == 0 and "97% of the bf16 tensor cores" in (tmp_path / "README.md").read_text()
    monkeypatch.setattr(sys, "argv", ["report.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        report.main()
    assert ended.value.code == 0


def test_roofline(tmp_path):
    roofline.plot(ROWS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
