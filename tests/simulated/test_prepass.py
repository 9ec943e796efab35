"""Launches before the products of a prefill, alone: what they write is what plain models of them say, for counts and sizes that no call of a test has."""

import pathlib

import pytest

import jax_fp4_indexer

from ptxsim import kernels, mutate
from simulated import prepass_pages, prepass_plan, prepass_precision, selection


@pytest.fixture(scope="module")
def compiled():
    """Every text of a launch that has problems of its own; the portable plan's is the same for all archs but one."""
    wanted = [
        k
        for v in selection.all_variants()
        if v.arch in selection.OWN_FORMS
        for k in v.launches
        if k.target.rpartition(":")[2] in ("PortableSchedule", "Prepare", "ChoosePrecision")
    ]
    return list({(k.name, mutate.text_stamp(k)): k for k in kernels.load(list(dict.fromkeys(wanted)))}.values())


def _wrong(kernel, problems, schedule):
    return [f"{p.name}: {text}" for p in problems for text in p.run(kernel, schedule)[1]]


@pytest.mark.parametrize("schedule", ("eager", "lazy", "random:7"))
def test_forms(compiled, schedule):
    (kernel,) = (k for k in compiled if k.name == prepass_precision.KERNEL)
    assert not _wrong(kernel, prepass_precision.problems(kernel), schedule)
    assert kernel.coverage == 1


def test_plans(compiled):
    """Problems of few steps in two schedules, all of them eagerly; half the time is the pages that a prepare launch writes beside the plan."""
    plans = [k for k in compiled if k.name.startswith(prepass_plan.KERNELS)]
    assert {k.name.split(".")[1] for k in plans} == {"portable_plan", "prepare", "plan"}
    for kernel in plans:
        problems = prepass_plan.problems(kernel)
        assert not _wrong(kernel, problems, "eager")
        assert not _wrong(kernel, problems[::4], "random:7")
    assert all(k.coverage == 1 for k in plans if k.name.startswith(prepass_plan.KERNELS[0]))


def test_pages_and_notes(compiled):
    """Wide and narrow pages, flags and exponents, each bit; with the plan every instruction but code for no heads at all and the like."""
    for kernel in (k for k in compiled if prepass_pages.problems(k)):
        for schedule in ("eager", "random:7"):
            assert not _wrong(kernel, prepass_pages.problems(kernel), schedule)
        assert kernel.coverage > 0.99, kernel.not_executed()


def test_every_store_that_is_missing_or_elsewhere_is_noticed(compiled):
    (kernel,) = (k for k in compiled if k.name == prepass_precision.KERNEL)
    stores = [
        c
        for c in mutate.changes(kernel.program, ("address", "drop"))
        if ".global" in kernel.program.at(c.pc) and mutate.NAMES[int(kernel.program.table[c.pc][0])] == "ST"
    ]
    assert len(stores) > 20
    for change in stores:
        mutant = mutate.changed(kernel, change)
        assert any(p.run(mutant, "eager")[1] for p in prepass_precision.TABLES), mutant.program.at(change.pc)


def test_the_partition_worked_through_in_the_readme_of_the_kernels():
    """Entries, steps and pages of tokens as the model of the schedule has them; the kernels are compared with that model above."""
    example = prepass_plan.Problem(
        "readme",
        "kernels/README.md",
        (0, 20, 25),
        (0, 132, 262),
        (0, 2, 4),
        tokens=25,
        num_indices=4,
        heads_q=4,
        heads_kv=2,
        k_tiles=2,
    )
    steps, entries, token_pages = example.plan(5)
    text = (pathlib.Path(jax_fp4_indexer.__file__).parent / "kernels" / "README.md").read_text()
    for index, (entry, following) in enumerate(zip(entries, [*entries[1:, 0], steps])):
        pages = f"{entry[6]} and {entry[7]}" if entry[7] else f"{entry[6]}"
        (row,) = (line for line in text.splitlines() if line.strip().startswith(f"| {index} | {entry[0]} |"))
        assert f"| {pages} |" in row and f"= {following - entry[0]} |" in row
    assert (
        f"{steps} steps over 4 warps: steps "
        + ", ".join(f"{steps * w // 4}-{steps * (w + 1) // 4 - 1}" for w in range(4))
        in text
    )
    assert [int(p) for p in token_pages] == [1] * 16 + [
        2
    ] * 9 and "Token t of sequence 0 with t < 16 sees 1 of 2 pages" in text
