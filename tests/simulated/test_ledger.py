"""What results/ says of the simulator's sweeps: it is of the kernels of this tree, and everything in it is right. And the sweep itself.

JFI_PTXSIM=all (`make test-all`, after the sweep) asks for all of it: every variant, every schedule, every row.
"""
import collections
import dataclasses
import os
import re
import subprocess
import sys

import pytest

from ptxsim import cache, kernels
from simulated import cases, records, selection, summary, sweep

WHOLE = os.environ.get("JFI_PTXSIM") == "all"
STORE = records.Store()
RECORDS = STORE.records()
BLACKWELL = [f"{c}.{p}.{f}.{s}" for c in ("10.0", "10.3") for p in ("decode", "prefill") for f in ("nvfp4", "mxfp4") for s in ("public", "preordered_mma")]


def name(record):
    return f"{record['through']}.{record['label']}"


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_it_is_of_these_kernels(record):
    old = records.stale(record)
    assert not old, f"the record speaks of other kernels:\n{chr(10).join(old)}\nrun: {records.RENEW} {record['through']} {record['label']}\nor, to claim less: {records.RENEW} forget"


@pytest.mark.parametrize("record", RECORDS, ids=name)
def test_everything_was_right(record):
    for schedule, run in record["runs"].items():
        assert not run["wrong"] and not run["reports"], f"{schedule}: {run['reports']} reports; {run['wrong'][:3]}"
        assert run["cases"] == len(STORE.tally(run).rows) > 100 and run["worst"] < 4e-6 and run["slots"] > 10000, (schedule, run)
        assert run["exact"] > 50 and run["h200"] >= 0.9 * run["exact"], (schedule, run)       # rows that are new since have no score of the card
    bits = {(run["rows"], run["simulator"]): set() for run in record["runs"].values()}      # by simulator: how it rounds has changed
    for run in record["runs"].values():
        bits[run["rows"], run["simulator"]].add(run["bits"])
    assert all(len(b) == 1 for b in bits.values()), f"the scores depend on the schedule: {bits}"


def test_the_scale_layout_and_the_way_in_change_no_bit():
    """Of the Blackwell kernels: the same rows give the same bits, launched by the simulator or by the C++ handler, in either layout of the scales."""
    bits = collections.defaultdict(set)
    for record in RECORDS:
        words = [w for w in record["label"].replace("10.0", "sm_100a").replace("10.3", "sm_103a").split(".") if w not in ("native", "public", "preordered_mma", "n0")]
        if words[0] in ("sm_100a", "sm_103a"):
            for run in record["runs"].values():
                bits[(*words, run["rows"], run["simulator"])].add(run["bits"])
    assert all(len(b) == 1 for b in bits.values()), bits


def test_instructions_executed_and_rings():
    """Of every kernel that has a record, in some variant and schedule."""
    share, phases = collections.Counter(), collections.Counter()
    for record in RECORDS:
        texts = {e["name"]: (e["arch"], e["name"]) for e in record["kernels"]}
        for run in record["runs"].values():
            for kernel, key in texts.items():
                share[key] = max(share[key], run["executed"].get(kernel, 0))
                phases[key] = max(phases[key], run["phases"].get(kernel, 0))
    assert min(share.values()) >= records.COVERAGE, {k: s for k, s in share.items() if s < records.COVERAGE}
    assert min(phases.values()) >= records.RING, {k: n for k, n in phases.items() if n < records.RING}


def test_the_readme_shows_these_records():
    text = summary.README.read_text()
    assert summary.replaced(text, RECORDS) == text, f"the table is of other records; run: {records.RENEW} table"


def test_every_native_class_of_blackwell_has_gone_through_the_driver():
    through = {r["label"]: r["runs"].keys() for r in RECORDS if r["through"] == "stand_in"}
    assert not {label: lacks for label in BLACKWELL if (lacks := {"eager", "lazy", "random:1"} - through.get(label, set()))}


if WHOLE:
    def test_nothing_is_missing(capsys):
        count = sweep.status(STORE, [])
        assert count == 0, f"{capsys.readouterr().out}run: {records.RENEW}"


# ---- the sweep itself
DIRECT = sweep._Direct()


@pytest.fixture
def store(tmp_path):
    return records.Store(tmp_path)


@pytest.fixture
def work():
    variant = next(v for v in selection.all_variants() if v.arch == "sm_100a" and v.implementation == "native")
    return sweep.Work("direct", selection.label(variant), variant.path, variant.format, variant.scale_layout, variant)


def only(monkeypatch, names):
    """Lists of cases hold the rows whose names start with one of `names`."""
    of = cases.of
    monkeypatch.setattr(cases, "of", lambda path, fmt, match="": [c for c in of(path, fmt) if c.name.startswith(tuple(names))])


def test_a_sweep_goes_on_where_it_stopped(store, work, monkeypatch):
    few = ["k_len_0_beside_5", "ramp_bottom_right"]
    only(monkeypatch, few)
    first = sweep.run(store, work, "eager", DIRECT)
    assert len(first.rows) == 2 and first.good and first.exact == 2
    assert sweep.run(store, work, "eager", DIRECT) is None
    assert len(sweep.run(store, work, "random:1", DIRECT).rows) == 2
    few.append("ramp_offset_126")
    more = sweep.run(store, work, "eager", DIRECT)
    record, (kernel,) = store.read("direct", work.label), first.executed
    assert [records.row_id(c) for c in work.rows if c.name.startswith("ramp_offset_126")] == more.rows
    assert [record["runs"][s]["cases"] for s in ("eager", "random:1")] == [3, 2] and record["runs"]["eager"]["exact"] == 3
    whole = sweep.run(store, work, "lazy", DIRECT)
    assert [records._ranges([3, 4, 5, 9]), records._numbers("20: 3-5,9"), records._numbers("20: ")] == ["3-5,9", {3, 4, 5, 9}, set()]
    assert 0.2 < record["runs"]["eager"]["executed"][kernel] < 0.9 and record["runs"]["eager"]["executed"][kernel] >= first.executed[kernel]
    assert whole.missed[kernel] == record["runs"]["eager"]["missed"][kernel] and whole.executed[kernel] == record["runs"]["eager"]["executed"][kernel]
    assert f"{whole.bits:016x}" == store.read("direct", work.label)["runs"]["eager"]["bits"] and len(whole.rows) == 3


def test_a_kernel_with_another_text_is_found_and_run_anew(store, work, monkeypatch):
    only(monkeypatch, ["k_len_0_beside_5"])
    sweep.run(store, work, "eager", DIRECT)
    record = store.read("direct", work.label)
    assert records.stale(record) == []
    other = {**record, "kernels": [{**e, "text": "0" * 16} for e in record["kernels"]]}
    assert "its PTX is" in records.stale(other)[0]
    gone = {**record, "kernels": [{**e, "name": "gone"} for e in record["kernels"]]}
    assert "no such kernel" in records.stale(gone)[0]
    records._write(store._path("direct", work.label), other)
    assert len(sweep.run(store, work, "eager", DIRECT).rows) == 1
    assert records.stale(store.read("direct", work.label)) == []


def test_a_kernel_that_moves_keeps_its_text(work):
    """Names of modules and classes, and lines of the sources, are no part of a text; an instruction is."""
    kernel, = kernels.load(work.variant.launches)
    entry = re.search(r"\.entry\s+([\w$]+)", kernel.ptx).group(1)
    assert "Config" in entry or "BlockScores" in entry
    moved = kernel.with_ptx(kernel.ptx.replace(entry, "kernel_of_another_module").replace("/kernels/", "/elsewhere/").replace(".loc\t1 ", ".loc\t2 "))
    assert moved.text == kernel.text and records.stamp(moved) == records.stamp(kernel)
    assert entry not in kernel.text and "/kernels/" not in kernel.text
    other = kernel.with_ptx(kernel.ptx.replace("add.s32", "sub.s32", 1))
    assert records.stamp(other) != records.stamp(kernel)


def test_what_is_wrong_is_recorded_and_run_again(store, work, monkeypatch):
    only(monkeypatch, ["k_len_0_beside_5"])
    case = work.rows[0]
    inp, truth = selection.built(case.table)
    monkeypatch.setitem(selection._kept, case.name, (inp, dataclasses.replace(truth, scores=truth.scores * 2)))
    tally = sweep.run(store, work, "eager", DIRECT)
    assert not tally.good and "bits differ" in tally.wrong[0] and tally.exact == 0
    monkeypatch.setitem(selection._kept, case.name, (inp, truth))
    assert sweep.run(store, work, "eager", DIRECT).good
    assert store.read("direct", work.label)["runs"]["eager"]["wrong"] == []


def test_one_text_of_several_archs_is_run_once(store, monkeypatch):
    by_label = {w.label: w for w in sweep.everything()}
    ran, same, other = (by_label[f"{arch}.portable.decode.nvfp4.public.n8"] for arch in ("sm_100a", "sm_120a", "sm_80"))
    few = ["k_len_0_beside_5"]
    only(monkeypatch, few)
    sweep.run(store, ran, "eager", DIRECT)
    assert sweep.covered(store, same, "eager") == f"direct.{ran.label}"
    assert sweep.covered(store, same, "lazy") is None and sweep.covered(store, other, "eager") is None and sweep.covered(store, ran, "eager") is None
    few.append("ramp_bottom_right")
    assert sweep.covered(store, same, "eager") is None


def test_a_sweep_through_the_driver(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cache.HERE.parent), *(p for p in sys.path if p)])}
    sweeping = [sys.executable, "-m", "simulated.sweep", "stand_in", "10.0.prefill.mxfp4.public", "--schedules", "eager,random:1", "--results", tmp_path]
    done = subprocess.run([*sweeping, "--cases", "wide_0,sim_passes_exact"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    record = records.Store(tmp_path).read("stand_in", "10.0.prefill.mxfp4.public")
    assert [k["arch"] for k in record["kernels"]] == ["sm_100a"] and not records.stale(record)
    assert [(s, r["cases"], r["exact"], r["reports"]) for s, r in record["runs"].items()] == [("eager", 2, 1, 0), ("random:1", 2, 1, 0)]
    assert record["runs"]["eager"]["bits"] == record["runs"]["random:1"]["bits"]
    again = subprocess.run([*sweeping, "--cases", "wide_0,sim_passes_exact"], env=environment, capture_output=True, text=True)
    assert again.returncode == 0 and not again.stdout, again.stdout
    refused = subprocess.run([*sweeping[:-2], "--cases", "wide_0"], env=environment, capture_output=True, text=True)
    assert refused.returncode == 2 and "--results" in refused.stderr
