"""`python -m jax_fp4_indexer.aot` with values that make no sense: one line that says what was got and expected, no traceback, nothing changed."""

import pathlib
import shutil

import pytest
from click.testing import CliRunner

from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.aot.cli import main


def run(*args):
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def folder(tmp_path):
    """One shipped kernel with its manifest entry."""
    whole = manifest.read(manifest.DEFAULT_FOLDER)
    kernel = next(k for k in whole["kernels"] if "decode" in k["name"])
    (tmp_path / kernel["arch"]).mkdir()
    shutil.copy(manifest.DEFAULT_FOLDER / kernel["cubin"], tmp_path / kernel["cubin"])
    manifest.write(tmp_path, {**whole, "kernels": [kernel], "variants": []})
    return tmp_path


@pytest.mark.parametrize(
    "args, part",
    [
        (("build", "--only", "zzz"), "--only: got zzz, expected a part of a kernel's source expression"),
        (
            ("build", "--out", "/proc/nowhere"),
            "--out: got /proc/nowhere, expected a folder that can be made and written",
        ),
        (("build", "--arch", "sm_999"), "got 'sm_999', expected one of sm_80"),
        (
            ("verify", "--table", "no.such.module"),
            "--table: got no.such.module, expected a module with KERNELS and VARIANTS",
        ),
        (("verify", "--table", "json"), "--table: got json, expected a module with KERNELS and VARIANTS"),
        (("explain", "decode", "--capability", "-1.-2"), "got '-1.-2', expected e.g. 9.0"),
        (("explain", "decode", "--capability", "9"), "got '9', expected e.g. 9.0"),
        (("explain", "decode", "--capability", "9.0", "--bound", "-1"), "-1 is not in the range x>=0"),
        (
            ("explain", "decode", "--capability", "9.0", "--set", "path"),
            "got 'path', expected KEY=VALUE, e.g. path=decode",
        ),
        (
            ("explain", "decode", "--capability", "9.0", "--set", "path=both"),
            "--set: got path=both, expected choices that some variant has",
        ),
    ],
)
def test_options(folder, args, part):
    before = (folder / manifest.FILE_NAME).read_bytes()
    result = run(*args, *(() if "--out" in args else ("--out", folder)))
    assert result.exit_code in (1, 2) and part in " ".join(result.output.split()), result.output
    assert (folder / manifest.FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("command", [("list",), ("explain", "x"), ("sass", "x"), ("verify",)])
@pytest.mark.parametrize(
    "text, part",
    [
        ("[]", "schema None"),
        ('{"schema": 2}', "the file has no 'dsl'"),
        ('{"schema": 2, "dsl": "", "ops": [], "kernels": {}, "variants": []}', "the file has no 'kernels'"),
        ('{"schema": 2, "dsl": "", "ops": [], "kernels": [3], "variants": []}', "kernels[0] has no 'name'"),
        ('{"schema": 2, "dsl": "", "ops": [{}], "kernels": [], "variants": []}', "ops[0] has no 'op'"),
        ('{"schema": 2, "dsl": "", "ops": [], "kernels": [], "variants": [{}]}', "variants[0] has no 'op'"),
    ],
)
def test_a_manifest_of_another_shape(tmp_path, command, text, part):
    (tmp_path / manifest.FILE_NAME).write_text(text)
    result = run(*command, "--out", tmp_path)
    assert (
        result.exit_code == 1 and part in result.output and "run: python -m jax_fp4_indexer.aot build" in result.output
    ), result.output


def test_a_variant_that_launches_what_is_not_there(folder):
    data = manifest.read(folder)
    variant = manifest.read(manifest.DEFAULT_FOLDER)["variants"][0]
    manifest.write(folder, {**data, "variants": [{**variant, "launches": ["lost"]}]})
    assert f"a variant launches 'lost', which is no kernel of {variant['arch']}" in run("list", "--out", folder).output


def test_a_variant_of_an_op_that_is_not_there(folder):
    data = manifest.read(folder)
    variant = manifest.read(manifest.DEFAULT_FOLDER)["variants"][0]
    manifest.write(folder, {**data, "variants": [{**variant, "op": "lost"}]})
    assert "a variant is of 'lost', which is no op of the file" in run("list", "--out", folder).output


@pytest.mark.parametrize("size", [0, 100])
def test_sass_of_a_cubin_that_was_cut_short(folder, size):
    kernel = manifest.read(folder)["kernels"][0]
    path = pathlib.Path(folder, kernel["cubin"])
    path.write_bytes(path.read_bytes()[:size])
    result = run("sass", kernel["name"], "--out", folder)
    assert result.exit_code == 1 and "nvdisasm cannot read it" in result.output and "run: python" in result.output, (
        result.output
    )


@pytest.mark.parametrize(
    "change, part",
    [
        (lambda k: k.update(registers=k["registers"] + 1), "the manifest says registers"),
        (lambda k: k.update(symbol="other"), "the manifest says symbol other"),
        (lambda k: k.update(params=k["params"][1:]), "the manifest lists parameters of"),
    ],
)
def test_verify_compares_entries_with_their_cubins(tmp_path, change, part):
    folder = pathlib.Path(shutil.copytree(manifest.DEFAULT_FOLDER, tmp_path / "cubins"))
    data = manifest.read(folder)
    change(data["kernels"][0])
    manifest.write(folder, data)
    result = run("verify", "--out", folder)
    assert result.exit_code == 1 and part in result.output, result.output
