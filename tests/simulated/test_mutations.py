"""Changes of single instructions of the kernels that ship: what is recorded of samples of them, and a few again."""

import json
import warnings

import pytest

from ptxsim import kernels, mutate
from simulated import mutations, selection
from simulated.ledger import StaleEvidence

RECORDS = json.loads(mutations.RECORDS.read_text())
NOTICED = 0.9  # of the changes that make a difference


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: f"{r['variant']} {r['kernel']}")
def test_records(record):
    survivors = record["survivors"]
    assert [record["mutants"], record["noticed"]] == [sum(c[i] for c in record["kinds"].values()) for i in (0, 1)]
    assert len(survivors) == record["mutants"] - record["noticed"]
    assert not [s for s in survivors if not s.get("why")], "every survivor has a reason"
    assert not [s for s in survivors if "supposed" in s["why"]], "a reason is a proof, or says what would show it"
    different = record["mutants"] - sum(s["equivalent"] for s in survivors)
    assert record["mutants"] >= 40 and record["noticed"] >= NOTICED * different


VARIANTS = {selection.label(v): v for v in selection.all_variants()}


def _family(variant, launch):
    """A launch's kernel class and what of its configuration makes another kernel of it: not the format, the scale layout or the number of columns of a portable one."""
    kernel = VARIANTS[variant].launches[launch]
    return kernel.target.rpartition(":")[2], *(
        dict(kernel.config).get(key) for key in ("role", "precision", "path", "columns", "widen")
    )


def test_stale_records_are_said():
    """A record speaks of one text; of another kernel it says nothing."""
    tree = {
        (label, i): mutate.text_stamp(k)
        for label, v in VARIANTS.items()
        for i, k in enumerate(kernels.load(v.launches))
    }
    old = [r for r in RECORDS if tree.get((r["variant"], r["launch"])) != r["text"]]
    if old:
        warnings.warn(
            StaleEvidence(
                f"the changes of {len(old)} of {len(RECORDS)} kernels in {mutations.RECORDS.name} were made to other texts, e.g. of {old[0]['variant']}; "
                f"renew: PYTHONPATH=.:tests python -m simulated mutate {old[0]['variant']} --sample {old[0]['mutants']} --record"
            )
        )
    assert len(old) < len(RECORDS)


def test_every_family_of_block_scores_has_a_record():
    """Of the batched GEMV no instruction has been changed yet: docs/evidence.md says so."""
    wanted = {
        _family(label, i) for label, v in VARIANTS.items() if v.op == "block_scores" for i in range(len(v.launches))
    }
    assert len(wanted) >= 15
    assert wanted == {_family(r["variant"], r["launch"]) for r in RECORDS}


# Synchronisation, copies and products that no other instruction makes up for, in kernels that are small enough: label, launch, rows, operations.
LIVE = [
    (
        "sm_90a.native.decode.nvfp4.public.n16",
        0,
        "sim_bad_pages_one_sequence-",
        ("MB_INIT", "MB_ARRIVE", "MB_EXPECT", "MB_WAIT", "BULK_G2S", "MMA"),
        16,
    ),
    (
        "sm_90a.native.prefill.mxfp4.public.n0",
        2,
        "forms_some_queries-",
        ("MB_INIT", "MB_ARRIVE", "MB_EXPECT", "BULK_G2S", "TMA_LOAD", "WGMMA", "WG_COMMIT"),
        8,
    ),
]


@pytest.mark.parametrize(
    "label, launch, rows, operations, most", LIVE, ids=lambda x: x if isinstance(x, str) and "sm_" in x else ""
)
def test_a_few_again(label, launch, rows, operations, most):
    variant = VARIANTS[label]
    bench = mutations.Bench(variant, rows, ("eager", "lazy"))
    table = kernels.load(variant.launches)[launch].program.table
    picked = [
        c
        for c in mutate.chosen(bench.compiled[launch], bench.executed[launch], ("drop", "no wait"))
        if mutate.NAMES[int(table[c.pc][0])] in operations
    ]
    verdicts = list(bench.verdicts(launch, picked[:: -(-len(picked) // most)]))
    assert len(verdicts) > most // 2
    assert not [str(v) for v in verdicts if not v.noticed]
