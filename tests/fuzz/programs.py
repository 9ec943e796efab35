"""Compiled programs of the buckets: the public op under jax.jit, once an implementation, over results that hold poison before the call."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_fp4_indexer as jfi
from support import calls

from .expected import POISON


@functools.lru_cache(maxsize=None)
def _poisoner(shape, count):
    def fill():
        return [lax.bitcast_convert_type(jnp.full(shape, POISON, jnp.uint32), jnp.float32)] * count

    return jax.jit(fill).lower().compile()


class Program:
    """outs = program(pool, metadata): {implementation: scores}. On a GPU every result takes over the memory of a donated array of poison."""

    def __init__(self, bucket, pool, implementations):
        inp = pool.inp
        named = {name: calls.call(name, inp, bucket.layout(name)) for name in implementations}
        self.calls = {name: c for name, c in named.items() if c is not None}
        self.shape = (bucket.heads_q, bucket.tiles, bucket.tokens)
        self.poisoned = jax.default_backend() == "gpu" and 0 not in self.shape
        self._lock, self._placed = threading.Lock(), {}
        arrays, scales = self._split(inp)
        self.metadata = [name for name in arrays if name.startswith(("cu_", "kv_", "qo_"))]
        types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), (arrays, scales))
        poison = [jax.ShapeDtypeStruct(self.shape, jnp.float32)] * (len(self.calls) if self.poisoned else 0)
        self.compiled = (
            jax.jit(self._body, donate_argnums=2, keep_unused=True).lower(*types, poison).compile()
            if self.calls
            else None
        )

    def _split(self, inp):
        arrays, scales = calls.arguments(inp)
        layouts = {c["scale_layout"] for c in self.calls.values()}
        return arrays, {layout: s for layout, s in scales.items() if layout in layouts}

    def _body(self, arrays, scales, poison):
        outs = []
        for c in self.calls.values():
            q_scale, k_scale = scales[c["scale_layout"]]
            outs.append(jfi.fp4_indexer_block_scores(q_scale=q_scale, k_scale=k_scale, **arrays, **c))
        return outs

    def _place(self, pool):
        """Codes and scales of a pool, copied to the device once."""
        with self._lock:
            if id(pool) not in self._placed:
                arrays, scales = self._split(pool.inp)
                self._placed[id(pool)] = (
                    jax.device_put(({n: x for n, x in arrays.items() if n not in self.metadata}, scales)),
                    pool,
                )
            return self._placed[id(pool)][0]

    def poison(self):
        return _poisoner(self.shape, len(self.calls))() if self.poisoned else []

    def __call__(self, pool, metadata):
        if self.compiled is None:
            return {}
        arrays, scales = self._place(pool)
        outs = self.compiled(arrays | jax.device_put(metadata.arrays()), scales, self.poison())
        return dict(zip(self.calls, jax.device_get(outs)))
