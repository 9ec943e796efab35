"""tests/parity/sanitize.py with a stand-in for compute-sanitizer: a process that dies is narrowed down to its case, errors are not lost."""
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jax_fp4_indexer.aot import inspect
from jax_fp4_indexer.primitives import runtime
from support import cases

PARITY = Path(__file__).parent / "parity"
SCRIPT = PARITY / "sanitize.py"
sys.path.insert(0, str(PARITY))
import altered  # noqa: E402
import cover  # noqa: E402
import harness  # noqa: E402
import run  # noqa: E402
import sanitize  # noqa: E402

TOOL = """#!/bin/sh
case "$*" in
  --help) echo "$HELP"; exit 0;;
  *tail_after_65-nvfp4*) exit 139;;
  *k_len_0_beside_5-mxfp4*) echo "0 failures"; echo "========= ERROR SUMMARY: 2 errors"; exit 0;;
esac
echo "$*" >> "$(dirname "$0")/commands"
echo "decode.public 2/2 cases"; echo "0 failures, 0 cases not run"; echo "========= ERROR SUMMARY: 0 errors"
"""
CLEAN = TOOL.replace("exit 139", "true").replace("2 errors", "0 errors")
VARIANTS = (sys.executable, str(SCRIPT), "--tool", "racecheck", "--rows", "variants", "--capability", "9.0", "--jobs", "3")


def stand_in(folder, text, **environment):
    tool = folder / "compute-sanitizer"
    tool.write_text(text)
    tool.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HELP": "", **environment}


def manifest():
    return json.loads(runtime.find("cubins/manifest.json").read_text())


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
def test_the_cover_launches_every_kernel_of_a_gpu(capability):
    arch = {variant["arch"] for variant in manifest()["variants"]} & {f"sm_{capability[0]}{capability[1]}{a}" for a in ("a", "")}
    every = {k for v in manifest()["variants"] if v["arch"] in arch for k in v["launches"]}
    pairs = cover.pairs(capability)
    assert set().union(*(cover.launches(pair, capability) for pair in pairs)) == every != set()
    assert len(pairs) == len(set(pairs)) < 50


def test_the_filter_names_all_kernels():
    assert all(kernel["symbol"].startswith(sanitize.KERNELS) for kernel in manifest()["kernels"])


def test_every_pair_of_the_cover_is_run_in_bare_programs_of_one_cta(tmp_path):
    out = tmp_path / "out.json"
    env = stand_in(tmp_path, CLEAN, HELP="--kernel-name arg\n--racecheck-num-workers arg\n--port arg", CUDA_VISIBLE_DEVICES="0,1")
    result = subprocess.run([*VARIANTS, "--json", str(out)], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(out.read_text())
    assert found["clean"] and set(found["clean"]) == set(cover.pairs((9, 0))) and min(found["kernels"].values()) >= 1
    commands = (tmp_path / "commands").read_text().splitlines()
    assert len(commands) == 6               # three on each GPU
    for command in commands:
        assert f"--kernel-name kns={sanitize.KERNELS} " in command and "--target-processes" not in command and " --bare " in command and " --ctas 1" in command
    assert len({command.split("--port ")[1].split()[0] for command in commands}) > 1
    given = run.chosen_pairs(",".join(command.split("--only ")[1].split()[0] for command in commands))
    assert sorted(f"{case}={variant}" for case, variants in given.items() for variant in variants) == sorted(cover.pairs((9, 0)))


def test_the_older_name_of_the_filter(tmp_path):
    env = stand_in(tmp_path, CLEAN, HELP="--kernel-regex arg")
    assert subprocess.run(VARIANTS, env=env, capture_output=True).returncode == 0
    assert f"racecheck --kernel-regex kns={sanitize.KERNELS} {sys.executable}" in (tmp_path / "commands").read_text()


def test_hazards_of_racecheck_are_errors(tmp_path):
    hazard = CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)")
    result = subprocess.run(VARIANTS, env=stand_in(tmp_path, hazard), capture_output=True, text=True)
    assert result.returncode == 1 and "1 x ========= RACECHECK SUMMARY: 3 hazards" in result.stdout, result.stdout + result.stderr


def test_a_program_that_ends_early_is_no_clean_one_and_says_why(tmp_path):
    killed = CLEAN.replace('echo "0 failures, 0 cases not run"; ', 'echo "Fatal Python error" >&2; ')
    result = subprocess.run(VARIANTS, env=stand_in(tmp_path, killed), capture_output=True, text=True)
    assert result.returncode == 1 and " 0 clean of " in result.stdout and "Fatal Python error" in result.stdout, result.stdout + result.stderr


def test_wrong_scores_are_errors(tmp_path):
    wrong = CLEAN.replace("0 failures", "1 failures")
    result = subprocess.run(VARIANTS, env=stand_in(tmp_path, wrong), capture_output=True, text=True)
    assert result.returncode == 1 and " 0 clean of " in result.stdout and "3 processes with errors" in result.stdout, result.stdout + result.stderr


def test_a_death_is_narrowed_down_and_errors_are_kept(tmp_path):
    env = stand_in(tmp_path, TOOL)
    out = tmp_path / "out.json"

    def sanitizer(*args):
        return subprocess.run([sys.executable, str(SCRIPT), "--rows", "small", "--capability", "9.0", "--jobs", "3", "--json", str(out), *args], env=env, capture_output=True, text=True)

    result = sanitizer()
    assert result.returncode == 1, result.stderr
    found = json.loads(out.read_text())
    assert found["died"] == ["tail_after_65-nvfp4"]
    assert [("k_len_0_beside_5-mxfp4" in e["cases"]) for e in found["errors"]] == [True]
    everything = len(found["clean"]) + 1 + len(found["errors"][0]["cases"])
    assert everything > 300 and not found["not_run"]

    earlier = tmp_path / "earlier.json"
    out.rename(earlier)
    assert sanitizer("--done", str(earlier)).returncode == 1
    assert len(json.loads(out.read_text())["clean"]) + len(found["clean"]) < everything          # what was clean is not run again

    assert sanitizer("--time-limit", "0").returncode == 3


def test_pairs_of_a_list():
    assert run.chosen_pairs("") == {}
    assert run.chosen_pairs("a=decode.public,b,a=auto.public,c=x.y,c,c=x.y") == {"a": ["decode.public", "auto.public"], "b": None, "c": None}


def test_a_bare_run_with_few_ctas_launches_what_it_is_told_once():
    """On the CPU: the reference in place of the kernels, the library with a manifest of one CTA."""
    result = subprocess.run([sys.executable, str(PARITY / "run.py"), "--bare", "--ctas", "1", "--impl", "reference", "--only", "k_len_1_alone-nvfp4=reference.public"],
                            env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    assert result.returncode == 0 and "reference.public                 1/1 cases" in result.stdout and "preordered" not in result.stdout, result.stdout + result.stderr
    assert "checks: none\n" in result.stdout and "done k_len_1_alone-nvfp4 1 variants" in result.stdout

    name = "k_len_1_alone-nvfp4=decode.public"
    result = subprocess.run([sys.executable, str(PARITY / "run.py"), "--only", name, "--exclude", "k_len"], env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    assert result.returncode == 1 and "--only names k_len_1_alone-nvfp4" in result.stderr


def test_few_ctas_are_in_the_manifest_that_the_library_reads(tmp_path):
    altered.build(tmp_path, ctas=3)
    for before, after in zip(manifest()["kernels"], json.loads((tmp_path / "cubins" / "manifest.json").read_text())["kernels"]):
        per_sm = before["grid"].get("per_sm")
        assert after == before | ({"grid": {"fixed": [3 * per_sm * before["cluster"][0], 1, 1]}} if per_sm else {})
        assert (tmp_path / "cubins" / after["cubin"]).read_bytes() == runtime.find(f"cubins/{after['cubin']}").read_bytes()


@pytest.mark.parametrize("name", altered.ALTERATIONS)
def test_an_alteration_changes_the_instructions_that_it_names_and_no_other(tmp_path, name):
    """nvdisasm reads what altered.py writes; the library takes it, for the manifest has its digest."""
    before, after = {"stores": (r"STG\.E (desc.*)\]", r"STG.E \1+0x7ff000]"), "cta_barriers": (r"BAR\.SYNC\.DEFER_BLOCKING 0x0 ", "NOP "),
                     "arrivals": (r"BAR\.ARV ", "BAR.SYNC.DEFER_BLOCKING ")}[name]
    unit, told = {how: (unit, tool) for tool, (how, unit, _) in sanitize.CONTROLS.items()}[name]
    (kernel,) = cover.launches(unit, (9, 0))
    assert altered.build(tmp_path, [name])[name] > 0
    made = json.loads((tmp_path / "cubins" / "manifest.json").read_text())["kernels"]
    assert all(hashlib.sha256((tmp_path / "cubins" / k["cubin"]).read_bytes()).hexdigest() == k["sha256"] for k in made)
    lines = [instructions(folder / f"sm_90a/{kernel}.cubin") for folder in (runtime.find("cubins/manifest.json").parent, tmp_path / "cubins")]
    changed = [(a, b) for a, b in zip(*lines) if a != b]
    assert len(lines[0]) == len(lines[1]) and changed, f"nothing that {told} could report"
    for a, b in changed:
        assert re.sub(before, after, a) == b
    assert len(changed) == sum(bool(re.search(before, line)) for line in lines[0])


def instructions(cubin):
    return [re.sub(r"\s+", " ", line) for line in re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/(.*?);", inspect.disassemble(cubin), re.M)]


@pytest.mark.parametrize("tool", sanitize.CONTROLS)
def test_a_control_fails_where_the_tool_is_silent(tmp_path, tool):
    def control(text):
        command = [sys.executable, str(SCRIPT), "--tool", tool, "--control", "--capability", "9.0"]
        return subprocess.run(command, env=stand_in(tmp_path, text), capture_output=True, text=True)

    how, unit, said = sanitize.CONTROLS[tool]
    silent = control(CLEAN)
    assert silent.returncode == 1 and "its silence means nothing" in silent.stdout, silent.stdout + silent.stderr
    command = (tmp_path / "commands").read_text()
    assert f"--tool {tool} " in command and f"--only {unit} " in command and f"--alter {how}" in command and ("--ctas 1" in command) == (tool != "memcheck")
    heard = control(CLEAN.replace("ERROR SUMMARY: 0 errors", f"Error: {said} at kernel\n========= ERROR SUMMARY: 1 errors"))
    assert heard.returncode == 0 and "reported, 1 x" in heard.stdout, heard.stdout + heard.stderr


def test_rows_of_one_shape_share_a_program(monkeypatch):
    compiled = []
    monkeypatch.setattr(harness, "Program", lambda inp, *how, **also: compiled.append(inp.shape) or object())
    programs = harness.Programs(("reference",))
    of = {c.name: programs.of(c.build()) for c in cases.table("small", match="tail_after_1,tail_after_63,k_len_64_alone,k_len_127_alone")}
    assert of["tail_after_1-nvfp4"] is of["tail_after_63-nvfp4"] is not of["tail_after_63-mxfp4"]
    assert of["k_len_64_alone-nvfp4"] is of["k_len_127_alone-nvfp4"] is not of["tail_after_1-nvfp4"]      # as many blocks
    assert len(compiled) == len(set(of.values()))
