"""tools/invariants.py on cubins of this checkout: a changed byte or launch fact is a difference, another symbol is none."""

import importlib.util
import json
import pathlib
import shutil

import pytest

from jax_fp4_indexer.aot import inspect, manifest

ROOT = pathlib.Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("invariants", ROOT / "tools" / "invariants.py")
invariants = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(invariants)


@pytest.fixture
def folders(tmp_path):
    """Two folders with the same two kernels."""
    whole = manifest.read(manifest.DEFAULT_FOLDER)
    kernels = sorted(whole["kernels"], key=lambda k: k["instructions"])[:2]
    for name in ("before", "after"):
        for kernel in kernels:
            path = tmp_path / name / kernel["cubin"]
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(manifest.DEFAULT_FOLDER / kernel["cubin"], path)
        (tmp_path / name / "manifest.json").write_text(json.dumps({"kernels": kernels}))
    return tmp_path / "before", tmp_path / "after"


def edit(folder, change):
    """Rewrite the first kernel of `folder`: change(entry, bytes of its cubin) returns other bytes, or None."""
    data = json.loads((folder / "manifest.json").read_text())
    path = folder / data["kernels"][0]["cubin"]
    path.write_bytes(change(data["kernels"][0], path.read_bytes()) or path.read_bytes())
    (folder / "manifest.json").write_text(json.dumps(data))


def compared(folders, *options):
    return invariants.main(["compare", *map(str, folders), *options])


def other_instruction(entry, cubin):
    text = inspect.text_of(cubin)
    at = cubin.index(text) + len(text) // 2
    return cubin[:at] + bytes([cubin[at] ^ 0x80]) + cubin[at + 1 :]


def other_symbol(entry, cubin):
    old = entry["symbol"].encode()
    entry["symbol"] = entry["symbol"][:-1] + "X"
    return cubin.replace(old, entry["symbol"].encode())


def other_name(entry, cubin):
    entry["name"] += ".moved"


def test_the_same_kernels_are_equal_also_by_a_file_of_digests(folders, tmp_path, capsys):
    before, after = folders
    assert compared(folders) == 0 and "2 of 2 kernels compared, 0 differences" in capsys.readouterr().out
    assert invariants.main(["write", str(before), str(tmp_path / "digests.json")]) == 0
    assert compared((tmp_path / "digests.json", after)) == 0


def test_one_changed_byte_of_the_instructions_is_a_difference(folders, tmp_path, capsys):
    before, after = folders
    invariants.main(["write", str(before), str(tmp_path / "digests.json")])
    edit(after, other_instruction)
    for left in (before, tmp_path / "digests.json"):
        assert compared((left, after)) == 1
        assert "other instructions" in capsys.readouterr().out


@pytest.mark.parametrize(
    "fact, value",
    [
        ("block", [96, 1, 1]),
        ("cluster", [2, 1, 1]),
        ("grid", {"per_sm": 7}),
        ("dynamic_shared_bytes", 3),
        ("tmem_columns", 32),
        ("params", [{"buffer": "k"}]),
    ],
)
def test_a_changed_launch_fact_is_a_difference(folders, capsys, fact, value):
    edit(folders[1], lambda entry, cubin: entry.update({fact: value}))
    assert compared(folders) == 1
    assert f": {fact} " in capsys.readouterr().out


def test_another_symbol_is_no_difference(folders):
    edit(folders[1], other_symbol)
    assert compared(folders) == 0


def test_another_name_is_one_unless_it_is_told(folders, capsys):
    name = json.loads((folders[0] / "manifest.json").read_text())["kernels"][0]["name"]
    edit(folders[1], other_name)
    assert compared(folders) == 1 and f"{name}: absent" in capsys.readouterr().out
    assert compared(folders, "--subset") == 0 and f"{name}.moved: new" in capsys.readouterr().out
    assert compared(folders, "--renamed", f"{name}={name}.moved") == 0
