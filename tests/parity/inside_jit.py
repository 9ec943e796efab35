"""The op inside larger programs: scans whose metadata changes per step, loops between matmuls, donated buffers, several calls at once.

Run first in a process, so that the first call ever of a kernel is inside a loop, where XLA may capture it into a command buffer.
Each check yields (what, problem or "").
"""

import functools
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import runner
import jax_fp4_indexer as jfi
from support import check, inputs

STEPS = 10
NAMES = ("cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets", "kv_indices")


def _steps(fmt, decode):
    """Ten batches of one shape whose lengths, pages and codes all differ."""
    out = []
    for step in range(STEPS):
        rng = np.random.RandomState(step)
        ql = rng.multinomial(20, [0.25] * 4) if not decode else [1 + step % 3, 2, 0, 4]
        kl = [int(x) for x in rng.randint(0, 700, 4)]
        inp = inputs.batch(
            fmt, [int(x) for x in ql], kl, 4, 2, seed=step, max_seqlen_q=8 if decode else 20, max_seqlen_k=700
        )
        out.append(inputs.padded(inp, 24, 4, 32, 40, 6))
    return out


def _call(static, q, k, q_scale, k_scale, meta):
    return jfi.fp4_indexer_block_scores(q, k, q_scale, k_scale, **meta, **static)


def run(implementations=runner.IMPLEMENTATIONS, fmt=None):
    for name in implementations:
        for f in (fmt,) if fmt else ("nvfp4", "mxfp4"):
            steps = _steps(f, decode="decode" in name)
            static = runner.call(name, steps[0], "public")
            for what, function in (("scan", _scan), ("loop", _loop), ("donated", _donated), ("twice", _twice)):
                try:
                    problem = function(static, steps)
                except Exception as error:
                    problem = f"{type(error).__name__}: {str(error).strip()[:400]}"
                yield f"{what} {name} {f}", problem


def _stack(steps):
    a = [s.arrays() for s in steps]
    return {n: jnp.stack([x[n] for x in a]) for n in a[0]}


def _eager(static, steps):
    return [np.asarray(_call(static, s.q, s.k, s.q_scale, s.k_scale, {n: s.arrays()[n] for n in NAMES})) for s in steps]


def _differs(got, want):
    for step, (a, b) in enumerate(zip(np.asarray(got), want, strict=True)):
        if not check.same_bits(a, b):
            return f"step {step}: {check.difference(a, b)}"
    return ""


def _body(static, x):
    return _call(static, x["q_fp4"], x["k_fp4"], x["q_scale"], x["k_scale"], {n: x[n] for n in NAMES})


def _scan(static, steps):
    """Matmuls before and after each call, so that the call sits inside a captured region."""

    def step(carry, x):
        out = _body(static, x)
        return jnp.tanh(carry @ carry) + jnp.sum(jnp.isfinite(out)) * 1e-9, out

    _, got = jax.jit(lambda xs: lax.scan(step, jnp.eye(256), xs))(_stack(steps))
    return _differs(got, _eager(static, steps))


def _loop(static, steps):
    def program(xs):
        def step(i, state):
            carry, outs = state
            out = _body(static, jax.tree.map(lambda x: x[i], xs))
            return jnp.tanh(carry @ carry), outs.at[i].set(out)

        Hq, tiles, Tq = steps[0].shape[1], steps[0].shape[5], steps[0].shape[0]
        return lax.fori_loop(0, len(steps), step, (jnp.eye(256), jnp.zeros((len(steps), Hq, tiles, Tq))))[1]

    return _differs(jax.jit(program)(_stack(steps)), _eager(static, steps))


def _donated(static, steps, repeats=50):
    """New buffers at every call: a captured graph must not keep the old addresses. The query buffer is donated and changed in place."""

    @functools.partial(jax.jit, donate_argnums=0)
    def program(q, x):
        return q ^ jnp.uint8(0), _body(static, x | {"q_fp4": q})

    want = _eager(static, steps)
    for i in range(repeats):
        s = steps[i % len(steps)]
        _, out = program(jnp.asarray(s.q), {n: jnp.asarray(x) for n, x in s.arrays().items()})
        if not check.same_bits(np.asarray(out), want[i % len(steps)]):
            return f"call {i}: {check.difference(np.asarray(out), want[i % len(steps)])}"
    return ""


def _twice(static, steps):
    """Two independent calls in one program, neither waiting for the other: results must not share scratch."""
    got = jax.jit(lambda a, b: (_body(static, a), _body(static, b)))(steps[0].arrays(), steps[1].arrays())
    return _differs(got, _eager(static, steps[:2]))


if __name__ == "__main__":
    problems = [f"{what}: {problem}" for what, problem in run() if problem]
    print("\n".join(problems) or "all contexts equal eager calls")
    sys.exit(bool(problems))
