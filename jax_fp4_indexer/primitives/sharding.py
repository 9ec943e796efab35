"""How XLA splits the custom call of a program over several devices (plain `jit`, Auto mesh axes).

XLA gathers every operand of a custom call that it knows nothing about. Two things tell it better:

* the rule, an attribute of the call: which axes of the operands are the same, so that a sharding propagates from one
  to the others;
* the partitioner, registered under the call's name: given the shardings, what one device computes.

Both are derived from the op's spec: sizes of `spec.split` may be split (primitives/splits.py says with which choices),
all else is needed whole on every device, and is gathered where it is not. Other splits are for `jax.shard_map`, with
the metadata of a part (ops/ragged_shards.py).

A device must know which part of a size is its own where a `Cut` depends on it. Numbers of devices do not tell it within
a partial `shard_map`, so the call carries one more operand for each cut, 0, 1, 2 ... along its size, which is split
like the rest. Such a call is another one, `SPLIT`, that exists until XLA has partitioned the program, and has no
handler. An exported program holds the call of the wire format, whose operands XLA gathers: export programs that split
by `jax.shard_map`.

Rule and partitioner are hooks that JAX has no public name for. A JAX without them gathers; results are right all the
same. JFI_SPLIT=0 in the environment has the same effect.
"""

from __future__ import annotations

import functools
import io
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from ..specs import OpSpec
from . import splits, wire
from .splits import Cut, name_of

if TYPE_CHECKING:
    from .kernel_call import KernelCall

try:
    from jax._src import xla_bridge
    from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule
    from jax._src.lib import xla_client
except ImportError:
    xla_client = None

SPLIT = ".split"  # added to the name of a call that the partitioner will replace
_calls: dict[str, KernelCall] = {}  # by target


def declare(call: KernelCall) -> None:
    """Makes `call` the one that the partitioner registered for its target cuts up."""
    _calls[call.spec.target] = call


def declared() -> tuple[KernelCall, ...]:
    """Every call that was declared."""
    return tuple(_calls.values())


# ---- the rule


def lower(
    call: KernelCall,
    ctx: mlir.LoweringRuleContext,
    operands: Sequence[Any],
    sizes: Mapping[str, Any],
    named: Mapping[str, Any],
) -> Sequence[Any]:
    """Results of the custom call with attributes `named`.

    It is a call that XLA may split in a program of several devices, except in a full `shard_map`, where everything is
    one device's already.
    """
    axes, exported = ctx.module_context.axis_context, ctx.module_context.lowering_parameters.for_export
    manual = set(getattr(axes, "manual_axes", ()))
    one_device = getattr(axes, "num_devices", 0) == 1
    known = all(
        isinstance(n, int) and n for aval in ctx.avals_in for n in aval.shape
    )  # no size is symbolic, and none is 0
    spec = call.spec
    if (
        not spec.split
        or not _hooks()
        or exported
        or one_device
        or (manual and manual >= set(axes.mesh.axis_names))
        or not known
    ):
        return jax.ffi.ffi_lowering(spec.target)(ctx, *operands, **named)
    counts = [sizes[cut.size] for cut in call.cuts]
    int32 = np.dtype("int32")
    iotas = (stablehlo.IotaOp(ir.RankedTensorType.get((n,), mlir.dtype_to_ir_type(int32)), 0).result for n in counts)
    ctx = ctx.replace(avals_in=[*ctx.avals_in, *(jax.core.ShapedArray((n,), int32) for n in counts)])
    results = jax.ffi.ffi_lowering(spec.target + SPLIT)(ctx, *operands, *iotas, **named)
    op = results[0].owner
    rule = sharding_rule(spec, call.cuts, named, sizes)
    op.attributes["sdy.sharding_rule"] = sdy_sharding_rule_to_mlir(
        rule, [x.type for x in op.operands], [x.type for x in op.results]
    )
    return results


def sharding_rule(spec: OpSpec, cuts: tuple[Cut, ...], choices: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """The rule in Shardy's einsum notation: axes that are split alike have the same factor, and factors that may not be
    split are needed whole."""
    factors, inner = _split_factors(spec, sizes)
    fresh = (f"x{i}" for i in range(10**6))
    seen: list[tuple[tuple, list[str]]] = []

    def mapping(shape: tuple) -> str:
        out: list[str] = []
        for axis, dim in enumerate(shape):
            lead = shape[: axis + 1]
            # Buffers that begin with the same axes (codes and their scales) have the same factors there
            alike = (
                next((known[axis] for other, known in seen if other[: axis + 1] == lead), None)
                if all(d.op in ("size", "int") for d in lead)
                else None
            )
            out.append(factors.get(name_of(dim)) or alike or next(fresh))
        seen.append((shape, out))
        return " ".join(out)

    operands = [mapping(b.shape_of(choices)) for b in spec.operands] + [factors[cut.size] for cut in cuts]
    results = [mapping(b.shape_of(choices)) for b in spec.results] + [next(fresh)] * spec.scratch
    notation = f"{', '.join(operands)} -> {', '.join(results)}"
    free = {word for size in splits.may_split(spec, cuts, choices) for word in _words(factors[size])}
    whole = tuple(
        factor for factor in dict.fromkeys(_words(notation)) if factor not in free
    )  # in the order they appear, as Shardy wants them
    return str_to_sdy_sharding_rule(
        notation, need_replication_factors=whole, **{name: n for name, n in inner.items() if name in _words(notation)}
    )


def _split_factors(spec: OpSpec, sizes: Mapping[str, int]) -> tuple[dict[str, str], dict[str, int]]:
    """(size of `spec.split` -> its factor or factors, sizes of factors that are no axis). Shardy refuses a factor of 1
    next to another."""
    factors, inner = {size: size for size in spec.split}, {}
    for many, few in splits.multiples(spec).items():
        if sizes[many] == sizes[few] > 1:
            factors[many] = few
        elif sizes[few] > 1:
            factors[many] = f"({few} {many}_each)"
            inner[f"{many}_each"] = sizes[many] // sizes[few]
    return factors, inner


def _words(notation: str) -> list[str]:
    return re.findall(r"\w+", notation)


# ---- the partitioner

_registered: set[Any] = set()


def _hooks() -> bool:
    """Whether calls are written so that XLA may split them: JAX has the hooks, the partitioner could be registered, and
    it is not switched off."""
    return xla_client is not None and None not in _registered and os.environ.get("JFI_SPLIT") != "0"


def register(target: str, platform: str = "CUDA") -> None:
    """Registers the partitioner for the plugins of JAX (the CUDA backend is one), or for the backends inside jaxlib
    ("cpu", which tests use). Once each."""
    if xla_client is None or (target, platform) in _registered:
        return
    _registered.add((target, platform))
    try:
        # Not under the call's own name: XLA would request a partition of calls inside shard_map too, and aborts on
        # their sharding ("manual").
        add = functools.partial(
            xla_client.register_custom_call_partitioner,
            name=target + SPLIT,
            prop_user_sharding=lambda sharding, shape, config: sharding,
            partition=functools.partial(partition, target),
            infer_sharding_from_operands=_infer,
            can_side_effecting_have_replicated_sharding=True,
        )
        if platform == "cpu":
            add()
        else:
            xla_bridge.register_plugin_callbacks(add)
    except (
        Exception
    ) as e:  # hooks of JAX that are not public: whatever became of them, programs of one device must go on
        _registered.add(None)
        warnings.warn(
            f"jax_fp4_indexer: XLA takes no partitioner here ({type(e).__name__}: {str(e).partition(chr(10))[0]}), "
            "so calls over several devices under plain jit gather their operands; "
            "split them with jax.shard_map (docs/sharding.md).",
            stacklevel=2,
        )


def _infer(arg_shapes: Any, arg_shardings: Any, result_shape: Any, config: Any) -> Any:
    """Shardings of results come from the rule; older propagation asks here, and may always replicate."""
    return _of_results(
        result_shape,
        [xla_client.HloSharding.replicate()] * (len(result_shape.tuple_shapes()) if result_shape.is_tuple() else 1),
    )


def _of_results(shape: Any, shardings: Sequence[Any]) -> Any:
    return xla_client.HloSharding.tuple_sharding(shape, list(shardings)) if shape.is_tuple() else shardings[0]


def partition(
    target: str, arg_shapes: Any, arg_shardings: Any, result_shape: Any, result_sharding: Any, config: Any
) -> tuple[bytes, list[Any], Any]:
    """(program of one device as StableHLO bytes, shardings of the operands, sharding of the results)."""
    call, whole = _calls[target], wire.parse(config)
    spec = call.spec
    shapes = [tuple(s.dimensions()) for s in arg_shapes]
    result, *hidden = [
        tuple(s.dimensions()) for s in (result_shape.tuple_shapes() if result_shape.is_tuple() else [result_shape])
    ]
    count = len(spec.operands)
    parts = _choose_parts(call, whole, spec.bind(whole, shapes[:count]), arg_shardings)

    def placed(buffer: Any) -> dict[int, np.ndarray]:
        """axis -> part on each device."""
        return {axis: parts[size] for axis, size in enumerate(splits.axes(spec, buffer, whole)) if size in parts}

    split = [placed(b) for b in spec.operands] + [
        {0: parts[cut.size]} if cut.size in parts else {} for cut in call.cuts
    ]
    local = [_part_shape(shape, own) for shape, own in zip(shapes, split, strict=True)]
    own_result = _part_shape(result, placed(spec.results[0]))
    dtypes = [b.dtype_of(whole) for b in spec.operands] + ["int32"] * len(call.cuts)

    def program(*operands: jax.Array) -> Any:
        own, attributes = dict(zip(spec.operand_names, operands)), {a.name: whole[a.name] for a in spec.attributes}
        for cut, index in zip(call.cuts, operands[count:], strict=True):
            if _parts(parts.get(cut.size, _WHOLE)) > 1:
                replaced, changed = cut.apply(own, attributes, index[0])
                own, attributes = own | replaced, attributes | changed
        # The scratch that the whole call was given is the limit for one device
        attributes, scratch = call.planned(
            attributes, spec.bind(attributes, [x.shape for x in own.values()]), hidden[0][0] if hidden else 0
        )
        types = [
            jax.ShapeDtypeStruct(own_result, jnp.dtype(spec.results[0].dtype_of(whole))),
            *(jax.ShapeDtypeStruct(shape, jnp.uint8) for shape in scratch),
        ]
        results = jax.ffi.ffi_call(target, types)(
            *own.values(), **wire.attributes(spec, attributes, whole["implementation"])
        )
        # Scratch of the whole call's size stands in its place: nothing reads it, so XLA drops it.
        return [results[0], *(jnp.zeros(shape, jnp.uint8) for shape in hidden)]

    types = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in zip(local, dtypes, strict=True)]
    lowered = jax.jit(program, keep_unused=True).trace(*types).lower(lowering_platforms=("cpu",))
    results = [_sharding(placed(spec.results[0]), len(result)), *(_sharding({}, 1) for _ in hidden)]
    return (
        _bytecode(lowered.compiler_ir("stablehlo")),
        [_sharding(own, len(shape)) for own, shape in zip(split, shapes)],
        _of_results(result_shape, results),
    )


def _choose_parts(
    call: KernelCall, choices: Mapping[str, Any], sizes: Mapping[str, int], shardings: Any
) -> dict[str, np.ndarray]:
    """Size -> the part of it that each device holds, for every size that may be split."""
    spec, free = call.spec, splits.may_split(call.spec, call.cuts, choices)
    given = {}
    for size in free:
        operand, axis = splits.first_axis(spec, size, choices)
        given[size] = _tiles(shardings[operand], axis)
    parts: dict[str, np.ndarray] = {}
    for many, few in splits.multiples(spec).items():
        if many in free and few in free:
            parts[many], parts[few] = choose(given[many], given[few], sizes[many], sizes[few])
    for size in free:
        if size not in parts and not any(size in pair for pair in splits.multiples(spec).items()):
            parts[size] = choose_apart(given[size], _joint(list(parts.values())), sizes[size])
    return parts


def _bytecode(module: Any) -> bytes:
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


# ---- parts: an int array that gives, for every device, which part of an axis it holds

_WHOLE = np.zeros(1, np.int64)


def _tiles(sharding: Any, axis: int) -> np.ndarray:
    """Part of `axis` that each device holds; one part (all zeros) where the axis is whole."""
    if sharding.is_replicated() or not sharding.is_tiled():
        return _WHOLE
    devices = np.asarray(sharding.tile_assignment_devices()).reshape(sharding.tile_assignment_dimensions())
    index = np.empty(devices.size, np.int64)
    index[devices.ravel()] = np.indices(devices.shape)[axis].ravel()
    return index


def _parts(tiles: np.ndarray) -> int:
    return int(tiles.max()) + 1


def choose(q: np.ndarray, kv: np.ndarray, heads_q: int, heads_kv: int) -> tuple[np.ndarray, np.ndarray]:
    """(parts of the query heads, parts of the KV heads) that every device can work with alone, from those given.

    A device's query heads must belong to its KV heads. Keys that are whole everywhere follow the queries, and queries
    follow the keys where the two disagree.
    """
    q, kv = np.broadcast_arrays(q, kv)
    if _parts(kv) == 1 and heads_kv > 1:
        kv = q // (_parts(q) // heads_kv) if _parts(q) % heads_kv == 0 else q
    if heads_kv % _parts(kv):
        kv = np.zeros_like(kv)
    inside = _parts(q) % _parts(kv) == 0 and (q // (_parts(q) // _parts(kv)) == kv).all()
    alone = (
        _parts(kv) == heads_kv and heads_q % _parts(q) == 0
    )  # one KV head left: its query heads may be split further
    return q if inside and (_parts(q) == _parts(kv) or alone) else kv, kv


def choose_apart(tiles: np.ndarray, others: np.ndarray, count: int) -> np.ndarray:
    """Parts of a size as given, or whole: where they are uneven, or not every part meets every part of the other sizes
    equally often."""
    tiles, others = np.broadcast_arrays(tiles, others)
    met = np.bincount(tiles * _parts(others) + others, minlength=_parts(tiles) * _parts(others))
    return tiles if count % _parts(tiles) == 0 and (met == met[0]).all() else np.zeros_like(tiles)


def _joint(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One number for the parts of several sizes together."""
    if not parts:
        return _WHOLE
    return np.unique(np.stack(np.broadcast_arrays(*parts)), axis=1, return_inverse=True)[1].reshape(-1)


def _part_shape(shape: tuple[int, ...], split: Mapping[int, np.ndarray]) -> tuple[int, ...]:
    return tuple(n // _parts(split[axis]) if axis in split else n for axis, n in enumerate(shape))


def _sharding(split: Mapping[int, np.ndarray], rank: int) -> Any:
    """The sharding of an array of `rank` axes, some of them in parts, copied over the devices that hold the same
    parts."""
    split = {axis: tiles for axis, tiles in split.items() if _parts(tiles) > 1}
    if not split:
        return xla_client.HloSharding.replicate()
    order = np.lexsort(
        [split[axis] for axis in sorted(split, reverse=True)]
    )  # devices by their parts, the first axis counting most
    devices = order.reshape([_parts(split[axis]) if axis in split else 1 for axis in range(rank)] + [-1])
    if devices.shape[-1] == 1:
        return xla_client.HloSharding.subgroup_with_device_ordering(
            np.ascontiguousarray(devices[..., 0]), subgroup_types=[]
        )
    return xla_client.HloSharding.subgroup_with_device_ordering(
        np.ascontiguousarray(devices), subgroup_types=[xla_client.OpSharding.Type.REPLICATED]
    )
