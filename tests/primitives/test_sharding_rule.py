"""The rule that XLA propagates shardings by, as it is in the program: written out for every layout of scales and every kind of head ratio.

The order of factors, and which of them are whole, decide what XLA gathers; a factor of 1 next to another is refused.
"""

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fp4_indexer.primitives.block_scores import CALL

from support.meshes import mesh
from support.operands import operands, static

RULES = {
    (
        "public",
        8,
        4,
    ): "([i, jk, l], [m, j, n, o], [i, jk, p], [m, j, n, q], [r], [s], [t], [u], [v], [jk], [i], [j])->([jk, w, i], [x]) "
    "{i=8, j=4, k=2, l=64, m=6, n=128, o=64, p=8, q=8, r=6, s=3, t=3, u=3, v=2, w=3, x=16} "
    "need_replication={l, m, n, o, p, q, r, s, t, u, v, w, x}, custom",
    (
        "public",
        4,
        4,
    ): "([i, j, k], [l, j, m, n], [i, j, o], [l, j, m, p], [q], [r], [s], [t], [u], [j], [i], [j])->([j, v, i], [w]) "
    "{i=8, j=4, k=64, l=6, m=128, n=64, o=8, p=8, q=6, r=3, s=3, t=3, u=2, v=3, w=16} "
    "need_replication={k, l, m, n, o, p, q, r, s, t, u, v, w}, custom",
    (
        "public",
        8,
        1,
    ): "([i, j, k], [l, m, n, o], [i, j, p], [l, m, n, q], [r], [s], [t], [u], [v], [j], [i], [m])->([j, w, i], [x]) "
    "{i=8, j=8, k=64, l=6, m=1, n=128, o=64, p=8, q=8, r=6, s=3, t=3, u=3, v=2, w=3, x=16} "
    "need_replication={k, l, n, o, p, q, r, s, t, u, v, w, x}, custom",
    (
        "preordered_mma",
        8,
        4,
    ): "([i, jk, l], [m, j, n, o], [jk, p, q, r, s, t], [u, v, w, x, y, z], [z_1], [z_2], [z_3], [z_4], [z_5], [jk], [i], [j])"
    "->([jk, z_6, i], [z_7]) {i=8, j=4, k=2, l=64, m=6, n=128, o=64, p=1, q=2, r=32, s=4, t=4, u=24, v=1, w=2, x=32, y=4, z=4, z_1=6, z_2=3, "
    "z_3=3, z_4=3, z_5=2, z_6=3, z_7=16} "
    "need_replication={i, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, z_1, z_2, z_3, z_4, z_5, z_6, z_7}, custom",
    (
        "preordered_mma",
        4,
        4,
    ): "([i, j, k], [l, j, m, n], [j, o, p, q, r, s], [t, u, v, w, x, y], [z], [z_1], [z_2], [z_3], [z_4], [j], [i], [j])"
    "->([j, z_5, i], [z_6]) {i=8, j=4, k=64, l=6, m=128, n=64, o=1, p=2, q=32, r=4, s=4, t=24, u=1, v=2, w=32, x=4, y=4, z=6, z_1=3, z_2=3, "
    "z_3=3, z_4=2, z_5=3, z_6=16} need_replication={i, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, z_1, z_2, z_3, z_4, z_5, z_6}, custom",
    (
        "preordered_mma",
        8,
        1,
    ): "([i, j, k], [l, m, n, o], [j, p, q, r, s, t], [u, v, w, x, y, z], [z_1], [z_2], [z_3], [z_4], [z_5], [j], [i], [m])"
    "->([j, z_6, i], [z_7]) {i=8, j=8, k=64, l=6, m=1, n=128, o=64, p=1, q=2, r=32, s=4, t=4, u=6, v=1, w=2, x=32, y=4, z=4, z_1=6, z_2=3, "
    "z_3=3, z_4=3, z_5=2, z_6=3, z_7=16} need_replication={i, k, l, n, o, p, q, r, s, t, u, v, w, x, y, z, z_1, z_2, z_3, z_4, z_5, z_6, z_7}, custom",
}


@pytest.mark.parametrize("layout, heads_q, heads_kv", RULES, ids=[f"{layout}-{q}x{kv}" for layout, q, kv in RULES])
def test_the_rule_in_the_program(layout, heads_q, heads_kv):
    args = operands(tokens=8, heads_q=heads_q, heads_kv=heads_kv, num_pages=6, scale_layout=layout)
    everywhere = NamedSharding(mesh(x=4), P())
    call = static(scale_layout=layout, max_seqlen_q=4)
    program = jax.jit(lambda *args: CALL(args, static=call)).trace(*(jax.device_put(x, everywhere) for x in args))
    text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert f"sdy.sharding_rule = #sdy.op_sharding_rule<{RULES[layout, heads_q, heads_kv]}>" in text
