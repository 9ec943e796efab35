"""One process of a model step over two: python step_of_two_processes.py PORT PROCESS. As docs/sharding.md shows it for several hosts.

Sequences are split over all devices of all processes. Each process holds its own part only, and checks its own part of the result; the sum over all is a collective.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fp4_indexer as jfi
from support import inputs


def main(port, process):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)
    assert jax.process_count() == 2 and len(jax.devices()) == 4 and len(jax.local_devices()) == 2
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    inp = inputs.batch("nvfp4", [3, 0, 6, 2, 3, 1, 1], [300, 5, 2, 700, 129, 256, 40], 4, 2, pad_tokens=2)
    m = jfi.ragged.shard(inp.cu_q, inp.cu_k, inp.cu_p, inp.kv_indices, num_shards=4)

    def local(q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids):
        scores = jfi.fp4_indexer_block_scores(q, k, q_scale, k_scale, cu_q, cu_k, cu_p, kv_indices=ids, **inp.statics())
        best = jax.lax.top_k(scores.transpose(0, 2, 1), 2)[1]  # blocks to attend to
        return scores, best, jax.lax.psum(jnp.isfinite(scores).sum(), "x")

    x = P("x")
    specs = (x, P(), x, P(), x, x, x, x)
    step = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(P(None, None, "x"), P(None, "x"), P())))
    whole = (
        inp.q[m.rows],
        inp.k,
        inp.q_scale[m.rows],
        inp.k_scale,
        m.cu_seqlens_q,
        m.cu_seqlens_k,
        m.cu_page_offsets,
        m.kv_indices,
    )
    # Every process gives what its own devices hold: half of what is split, all of what is not.
    half = lambda x: np.split(x, 2)[process]
    placed = [
        jax.make_array_from_process_local_data(NamedSharding(mesh, spec), half(x) if spec == P("x") else x, x.shape)
        for x, spec in zip(whole, specs, strict=True)
    ]
    scores, best, finite = step(*placed)
    want = np.full(scores.shape, -np.inf, np.float32)
    want[..., m.columns] = np.asarray(jfi.reference.fp4_indexer_block_scores(**inp.arrays(), **inp.statics()))[
        ..., : m.columns.size
    ]
    assert not scores.is_fully_addressable
    for shard in scores.addressable_shards:
        np.testing.assert_array_equal(shard.data, want[shard.index])
    for shard in best.addressable_shards:
        np.testing.assert_array_equal(shard.data, jax.lax.top_k(want.transpose(0, 2, 1), 2)[1][shard.index])
    assert int(finite) == np.isfinite(want).sum() > 20
    print(f"process {process}: {len(scores.addressable_shards)} of 4 parts right, {int(finite)} finite scores in all")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
