"""The command line on CPU: the main job on a short context, the report, a benchmark of a small shape, and wrong options."""
import json

import pytest
from click.testing import CliRunner

from jax_fp4_indexer.cli import main


def invoke(*arguments, code=0):
    done = CliRunner().invoke(main, [str(a) for a in arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output


def test_demo_finds_what_was_planted(tmp_path):
    text = invoke("demo", "--context", 8192, "--out", tmp_path / "pictures")
    rows = [line for line in text.splitlines() if "nvfp4 │" in line or "mxfp4 │" in line]
    assert len(rows) == 2 and all("100.0%" in row and "x less" in row and " ms " in row for row in rows), text
    assert all((tmp_path / "pictures" / f"block_scores_{fmt}.png").stat().st_size > 10_000 for fmt in ("nvfp4", "mxfp4"))
    assert "jnp reference" in text


def test_demo_says_when_passages_are_missed(tmp_path):
    """Six passages cannot be among one block."""
    assert "a planted passage was not among the top 1 blocks" in invoke("demo", "--context", 8192, "--top-k", 1, "--out", tmp_path, code=1)


def test_doctor():
    done = CliRunner().invoke(main, ["doctor"])                # 1 where the library has not been built
    assert done.exit_code in (0, 1) and not isinstance(done.exception, Exception)
    for part in ("machine", "jaxlib", "FFI library", "block scores, decode, nvfp4", "block scores, prefill, mxfp4", "jnp reference"):
        assert part in done.output


def test_bench_of_a_small_shape(tmp_path):
    invoke("bench", "--b", 2, "--sq", 2, "--skv", 256, "--head-kv", 1, "--qhead-per-kv", 2, "--format", "both", "--no-limits", "--warmup", 0, "--iters", 2, "--repeats", 1,
           "--json", tmp_path / "results" / "rows.json")
    rows = json.loads((tmp_path / "results" / "rows.json").read_text())
    assert [row["format"] for row in rows] == ["nvfp4", "mxfp4"] and all(row["sustained_us"] > 0 and row["xla_us"] and row["gbs"] for row in rows)


def test_bench_lists_its_cases():
    text = invoke("bench", "--list-cases")
    assert all(name in text for name in ("prefill_q8k_k8k", "decode_8k", "decode_64k", "decode_skewed"))


@pytest.mark.parametrize("arguments, part", [
    (("demo", "--context", 100), "8192"),
    (("demo", "--out", "/proc/nowhere"), "--out: got /proc/nowhere, expected a folder"),
    (("bench", "--case", "nope"), "no case named 'nope'; --list-cases"),
    (("bench", "--b", 1), "--b, --sq and --skv together"),
    (("bench", "--b", 0, "--sq", 1, "--skv", 1), "0 is not in the range"),
    (("bench", "--b", 1, "--sq", 1, "--skv", 1, "--head-kv", 0), "0 is not in the range"),
    (("bench", "--json", "/proc/nowhere/rows.json"), "--json: got /proc/nowhere, expected a folder"),
])
def test_wrong_options(arguments, part):
    text = invoke(*arguments, code=2)
    assert part in text and "Traceback" not in text
