"""The first call of a fresh process: import, JAX's start, first result (XLA compiles a program around the custom call; no kernel is compiled), second result.

python benchmarks/first_call.py
"""

import sys
import time

start = time.perf_counter()
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import jax_fp4_indexer as jfi  # noqa: E402

imported = time.perf_counter()


def main():
    tokens, heads_q, heads_kv, pages = 4, 4, 1, 64
    rng = np.random.default_rng(0)
    q, k = (
        jnp.asarray(rng.integers(0, 256, s, dtype=np.uint8))
        for s in ((tokens, heads_q, 64), (pages, heads_kv, 128, 64))
    )
    q_scale, k_scale = (jnp.full(s, 0x38, jnp.uint8) for s in ((tokens, heads_q, 8), (pages, heads_kv, 128, 8)))
    prefix = [jnp.asarray([0, n], jnp.int32) for n in (tokens, pages * 128, pages)]
    ids = jnp.arange(pages, dtype=jnp.int32)
    jax.block_until_ready((q, k, q_scale, k_scale, prefix, ids))
    ready = time.perf_counter()
    call = jax.jit(
        lambda *a: jfi.fp4_indexer_block_scores(
            *a[:-1], max_seqlen_q=tokens, max_seqlen_k=pages * 128, kv_indices=a[-1]
        )
    )
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        jax.block_until_ready(call(q, k, q_scale, k_scale, *prefix, ids))
        times.append(time.perf_counter() - begin)
    print(
        f"{jax.devices()[0].device_kind}: imports {imported - start:.2f} s, JAX and data {ready - imported:.2f} s, first call {times[0] * 1e3:.1f} ms, "
        f"third call {times[2] * 1e3:.3f} ms, kernel compiler imported: {'cutlass' in sys.modules}"
    )


if __name__ == "__main__":
    main()
