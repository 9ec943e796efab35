"""`doctor` and the loader on installations with something missing or broken: a row or an ImportError with a remedy,
never a traceback or a crash."""

import dataclasses
import json
import pathlib
import subprocess

import jax
import pytest
from click.testing import CliRunner

from jax_fp4_indexer.cli import doctor
from jax_fp4_indexer.cli.main import main
from jax_fp4_indexer.primitives import runtime

LIBRARY = f"_lib/{runtime.LIBRARY}"
REMEDY = "reinstall jax_fp4_indexer"
ENTRY = {
    "name": "k",
    "arch": "sm_80",
    "cubin": "sm_80/k.cubin",
    "sha256": "0" * 64,
    "symbol": "k",
    "source": "k",
    "fingerprint": "",
    "block": [32, 1, 1],
    "params": [],
    "registers": 1,
    "spill_bytes": 0,
    "static_shared_bytes": 0,
    "dynamic_shared_bytes": 0,
    "instructions": 1,
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package folder with the real library and a manifest of one kernel, in place of this one's."""
    root = tmp_path / "ü sp ace"
    (root / "_lib").mkdir(parents=True)
    (root / LIBRARY).write_bytes(runtime.find(LIBRARY).read_bytes())
    (root / "cubins" / "sm_80").mkdir(parents=True)
    (root / "cubins" / "sm_80" / "k.cubin").write_bytes(b"damaged")
    manifest_of(root, kernels=[ENTRY])
    find = runtime.find
    monkeypatch.setattr(runtime, "find", lambda name, roots=None: find(name, roots or [root]))
    monkeypatch.setattr(runtime, "_state", {})
    return root


def manifest_of(root, **changes):
    (root / "cubins" / "manifest.json").write_text(
        json.dumps({"schema": 2, "dsl": "x", "fingerprint": "", "ops": [], "kernels": [], "variants": [], **changes})
    )


def facts():
    rows, sound, _ = doctor.library_facts()
    return " | ".join(f"{name}: {value}" for name, value in rows), sound


def test_a_damaged_and_a_missing_cubin(installed):
    text, sound = facts()
    assert "sm_80/k.cubin is not the file that was built" in text and REMEDY in text and not sound
    (installed / ENTRY["cubin"]).unlink(missing_ok=True)
    (installed / "cubins" / ENTRY["cubin"]).unlink()
    text, sound = facts()
    assert "sm_80/k.cubin is absent" in text and REMEDY in text and not sound


@pytest.mark.parametrize(
    "change, part",
    [
        (lambda path: path.write_text(path.read_text()[:200]), "not JSON"),
        (lambda path: path.write_bytes(b""), "not JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not JSON"),
        (lambda path: path.write_text("[]"), "schema None"),
        (
            lambda path: path.write_text(path.read_text().replace('"schema": 2', '"schema": 3')),
            "schema 3, this version reads 2",
        ),
        (lambda path: (path.unlink(), path.mkdir()), "cannot be read (Is a directory)"),
        (lambda path: path.write_text('{"schema": 2}'), "the file has no 'dsl' of the right type"),
        (lambda path: path.write_text(path.read_text().replace('"sm_80"', '"sm_999"')), "kernels[0] is for 'sm_999'"),
        (lambda path: path.write_text(path.read_text().replace('"sm_80/', '"../')), "outside of the folder"),
        (lambda path: manifest_of(path.parents[1]), "the manifest lists no kernel"),
        (lambda path: path.unlink(), "no cubins/manifest.json"),
    ],
)
def test_a_broken_manifest(installed, change, part):
    change(installed / "cubins" / "manifest.json")
    text, sound = facts()
    assert part in text and REMEDY in text and not sound, text


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95])
def test_a_library_that_was_cut_short_is_refused_before_it_is_mapped(installed, share):
    """Mapped, it would end the process with SIGBUS."""
    path = installed / LIBRARY
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ImportError, match=f"(?s)does not load.*{REMEDY}"):
        runtime.load()
    text, sound = facts()
    assert REMEDY in text and not sound


def test_another_library_under_this_name(installed):
    (installed / LIBRARY).unlink()
    subprocess.run(["cc", "-shared", "-o", installed / LIBRARY, "-x", "c", "/dev/null"], check=True)
    with pytest.raises(ImportError, match=f"(?s)does not load.*jfi_ffi_api_version.*{REMEDY}"):
        runtime.load()


def test_the_whole_library_passes():
    runtime._refuse_truncated(pathlib.Path(runtime.find(LIBRARY)))


@pytest.mark.parametrize("error", [RuntimeError("Unable to initialize backend 'x'\nmore"), AssertionError()])
def test_jax_without_a_device(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(jax, "default_backend", fail)
    monkeypatch.setattr(jax, "devices", fail)
    result = CliRunner().invoke(main, ["doctor"])
    assert (
        result.exit_code == 1
        and "no device to run on" in result.output
        and "unset it" in " ".join(result.output.replace("│", " ").split())
    ), result.output
    for command in ("demo", "bench"):
        result = CliRunner().invoke(main, [command])
        assert (
            result.exit_code == 1
            and "Error: JAX has no device to run on" in result.output
            and "Unset JAX_PLATFORMS" in result.output
        ), result.output


@pytest.fixture
def gpu_of(monkeypatch):
    """Makes the default device look like a GPU of the capability that is passed."""

    def pretend(capability):
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(runtime, "capability_of", lambda device: capability)

    return pretend


def rows_of(text):
    """{name: value} of the doctor's table, wrapped lines joined."""
    rows, name = {}, None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if len(cells) == 2:
            name = cells[0] or name
            rows[name] = (
                f"{rows[name]} {cells[1]}"
                if not cells[0]
                else cells[1]
                if name not in rows
                else f"{rows[name]} / {cells[1]}"
            )
    return rows


BLOCK_SCORES = {f"block_scores, {path}, {fmt}" for path in ("decode", "prefill") for fmt in ("nvfp4", "mxfp4")}


@pytest.mark.parametrize(
    "capability, kind",
    [
        ((8, 0), "portable sm_80"),
        ((8, 9), "portable sm_80"),
        ((9, 0), "native sm_90a"),
        ((10, 0), "native sm_100a"),
        ((10, 3), "native sm_103a"),
        ((12, 0), "portable sm_120a"),
    ],
)
def test_a_gpu_gets_the_kernels_of_its_arch(gpu_of, capability, kind):
    gpu_of(capability)
    result = CliRunner().invoke(main, ["doctor"])
    rows = rows_of(result.output)
    assert BLOCK_SCORES <= set(rows) and result.exit_code == 0, result.output
    for name in BLOCK_SCORES:
        _, path, fmt = name.split(", ")
        for call in rows[name].split("; "):
            what = call.partition(": ")[2] or call
            assert what.startswith(f"{kind} kernels ") and fmt in what, (name, rows[name])
        assert path in what, (name, rows[name])  # of many columns: a prefill of few runs decode kernels


def test_the_kernels_that_the_doctor_names_are_those_of_the_launch(gpu_of):
    """For each bound of the variants: what the library says, which is what it launches."""
    gpu_of((9, 0))
    text = rows_of(CliRunner().invoke(main, ["doctor"]).output)["block_scores, decode, nvfp4"]
    found = dict(part.split(": ") for part in text.removeprefix("max_seqlen_q * (heads_q / heads_kv) ").split("; "))
    assert list(found) == ["<= 16", "<= 32", "above"]
    for bound, limit in ((1, "<= 16"), (16, "<= 16"), (17, "<= 32"), (32, "<= 32"), (33, "above"), (10**6, "above")):
        kernels = runtime.choose_variant(
            (9, 0), "block_scores", path="decode", format="nvfp4", scale_layout="preordered_mma", bound=bound
        )[2]
        assert found[limit] == f"native sm_90a kernels {' + '.join(kernels)}", bound


def test_every_op_of_the_registry_has_rows(gpu_of, monkeypatch):
    """Also one that is new: here an op without kernels."""
    gpu_of((9, 0))
    new = dataclasses.replace(doctor.OPS["block_scores"], name="new_op")
    monkeypatch.setattr(doctor, "OPS", {**doctor.OPS, "new_op": new})
    result = CliRunner().invoke(main, ["doctor"])
    rows = rows_of(result.output)
    assert BLOCK_SCORES <= set(rows) and result.exit_code == 1 and "the jnp reference (" in rows["new_op"], (
        result.output
    )
    for op in doctor.OPS:
        assert any(name.startswith(f"{op}, ") or name == op for name in rows)


@pytest.mark.parametrize("capability", [(7, 5), (11, 0)])
def test_a_gpu_without_kernels_is_a_failure_with_a_reason(gpu_of, capability):
    gpu_of(capability)
    result = CliRunner().invoke(main, ["doctor"])
    text = rows_of(result.output)["block_scores"]
    assert result.exit_code == 1 and "the jnp reference (" in text and f"{capability[0]}.{capability[1]}" in text, (
        result.output
    )
