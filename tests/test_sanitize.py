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
import altered_kernels  # noqa: E402
import sanitizer_cover  # noqa: E402
import racecheck_build  # noqa: E402
import runner  # noqa: E402
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
VARIANTS = (
    sys.executable,
    str(SCRIPT),
    "--tool",
    "racecheck",
    "--rows",
    "variants",
    "--capability",
    "9.0",
    "--jobs",
    "3",
)


def stand_in(folder, text, **environment):
    tool = folder / "compute-sanitizer"
    tool.write_text(text)
    tool.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HELP": "", **environment}


def manifest():
    return json.loads(runtime.find("cubins/manifest.json").read_text())


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
def test_the_cover_launches_every_block_score_kernel_of_a_gpu(capability):
    variants = [variant for variant in manifest()["variants"] if variant["op"] == "block_scores"]
    arch = {variant["arch"] for variant in variants} & {f"sm_{capability[0]}{capability[1]}{a}" for a in ("a", "")}
    every = {k for v in variants if v["arch"] in arch for k in v["launches"]}
    pairs = sanitizer_cover.pairs(capability)
    assert set().union(*(sanitizer_cover.launches(pair, capability) for pair in pairs)) == every != set()
    assert len(pairs) == len(set(pairs)) < 50


def test_the_filter_names_all_kernels():
    assert all(kernel["symbol"].startswith(sanitize.KERNELS) for kernel in manifest()["kernels"])


def test_every_pair_of_the_cover_is_run_in_bare_programs_of_one_cta(tmp_path):
    out = tmp_path / "out.json"
    env = stand_in(
        tmp_path, CLEAN, HELP="--kernel-name arg\n--racecheck-num-workers arg\n--port arg", CUDA_VISIBLE_DEVICES="0,1"
    )
    result = subprocess.run([*VARIANTS, "--json", str(out)], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(out.read_text())
    assert (
        found["clean"]
        and set(found["clean"]) == set(sanitizer_cover.pairs((9, 0)))
        and min(found["kernels"].values()) >= 1
    )
    commands = (tmp_path / "commands").read_text().splitlines()
    assert len(commands) == 6  # three on each GPU
    for command in commands:
        assert (
            f"--kernel-name kns={sanitize.KERNELS} " in command
            and "--target-processes" not in command
            and " --bare " in command
            and " --ctas 1" in command
        )
    assert len({command.split("--port ")[1].split()[0] for command in commands}) > 1
    given = run.chosen_pairs(",".join(command.split("--only ")[1].split()[0] for command in commands))
    assert sorted(f"{case}={variant}" for case, variants in given.items() for variant in variants) == sorted(
        sanitizer_cover.pairs((9, 0))
    )


def test_the_patched_copy_is_imported_whatever_is_installed(tmp_path):
    """An editable installation's finder comes before every path; `make` installs so."""
    racecheck_build.snapshot(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", "import jax_fp4_indexer; print(jax_fp4_indexer.__file__)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(tmp_path), found.stdout + found.stderr


def test_a_gpu_that_is_not_there_is_refused(tmp_path):
    env = stand_in(tmp_path, CLEAN)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    refused = subprocess.run([*VARIANTS, "--gpus", "0,1"], env=env, capture_output=True, text=True)
    assert (
        refused.returncode == 1
        and "no GPU 1 on this machine. nvidia-smi lists 0" in refused.stderr
        and not (tmp_path / "commands").exists()
    )
    assert subprocess.run([*VARIANTS, "--gpus", "0"], env=env, capture_output=True).returncode == 0


def test_the_older_name_of_the_filter(tmp_path):
    env = stand_in(tmp_path, CLEAN, HELP="--kernel-regex arg")
    assert subprocess.run(VARIANTS, env=env, capture_output=True).returncode == 0
    assert f"racecheck --kernel-regex kns={sanitize.KERNELS} {sys.executable}" in (tmp_path / "commands").read_text()


def test_hazards_of_racecheck_are_errors(tmp_path):
    hazard = CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)")
    result = subprocess.run(VARIANTS, env=stand_in(tmp_path, hazard), capture_output=True, text=True)
    assert result.returncode == 1 and "1 x ========= RACECHECK SUMMARY: 3 hazards" in result.stdout, (
        result.stdout + result.stderr
    )


def test_a_program_that_ends_early_is_no_clean_one_and_says_why(tmp_path):
    killed = CLEAN.replace('echo "0 failures, 0 cases not run"; ', 'echo "Fatal Python error" >&2; ')
    result = subprocess.run(VARIANTS, env=stand_in(tmp_path, killed), capture_output=True, text=True)
    assert result.returncode == 1 and " 0 clean of " in result.stdout and "Fatal Python error" in result.stdout, (
        result.stdout + result.stderr
    )


def test_wrong_scores_are_errors(tmp_path):
    wrong = CLEAN.replace("0 failures", "1 failures")
    result = subprocess.run(VARIANTS, env=stand_in(tmp_path, wrong), capture_output=True, text=True)
    assert result.returncode == 1 and " 0 clean of " in result.stdout and "3 processes with errors" in result.stdout, (
        result.stdout + result.stderr
    )


def test_a_death_is_narrowed_down_and_errors_are_kept(tmp_path):
    env = stand_in(tmp_path, TOOL)
    out = tmp_path / "out.json"

    def sanitizer(*args):
        return subprocess.run(
            [
                sys.executable,
                str(SCRIPT),
                "--rows",
                "small",
                "--capability",
                "9.0",
                "--jobs",
                "3",
                "--json",
                str(out),
                *args,
            ],
            env=env,
            capture_output=True,
            text=True,
        )

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
    assert (
        len(json.loads(out.read_text())["clean"]) + len(found["clean"]) < everything
    )  # what was clean is not run again

    assert sanitizer("--time-limit", "0").returncode == 3


def test_pairs_of_a_list():
    assert run.chosen_pairs("") == {}
    assert run.chosen_pairs("a=decode.public,b,a=auto.public,c=x.y,c,c=x.y") == {
        "a": ["decode.public", "auto.public"],
        "b": None,
        "c": None,
    }


def test_a_bare_run_with_few_ctas_launches_what_it_is_told_once():
    """On the CPU: the reference in place of the kernels, the library with a manifest of one CTA."""
    result = subprocess.run(
        [
            sys.executable,
            str(PARITY / "run.py"),
            "--bare",
            "--ctas",
            "1",
            "--impl",
            "reference",
            "--only",
            "k_len_1_alone-nvfp4=reference.public",
        ],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert (
        result.returncode == 0
        and "reference.public                 1/1 cases" in result.stdout
        and "preordered" not in result.stdout
    ), result.stdout + result.stderr
    assert "checks: none\n" in result.stdout and "done k_len_1_alone-nvfp4 1 variants" in result.stdout

    name = "k_len_1_alone-nvfp4=decode.public"
    result = subprocess.run(
        [sys.executable, str(PARITY / "run.py"), "--only", name, "--exclude", "k_len"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and "--only names k_len_1_alone-nvfp4" in result.stderr


def test_few_ctas_are_in_the_manifest_that_the_library_reads(tmp_path):
    altered_kernels.build(tmp_path, ctas=3)
    for before, after in zip(
        manifest()["kernels"], json.loads((tmp_path / "cubins" / "manifest.json").read_text())["kernels"]
    ):
        per_sm = before["grid"].get("per_sm")
        assert after == before | ({"grid": {"fixed": [3 * per_sm * before["cluster"][0], 1, 1]}} if per_sm else {})
        assert (tmp_path / "cubins" / after["cubin"]).read_bytes() == runtime.find(
            f"cubins/{after['cubin']}"
        ).read_bytes()


# alteration: (instructions, what becomes of them)
CHANGES = {
    "stores": (r"STG\.E(\.EF)? (desc.*)\]", r"STG.E\1 \2+0x7ff000]"),
    "cta_barriers": (r"BAR\.SYNC\.DEFER_BLOCKING 0x0 ", "NOP "),
    "named_barriers": (r"BAR\.(SYNC\.DEFER_BLOCKING|ARV) (R\d+|0x[2-9a-f]), 0x\w+ ", "NOP "),
    "arrivals": (r"BAR\.ARV ", "BAR.SYNC.DEFER_BLOCKING "),
}


@pytest.mark.parametrize("tool, control", [(tool, c) for tool, controls in sanitize.CONTROLS.items() for c in controls])
def test_an_alteration_changes_the_instructions_that_it_names_and_no_other(tmp_path, tool, control):
    """nvdisasm reads what altered_kernels.py writes; the library takes it, for the manifest has its digest."""
    kernels, names = sanitizer_cover.launches(control.unit, (9, 0)), control.alter.split(",")
    assert min(altered_kernels.build(tmp_path, names).values()) > 0
    made = json.loads((tmp_path / "cubins" / "manifest.json").read_text())["kernels"]
    assert all(hashlib.sha256((tmp_path / "cubins" / k["cubin"]).read_bytes()).hexdigest() == k["sha256"] for k in made)
    changes = 0
    for kernel in kernels:
        before, after = [
            instructions(folder / f"sm_90a/{kernel}.cubin")
            for folder in (runtime.find("cubins/manifest.json").parent, tmp_path / "cubins")
        ]
        assert len(before) == len(after)
        for old, new in zip(before, after):
            changes += old != new
            for name in names:
                old = re.sub(*CHANGES[name], old)
            assert new == old
    assert changes or control.alter == "arrivals" and tool == "racecheck", f"nothing that {tool} could report"


def test_who_waits_at_a_named_barrier_does_so_at_one_place():
    """In prefill; synccheck ends a kernel where warps meet by two BAR.SYNC of one number."""
    folder, seen = runtime.find("cubins/manifest.json").parent, 0
    for kernel in manifest()["kernels"]:
        if kernel["arch"] == "sm_90a" and ".prefill" in kernel["name"]:
            places = re.findall(r"BAR\.SYNC\.DEFER_BLOCKING (0x\w+)", "\n".join(instructions(folder / kernel["cubin"])))
            assert "0x0" in places and len(places) == len(set(places)), kernel["name"]
            seen += len(places) > 1
    assert seen == 6  # the staged ones


def test_kernels_in_which_every_lane_arrives(tmp_path):
    """The patches fit these sources, touch what arrives and nothing else, and say so where an arrival is written in another way."""
    sources = {
        p.name: p.read_text()
        for p in (Path(racecheck_build.jax_fp4_indexer.__file__).parent / racecheck_build.KERNELS).glob("sm90_*.py")
    }
    made = racecheck_build.patched(sources)
    changed = [
        line for name in sources for line in sorted(set(made[name].splitlines()) ^ set(sources[name].splitlines()))
    ]
    assert changed and all(
        re.search(r"mbarrier_init|mbarrier_arrive|elect_one|lane == 0|make_barriers", line) for line in changed
    )
    racecheck_build.snapshot(tmp_path)
    assert (tmp_path / "jax_fp4_indexer" / racecheck_build.KERNELS / "sm90_prefill.py").read_text() == made[
        "sm90_prefill.py"
    ]
    with pytest.raises(LookupError, match="sm90_prefill.py has 0 times"):
        racecheck_build.patched(
            {**sources, "sm90_prefill.py": sources["sm90_prefill.py"].replace("f.consumer_warps)", "f.warps)")}
        )
    with pytest.raises(LookupError, match="sm90_prepare.py one lane arrives"):
        racecheck_build.patched(
            {
                **sources,
                "sm90_prepare.py": sources["sm90_prepare.py"] + "    if lane == 0:\n        mbarrier_arrive(bar)\n",
            }
        )


@pytest.mark.parametrize(
    "variant, row",
    [
        ("sm_90a.native.prefill.mxfp4.public.n0", "forms_mixed"),
        ("sm_90a.native.prefill.mxfp4.public.n512", "forms_mixed"),
        ("sm_90a.native.decode.mxfp4.public.n16", "sim_many_pages"),
    ],
)
def test_kernels_in_which_every_lane_arrives_are_right(tmp_path, variant, row):
    """In the simulator: as many arrivals as each barrier expects, and no race."""
    racecheck_build.snapshot(tmp_path)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }
    result = subprocess.run(
        [sys.executable, "-m", "simulated", "run", variant, "--cases", row, "--schedules", "eager,random:1"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    found = re.search(r": (\d+) of (\d+) right", result.stdout)
    assert result.returncode == 0 and found and found[1] == found[2] != "0", result.stdout + result.stderr


def test_other_kernels_and_how_they_are_altered_reach_the_program(tmp_path):
    result = subprocess.run(
        [*VARIANTS, "--cubins", "some/folder", "--alter", "arrivals"],
        env=stand_in(tmp_path, CLEAN),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert all(
        " --alter arrivals --cubins some/folder" in line for line in (tmp_path / "commands").read_text().splitlines()
    )
    altered_kernels.build(tmp_path / "first", ["arrivals"])
    altered_kernels.build(tmp_path / "second", ["named_barriers"], given=tmp_path / "first" / "cubins")
    (kernel,) = sanitizer_cover.launches("q_lengths_causal-nvfp4=decode.public", (9, 0))
    text = "\n".join(instructions(tmp_path / f"second/cubins/sm_90a/{kernel}.cubin"))
    assert "BAR.ARV" not in text and not re.search(r"BAR\.SYNC\.DEFER_BLOCKING R", text)


def instructions(cubin):
    return [
        re.sub(r"\s+", " ", line)
        for line in re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/(.*?);", inspect.disassemble(cubin), re.M)
    ]


@pytest.mark.parametrize("tool", sanitize.CONTROLS)
def test_a_control_fails_where_the_tool_is_silent(tmp_path, tool):
    controls = sanitize.CONTROLS[tool]

    def control(text, *more):
        command = [sys.executable, str(SCRIPT), "--tool", tool, "--control", "--capability", "9.0", *more]
        return subprocess.run(command, env=stand_in(tmp_path, text), capture_output=True, text=True)

    silent = control(CLEAN, "--cubins", "some/folder")
    assert silent.returncode == 1 and silent.stdout.count("its silence means nothing") == len(controls), (
        silent.stdout + silent.stderr
    )
    commands = (tmp_path / "commands").read_text().splitlines()
    assert len(commands) == len(controls)
    for command, c in zip(commands, controls):
        assert (
            f"--tool {tool} " in command
            and f"--only {c.unit} " in command
            and f"--alter {c.alter}" in command
            and ("--ctas 1" in command) == (tool != "memcheck")
        )
        assert ("--cubins some/folder" in command) == c.every_lane
    reported = CLEAN.replace(
        "ERROR SUMMARY: 0 errors", f"Error: {controls[0].said} at kernel\n========= ERROR SUMMARY: 1 errors"
    )
    heard = control(reported, "--cubins", "some/folder")
    assert heard.returncode == 0 and heard.stdout.count("reported, 1 x") == len(controls), heard.stdout + heard.stderr
    without = control(reported)
    assert without.returncode == 0 and without.stdout.count(
        "left out, it is for the kernels of racecheck_build.py"
    ) == sum(c.every_lane for c in controls)
    # one that is silent is enough
    mixed = control(
        reported.replace(
            "esac",
            f'  *{controls[-1].unit}*) echo "0 failures"; echo "========= ERROR SUMMARY: 0 errors"; exit 0;;\nesac',
            1,
        ),
        "--cubins",
        "some/folder",
    )
    assert mixed.returncode == 1 and mixed.stdout.count("reported, 1 x") == len(controls) - 1, mixed.stdout


def test_rows_of_one_shape_share_a_program(monkeypatch):
    compiled = []
    monkeypatch.setattr(runner, "Program", lambda inp, *how, **also: compiled.append(inp.shape) or object())
    programs = runner.Programs(("reference",))
    of = {
        c.name: programs.of(c.build())
        for c in cases.table("small", match="tail_after_1,tail_after_63,k_len_64_alone,k_len_127_alone")
    }
    assert of["tail_after_1-nvfp4"] is of["tail_after_63-nvfp4"] is not of["tail_after_63-mxfp4"]
    assert of["k_len_64_alone-nvfp4"] is of["k_len_127_alone-nvfp4"] is not of["tail_after_1-nvfp4"]  # as many blocks
    assert len(compiled) == len(set(of.values()))
