"""Meshes with Explicit axes: the types of the operands say how they are split, so the call becomes a `shard_map` over those axes, and nothing is communicated.

Query heads, KV heads and tokens (rows of q, with public scales) may be split; the result is split alike. Anything else is an error that names the operand.
"""
import math

import jax
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from ..errors import message
from .operands import HEAD_SCALE, K, K_SCALE, NAMES, OP, Q, Q_SCALE, own_heads, own_tokens


def over_explicit_axes(call, operands, params):
    """`call(*operands, **params)`, or None if no operand is split over an Explicit axis."""
    shardings = [jax.typeof(x).sharding for x in operands]
    split = [s for s in shardings if any(_names(axis) for axis in s.spec)]
    if not split:
        return None
    mesh = split[0].mesh
    spec = lambda i, axis: _names(shardings[i].spec[axis]) if axis < len(shardings[i].spec) else ()
    tokens, heads, kv_heads = spec(Q, 0), spec(Q, 1), spec(K, 1)
    public = params["scale_layout"] == "public"
    _check_heads(mesh, heads, kv_heads, operands[K].shape[1])
    if tokens and not public:
        raise TypeError(message(OP, NAMES[Q], f"tokens split over {tokens} with scales in MMA order", "public scales, or tokens on one device",
                                "Pass scale_layout=\"public\", or reshard q (jax.sharding.reshard)."))
    want = dict.fromkeys(range(len(operands)), P())
    want |= {Q: P(tokens or None, heads or None), K: P(None, kv_heads or None), HEAD_SCALE: P(heads or None)}
    want |= {Q_SCALE: want[Q], K_SCALE: want[K]} if public else {Q_SCALE: P(heads or None)}
    operands = list(operands)
    operands[HEAD_SCALE] = jax.sharding.reshard(operands[HEAD_SCALE], NamedSharding(mesh, want[HEAD_SCALE]))      # a few numbers, often made by the op itself
    for i, x in enumerate(operands):
        got = tuple(map(_names, jax.typeof(x).sharding.spec))
        if got != tuple(map(_names, want[i])) + ((),) * (x.ndim - len(want[i])):
            raise TypeError(message(OP, NAMES[i], f"sharding {jax.typeof(x).sharding.spec} over explicit mesh axes", f"{want[i]}, as q and k are split",
                                    f"Reshard it (jax.sharding.reshard(x, {want[i]})), or call the op inside jax.shard_map: docs/sharding.md."))

    def local(*operands):
        operands, own = list(operands), dict(params)
        if kv_heads and not public:
            own_heads(operands, lax.axis_index(kv_heads) * operands[K].shape[1])
        if tokens:
            rows = operands[Q].shape[0]
            own["mask"] = own_tokens(operands, lax.axis_index(tokens) * rows, own["mask"])
        return call(*operands, **own)

    axes = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    return jax.shard_map(local, mesh=mesh, in_specs=tuple(want.values()), out_specs=P(heads or None, None, tokens or None), axis_names=axes)(*operands)


def _names(axis):
    """Mesh axes of one entry of a PartitionSpec."""
    return () if axis is None else axis if isinstance(axis, tuple) else (axis,)


def _check_heads(mesh, heads, kv_heads, heads_kv):
    """A device's query heads must belong to its KV heads."""
    alone = math.prod(mesh.shape[name] for name in kv_heads) == heads_kv
    if heads == kv_heads or (alone and heads[:len(kv_heads)] == kv_heads):
        return
    raise TypeError(message(OP, NAMES[K], f"{heads_kv} heads split over {kv_heads} beside query heads split over {heads}", "heads of q and k split alike",
                            "Reshard k and k_scale (jax.sharding.reshard), or store the pool split by KV heads. Query heads may be split further only where one KV head is left."))
