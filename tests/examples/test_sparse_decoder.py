"""The example holds what its README says: sparse is dense where every block is chosen, prefill and decode write the same cache, heads can be split over devices,
and the passage is found through the indexer, not by luck."""

import functools
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import jax_fp4_indexer as jfi
from examples.sparse_decoder.__main__ import main
from examples.sparse_decoder.attention import choose_blocks
from examples.sparse_decoder.cache import append, empty_cache, page_table, place
from examples.sparse_decoder.measure import Job, Session, compare, time_stages
from examples.sparse_decoder.model import Config

ROOT = pathlib.Path(__file__).parents[2]
LENGTHS, CHUNK = (
    (700, 410),
    270,
)  # 6 and 4 blocks; lengths are no whole number of pages or chunks, nor is the chunk of pages
BASE = dict(layers=2, d_model=384, heads_q=8, heads_kv=4, d_ff=256, vocab=1024)
SEED = 20


@functools.cache
def _session(top_k, devices):
    return Session(Job(Config(top_k=top_k, **BASE), LENGTHS, CHUNK, devices, 1, SEED))


def session(top_k=3, devices=1):
    return _session(top_k, devices)


@functools.cache
def run(mode="sparse", **job):
    """Prefill, then decode the answer: (logits [PASSAGE, B, vocab], cache as NumPy)."""
    s = session(**job)
    first, cache, _ = s.prefill(mode)
    logits, cache, _ = s.decode(mode, cache, s.answers, jnp.asarray(LENGTHS, jnp.int32))
    return np.concatenate([np.asarray(first)[None], logits]), jax.tree.map(np.asarray, cache)


def right(logits):
    """Share of answers that are right, of as many tokens of the passage as logits [steps, B, vocab] tell."""
    want = session().answers.T[: len(logits)]
    return (logits[: len(want)].argmax(-1) == want).mean()


def first_logits(**job):
    return np.asarray(session(**job).prefill("sparse")[0])[None]


def test_the_passage_is_found_through_the_indexer():
    assert right(run("dense")[0]) == 1
    assert right(run()[0]) == 1
    blocks = [
        {int(np.flatnonzero(p == a[0])[0]) // 128, int(np.flatnonzero(p == a[-1])[0]) // 128}
        for p, a in zip(session().prompts, session().answers, strict=True)
    ]
    assert all(not {0, (n - 1) // 128} & b for n, b in zip(LENGTHS, blocks, strict=True)), (
        "the seed puts a passage into a forced block"
    )
    assert right(first_logits(top_k=2)) == 0, "first and last block alone must not be enough"


def test_sparse_is_dense_where_every_block_is_chosen():
    (sparse, sparse_cache), (dense, dense_cache) = run(top_k=64), run("dense")
    np.testing.assert_allclose(sparse, dense, atol=2e-5 * np.abs(dense).max())
    np.testing.assert_allclose(sparse_cache.k, dense_cache.k, atol=2e-5 * np.abs(dense_cache.k).max())


def test_decode_writes_the_cache_that_prefill_writes():
    s = session()
    whole = [np.concatenate([p, a]) for p, a in zip(s.prompts, s.answers)]  # the prompts as they are after decode
    longer = Session(Job(s.config, tuple(map(len, whole)), CHUNK, 1, 1, SEED))
    longer.prompts, longer.params, longer.table, longer.steps = whole, s.params, s.table, s.steps
    _, prefilled, _ = longer.prefill("sparse")
    decoded = run()[1]
    assert decoded.index_codes.any(), "something is written"
    for name in ("index_codes", "index_scales"):
        np.testing.assert_array_equal(getattr(decoded, name), np.asarray(getattr(prefilled, name)), err_msg=name)
    for name in ("k", "v"):
        np.testing.assert_allclose(
            getattr(decoded, name), np.asarray(getattr(prefilled, name)), atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize("fp4_format", ("nvfp4", "mxfp4"))
def test_append_writes_the_same_bytes_in_one_call_or_in_many(fp4_format):
    config = Config(fp4_format=fp4_format, **BASE)
    table, n = jnp.asarray(page_table(2, 300, SEED)), np.array([300, 131], np.int32)
    k, v, index_k = (
        np.random.default_rng(i).standard_normal((n.sum() + 5, heads, 128), np.float32)
        for i, heads in enumerate((4, 4, 1))
    )  # 5 rows of padding
    write = jax.jit(append, static_argnames="fp4_format", donate_argnums=0)
    where = jax.jit(place, static_argnums=3)
    layer = table.size  # the pages of layer 1

    def pieces(ends):
        cache, past = empty_cache(config, table.size, jnp.float32), np.zeros(2, np.int32)
        for end in ends:
            now = np.minimum(end, n)
            rows = np.concatenate(
                [off + np.arange(a, b) for off, a, b in zip((0, n[0]), past, now)] + [n.sum() + np.arange(5)]
            )
            batch = where(table, now - past, past, len(rows))
            cache = write(cache, batch, layer, k[rows], v[rows], index_k[rows], fp4_format=fp4_format)
            past = now
        return jax.tree.map(np.asarray, cache)

    once, many = pieces([300]), pieces([128, 129, 300])
    jax.tree.map(np.testing.assert_array_equal, once, many)
    wrote = once.index_codes.any((1, 2, 3))
    assert not wrote[:layer].any() and wrote.sum() == 3 + 2, "pages of other layers, or of nobody, stay empty"
    b, position = 1, 130
    page = int(table[b, position // 128]) + layer
    codes, scales = (jfi.quantize_nvfp4 if fp4_format == "nvfp4" else jfi.quantize_mxfp4)(index_k[300 + position, 0])
    np.testing.assert_array_equal(once.index_codes[page, 0, position % 128], codes)
    np.testing.assert_array_equal(once.index_scales[page, 0, position % 128], np.asarray(scales).view(np.uint8))


def test_heads_split_over_devices_give_the_same():
    s = session(devices=4)
    step, zeros = s.step("decode", "sparse").func, jnp.zeros(2, jnp.int32)
    compiled = step.lower(s.params, s.cache(), s.table, zeros, zeros + 1, zeros + 7).compile()
    said = set(re.findall(r"all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter", compiled.as_text()))
    assert said == {"all-reduce"}, "the two sums of a layer are all that devices tell each other"
    s.steps["decode", "sparse", False] = compiled
    (one, cache), (four, sharded) = run(), run(devices=4)
    np.testing.assert_allclose(four, one, atol=2e-5 * np.abs(one).max())
    np.testing.assert_allclose(sharded.v, cache.v, atol=1e-4)


def test_the_padded_page_table_scores_as_a_list_without_gaps():
    """Page offsets with a fixed stride, as the example passes them, against the lists that `ragged.validate` wants."""
    table, k_lens, q_lens = page_table(3, 600, SEED), np.array([600, 5, 257], np.int32), np.array([3, 1, 2], np.int32)
    cu = lambda x: np.concatenate([[0], np.cumsum(x)]).astype(np.int32)
    codes, scales = jfi.quantize_nvfp4(jax.random.normal(jax.random.key(0), (table.size, 1, 128, 128)))
    q, q_scales = jfi.quantize_nvfp4(jax.random.normal(jax.random.key(1), (6, 4, 128)))
    pages = -(-k_lens // 128)
    compact = np.concatenate([row[:n] for row, n in zip(table, pages)])
    jfi.ragged.validate(
        cu(q_lens), cu(k_lens), cu(pages), compact, tokens=6, num_pages=table.size, max_seqlen_q=3, max_seqlen_k=640
    )
    score = lambda offsets, ids: jfi.fp4_indexer_block_scores(
        q, codes, q_scales, scales, cu(q_lens), cu(k_lens), offsets, max_seqlen_q=3, max_seqlen_k=640, kv_indices=ids
    )
    np.testing.assert_array_equal(
        score(np.arange(4, dtype=np.int32) * table.shape[1], table.reshape(-1)), score(cu(pages), compact)
    )


def test_chosen_blocks_are_the_forced_ones_and_the_best():
    ninf, nan = -np.inf, np.nan
    scores = jnp.asarray(
        [
            [0.0, 5, 1, 9, 2, 3],
            [7, 1, 2, 3, ninf, ninf],
            [1, nan, 3, 8, 9, 2],
            [0, ninf, ninf, ninf, ninf, ninf],
            [ninf] * 6,
        ]
    ).T[None]  # [1, blocks, T]
    last_key = jnp.asarray([5 * 128 + 3, 3 * 128, 5 * 128, 127, -1])
    chosen = choose_blocks(scores, last_key, top_k=4)[:, 0]
    assert [set(row) for row in np.asarray(chosen).tolist()] == [
        {0, 5, 3, 1},
        {0, 3, 1, 2},
        {0, 5, 4, 3},
        {0, -1},
        {-1},
    ]
    assert (np.sort(np.asarray(chosen))[:3] >= 0).all()
    assert set(np.asarray(choose_blocks(scores, last_key, top_k=2)[0, 0]).tolist()) == {0, 5}


def test_what_the_choice_holds_of_dense_attention():
    figures = compare(session())[0]
    assert (
        figures["mass_least_planted"] > 0.99
        and figures["blocks_planted"] == 1
        and figures["same_next_token_passage"] == 1
    )
    assert figures["mass_best_diffuse"] >= figures["mass_diffuse"] > figures["chance"] * 0.9
    assert 0.3 < figures["mass_diffuse"] < 0.99, "diffuse heads lose some: 3 of up to 6 blocks"


def test_every_stage_is_timed():
    s = session()
    times = time_stages(s, "decode", s.cache(), jnp.asarray(LENGTHS, jnp.int32), repeats=1)
    assert list(times) == ["indexer", "selection", "sparse attention", "dense attention"] and min(times.values()) > 0


def test_the_command_answers_and_explains():
    quick = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # compiling takes longer than running
    command = functools.partial(subprocess.run, cwd=ROOT, env=quick, capture_output=True, text=True, timeout=400)
    python = [sys.executable, "-m", "examples.sparse_decoder"]
    done = command(
        [
            *python,
            "--context",
            "600",
            "--batch",
            "1",
            "--layers",
            "2",
            "--d-model",
            "320",
            "--devices",
            "2",
            "--timed-steps",
            "2",
            "--stages",
            "none",
            "--no-dense-prefill",
        ]
    )
    assert done.returncode == 0 and "answers right, sparse" in done.stdout, done.stdout + done.stderr
    wrong = command([*python, "--devices", "3"])
    assert wrong.returncode == 2 and "expected a divisor of heads_kv = 2" in wrong.stderr


@pytest.mark.parametrize(
    "option, value, part",
    [
        ("--seed", "-1", "-1 is not in the range"),
        ("--context", "1000000000000", "is not in the range"),
        ("--json", "/proc/nowhere/x.json", "--json: got '/proc/nowhere/x.json', expected a file"),
        ("--json", "", "--json: got '', expected a file"),
        ("--heads", "3/2", "query heads a multiple of KV heads"),
    ],
)
def test_the_command_says_what_is_wrong_before_the_work(option, value, part):
    result = CliRunner().invoke(main, [option, value])
    assert result.exit_code == 2 and part in " ".join(result.output.split()), result.output
