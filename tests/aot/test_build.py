"""The build: what it writes, that it repeats, what makes it compile again, and what it refuses."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest
from click.testing import CliRunner

from jax_fp4_indexer.aot import compile as compiler
from jax_fp4_indexer.aot import inspect, manifest
from jax_fp4_indexer.aot.cli import main
from jax_fp4_indexer.aot.variants import Kernel, Variant
from jax_fp4_indexer.configs.arch import ARCHS
from jax_fp4_indexer.specs import OPS

import aot_toy_table as table

ENTRY_KEYS = {
    "name",
    "arch",
    "cubin",
    "sha256",
    "symbol",
    "block",
    "cluster",
    "grid",
    "dynamic_shared_bytes",
    "params",
    "registers",
    "spill_bytes",
    "static_shared_bytes",
    "tmem_columns",
    "instructions",
    "source",
    "fingerprint",
}
COUNTED = ("HMMA", "IMMA", "HGMMA", "IGMMA", "LDL", "STL")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cubins")
    compiler.build(folder, table.KERNELS, table.VARIANTS)
    return folder


@pytest.fixture
def copy(built, tmp_path):
    return pathlib.Path(shutil.copytree(built, tmp_path / "cubins"))


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


def run(*args):
    return CliRunner().invoke(main, [str(a) for a in args])


def test_the_manifest_has_the_documented_fields(built):
    data = json.loads((built / "manifest.json").read_text())
    assert data.keys() == {"schema", "fingerprint", "dsl", "ops", "kernels", "variants"} and data["schema"] == 2
    assert data["ops"] == [OPS["block_scores"].to_json()]
    assert [(k["arch"], k["name"]) for k in data["kernels"]] == [
        (a, n) for a in ("sm_80", "sm_90a") for n in ("toy.fill.x1", "toy.fill.x2", "toy.matrix")
    ]
    for kernel in data["kernels"]:
        assert kernel.keys() == ENTRY_KEYS
        cubin = (built / kernel["cubin"]).read_bytes()
        assert kernel["sha256"] == manifest.sha256(cubin)
        assert kernel["symbol"].encode() in cubin
        assert kernel["spill_bytes"] == 0 and 0 < kernel["registers"] < 32 and kernel["instructions"] > 5
        assert kernel["params"][0] == {"buffer": "q"} and kernel["params"][-1] == {"i32": "pages_per_pass"}
    known = {(k["arch"], k["name"]) for k in data["kernels"]}
    assert len(data["variants"]) == 4
    for variant in data["variants"]:
        assert variant.keys() == {"op", "select", "implementation", "arch", "bound", "repeat", "scratch", "launches"}
        assert all((variant["arch"], launch) in known for launch in variant["launches"])


def test_two_builds_give_the_same_bytes(built, tmp_path):
    """The second one in another order and in two goes, so that neither what else a process compiles nor what was kept matters."""
    compiler.build(tmp_path, table.KERNELS[::-1], table.VARIANTS, only=["Matrix"])
    compiler.build(tmp_path, table.KERNELS[::-1], table.VARIANTS)
    assert files(tmp_path) == files(built)


def test_no_path_of_the_machine_is_in_a_cubin(built):
    for name, data in files(built).items():
        assert str(pathlib.Path(__file__).parent).encode() not in data, name
        assert b"/tmp/" not in data, name


def test_an_unchanged_kernel_is_not_compiled_again(copy, monkeypatch):
    monkeypatch.setattr(compiler, "_run_worker", lambda *a: pytest.fail("a compiler process was started"))
    before = files(copy)
    result = compiler.build(copy, table.KERNELS, table.VARIANTS)
    assert (result.compiled, len(result.skipped)) == ([], 6)
    assert files(copy) == before


def test_a_damaged_cubin_is_found_and_compiled_again(copy, built):
    cubin = copy / "sm_80/toy.matrix.cubin"
    cubin.write_bytes(cubin.read_bytes()[:-1] + b"x")
    (copy / "sm_80/left_over.cubin").write_bytes(b"")
    assert manifest.stale(copy, table.KERNELS, table.VARIANTS) == [
        "sm_80 toy.matrix: sm_80/toy.matrix.cubin is not the file that was built",
        "sm_80/left_over.cubin: not in the manifest",
    ]
    assert compiler.build(copy, table.KERNELS, table.VARIANTS).compiled == ["sm_80 toy.matrix"]
    assert files(copy) == files(built)


def test_a_changed_source_is_stale_also_behind_an_import(tmp_path, monkeypatch):
    package = tmp_path / "aot_changing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "number.py").write_text("N = 3\n")
    (package / "bystander.py").write_text("")
    (package / "one.py").write_text(
        "from aot_toys import Fill\nfrom .number import N\n\nclass One(Fill):\n    def __init__(self):\n        super().__init__(N)\n"
    )
    (package / "two.py").write_text(
        "from aot_toys import Fill\n\nclass Two(Fill):\n    def __init__(self):\n        super().__init__(9)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    kernels = [Kernel("aot_changing.one:One", "sm_80"), Kernel("aot_changing.two:Two", "sm_80")]
    variants = [Variant("block_scores", table.SELECT, "sm_80", (kernels[0],))]
    compiler.build(tmp_path / "out", kernels, variants)
    assert manifest.stale(tmp_path / "out", kernels, variants) == []
    (package / "bystander.py").write_text("changed = 1\n")
    assert manifest.stale(tmp_path / "out", kernels, variants) == []
    (package / "number.py").write_text("N = 41\n")
    assert manifest.stale(tmp_path / "out", kernels, variants) == [
        "sm_80 toy.fill.x3: its sources changed since it was built"
    ]
    assert compiler.build(tmp_path / "out", kernels, variants).compiled == ["sm_80 toy.fill.x41"]
    assert manifest.stale(tmp_path / "out", kernels, variants) == []
    assert not (tmp_path / "out/sm_80/toy.fill.x3.cubin").exists()


def test_another_dsl_version_is_stale(copy, monkeypatch):
    monkeypatch.setattr(manifest, "dsl_version", lambda: "0.0.1")
    found = manifest.stale(copy, table.KERNELS, table.VARIANTS)
    assert (
        len(found) == 1
        and found[0].startswith("built with nvidia-cutlass-dsl ")
        and found[0].endswith("installed is 0.0.1")
    )


def test_a_changed_variant_is_stale(copy):
    assert manifest.stale(copy, table.KERNELS, table.VARIANTS[:-1]) == [
        "the list of variants, or a fingerprint, differs from what this version writes"
    ]


def test_a_manifest_of_another_schema_is_refused(copy):
    data = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**data, "schema": 99}))
    with pytest.raises(
        manifest.ManifestError, match="schema 99, this version reads 2; run: python -m jax_fp4_indexer.aot build"
    ):
        manifest.read(copy)


BAD = {
    "Spill": ["spills: "],
    "NoMatrix": ["instructions: 0 HMMA; expected 1 or more"],
    "TooMuchShared": ["shared memory: 0 static + 102400 dynamic bytes; sm_80 allows 101376 a CTA"],
    "Crowded": ["grid: 40 CTAs an SM requested, 16 fit"],
    "WrongParams": ["parameters: the cubin takes [8, "],
    "DoesNotTrace": ["planted mistake in the kernel"],
    "Dies": ["the compiler process ended with signal SIGABRT"],
    "Matrix": ["not tried: the process ended at aot_toys:Dies()"],
}


def test_bad_kernels_are_refused_by_name_and_the_good_one_stays(tmp_path):
    kernels = [Kernel("aot_toys:Fill", "sm_80"), *(Kernel(f"aot_toys:{name}", "sm_80") for name in BAD)]
    variants = [Variant("block_scores", table.SELECT, "sm_80", (k,)) for k in kernels]
    with pytest.raises(compiler.BuildError) as error:
        compiler.build(tmp_path, kernels, variants)
    for name, expected in BAD.items():
        words = {"NoMatrix": "no_matrix", "TooMuchShared": "too_much_shared", "WrongParams": "wrong_params"}.get(
            name, name
        ).lower()
        assert [p for p in error.value.problems if words in p.lower() and expected[0] in p], (
            name,
            error.value.problems,
        )
    data = manifest.read(tmp_path)
    assert [k["name"] for k in data["kernels"]] == ["toy.fill.x1"]
    assert [v["launches"] for v in data["variants"]] == [["toy.fill.x1"]]
    assert sorted(files(tmp_path)) == ["manifest.json", "sm_80/toy.fill.x1.cubin", "sm_80/toy.fill.x1.ptx"]


def test_a_kernel_whose_wgmma_is_serialised_is_refused(tmp_path):
    with pytest.raises(compiler.BuildError) as error:
        compiler.build(tmp_path, [Kernel("aot_toys:Serialised", "sm_90a")], [])
    assert any(
        "sm_90a toy.serialised: ptxas: (C7517) wgmma.wait_group is injected" in p for p in error.value.problems
    ), error.value.problems


def test_gates_that_could_not_be_asked_are_named(tmp_path, monkeypatch):
    kernels = [Kernel("aot_toys:Fill", "sm_80", (("factor", n),)) for n in (1, 2)]
    real = compiler._run_worker
    monkeypatch.setattr(
        compiler,
        "_run_worker",
        lambda *how: ((job, {**answer, "unchecked": ["ptxas was not asked"]}) for job, answer in real(*how)),
    )
    assert compiler.build(tmp_path, kernels, []).unchecked == ["ptxas was not asked (2 kernels)"]
    monkeypatch.setitem(sys.modules, "aot_two", types.SimpleNamespace(KERNELS=kernels, VARIANTS=()))
    done = run("build", "--out", tmp_path / "again", "--table", "aot_two", "--quiet")
    assert done.exit_code == 0 and "not checked: ptxas was not asked (2 kernels)" in done.output
    done = run("build", "--out", tmp_path / "again", "--table", "aot_two", "--quiet")
    assert "not checked" not in done.output  # nothing was built


def test_one_name_made_twice_is_refused(tmp_path):
    kernels = [Kernel("aot_toys:Fill", "sm_80", (("factor", 1),)), Kernel("aot_toys:Fill", "sm_80")]
    with pytest.raises(compiler.BuildError, match="sm_80 toy.fill.x1: made by both"):
        compiler.build(tmp_path, kernels, [])


def test_the_command_line(copy, tmp_path, monkeypatch):
    where = ("--out", copy, "--table", "aot_toy_table")
    done = run("build", *where)
    assert done.exit_code == 0 and done.output.startswith("0 compiled, 6 up to date; 6 kernels, 4 variants")
    done = run("list", "--out", copy)
    assert done.exit_code == 0
    row = next(
        line for line in done.output.splitlines() if line.startswith("sm_90a block_scores decode nvfp4 public native")
    )
    assert row.split()[6:10] == ["<=", "16", "toy.fill.x1", "128"]
    assert "4 variants, 6 kernels" in done.output
    assert run("verify", *where).exit_code == 0
    done = run("explain", "toy.matrix", "--out", copy, "--capability", "8.6", "--bound", "17", "--set", "path=decode")
    assert done.exit_code == 0 and "sm_80/toy.matrix.cubin" in done.output
    assert "on 8.6: block_scores/decode/nvfp4/public/portable/sm_80/0" in done.output
    assert run("explain", "nothing", "--out", copy).exit_code == 1
    done = run("sass", "toy.matrix", "--out", copy, "--arch", "sm_80")
    assert done.exit_code == 0 and "HMMA.16816.F32" in done.output
    assert run("sass", "toy.matrix", "--out", copy, "--hazards").exit_code == 0
    (copy / "sm_90a/toy.matrix.cubin").unlink()
    done = run("verify", *where)
    assert done.exit_code == 1
    assert (
        "sm_90a toy.matrix: sm_90a/toy.matrix.cubin is absent" in done.output
        and "run: python -m jax_fp4_indexer.aot build" in done.output
    )
    done = run("verify", "--out", tmp_path / "none")
    assert done.exit_code == 1 and "absent; run: python -m jax_fp4_indexer.aot build" in done.output
    assert run("build", "--arch", "sm_70", "--out", copy).exit_code == 2


def test_verify_rebuild_compares_bytes(tmp_path, monkeypatch):
    kernels = (Kernel("aot_toys:Fill", "sm_80"),)
    monkeypatch.setitem(sys.modules, "aot_one_kernel", types.SimpleNamespace(KERNELS=kernels, VARIANTS=()))
    where = ("--out", tmp_path, "--table", "aot_one_kernel")
    assert run("build", *where).exit_code == 0
    done = run("verify", "--rebuild", *where)
    assert done.exit_code == 0 and "1 kernels, two rebuilds gave the same bytes" in done.output
    data = manifest.read(tmp_path)
    cubin = tmp_path / data["kernels"][0]["cubin"]
    cubin.write_bytes(cubin.read_bytes() + b"x")  # consistent with its manifest, but not what the sources make
    data["kernels"][0]["sha256"] = manifest.sha256(cubin.read_bytes())
    manifest.write(tmp_path, data)
    assert run("verify", *where).exit_code == 0
    done = run("verify", "--rebuild", *where)
    assert done.exit_code == 1 and f"{data['kernels'][0]['cubin']}: other bytes in the first rebuild" in done.output


def test_the_choice_follows_the_documented_rule(built):
    data = manifest.read(built)
    pick = lambda capability, columns, implementation="auto": manifest.choose(
        data, capability, op="block_scores", select=dict(table.SELECT), bound=columns, implementation=implementation
    )[0]
    assert pick((9, 0), 16)["implementation"] == "native"
    assert pick((9, 0), 17)["implementation"] == "native"  # the widest native one, before any portable one
    assert pick((9, 0), 1, "portable")["launches"] == ["toy.fill.x2"]
    assert pick((8, 9), 16)["launches"] == ["toy.fill.x1", "toy.matrix"]
    assert pick((8, 0), 17)["launches"] == ["toy.fill.x2"]
    assert pick((9, 1), 1) is None and pick((7, 5), 1) is None and pick((10, 0), 1) is None


def test_the_manifest_is_read_without_the_dsl_or_jax(built):
    code = (
        "import sys\nsys.modules.update(cutlass=None, click=None)\nfrom jax_fp4_indexer.aot import manifest, variants\n"
        f"assert len(manifest.read({str(built)!r})['kernels']) == 6"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


@pytest.mark.parametrize("arch", list(ARCHS))
def test_the_facts_agree_with_the_disassembler(arch, tmp_path):
    """The numbers in inspect.py (record types, opcodes) against nvdisasm and cuobjdump, for every arch; an update of the DSL may move them."""
    code = "import aot_toys\nfor c in (aot_toys.Matrix, aot_toys.Spill): open(c.__name__ + '.cubin', 'wb').write(c().compile().artifacts.CUBIN)"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=environment(CUTE_DSL_ARCH=arch, CUTE_DSL_KEEP_CUBIN="1"),
        cwd=tmp_path,
    )
    for name, spills in (("Matrix", False), ("Spill", True)):
        cubin = tmp_path / f"{name}.cubin"
        found = inspect.read_cubin(cubin.read_bytes())
        usage = subprocess.run(
            [inspect.tool("cuobjdump"), "-res-usage", cubin], capture_output=True, text=True, check=True
        ).stdout
        assert (found.registers, found.stack_bytes) == tuple(
            map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
        )
        sass = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)", inspect.disassemble(cubin), re.M)
        assert {n: found.counts.get(n, 0) for n in COUNTED} == {n: sass.count(n) for n in COUNTED}
        assert found.instructions == len([n for n in sass if n != "NOP"])
        assert found.param_bytes == (8,) * 12 + (4,) * 10
        assert (found.counts.get("LDL", 0) > 0) == (found.stack_bytes > 0) == spills
        assert (found.counts.get("HMMA", 0) > 0) != spills


def test_a_folder_named_like_something_imported_is_no_module_of_ours(tmp_path, monkeypatch):
    """`from ..device.ptx_math import imad` asks whether device.ptx_math.imad is a module: below ptx_math, which is a file, there is none, whatever lies on sys.path."""
    module = "jax_fp4_indexer.kernels.operands.bf16"
    before = manifest.sources(module)
    (tmp_path / "imad").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert manifest.sources(module) == before
