"""The kernels of the tree in the simulator: right scores, no report, every slot written.

One scale layout of every kind of kernel over the quick rows, eager and in one random order. What has not changed since it last ran here is not run again (results.py). Every variant
over the whole list in every schedule is the work of sweep.py, whose ledger test_ledger.py reads. A variant whose kernels have the text of one that has run (portable kernels of several
archs) finds that one's results.
"""

import pytest

from ptxsim import kernels
from simulated import cases, results, selection
from support import cases as table
from support.inputs import batch

VARIANTS = selection.quick_variants()
SCHEDULES = ("eager", "random:7")
XDIST_GROUP = "variant"


@pytest.fixture(scope="session")
def compiled():
    """All kernels at once: one compiler process an arch."""
    wanted = list(dict.fromkeys(k for v in VARIANTS for k in v.launches))
    return dict(zip(wanted, kernels.load(wanted)))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("variant", VARIANTS, ids=selection.label)
def test_variant(compiled, variant, schedule):
    """elect.sync elects the first lane in the eager order, the last in the other."""
    chosen = [compiled[k] for k in variant.launches]
    rows, _ = results.sweep(chosen, variant, schedule, selection.rows(variant, "quick"), elect_last=schedule != "eager")
    problems = [p for row in rows for p in row.wrong]
    assert not problems, f"{len(problems)} problems, the first of them:\n" + "\n".join(problems[:5])
    assert sum(row.slots for row in rows) > 1000


@pytest.mark.parametrize("row", ("page_id_bad_prefill-mxfp4", "q_lengths_causal_long-nvfp4"))
def test_both_forms_of_prefill_have_the_same_bits(row):
    """Staged and direct on sm_90a, on sums that are rounded: which of them serves a call depends on no more than `max_seqlen_q`."""
    forms = [
        v
        for v in selection.all_variants("block_scores")
        if (v.arch, v.path, v.format, v.scale_layout) == ("sm_90a", "prefill", row.rpartition("-")[2], "public")
        and any(k.target.endswith(("sm90_prefill:Prefill", "sm90_prefill_direct:PrefillDirect")) for k in v.launches)
    ]
    (case,) = cases.of("prefill", forms[0].format, row)
    (one, _), (other, _) = (selection.run(kernels.load(v.launches), v, case, "eager") for v in forms)
    assert not case.table.exact and (one.scores.view("u4") == other.scores.view("u4")).all()


def right_on_the_prefills(name, reason, fmt, make):
    """A batch that the list does not have, on the prefills of sm_90a."""
    case = cases.Case(table.Case(f"{name}-{fmt}", reason, fmt, make))
    for variant in (v for v in VARIANTS if v.op == "block_scores"):
        if (variant.arch, variant.path, variant.format) == ("sm_90a", "prefill", fmt):
            outcome, problems = selection.run(kernels.load(variant.launches), variant, case, "eager")
            assert outcome and not problems, (selection.label(variant), problems[:3])


# What mutations asked for
@pytest.mark.parametrize("heads, padding", ((1, 299), (2, 300)))
@pytest.mark.parametrize("fmt, kind", (("nvfp4", "ordinary"), ("mxfp4", "narrow"), ("mxfp4", "wide")))
def test_a_small_fill(fmt, kind, heads, padding):
    """128 neighbouring tokens of no sequence, in int8 and in bf16. One head and one block: all that copies write is one unit of one warp. Two heads and 305 tokens: the second row does not start on 16 bytes."""
    right_on_the_prefills(
        f"small_fill_{kind}_{heads}",
        "a fill of a unit a head",
        fmt,
        lambda f: batch(f, [5], [40], heads, seed=240, kind=kind, pad_tokens=padding),
    )


@pytest.mark.parametrize("key", (3, 66, 127))
def test_one_key_outside_the_window(key):
    """A page that bf16 does not hold for one of its keys, far above the others, in either half of its rows."""

    def make(f):
        inp = batch(f, [9], [300], 2, seed=241, kind="narrow")
        inp.k_scale[inp.kv_indices[1], 0, key] = 230
        return inp

    right_on_the_prefills(f"one_far_key_{key}", "one key for the fixup", "mxfp4", make)
