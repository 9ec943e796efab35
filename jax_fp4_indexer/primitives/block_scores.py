"""The primitive of block scores: its type, how it lowers, how it batches.

On CUDA it is one custom call, `jax_fp4_indexer.block_scores.v1` (operands and attributes: docs/architecture.md); on every other platform
the reference. The call names no architecture, so that a program lowered on any host runs on any GPU that has a kernel.
"""
import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from ..calls.block_scores import NO_DERIVATIVE
from ..calls.varying import same_varying_axes
from ..configs.block_scores import DEFAULT_SCRATCH_LIMIT, GROUPS
from ..errors import message
from ..formats import scale_layout as layouts
from ..reference.block_scores import block_scores_core
from . import partition, runtime
from .explicit import over_explicit_axes
from .operands import NAMES as OPERANDS
from .operands import OP, attributes, operand_types
from .scratch import scratch_plan

PATHS = ("decode", "prefill")
IMPLEMENTATIONS = ("auto", "portable", "reference")

block_scores_p = Primitive("fp4_indexer_block_scores")
block_scores_p.def_impl(functools.partial(xla.apply_primitive, block_scores_p))


@functools.partial(jax.jit, static_argnames=("path", "fp4_format", "scale_layout", "mask", "max_seqlen_q", "k_tiles", "implementation", "max_scratch_bytes"), inline=True)
def block_scores(q, k, q_scale, k_scale, kv_indices, cu_seqlens_q, cu_seqlens_k, cu_page_offsets, qo_offset, head_scale, *,
                 path, fp4_format, scale_layout, mask, max_seqlen_q, k_tiles, implementation="auto", max_scratch_bytes=DEFAULT_SCRATCH_LIMIT):
    """Scores float32 [Hq, k_tiles, Tq] from normalised operands, those of the custom call in its order.

    Args:
      q: uint8 [Tq, Hq, 64]; k: uint8 [num_pages, Hkv, 128, 64]; q_scale, k_scale: uint8 in `scale_layout`; kv_indices: int32 [N];
      cu_seqlens_q, cu_seqlens_k, cu_page_offsets: int32 [B+1]; qo_offset: int32 [B]; head_scale: float32 [Hq].
      path: "decode" or "prefill", the kernels to run. mask: 0 none, 1 causal with offset k_len - q_len, 2 causal with qo_offset.
      implementation: "auto" (native before portable kernels), "portable", or "reference" on every platform.
      max_scratch_bytes: int >= 0; see the public op.

    Raises TypeError if shapes or dtypes do not fit, NotImplementedError when differentiated, ImportError when compiled for a CUDA GPU
    without the library.
    """
    operands = same_varying_axes(q, k, q_scale, k_scale, kv_indices, cu_seqlens_q, cu_seqlens_k, cu_page_offsets, qo_offset, head_scale)
    params = {"path": path, "fp4_format": fp4_format, "scale_layout": scale_layout, "mask": int(mask), "max_seqlen_q": int(max_seqlen_q), "k_tiles": int(k_tiles),
              "implementation": implementation, "max_scratch_bytes": int(max_scratch_bytes)}
    scores = over_explicit_axes(block_scores_p.bind, operands, params)
    return block_scores_p.bind(*operands, **params) if scores is None else scores


@block_scores_p.def_abstract_eval
def _type_of_result(*operands, path, fp4_format, scale_layout, mask, max_seqlen_q, k_tiles, implementation, max_scratch_bytes):
    for name, value, allowed in (("path", path, PATHS), ("fp4_format", fp4_format, tuple(GROUPS)), ("scale_layout", scale_layout, layouts.LAYOUTS),
                                 ("mask", mask, (0, 1, 2)), ("implementation", implementation, IMPLEMENTATIONS)):
        if value not in allowed:
            raise ValueError(message(OP, name, repr(value), f"one of {allowed}", "Pass one of these."))
    q, k, kv_indices, cu_seqlens_q = operands[0], operands[1], operands[4], operands[5]
    for name, aval, rank in (("q", q, 3), ("k", k, 4), ("kv_indices", kv_indices, 1), ("cu_seqlens_q", cu_seqlens_q, 1)):
        if aval.ndim != rank:
            raise TypeError(message(OP, name, aval, f"rank {rank}", "Pass the operands of the custom call."))
    want = operand_types(q.shape, k.shape, kv_indices.shape[0], cu_seqlens_q.shape[0] - 1, fp4_format, scale_layout)
    for (name, (dtype, shape)), aval in zip(want.items(), operands, strict=True):
        if aval.dtype != np.dtype(dtype) or tuple(aval.shape) != shape:
            raise TypeError(message(OP, name, aval, f"{dtype}[{', '.join(map(str, shape))}]", "Pass the operands of the custom call."))
        if any(axis is not None for axis in aval.sharding.spec):
            raise TypeError(message(OP, name, f"sharding {aval.sharding.spec} over explicit mesh axes", "an unsharded array",
                                    "Split heads or tokens only, or call the op inside jax.shard_map: docs/sharding.md."))
    if q.shape[1] % max(k.shape[1], 1):
        raise TypeError(message(OP, "k", f"{k.shape[1]} heads beside {q.shape[1]} of q", "a divisor of q's heads", "Check axis 1 of both."))
    # Derived from an operand's type, so that the result varies over the manual mesh axes that the operands vary over.
    return q.update(shape=(q.shape[1], k_tiles, q.shape[0]), dtype=np.dtype("float32"), weak_type=False)


def _reference(*operands, path, fp4_format, scale_layout, mask, max_seqlen_q, k_tiles, implementation, max_scratch_bytes):
    return block_scores_core(*operands, k_tiles=k_tiles, fp4_format=fp4_format, scale_layout=scale_layout, mask=mask)


_lower_reference = mlir.lower_fun(_reference, multiple_results=False)


def _lower_cuda(ctx, *operands, path, fp4_format, scale_layout, mask, max_seqlen_q, k_tiles, implementation, max_scratch_bytes):
    if implementation == "reference":
        return _lower_reference(ctx, *operands, path=path, fp4_format=fp4_format, scale_layout=scale_layout, mask=mask, max_seqlen_q=max_seqlen_q,
                                k_tiles=k_tiles, implementation=implementation, max_scratch_bytes=max_scratch_bytes)
    q, k, kv_indices, cu_seqlens_q = (ctx.avals_in[OPERANDS.index(name)] for name in ("q", "k", "kv_indices", "cu_seqlens_q"))
    runtime.register_if_cuda()
    pages, size = scratch_plan(path, fp4_format, max_seqlen_q, cu_seqlens_q.shape[0] - 1, q.shape[0], q.shape[1], k.shape[1], kv_indices.shape[0], max_scratch_bytes)
    # A result that nobody sees: XLA plans its memory, so that the call allocates nothing and may be part of a CUDA graph.
    scratch = jax.core.ShapedArray((size,), np.dtype("uint8"))
    return partition.lower(runtime.BLOCK_SCORES, ctx.replace(avals_out=[*ctx.avals_out, scratch]), operands,
                           attributes(path, fp4_format, scale_layout, mask, max_seqlen_q, pages, implementation))[:1]


mlir.register_lowering(block_scores_p, _lower_reference)
mlir.register_lowering(block_scores_p, _lower_cuda, platform="cuda")


def _batch(operands, axes, **params):
    """One call after another over the mapped axis; operands without it (usually the page pool) are shared, not copied."""
    mapped = tuple(jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes) if axis is not None)

    def one(slices):
        slices = iter(slices)
        return block_scores_p.bind(*(x if axis is None else next(slices) for x, axis in zip(operands, axes)), **params)

    return lax.map(one, mapped), 0


batching.primitive_batchers[block_scores_p] = _batch


def _no_derivative(primals, tangents, **params):
    raise NotImplementedError(NO_DERIVATIVE)


ad.primitive_jvps[block_scores_p] = _no_derivative
