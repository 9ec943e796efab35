"""The command line as a user calls it, on whatever this machine has."""

import json
import re
import runpy
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from support import check, inputs, oracle

import jax_fp4_indexer as jfi
from jax_fp4_indexer.cli import demo
from jax_fp4_indexer.cli.main import main
from jax_fp4_indexer.specs import OPS


def run(*args, status=0):
    result = CliRunner().invoke(main, args)
    assert result.exit_code == status, (result.exit_code, result.output, result.exception)
    return result.output


def test_demo_finds_what_was_planted_and_draws_it(tmp_path):
    text = run("demo", "--context", "8192", "--out", str(tmp_path))
    rows = {
        name: line
        for line in text.splitlines()
        for name in ("bf16, plain XLA", "nvfp4", "mxfp4")
        if f"│ {name}" in line
    }
    assert all(re.search(r"│ +[\d.]+ (us|ms|s) │", row) for row in rows.values()), text
    for name in ("nvfp4", "mxfp4"):
        planted, recall, error = (float(x) for x in re.findall(r"([\d.]+)%", rows[name]))
        # FP4 is close to bf16 and is not bf16: 4.6 and 6.0 % of error for normal vectors
        assert planted == 100.0 and 75 <= recall < 100 and 2 < error < 10, rows[name]
        picture = (tmp_path / f"block_scores_{name}.png").read_bytes()
        assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) > 10_000


@pytest.mark.parametrize("fmt", demo.FORMATS)
def test_scores_of_the_demo_are_those_of_the_oracle(fmt):
    made = demo.make_context(8192, 3)
    arrays = {name: np.asarray(x) for name, x in demo.quantised(made, fmt, 3).items()}
    arrays = {name: x if x.dtype == np.int32 else x.view(np.uint8) for name, x in arrays.items()}
    names = {"q_fp4": "q", "k_fp4": "k", "cu_seqlens_q": "cu_q", "cu_seqlens_k": "cu_k", "cu_page_offsets": "cu_p"}
    call = inputs.Inputs(
        fmt, **{names.get(name, name): x for name, x in arrays.items()}, max_seqlen_q=demo.QUERIES, max_seqlen_k=8192
    )
    truth = oracle.evaluate(call)
    found = demo.score(made, fmt, 3)
    assert (
        not check.compare(found.scores, truth, exact=False).problem
        and found.nbytes == arrays["k_fp4"].nbytes + arrays["k_scale"].nbytes
    )
    assert check.compare(demo.score_bf16(made).scores, truth, exact=False).problem
    # and the codes are those of the keys: dequantised, they lie within a sixth of the largest value of a group
    keys = oracle.dequantise(arrays["k_fp4"], arrays["k_scale"], fmt)[0][arrays["kv_indices"]]
    wide = np.asarray(made.k, np.float64)
    assert np.sqrt(np.mean((keys - wide) ** 2) / np.mean(wide**2)) < 0.15


@pytest.mark.parametrize(
    "option, value, part",
    [
        ("--out", "/proc", "--out: got /proc, expected a folder that can be made and written"),
        ("--context", "100", "8192"),
        ("--context", str(10**12), "--context: got 1000000000000, which takes"),
        ("--seed", "-1", "-1 is not in the range"),
        ("--top-k", "0", "0 is not in the range"),
    ],
)
def test_demo_says_what_is_wrong(option, value, part):
    assert part in run("demo", option, value, status=2)


def test_bf16_scores_of_the_demo_are_causal():
    """A context one key past a page: the last block is visible to the last query alone, and the demo compares which
    blocks exist."""
    made = demo.make_context(8193, 0)
    exact = np.isfinite(demo.score_bf16(made).scores)
    assert exact[:, 64, 3].all() and not exact[:, 64, :3].any()
    assert (np.isfinite(demo.score(made, "mxfp4", 0).scores) == exact).all()


def test_version_and_the_module_as_a_command(monkeypatch):
    assert jfi.__version__ in run("--version")
    monkeypatch.setattr(sys, "argv", ["jax_fp4_indexer", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("jax_fp4_indexer", run_name="__main__")
    assert ended.value.code == 0


def test_bench_without_a_gpu_takes_a_small_case():
    text = run("bench", "--no-limits", "--no-xla", "--iters", "1", "--repeats", "1", "--warmup", "0")
    assert "no GPU: small cases" in text and "cpu_decode" in text


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


def test_doctor_names_the_machine_and_every_op():
    text = " ".join(run("doctor").split())
    for part in ("jaxlib", "FFI library", "cubins", *OPS):
        assert part in text, part


def test_bench_lists_its_cases():
    text = run("bench", "--list-cases", "--op", "block_scores")
    for name in ("prefill_q8k_k8k", "prefill_q8k_k64k", "decode_uniform", "decode_skewed", "decode_8k", "decode_64k"):
        assert name in text


def test_bench_of_an_own_shape_writes_rows(tmp_path):
    path = tmp_path / "rows.json"
    run(
        "bench",
        "--b",
        "1",
        "--sq",
        "4",
        "--skv",
        "256",
        "--head-kv",
        "1",
        "--qhead-per-kv",
        "2",
        "--iters",
        "2",
        "--repeats",
        "2",
        "--warmup",
        "1",
        "--scale-layout",
        "both",
        "--json",
        str(path),
    )
    rows = json.loads(path.read_text())
    assert [r["scale_layout"] for r in rows] == ["public", "preordered_mma"]
    for row in rows:
        # by the host's clock, where a burst is a difference of two times: it is only as good as the machine is idle
        assert (
            row["case"] == "custom"
            and np.isfinite(row["median_us"])
            and row["sustained_us"] > 0
            and row["sustained_read_share"] > 0
        )
        assert (
            np.isfinite(row["xla_us"])
            and np.isfinite(row["reference_us"])
            and row["method"] == "host clock"
            and row["chain_us"] is None
        )


@pytest.mark.parametrize(
    "args, part",
    [
        (("--case", "no_such"), "--list-cases"),
        (("--op", "no_such"), "--op: got no_such, expected one of"),
        (("--case", "prefill_q8k_k8k_wide", "--format", "nvfp4"), "expected what a chosen case has"),
        (("--b", "2"), "--skv"),
        (("--format", "fp8"), "nvfp4"),
        (("--b", "0", "--sq", "1", "--skv", "1"), "0 is not in the range"),
        (("--b", "1", "--sq", "1", "--skv", "1", "--head-kv", "0"), "0 is not in the range"),
        (("--json", "/proc/nowhere/rows.json"), "--json: got /proc/nowhere, expected a folder"),
        (("--json", ""), "--json: got an empty name"),
        (("--json", "/proc/rows.json"), "--json: got /proc, expected a folder"),
        (("--case", "decode_8k", "--b", "1", "--sq", "1", "--skv", "1"), "got --case or --op and an own shape"),
        (("--head-kv", "2"), "an own shape needs --b"),
        (("--non-causal",), "an own shape needs --b"),
        (("--b", "1", "--sq", "1", "--skv", "1000000000000"), "is not in the range"),
        (
            ("--b", "1000000", "--sq", "1", "--skv", "1000000"),
            "--b: got 1000000 sequences of 1 queries and 1000000 keys, expected at most 2^31 - 1",
        ),
        (("--b", "1", "--sq", "1000000", "--skv", "1000000000"), "GiB, expected what fits into the"),
    ],
)
def test_bench_says_what_is_wrong(args, part):
    assert part in run("bench", *args, status=2)
