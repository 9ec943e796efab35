"""Calls inside one jit: captured into a graph, replayed with other lengths, and without gaps on the device."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import check, inputs

import jax_fp4_indexer as jfi
from jax_fp4_indexer.primitives import runtime

LINKS, STEPS = 8, 12
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GAP_US = 6.0


def batch(fmt, path):
    """Exact scores, so that the reference gives the same bits."""
    ql = [1, 4, 2] if path == "decode" else [30, 9, 17]
    return inputs.batch(fmt, ql, [700, 300, 513], 4, 2, seed=5, kind="exact", max_seqlen_k=768)


def program(static, **how):
    """Jitted (arrays, step) -> (scores of 8 calls, step + 1). Lengths depend on call and step; every call waits for the one before."""

    def run(arrays, step):
        outs, wait = [], jnp.int32(0)
        for link in range(LINKS):
            shorter = (step * 37 + link * 101) % 300 + wait
            outs.append(
                jfi.fp4_indexer_block_scores(
                    **arrays | {"cu_seqlens_k": jnp.maximum(arrays["cu_seqlens_k"] - shorter * jnp.arange(4) // 3, 0)},
                    **static,
                )
            )
            wait = jnp.isnan(outs[-1][0, 0, 0]).astype(jnp.int32)
        return jnp.stack(outs), step + 1

    return jax.jit(run, **how)


@pytest.mark.parametrize("implementation", ("decode", "prefill", "portable"))
@pytest.mark.parametrize("fmt", ("nvfp4", "mxfp4"))
def test_replays_with_other_lengths(fmt, implementation):
    """Every buffer stays where it is (the step is donated, no result is kept), so that XLA replays what it has captured."""
    inp = batch(fmt, "decode" if implementation == "decode" else "prefill")
    static, arrays = inp.statics(), jax.device_put(inp.arrays())
    captured, reference = (
        program(static | {"implementation": implementation}, donate_argnums=1),
        program(static | {"implementation": "reference"}),
    )
    step, outs, counts = jnp.int32(0), [], []
    for _ in range(STEPS):
        out, step = captured(arrays, step)
        outs.append(np.array(out))
        del out
        counts.append(runtime.executions("block_scores"))
    assert counts[-1] == counts[3], (
        f"handler runs by step: {np.diff(counts)}: the calls were not replayed from a captured graph"
    )
    assert int(step) == STEPS and len({out.tobytes() for out in outs}) == STEPS, "the lengths changed nothing"
    for i, out in enumerate(outs):
        want = np.asarray(reference(arrays, jnp.int32(i))[0])
        assert check.same_bits(out, want), (i, check.difference(out, want))


@pytest.mark.parametrize("fmt", ("nvfp4", "mxfp4"))
def test_replays_with_other_buffers(fmt):
    """New arrays at every run, earlier ones kept alive: other addresses, so that XLA has to change the graph."""
    inp = batch(fmt, "decode")
    static = inp.statics()
    captured, reference = (
        program(static | {"implementation": "decode"}),
        program(static | {"implementation": "reference"}),
    )
    kept = []
    for step in range(STEPS):
        arrays = {name: jnp.array(x) for name, x in inp.arrays().items()}
        out, _ = captured(arrays, jnp.int32(step))
        kept.append((arrays, out))
        want = np.asarray(reference(arrays, jnp.int32(step))[0])
        assert check.same_bits(np.asarray(out), want), (step, check.difference(np.asarray(out), want))


SHOW = """
import jax, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from test_dispatch import batch, program
inp = batch("nvfp4", "decode")
jax.block_until_ready(program(inp.statics() | {"implementation": "decode"})(inp.arrays(), jax.numpy.int32(1)))
"""


def test_xla_puts_the_calls_into_a_command_buffer(tmp_path):
    """As XLA writes it down: a kCommandBuffer among the thunks with our custom calls inside; before XLA made them of thunks, an HLO computation."""
    here = Path(__file__)
    env = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
    }
    subprocess.run(
        [sys.executable, "-c", SHOW, str(here.parents[1]), str(here.parent)], check=True, env=env, timeout=300
    )
    most = 0
    for path in tmp_path.glob("*jit_run*.txt"):
        text = path.read_text()
        for buffer in re.findall(r"^\d+: kCommandBuffer.*\n((?:[ \t]+.*\n?)*)", text, re.M):
            most = max(most, len(re.findall(r"\bkCustomCall +\[", buffer)))
        for computation in re.findall(r"^%?command_buffer[^\n]*\{\n(.*?)^\}", text, re.M | re.S):
            most = max(most, computation.count('custom_call_target="jax_fp4_indexer.block_scores'))
    assert most >= LINKS, (
        f"{most} of {LINKS} calls are in a command buffer; {sorted(p.name for p in tmp_path.glob('*jit_run*thunk*'))}"
    )


def test_gap_of_a_chain():
    done = subprocess.run(
        [sys.executable, "-c", "import dispatch, json; print(json.dumps(dispatch.run_modes()))"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *(p for p in sys.path if p)])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    rows = found["command buffers"]
    assert len(rows) == 6
    for row in rows:
        assert row["gap_us"] <= GAP_US, row
        assert row["handler_runs"] == 0, row
    assert all(
        row["handler_runs"] == row["runs"] * row["links"] for row in found["no command buffers"]
    )  # the counter counts
