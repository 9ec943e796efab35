"""Benchmark cases of the batched GEMV: matrices of a decode step, and one or eight vectors each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

import jax_fp4_indexer as jfi
from jax_fp4_indexer.bench.cases import COLD_BYTES, How

MAX_SETS = 16  # copies of the matrices


@dataclasses.dataclass(frozen=True)
class Case:
    """L matrices [M, K] times N vectors each: a `BenchCase`."""

    name: str
    rows: int
    k: int
    batch: int
    columns: int = 1
    published_us: dict = dataclasses.field(default_factory=dict)
    tags: frozenset = frozenset()

    op = "batched_gemv"
    formats = ("nvfp4",)
    scale_layouts = ("preordered_mma", "public")  # the tables show the last, which these kernels read faster

    def bytes(self, how: How) -> int:
        """Packed codes, scales and the result in float16."""
        lines = self.batch * (self.rows + self.columns)
        return lines * (self.k // 2 + self.k // 16) + self.result_bytes()

    def result_bytes(self) -> int:
        return 2 * self.batch * self.rows * self.columns

    def bytes_at_least(self) -> int:
        return self._sets() * (self.bytes(How("nvfp4", "public")) + self.result_bytes())

    def _sets(self) -> int:
        return int(min(MAX_SETS, max(2, -(-COLD_BYTES // self.bytes(How("nvfp4", "public"))))))

    def work(self, how: How) -> dict[str, float]:
        return {"bf16": 2.0 * self.batch * self.rows * self.columns * self.k}

    def issued(self, how: How) -> dict[str, float] | None:
        return None

    def describe(self) -> str:
        return f"L={self.batch} M={self.rows} K={self.k} N={self.columns}"

    def make(self, how: How, calls: int, seed: int = 0) -> Data:
        """Random codes, and scales of 2^-3 to 7. Calls go through the matrix sets in turn; every call has scales of its
        vectors of its own, so that no two calls are the same."""
        keys = jax.random.split(jax.random.key(seed), 2 * self._sets() + calls + 1)
        a, a_scale = zip(
            *(
                _random(self.batch, self.rows, self.k, how.scale_layout, keys[2 * i : 2 * i + 2])
                for i in range(self._sets())
            )
        )
        scales = tuple(_scales(self.batch, self.columns, self.k, how.scale_layout, key) for key in keys[-calls:])
        codes = _codes(self.batch, self.columns, self.k, keys[-calls - 1])
        return jax.block_until_ready(Data(codes, scales, a, a_scale))

    def call(self, how: How) -> Callable:
        def call(data, i):
            at = i % len(data.a)
            return jfi.nvfp4_batched_gemv(
                data.a[at],
                data.b,
                data.a_scale[at],
                data.b_scale[i % len(data.b_scale)],
                scale_layout=how.scale_layout,
                implementation=how.implementation,
            )

        return call

    def baselines(self, how: How) -> dict[str, Callable]:
        """ "xla": dequantise to bf16 and einsum; "reference": the definition."""

        def xla(data, i):
            at = i % len(data.a)
            a, b = (
                jfi.dequantize(c, s, "nvfp4").astype(jnp.bfloat16)
                for c, s in ((data.a[at], data.a_scale[at]), (data.b, data.b_scale[i % len(data.b_scale)]))
            )
            return jnp.einsum("lmk,lnk->lmn", a, b, preferred_element_type=jnp.float32).astype(jnp.float16)

        return {"xla": xla, "reference": self.call(How("nvfp4", "public", "reference"))}


@dataclasses.dataclass(frozen=True)
class Data:
    """The codes of the vectors, which all calls share, their scales for each call, and the matrices: call i multiplies
    set i % sets."""

    b: jax.Array
    b_scale: tuple
    a: tuple
    a_scale: tuple


jax.tree_util.register_dataclass(Data, [f.name for f in dataclasses.fields(Data)], [])


def _random(batch: int, lines: int, k: int, scale_layout: str, keys) -> tuple[jax.Array, jax.Array]:
    return _codes(batch, lines, k, keys[0]), _scales(batch, lines, k, scale_layout, keys[1])


def _codes(batch: int, lines: int, k: int, key: jax.Array) -> jax.Array:
    return jax.random.randint(key, (batch, lines, k // 2), 0, 256, jnp.int32).astype(jnp.uint8)


def _scales(batch: int, lines: int, k: int, scale_layout: str, key: jax.Array) -> jax.Array:
    scale = jax.random.randint(key, (batch, lines, k // 16), 32, 80, jnp.int32).astype(jnp.uint8)  # 2^-3 to 7
    return jfi.to_blocked(scale) if scale_layout == "preordered_mma" else scale


def _shape(name: str, rows: int, k: int, batch: int) -> tuple[Case, ...]:
    return tuple(Case(f"{name}_n{n}", rows, k, batch, n, tags=frozenset(("headline", "layouts"))) for n in (1, 8))


CASES = (
    *_shape("gemv_7168x16384", 7168, 16384, 1),
    *_shape("gemv_4096x7168_l8", 4096, 7168, 8),
    *_shape("gemv_7168x2048_l4", 7168, 2048, 4),
    Case("gemv_2880x2880", 2880, 2880, 4),
    Case("gemv_tiny_cpu", 32, 256, 2, 2, tags=frozenset(("cpu",))),
)
