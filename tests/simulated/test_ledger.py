"""What the ledger claims: everything in it is right, and what is stale is said (never an error here; `make release-check` fails on it). And the sweep that writes it.

JFI_PTXSIM=all (`make test-all`, after the sweep) requires all of it: every variant, every schedule, every row, of this tree.
"""

import collections
import dataclasses
import json
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

from harness.ops import block_scores
from ptxsim import cache, identity, kernels
from simulated import cases, ledger, mutations, results, selection, summary, sweep

WHOLE = os.environ.get("JFI_PTXSIM") == "all"
LINES = ledger.Ledger().lines()
BLACKWELL = [
    f"{c}.{p}.{f}.{s}"
    for c in ("10.0", "10.3")
    for p in ("decode", "prefill")
    for f in ("nvfp4", "mxfp4")
    for s in ("public", "preordered_mma")
]


def test_stale_lines_are_said():
    """Kernels and simulator; the rows too in `sweep status`, which builds all of them."""
    old = {name: found for name, value in LINES.items() if (found := ledger.stale(value))}
    if old:
        name, found = next(iter(old.items()))
        warnings.warn(
            ledger.StaleEvidence(
                f"the evidence of {len(old)} of {len(LINES)} lines of {ledger.FILE.name} is stale, e.g. {name}: {found[0]}; renew: {ledger.RENEW}"
            )
        )
    assert LINES and not {name for name in old if LINES[name]["wrong"]}


@pytest.mark.parametrize("name", LINES)
def test_everything_was_right(name):
    value = LINES[name]
    assert not value["wrong"] and not value["reports"], f"{value['reports']} reports; {value['wrong'][:3]}"
    assert value["cases"] > 100 and value["worst"] < 4e-6 and value["slots"] > 10000 and value["exact"] > 50
    assert {"eager", "lazy", "random:1"} <= set(value["schedules"]) or not WHOLE, value["schedules"]
    assert re.fullmatch("[0-9a-f]{16}", value["result"]) and re.fullmatch("[0-9a-f]{8,16}", value["simulator"])
    assert value["kernels"] and all(re.fullmatch("[0-9a-f]{16}", k["text"]) for k in value["kernels"].values())


def test_the_scale_layout_and_the_way_in_change_no_bit():
    """Of the Blackwell kernels: the same rows give the same bits, launched by the simulator or by the C++ handler, in either layout of the scales."""
    bits = collections.defaultdict(set)
    for name, value in LINES.items():
        words = [
            w
            for w in name.partition("/")[2].replace("10.0", "sm_100a").replace("10.3", "sm_103a").split(".")
            if w not in ("native", "public", "preordered_mma", "n0")
        ]
        if words[0] in ("sm_100a", "sm_103a"):
            bits[(*words, value["rows"], value["simulator"])].add(value["result"])
    assert bits and all(len(b) == 1 for b in bits.values()), bits


def test_instructions_executed_and_rings():
    """Of every kernel that has a line, in some variant and schedule."""
    share, phases = collections.Counter(), collections.Counter()
    for value in LINES.values():
        for name, entry in value["kernels"].items():
            share[name], phases[name] = max(share[name], entry["executed"]), max(phases[name], entry["phases"])
    assert min(share.values()) >= ledger.COVERAGE, {k: s for k, s in share.items() if s < ledger.COVERAGE}
    assert min(phases.values()) >= ledger.RING, {k: n for k, n in phases.items() if n < ledger.RING}


def test_the_readme_shows_the_ledger():
    text = summary.README.read_text()
    assert summary.replaced(text, LINES) == text, (
        "the tables are of another ledger; run: PYTHONPATH=.:tests python -m simulated.sweep table"
    )


def test_every_native_class_of_blackwell_has_gone_through_the_driver():
    through = {
        name.partition("/")[2]: set(value["schedules"]) for name, value in LINES.items() if name.startswith("stand_in/")
    }
    assert not {
        label: lacks for label in BLACKWELL if (lacks := {"eager", "lazy", "random:1"} - through.get(label, set()))
    }


def test_a_line_for_each_name():
    """As the file has it: sorted, one a line, so that two people who renew different variants do not meet."""
    text = ledger.FILE.read_text().splitlines()
    names = [json.loads("{" + line.rstrip(",") + "}").popitem()[0] for line in text[1:-1]]
    assert names == sorted(LINES) and names


if WHOLE:

    def test_nothing_is_missing():
        found = sweep.status(ledger.Ledger(), [])
        assert not found, "\n".join([*found, f"run: {ledger.RENEW}"])


# ---- the tables
def test_shares_are_of_all_changes():
    """What was declared to make no difference is shown, not taken out of the share."""
    record = {
        "variant": "v",
        "kernel": "k",
        "mutants": 40,
        "noticed": 30,
        "survivors": [{"equivalent": True, "why": "a"}] * 9 + [{"equivalent": False, "why": "b"}],
    }
    (_, *row), (_, *total) = summary.mutation_rows([record])
    assert row == [40, 30, "75%", 9, 1, "b"] and total == ["40", "30", "75%", 9, 1, ""]
    assert summary.mutation_rows(mutations.load(mutations.RECORDS))


# ---- digests
def test_digests_of_code_do_not_hold_comments(tmp_path):
    def of(name, text):
        (tmp_path / name).write_text(text)
        return identity.digest([tmp_path / name])

    python = '"""Doc."""\nimport os\n\n\ndef f(a, b=1):\n    """Doc."""\n    return [a, "b  c"]     # why\n'
    assert (
        of("x.py", python)
        == of("x.py", 'import os\ndef f(a,\n      b=1):\n  return [a, "b  c",]\n')
        != of("x.py", python.replace("b=1", "b=2"))
        != of("x.py", python.replace("b  c", "b c"))
    )
    c = "int f(int a) {  // why\n  /* long */ return a + 1;\n}\n"
    assert of("x.c", c) == of("x.c", "int f(int a)\n{ return a+1; }") != of("x.c", c.replace("+ 1", "+ 2"))
    assert of("x.c", 'char *s = "a // b";') != of("x.c", 'char *s = "a";')


# ---- the sweep itself
DIRECT = sweep._Direct()


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A ledger of its own, and a cache of results of its own."""
    monkeypatch.setattr(results, "FOLDER", tmp_path / "rows")
    return ledger.Ledger(tmp_path / "ledger.json")


@pytest.fixture
def work():
    variant = next(v for v in selection.all_variants() if v.arch == "sm_100a" and v.implementation == "native")
    return sweep.Work("direct", selection.label(variant), variant.op, variant.select, variant)


def only(monkeypatch, names):
    """Lists of cases hold the rows whose names start with one of `names`."""
    of = cases.of
    monkeypatch.setattr(
        cases, "of", lambda path, fmt, match="": [c for c in of(path, fmt) if c.name.startswith(tuple(names))]
    )


def test_a_sweep_goes_on_where_it_stopped(book, work, monkeypatch):
    few, simulated = ["k_len_0_beside_5", "ramp_bottom_right"], []
    only(monkeypatch, few)
    one = results._simulate
    monkeypatch.setattr(results, "_simulate", lambda *args: simulated.append(args[2].name) or one(*args))
    first = sweep.run(book, work, "eager", DIRECT)
    assert len(first.ids) == 2 and not first.wrong and first.exact == 2 and len(simulated) == 2
    assert "eager" not in sweep.missing(book.lines(), work)
    assert len(sweep.run(book, work, "random:1", DIRECT).ids) == 2
    assert book.lines()[work.name]["schedules"] == ["eager", "random:1"] and book.lines()[work.name]["exact"] == 2
    few.append("ramp_offset_126")
    del simulated[:]
    assert sweep.missing(book.lines(), work)[0] == "eager"  # the list of rows is another: the line is stale
    assert any("list of rows" in s for s in ledger.stale(book.lines()[work.name], sweep.ids_of(work)))
    more = sweep.run(book, work, "eager", DIRECT)
    assert [n.rpartition("-")[0] for n in simulated] == ["ramp_offset_126"] and len(
        more.ids
    ) == 3  # the others were kept
    (line,) = book.lines().values()
    assert line["schedules"] == ["eager"] and line["cases"] == 3
    lazy = sweep.run(book, work, "lazy", DIRECT)
    assert lazy.bits == more.bits and book.lines()[work.name]["schedules"] == ["eager", "lazy"]
    (entry,) = line["kernels"].values()
    assert 0.2 < entry["executed"] < 0.9 and entry["executed"] == round(
        float(next(iter(more.executed.values())).mean()), 4
    )
    del simulated[:]
    assert len(sweep.run(book, work, "eager", DIRECT, again=True).ids) == 3 == len(simulated)


def test_what_a_result_depends_on(book, work, monkeypatch):
    """A kept result serves the same text, schedule, way of electing and simulator alone."""
    only(monkeypatch, ["k_len_0_beside_5"])
    compiled = kernels.load(work.variant.launches)
    assert results.sweep(compiled, work.variant, "eager", work.rows)[1] == 1
    rows, ran = results.sweep(compiled, work.variant, "eager", work.rows)
    assert ran == 0 and rows[0].good and rows[0].slots
    changed = [k.with_ptx(k.ptx.replace("$L__BB0_", "$L__BB1_")) for k in compiled]
    assert results.sweep(changed, work.variant, "eager", work.rows)[1] == 1
    assert results.sweep(compiled, work.variant, "lazy", work.rows)[1] == 1
    assert results.sweep(compiled, work.variant, "eager", work.rows, elect_last=True)[1] == 1
    monkeypatch.setattr(results, "simulator", lambda: "another")
    assert results.sweep(compiled, work.variant, "eager", work.rows)[1] == 1
    monkeypatch.setenv("JFI_PTXSIM_ROWS", "off")
    assert [results.sweep(compiled, work.variant, "eager", work.rows)[1] for _ in range(2)] == [1, 1]


def test_a_line_of_other_kernels_or_of_another_simulator_is_stale(book, work, monkeypatch):
    only(monkeypatch, ["k_len_0_beside_5"])
    sweep.run(book, work, "eager", DIRECT)
    ids = sweep.ids_of(work)
    value = book.lines()[work.name]
    assert ledger.stale(value, ids) == []
    ((name, entry),) = value["kernels"].items()
    other = {**value, "kernels": {name: {**entry, "text": "0" * 16}}}
    assert "has the text" in ledger.stale(other, ids)[0]
    assert "no kernel of the tree" in ledger.stale({**value, "kernels": {"sm_100a/gone": entry}}, ids)[0]
    assert "simulator" in ledger.stale({**value, "simulator": "0" * 16}, ids)[0]
    assert "list of rows" in ledger.stale(value, [*ids, "00000000"])[0]
    book.write({work.name: other})
    assert any(work.name in s and "has the text" in s for s in sweep.status(book, [work.label]))
    sweep.run(book, work, "eager", DIRECT)
    assert ledger.stale(book.lines()[work.name], ids) == []
    assert any(work.name in s and "schedules to run: lazy" in s for s in sweep.status(book, [work.label]))


def test_schedules_that_differ_are_a_fault(work):
    compiled = kernels.load(work.variant.launches)
    sums = {s: ledger.Sum(ids={"a"}, bits=b) for s, b in (("eager", 1), ("lazy", 2))}
    for s in sums.values():
        s.see(ledger.name_of(compiled[0]), np.ones(4, bool), {})
    assert "depend on the schedule" in ledger.line(compiled, sums)["wrong"][0]
    one, other = (ledger.line(compiled, {s: x}) for s, x in sums.items())
    assert ledger.with_schedules(one, other)["schedules"] == ["lazy"]  # another result is no part of the same line
    assert ledger.with_schedules(one, ledger.line(compiled, {"lazy": sums["eager"]}))["schedules"] == ["eager", "lazy"]


def test_a_kernel_that_moves_keeps_its_text(work):
    """Names of modules and classes, and lines of the sources, are no part of a text; an instruction is."""
    (kernel,) = kernels.load(work.variant.launches)
    entry = re.search(r"\.entry\s+([\w$]+)", kernel.ptx).group(1)
    moved = kernel.with_ptx(
        kernel.ptx.replace(entry, "kernel_of_another_module").replace("\tret;", "\t.loc\t2 7 1\n\tret;")
    )
    assert moved.ptx != kernel.ptx and moved.text == kernel.text and results.stamp(moved) == results.stamp(kernel)
    assert entry not in kernel.text
    other = kernel.with_ptx(kernel.ptx.replace("add.s32", "sub.s32", 1))
    assert results.stamp(other) != results.stamp(kernel)


def test_what_is_wrong_is_recorded_and_run_again(book, work, monkeypatch):
    only(monkeypatch, ["k_len_0_beside_5"])
    case = work.rows[0]
    inp, truth = block_scores.built(case.table)
    monkeypatch.setitem(block_scores._kept, case.name, (inp, dataclasses.replace(truth, scores=truth.scores * 2)))
    total = sweep.run(book, work, "eager", DIRECT)
    assert total.exact == 0 and "bits differ" in total.wrong[0] and book.lines()[work.name]["wrong"]
    assert sweep.missing(book.lines(), work)[0] == "eager"
    monkeypatch.setitem(block_scores._kept, case.name, (inp, truth))
    assert not sweep.run(book, work, "eager", DIRECT).wrong
    assert book.lines()[work.name]["wrong"] == []


def test_one_text_of_several_archs_is_run_once(book, monkeypatch):
    by_label = {w.label: w for w in sweep.everything()}
    ran, same, other = (by_label[f"{arch}.portable.decode.nvfp4.public.n8"] for arch in ("sm_100a", "sm_120a", "sm_80"))
    few = ["k_len_0_beside_5"]
    only(monkeypatch, few)
    sweep.run(book, ran, "eager", DIRECT)
    lines = book.lines()
    assert sweep.covered(lines, same, "eager") == ran.name
    assert (
        sweep.covered(lines, same, "lazy") is None
        and sweep.covered(lines, other, "eager") is None
        and sweep.covered(lines, ran, "eager") is None
    )
    few.append("ramp_bottom_right")
    assert sweep.covered(lines, same, "eager") is None


def test_a_sweep_through_the_driver(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cache.HERE.parent), *(p for p in sys.path if p)])}
    path = tmp_path / "ledger.json"
    sweeping = [
        sys.executable,
        "-m",
        "simulated.sweep",
        "stand_in",
        "10.0.prefill.mxfp4.public",
        "--schedules",
        "eager,random:1",
        "--ledger",
        path,
    ]
    done = subprocess.run(
        [*sweeping, "--cases", "wide_0,sim_passes_exact"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    value = ledger.Ledger(path).lines()["stand_in/10.0.prefill.mxfp4.public"]
    assert [name.partition("/")[0] for name in value["kernels"]] == ["sm_100a"] and not ledger.stale(value)
    assert (value["schedules"], value["cases"], value["exact"], value["reports"], value["wrong"]) == (
        ["eager", "random:1"],
        2,
        1,
        0,
        [],
    )
    again = subprocess.run(
        [*sweeping, "--cases", "wide_0,sim_passes_exact"], env=environment, capture_output=True, text=True
    )
    assert again.returncode == 0 and not again.stdout, again.stdout
    refused = subprocess.run([*sweeping[:-2], "--cases", "wide_0"], env=environment, capture_output=True, text=True)
    assert refused.returncode == 2 and "--ledger" in refused.stderr
