"""How XLA splits the custom call of a program over several devices (plain `jit`, Auto mesh axes): by heads, each device with its own part of the pool, and by tokens.

XLA gathers every operand of a custom call that it knows nothing about. Two things tell it better:

* the rule, an attribute of the call: which axes of the operands are one and the same, so that a sharding finds its way from one to the others;
* the partitioner, registered under the call's name: given the shardings, what one device computes.

Query heads, KV heads and tokens may be split. All else (pages, metadata) is needed whole on every device, and is gathered where it is not: those splits are for
`jax.shard_map`, with the metadata of a part (ops/sharding.py). Scales in MMA order have pages and heads in one axis, whose minor half no sharding can name: they are
needed whole, and each device copies its heads out of them; nor are tokens split then, whose tiles of 128 a part need not meet.

A device must know which tokens and KV heads are its own. Numbers of devices do not tell it within a partial `shard_map`, so the call carries two more operands, 0, 1, 2 ...
along either axis, which are split like the rest. Such a call is another one, `SPLIT`, that exists until XLA has partitioned the program, and has no handler. A program
that is exported holds the call of the wire format, whose operands XLA gathers: export programs that split by `jax.shard_map`.

Both are hooks that JAX has no public name for. A JAX without them gathers; results are right all the same. JFI_SPLIT=0 in the environment has the same effect.
"""
import functools
import io
import os
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from .operands import CU_Q, DTYPES, HEAD_SCALE, K, K_SCALE, KV_INDICES, Q, Q_SCALE, attributes, own_heads, own_tokens
from .scratch import scratch_plan

try:
    from jax._src import xla_bridge
    from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule
    from jax._src.lib import xla_client
except ImportError:
    xla_client = None

SPLIT = ".split"                # added to the name of a call that the partitioner will replace
TOKEN, KV_HEAD = 10, 11         # its two more operands


# ---- the rule

def lower(target, ctx, operands, named):
    """Results of the custom call `target` with attributes `named`: as a call that XLA may split, in a program of several devices, but not in a full `shard_map`, where all is one device's already."""
    axes, exported = ctx.module_context.axis_context, ctx.module_context.lowering_parameters.for_export
    manual = set(getattr(axes, "manual_axes", ()))
    one_device = getattr(axes, "num_devices", 0) == 1
    known = all(isinstance(n, int) and n for aval in ctx.avals_in for n in aval.shape)         # no size is open, and none is 0
    if not _hooks() or exported or one_device or (manual and manual >= set(axes.mesh.axis_names)) or not known:
        return jax.ffi.ffi_lowering(target)(ctx, *operands, **named)
    q, k = (ctx.avals_in[i].shape for i in (Q, K))
    counts = (q[0], k[1])
    operands = [*operands, *(stablehlo.IotaOp(ir.RankedTensorType.get((n,), mlir.dtype_to_ir_type(np.dtype("int32"))), 0).result for n in counts)]
    ctx = ctx.replace(avals_in=[*ctx.avals_in, *(jax.core.ShapedArray((n,), np.dtype("int32")) for n in counts)])
    results = jax.ffi.ffi_lowering(target + SPLIT)(ctx, *operands, **named)
    call = results[0].owner
    rule = _sharding_rule(named["scale_layout"], k[1], q[1] // k[1])
    call.attributes["sdy.sharding_rule"] = sdy_sharding_rule_to_mlir(rule, [x.type for x in call.operands], [x.type for x in call.results])
    return results


def _sharding_rule(scale_layout, heads_kv, ratio):
    """In Shardy's einsum notation. h: KV heads, r: query heads of one, t: tokens."""
    public = scale_layout == "public"
    heads = "r" if heads_kv == 1 else "h" if ratio == 1 else "(h r)"                      # a factor of 1 beside another is refused
    scales = f"t {heads} g, p h s w" if public else f"{heads} u g x1 x2 x3, v o w y1 y2 y3"
    notation = f"t {heads} c, p h s d, {scales}, n, b1, b2, b3, b4, {heads}, t, h -> {heads} m t, z"
    may_split = "hrt" if public else "hr"
    whole = [factor for factor in dict.fromkeys(re.findall(r"[a-z]\d?", notation)) if factor not in may_split]      # in the order they appear, as Shardy wants them
    return str_to_sdy_sharding_rule(notation, need_replication_factors=tuple(whole), **({"r": ratio} if " " in heads else {}))


# ---- the partitioner

_registered = set()


def _hooks():
    """Whether calls are written so that XLA may split them: JAX has the hooks, the partitioner could be registered, and nobody switched it off."""
    return xla_client is not None and None not in _registered and os.environ.get("JFI_SPLIT") != "0"


def register(target, platform="CUDA"):
    """Registers the partitioner for the plugins of JAX (the CUDA backend is one), or for the backends inside jaxlib ("cpu", which tests use). Once each."""
    if xla_client is None or (target, platform) in _registered:
        return
    _registered.add((target, platform))
    try:
        # Not under the name that stays: XLA would ask about calls inside shard_map too, and dies of their sharding ("manual") before Python sees it.
        add = functools.partial(xla_client.register_custom_call_partitioner, name=target + SPLIT, prop_user_sharding=lambda sharding, shape, config: sharding,
                                partition=functools.partial(partition, target), infer_sharding_from_operands=_infer, can_side_effecting_have_replicated_sharding=True)
        if platform == "cpu":
            add()
        else:
            xla_bridge.register_plugin_callbacks(add)
    except Exception as e:      # hooks of JAX that are not public: whatever became of them, programs of one device must go on
        _registered.add(None)
        warnings.warn(f"jax_fp4_indexer: XLA takes no partitioner here ({type(e).__name__}: {str(e).partition(chr(10))[0]}), so calls over several devices under plain jit gather their operands; "
                      "split them with jax.shard_map (docs/sharding.md).", stacklevel=2)


def _infer(arg_shapes, arg_shardings, result_shape, config):
    """Shardings of results come from the rule; older propagation asks here, and may always replicate."""
    return xla_client.HloSharding.tuple_sharding(result_shape, [xla_client.HloSharding.replicate()] * len(result_shape.tuple_shapes()))


def partition(target, arg_shapes, arg_shardings, result_shape, result_sharding, config):
    """(program of one device as StableHLO bytes, shardings of the operands, sharding of the results)."""
    whole = parse(config)
    public = whole["scale_layout"] == "public"
    shapes = [tuple(s.dimensions()) for s in arg_shapes]
    scores, scratch = (tuple(s.dimensions()) for s in result_shape.tuple_shapes())
    heads, kv_heads = choose(_tiles(arg_shardings[Q], 1), _tiles(arg_shardings[K], 1), shapes[Q][1], shapes[K][1])
    tokens = choose_tokens(_tiles(arg_shardings[Q], 0), heads, shapes[Q][0]) if public else _WHOLE

    split = dict.fromkeys(range(len(shapes)), {})               # operand -> axis -> part on each device
    split |= {Q: {0: tokens, 1: heads}, K: {1: kv_heads}, HEAD_SCALE: {0: heads}, TOKEN: {0: tokens}, KV_HEAD: {0: kv_heads}}
    split |= {Q_SCALE: {0: tokens, 1: heads}, K_SCALE: {1: kv_heads}} if public else {Q_SCALE: {0: heads}}
    local = [_part_shape(shape, split[i]) for i, shape in enumerate(shapes)]
    own_scores = _part_shape(scores, {0: heads, 2: tokens})

    def program(*operands):
        own, operands = dict(whole), list(operands)
        if not public and _parts(kv_heads) > 1:
            own_heads(operands, operands[KV_HEAD][0])
        if _parts(tokens) > 1:
            own["mask"] = own_tokens(operands, operands[TOKEN][0], own["mask"])
        # What the whole call was given is what one device may take
        pages, size = scratch_plan(own["path"], own["format"], int(own["max_seqlen_q"]), shapes[CU_Q][0] - 1, *local[Q][:2], local[K][1], shapes[KV_INDICES][0], scratch[0])
        own = attributes(own["path"], own["format"], own["scale_layout"], own["mask"], own["max_seqlen_q"], pages, own["implementation"])
        results = jax.ShapeDtypeStruct(own_scores, jnp.float32), jax.ShapeDtypeStruct((size,), jnp.uint8)
        # Scratch of the whole call's size stands in its place: nobody reads it, so XLA drops it.
        return jax.ffi.ffi_call(target, results)(*operands[:TOKEN], **own)[0], jnp.zeros(scratch, jnp.uint8)

    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(local, (*DTYPES, "int32", "int32"))]
    lowered = jax.jit(program, keep_unused=True).trace(*types).lower(lowering_platforms=("cpu",))
    result = [_sharding({0: heads, 2: tokens}, 3), _sharding({}, 1)]
    return _bytecode(lowered.compiler_ir("stablehlo")), [_sharding(split[i], len(shape)) for i, shape in enumerate(shapes)], xla_client.HloSharding.tuple_sharding(result_shape, result)


def parse(config):
    """The attributes of a call from the text XLA keeps them in: `{format = "nvfp4", mask = 1 : i64, ...}`."""
    text = config.decode() if isinstance(config, bytes) else config
    found = re.findall(r'(\w+) = (?:"([^"]*)"|(-?\d+) : i64)', text)
    return {name: np.int64(number) if number else word for name, word, number in found}


def _bytecode(module):
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


# ---- parts: an int array that gives, for every device, which part of an axis it holds

_WHOLE = np.zeros(1, np.int64)


def _tiles(sharding, axis):
    """Part of `axis` that each device holds; one part (all zeros) where the axis is whole."""
    if sharding.is_replicated() or not sharding.is_tiled():
        return _WHOLE
    devices = np.asarray(sharding.tile_assignment_devices()).reshape(sharding.tile_assignment_dimensions())
    index = np.empty(devices.size, np.int64)
    index[devices.ravel()] = np.indices(devices.shape)[axis].ravel()
    return index


def _parts(tiles):
    return int(tiles.max()) + 1


def choose(q, kv, heads_q, heads_kv):
    """(parts of the query heads, parts of the KV heads) that every device can work with alone, from those given.

    A device's query heads must belong to its KV heads. Keys that are whole everywhere follow the queries, and queries follow the keys where the two disagree.
    """
    q, kv = np.broadcast_arrays(q, kv)
    if _parts(kv) == 1 and heads_kv > 1:
        kv = q // (_parts(q) // heads_kv) if _parts(q) % heads_kv == 0 else q
    if heads_kv % _parts(kv):
        kv = np.zeros_like(kv)
    inside = _parts(q) % _parts(kv) == 0 and (q // (_parts(q) // _parts(kv)) == kv).all()
    alone = _parts(kv) == heads_kv and heads_q % _parts(q) == 0     # one KV head left: its query heads may be split further
    return q if inside and (_parts(q) == _parts(kv) or alone) else kv, kv


def choose_tokens(tokens, heads, num_tokens):
    """Parts of the tokens as given, or whole: where they are uneven, or not every part of the heads meets every part of the tokens."""
    tokens, heads = np.broadcast_arrays(tokens, heads)
    met = np.bincount(tokens * _parts(heads) + heads, minlength=_parts(tokens) * _parts(heads))
    return tokens if num_tokens % _parts(tokens) == 0 and (met == met[0]).all() else np.zeros_like(tokens)


def _part_shape(shape, split):
    return tuple(n // _parts(split[axis]) if axis in split else n for axis, n in enumerate(shape))


def _sharding(split, rank):
    """The sharding of an array of `rank` axes, some of them in parts, copied over the devices that hold the same parts."""
    split = {axis: tiles for axis, tiles in split.items() if _parts(tiles) > 1}
    if not split:
        return xla_client.HloSharding.replicate()
    order = np.lexsort([split[axis] for axis in sorted(split, reverse=True)])                 # devices by their parts, the first axis counting most
    devices = order.reshape([_parts(split[axis]) if axis in split else 1 for axis in range(rank)] + [-1])
    if devices.shape[-1] == 1:
        return xla_client.HloSharding.subgroup_with_device_ordering(np.ascontiguousarray(devices[..., 0]), subgroup_types=[])
    return xla_client.HloSharding.subgroup_with_device_ordering(np.ascontiguousarray(devices), subgroup_types=[xla_client.OpSharding.Type.REPLICATED])
