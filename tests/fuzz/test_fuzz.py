"""A small share of the fuzzer without a GPU: the reference over a few buckets, the oracle against the naive one, and that every kind of wrong is noticed."""

import collections
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fuzz import __main__ as command
from fuzz import alignment, cases, expected, metadata, shapes, values
from fuzz.run import Fuzzer
from support import oracle

TESTS = Path(__file__).resolve().parents[1]
REFERENCE = (
    "decode_8_2-nvfp4-mask2,columns_32-mxfp4-mask1,many_sequences-nvfp4-mask1,prefill_4_2-mxfp4-mask2,one_query_each-nvfp4-mask0,no_pages-mxfp4-mask1,"
    "no_sequences-nvfp4-mask2,two_queries-mxfp4-mask2"
)


@pytest.mark.parametrize("seed", [1])
def test_the_reference(seed):
    fuzzer = Fuzzer(seed, ["reference"], match=REFERENCE, workers=2)
    well = fuzzer.run(range(480))
    assert well, fuzzer.failures[:3]
    assert fuzzer.counts["invalid"] > 100 and 50 < fuzzer.counts["falls"] < fuzzer.counts["invalid"] - 50


SMALL = shapes.buckets(
    "decode_4_1-nvfp4,decode_8_2-mxfp4,columns_32-nvfp4,one_query_each,two_queries,no_list,all_of_size_1,wide_pool-mxfp4-mask0"
)


@pytest.fixture(scope="module")
def drawn():
    pools = cases.Pools(3)
    made = [cases.make(3, 5 * i, SMALL, pools) for i in range(300)]
    return [(case, expected.expect(case.pool, case.metadata)) for case in made]


def test_its_oracle_is_the_naive_one(drawn):
    for case, truth in drawn:
        inp = dataclasses.replace(
            case.pool.inp,
            **{
                f.name: getattr(case.metadata, f.name)
                for f in dataclasses.fields(metadata.Metadata)
                if f.name != "faults"
            },
        )
        naive = oracle.evaluate(inp)
        np.testing.assert_allclose(
            truth.truth.scores, naive.scores, rtol=1e-12, atol=0 if case.pool.exact else 1e-9, err_msg=str(case)
        )
        if not case.pool.exact:
            finite = np.isfinite(naive.scores)
            np.testing.assert_allclose(truth.truth.bound[finite], naive.bound[finite], rtol=1e-12, err_msg=str(case))


def test_what_is_drawn(drawn):
    """Valid batches are valid, all faults come up, many of them without a sum that falls, and blocks are seen then."""
    assert not [case for case, _ in drawn if case.invalid and not case.metadata.faults]
    assert sum(bool(case.invalid) for case, _ in drawn) > 90
    assert {fault for i in range(700) for fault in cases.make(4, i, shapes.buckets()).metadata.faults} == set(
        metadata.FAULTS
    )
    assert 30 < sum(truth.falls for _, truth in drawn) < 100
    assert sum(bool(case.invalid) and truth.visible.any() for case, truth in drawn) > 30
    pools = cases.Pools(3)
    for a, _ in drawn[:5]:
        b = cases.make(3, a.index, SMALL, pools)
        assert all(np.array_equal(x, y) for x, y in zip(a.metadata.arrays().values(), b.metadata.arrays().values()))
        assert a.pool.inp.digest() == b.pool.inp.digest()


def wrong_outputs(case, truth):
    """(what, scores) that a broken kernel might give."""
    with np.errstate(over="ignore"):
        right = truth.truth.scores.astype(np.float32)
    yield "", right
    finite, unseen, nan = np.isfinite(right), np.isneginf(right), np.isnan(right)

    def at(mask, value):
        out = right.copy()
        out[tuple(np.argwhere(mask)[-1])] = value
        return out

    poison = np.uint32(expected.POISON).view(np.float32)
    if unseen.any():
        yield "-inf set differs", at(unseen, -3e38)
        yield "not written", at(unseen, poison)
    if nan.any():
        yield "NaN set differs", at(nan, 1.0)
    if finite.any():
        yield "set differs", at(finite, -np.inf)
        yield "not written", at(finite, poison)
        if case.pool.exact and (right[finite] != 0).all():
            yield "bits differ", np.where(finite, np.nextafter(right, np.float32(np.inf)), right)
        elif not case.pool.exact and truth.truth.bound[finite].any():
            yield "error above", (right + np.where(finite, 1e-3 * truth.truth.bound, 0)).astype(np.float32)
    if case.pool.exact and truth.visible.any() and case.bucket.pages > 2:
        pool = dataclasses.replace(case.pool, scores=np.roll(case.pool.scores, 1, axis=2))  # every page's neighbour
        other = expected.expect(pool, case.metadata).truth.scores.astype(np.float32)
        if not np.array_equal(other, right, equal_nan=True):
            yield " ", other


def test_every_kind_of_wrong_is_noticed(drawn):
    noticed = collections.Counter()
    for case, truth in drawn:
        if case.invalid or truth.truth.scores.size == 0:
            continue
        for what, out in wrong_outputs(case, truth):
            problem = expected.judge(out, case.pool, truth)
            assert (what in problem) if what else not problem, (str(case), what, problem)
            noticed[what] += bool(what)
    assert (
        min(
            noticed[w]
            for w in (
                "-inf set differs",
                "not written",
                "NaN set differs",
                "set differs",
                "bits differ",
                "error above",
                " ",
            )
        )
        > 10
    ), noticed


@pytest.mark.parametrize("name", ["cu_q", "cu_p"])
def test_a_sum_that_falls_is_to_give_nan_everywhere(name):
    bucket = shapes.buckets("decode_8_2-nvfp4-mask0")[0]
    pool = values.make(bucket, 0, 1)
    cu = lambda *x: np.array(x, np.int32)  # noqa: E731
    m = metadata.Metadata(
        cu(0, 4, 8, 12, 12, 12, 12),
        cu(0, 256, 512, 768, 768, 768, 768),
        cu(0, 2, 4, 6, 6, 6, 6),
        np.arange(24, dtype=np.int32) % 20,
        None,
    )
    rising = expected.expect(pool, m)
    getattr(m, name)[5] -= 1
    truth = expected.expect(pool, m)
    assert not rising.falls and truth.falls
    out = np.full(truth.truth.scores.shape, np.nan, np.float32)
    assert not expected.judge(out, pool, truth)
    assert "NaN set differs" in expected.judge(rising.truth.scores.astype(np.float32), pool, truth)
    for value, what in ((np.uint32(expected.POISON).view(np.float32), "not written"), (-np.inf, "NaN set differs")):
        bad = out.copy()
        bad[-1, -1, -1] = value
        assert what in expected.judge(bad, pool, truth)


def test_a_failure_tells_how_to_run_it_again(capsys):
    match = "two_queries-mxfp4-mask2"
    fuzzer = Fuzzer(9, ["decode"], match=match, workers=1)
    fuzzer.programs[fuzzer.bucket(0), False] = lambda pool, m: {"decode": np.zeros((3, 2, 2), np.float32)}
    assert not fuzzer.run(range(4))
    line = re.search(r"python -m fuzz (.*)", capsys.readouterr().out)[1]
    assert line == fuzzer.failures[0]["repro"].split("fuzz ")[1] == f"--seed 9 --case 0 --buckets {match}"
    assert (
        command.main([*line.split(), "--implementations", "reference"]) == 0
    )  # the case is right: only the stand-in was wrong


def test_a_hang_ends_the_run_and_names_the_case(tmp_path):
    script = (
        "import sys, time\nfrom fuzz.run import Fuzzer\n"
        "f = Fuzzer(9, ['decode'], match='two_queries-mxfp4-mask2', workers=1, hang_limit=1, json_path=sys.argv[1])\n"
        "f.programs[f.bucket(0), False] = lambda pool, m: time.sleep(60)\n"
        "f.run(range(4))\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), *(p for p in sys.path if p)]),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "out.json"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 4, done.stderr
    assert "no end after 1 s: hung" in done.stdout and "--seed 9 --case 0 --buckets two" in done.stdout
    assert "hung" in (tmp_path / "out.json").read_text()


def test_operands_that_lie_anywhere():
    outcomes = list(alignment.run(["reference"]))
    assert not [found for found in outcomes if found[2]], outcomes
    assert len(outcomes) > 30 and {o for _, o, _ in outcomes} >= {"copied"}
