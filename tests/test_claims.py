"""Records of what ran on a card (support/claims.py): what they name, and that those of the tree are complete. A stale one is said; `make release-check` fails on it."""

import argparse
import json
import shutil
import warnings

from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.configs.arch import runs_on
from simulated.ledger import StaleEvidence
from support import claims

FIELDS = {
    "what",
    "commit",
    "date",
    "card",
    "capability",
    "jax",
    "python",
    "command",
    "counts",
    "failures",
    "failed",
    "kernels",
}
NAMES = (
    "parity",
    "memcheck",
    "synccheck",
    "racecheck",
    "fuzz",
    "fuzz_memcheck",
    "batched_gemv_fuzz",
    "batched_gemv_fuzz_memcheck",
)
RECORDS = [
    p
    for p in sorted(claims.RESULTS.glob("*/*.json"))
    if p.stem.split(".")[0] in NAMES and "kernels" in json.loads(p.read_text())
]


def test_a_record_names_what_it_is_of(tmp_path, monkeypatch):
    monkeypatch.setenv("JFI_COMMIT", "c0ffee")
    path = claims.record(
        "parity", {"cases": 3}, [{"case": "x"}], name="NVIDIA H200", capability=(9, 0), folder=tmp_path
    )
    value = json.loads(path.read_text())
    assert set(value) == FIELDS and (value["commit"], value["card"], value["capability"], value["failed"]) == (
        "c0ffee",
        "NVIDIA H200",
        "9.0",
        1,
    )
    built = manifest.read(manifest.DEFAULT_FOLDER)["kernels"]
    assert set(value["kernels"]) == {f"{e['arch']}/{e['name']}" for e in built if runs_on(e["arch"], (9, 0))}
    assert (
        claims.stale(path) == []
        and claims.slug("NVIDIA H200") == "h200"
        and claims.slug("NVIDIA RTX 6000 Ada") == "rtx-6000-ada"
    )
    monkeypatch.delenv("JFI_COMMIT")
    assert len(claims.commit().split()[0]) == 40 or claims.commit().startswith("unknown")


def test_a_record_of_other_kernels_is_stale(tmp_path):
    """Other instructions, and kernels that are gone; a cubin whose instructions are the same is not another."""
    cubins, path = tmp_path / "cubins", None
    entry = next(e for e in manifest.read(manifest.DEFAULT_FOLDER)["kernels"] if e["arch"] == "sm_90a")
    shutil.copytree(manifest.DEFAULT_FOLDER, cubins, ignore=shutil.ignore_patterns("*.ptx"))
    path = claims.record("memcheck", {}, [], name="NVIDIA H200", capability=(9, 0), cubins=cubins, folder=tmp_path)
    file = cubins / entry["cubin"]
    data = bytearray(file.read_bytes())
    text = claims.inspect.text_of(bytes(data))
    data[bytes(data).index(text) + 8] ^= 1
    file.write_bytes(data)
    assert claims.stale(path, cubins) == [f"sm_90a/{entry['name']}: other instructions"]
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "kernels": {"sm_90a/gone": "0" * 16}}))
    assert claims.stale(path, cubins) == ["sm_90a/gone: no longer built"]


def test_the_option():
    parser = argparse.ArgumentParser()
    claims.add_option(parser)
    assert [parser.parse_args(words).record for words in ([], ["--record"], ["--record", "x"])] == [None, "", "x"]


def test_the_records_of_the_tree():
    for path in RECORDS:
        value = json.loads(path.read_text())
        assert set(value) == FIELDS and value["what"] == path.stem and value["failed"] == 0 and value["kernels"], path
        old = claims.stale(path)
        if not old:
            continue
        warnings.warn(
            StaleEvidence(
                f"{path.parent.name}/{path.name} was made with other kernels ({len(old)} of {len(value['kernels'])}, e.g. {old[0]}); renew: docs/evidence.md"
            )
        )
