"""How XLA splits the CUDA custom call over devices, on eight CPU devices: which shapes a device gets, what is communicated, and the bits of the whole call.

The call is lowered as for CUDA; once the partitioner has cut it up, the part of a device is computed by the definition in place of the kernel.
"""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_fp4_indexer.configs.block_scores import DEFAULT_SCRATCH_LIMIT
from jax_fp4_indexer.primitives import runtime, sharding, wire
from jax_fp4_indexer.primitives.block_scores import CALL
from jax_fp4_indexer.primitives.scratch import scratch_plan
from jax_fp4_indexer.reference.block_scores import block_scores_core
from jax_fp4_indexer.specs.block_scores import SPEC

from support.meshes import collectives, mesh
from support.operands import OPERANDS, operands
from support.operands import attributes as attributes_of
from support.operands import static as static_of

# The primitive with its CUDA lowering on every platform; the real one stays as it is in this process.
cuda_p = Primitive("block_scores_as_on_cuda")
cuda_p.def_abstract_eval(CALL.type_of_result)
mlir.register_lowering(cuda_p, CALL.lower_cuda)

STATIC = dict(path="decode", fp4_format="nvfp4", scale_layout="public", mask=1, max_seqlen_q=4, k_tiles=3)
Q, K, HEADS = "q", "k", (None, "x")


def bind(*args, **static):
    return cuda_p.bind(*args, static=static_of(**static), implementation="auto")


@pytest.fixture
def calls(monkeypatch):
    """What the devices' calls are made with: (shapes of the operands, attributes, shapes of the results)."""
    sharding.register(SPEC.target, "cpu")
    made = []

    def ffi_call(target, types):
        def call(*given, **attributes):
            made.append(([x.shape for x in given], attributes, [t.shape for t in types]))
            scores = block_scores_core(
                *given,
                k_tiles=types[0].shape[1],
                fp4_format=attributes["format"],
                scale_layout=attributes["scale_layout"],
                mask=int(attributes["mask"]),
            )
            assert scores.shape == types[0].shape
            return scores, jnp.zeros(types[1].shape, jnp.uint8)

        return call

    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    return made


def run(devices, specs, static, args, out=None):
    """(result, collectives of the program) of the whole call under plain jit, operands placed by `specs`."""
    f = jax.jit(
        lambda *args: bind(*args, **static), **({} if out is None else {"out_shardings": NamedSharding(devices, out)})
    )
    placed = [
        jax.device_put(x, NamedSharding(devices, specs.get(name, P()))) for name, x in zip(OPERANDS, args, strict=True)
    ]
    compiled = f.lower(*placed).compile()
    _, whole = scratch_plan(
        static["path"],
        static["fp4_format"],
        static["max_seqlen_q"],
        2,
        *args[0].shape[:2],
        args[1].shape[1],
        args[4].shape[0],
    )
    assert f"u8[{whole}]" not in compiled.as_text()
    return compiled(*placed), collectives(compiled)


def by_heads(layout, axis="x", keys=True):
    q = {"q": P(None, axis), "q_scale": P(None, axis) if layout == "public" else P(axis), "head_scale": P(axis)}
    return q | ({"k": P(None, axis)} | ({"k_scale": P(None, axis)} if layout == "public" else {}) if keys else {})


def by_tokens(axis="x"):
    return {"q": P(axis), "q_scale": P(axis)}


LAYOUTS = ("public", "preordered_mma")
# name -> (mesh, heads of q and k, layouts, placement by layout, q and k of a device, sharding of the result)
CASES = {
    "heads": ({"x": 4}, (8, 4), LAYOUTS, by_heads, ((8, 2, 64), (6, 1, 128, 64)), P("x")),
    "heads_of_some_devices": ({"x": 2, "y": 4}, (8, 4), ("public",), by_heads, ((8, 4, 64), (6, 2, 128, 64)), P("x")),
    "equal_heads": ({"x": 4}, (4, 4), ("public",), by_heads, ((8, 1, 64), (6, 1, 128, 64)), P("x")),
    "query_heads_of_one_kv_head": (
        {"x": 8},
        (8, 1),
        ("public",),
        lambda layout: by_heads(layout, keys=False),
        ((8, 1, 64), (6, 1, 128, 64)),
        P("x"),
    ),
    "query_heads_split_further": (
        {"x": 4, "y": 2},
        (8, 4),
        LAYOUTS,
        lambda layout: (
            by_heads(layout, ("x", "y"), keys=False) | {k: v for k, v in by_heads(layout).items() if k[0] == "k"}
        ),
        ((8, 1, 64), (6, 1, 128, 64)),
        P(("x", "y")),
    ),
    "keys_follow_queries": (
        {"x": 4},
        (8, 4),
        ("public",),
        lambda layout: by_heads(layout, keys=False),
        ((8, 2, 64), (6, 1, 128, 64)),
        P("x"),
    ),
    "queries_follow_keys": (
        {"x": 4},
        (8, 4),
        ("public",),
        lambda layout: {k: v for k, v in by_heads(layout).items() if k[0] == "k"},
        ((8, 2, 64), (6, 1, 128, 64)),
        P("x"),
    ),
    "tokens": (
        {"x": 4},
        (4, 2),
        ("public",),
        lambda layout: by_tokens(),
        ((2, 4, 64), (6, 2, 128, 64)),
        P(None, None, "x"),
    ),
    "tokens_over_two_axes": (
        {"x": 4, "y": 2},
        (4, 2),
        ("public",),
        lambda layout: by_tokens(("x", "y")),
        ((1, 4, 64), (6, 2, 128, 64)),
        P(None, None, ("x", "y")),
    ),
    "tokens_and_heads": (
        {"x": 2, "y": 4},
        (4, 2),
        ("public",),
        lambda layout: {"q": P("y", "x"), "q_scale": P("y", "x"), "k": P(None, "x"), "k_scale": P(None, "x")},
        ((2, 2, 64), (6, 1, 128, 64)),
        P("x", None, "y"),
    ),
}
ROWS = [(name, layout) for name, case in CASES.items() for layout in case[2]]


@pytest.mark.parametrize(
    "name, layout, mask", [(*row, i % 3) for i, row in enumerate(ROWS)], ids=["-".join(row) for row in ROWS]
)
def test_auto_mesh_splits_without_communication(calls, name, layout, mask):
    axes, (heads_q, heads_kv), _, placement, (q, k), result = CASES[name]
    fmt = "mxfp4" if mask == 2 else "nvfp4"
    static = STATIC | dict(scale_layout=layout, mask=mask, fp4_format=fmt, path="prefill" if mask == 1 else "decode")
    args = operands(tokens=8, heads_q=heads_q, heads_kv=heads_kv, num_pages=6, scale_layout=layout, fp4_format=fmt)
    want = block_scores_core(*args, k_tiles=3, fp4_format=fmt, scale_layout=layout, mask=mask)
    got, found = run(mesh(**axes), placement(layout), static, args)
    assert found == []
    assert [shapes[:2] for shapes, _, _ in calls] == [[q, k]]
    assert got.sharding.spec == result
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("context", ["set_mesh", "enable_x64"])
def test_the_part_does_not_depend_on_the_context_of_the_caller(calls, context):
    """XLA asks in the middle of a compilation, under whatever the caller has set."""
    args, devices = operands(tokens=8, heads_q=4, heads_kv=2, num_pages=6), mesh(x=2)
    given = {"set_mesh": lambda: jax.set_mesh(devices), "enable_x64": lambda: jax.enable_x64(True)}[context]
    with given():
        got, found = run(devices, by_tokens(), STATIC, args)
    assert found == [] and calls[0][0][0] == (4, 4, 64)
    np.testing.assert_array_equal(
        got, block_scores_core(*args, k_tiles=3, fp4_format="nvfp4", scale_layout="public", mask=1)
    )


@pytest.mark.parametrize(
    "max_seqlen_q, limit", [(4, DEFAULT_SCRATCH_LIMIT), (1000, DEFAULT_SCRATCH_LIMIT), (1000, 600_000)]
)
def test_attributes_and_scratch_are_those_of_the_part(calls, max_seqlen_q, limit):
    """A device may take as much scratch as the whole call was given, and works in passes of its own."""
    args = operands(tokens=8, heads_q=8, heads_kv=4, num_pages=6)
    run(
        mesh(x=4),
        by_heads("public"),
        STATIC | dict(path="prefill", max_seqlen_q=max_seqlen_q, max_scratch_bytes=limit),
        args,
    )
    ((_, attributes, results),) = calls
    whole_pages, given = scratch_plan("prefill", "nvfp4", max_seqlen_q, 2, 8, 8, 4, 6, limit)
    pages, size = scratch_plan("prefill", "nvfp4", max_seqlen_q, 2, 8, 2, 1, 6, given)
    assert max_seqlen_q == 4 or (whole_pages, pages) == (6 if limit == DEFAULT_SCRATCH_LIMIT else 4, 6)
    whole = attributes_of("prefill", "nvfp4", "public", 1, max_seqlen_q, pages, "auto")
    assert attributes == whole and {k: type(v) for k, v in attributes.items()} == {k: type(v) for k, v in whole.items()}
    assert results == [(2, 3, 8), (size,)]


@pytest.mark.parametrize(
    "name, specs",
    [("pages", {"k": P("x"), "k_scale": P("x")}), ("odd_tokens", by_tokens()), ("tokens_in_mma_order", {"q": P("x")})],
)
def test_what_cannot_be_split_is_gathered_and_right(calls, name, specs):
    layout = "preordered_mma" if "mma" in name else "public"
    args = operands(tokens=8, heads_q=4, heads_kv=2, num_pages=8, scale_layout=layout)
    got, found = run(
        mesh(x=8 if name == "odd_tokens" else 4),
        {} if name == "odd_tokens" else specs,
        STATIC | dict(scale_layout=layout),
        args,
        out=P() if name == "odd_tokens" else None,
    )
    assert (found != []) == (name != "odd_tokens")
    np.testing.assert_array_equal(
        got, block_scores_core(*args, k_tiles=3, fp4_format="nvfp4", scale_layout=layout, mask=1)
    )


@pytest.mark.parametrize("split", ["heads", "tokens", "heads_mma"])
def test_partial_shard_map_leaves_auto_axes_split(calls, split):
    """Sequences by hand over `b`, the rest by XLA over `x`: no communication in either."""
    layout = "preordered_mma" if "mma" in split else "public"
    devices = mesh(b=2, x=4)
    parts = [
        operands(tokens=8, heads_q=8, heads_kv=4, num_pages=6, scale_layout=layout, seed=seed) for seed in range(2)
    ]
    joined = [jnp.stack([p[i] for p in parts]) for i in range(10)]
    specs = by_tokens() if split == "tokens" else by_heads(layout)
    static = STATIC | dict(scale_layout=layout)
    f = jax.shard_map(
        lambda *args: bind(*(x[0] for x in args), **static)[None],
        mesh=devices,
        in_specs=P("b"),
        out_specs=P("b"),
        axis_names={"b"},
    )
    placed = [
        jax.device_put(x, NamedSharding(devices, P("b", *specs.get(name, ())))) for name, x in zip(OPERANDS, joined)
    ]
    compiled = jax.jit(f).lower(*placed).compile()
    assert collectives(compiled) == []
    assert calls[0][0][0] == ((2, 8, 64) if split == "tokens" else (8, 2, 64))
    want = jnp.stack([block_scores_core(*p, k_tiles=3, fp4_format="nvfp4", scale_layout=layout, mask=1) for p in parts])
    np.testing.assert_array_equal(compiled(*placed), want)


@pytest.mark.parametrize("how", ["jit", "export"])
def test_inside_shard_map_xla_asks_nobody(calls, how):
    """XLA ends the process where it asks a partitioner about a call in a full `shard_map`. No handler is here, so compiling ends with that error and no earlier."""
    args, devices = operands(), mesh(x=4)
    f = jax.jit(
        jax.shard_map(
            lambda *args: bind(*args, **STATIC)[None], mesh=devices, in_specs=P(), out_specs=P("x"), check_vma=False
        )
    )
    placed = [jax.device_put(x, NamedSharding(devices, P())) for x in args]
    if how == "export":
        program = jax.export.export(f, platforms=("cpu",), disabled_checks=runtime.export_disabled_checks())(*placed)
        f = jax.jit(jax.export.deserialize(program.serialize()).call)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="No FFI handler registered for jax_fp4_indexer.block_scores.v1 on"
    ):
        f.lower(*placed).compile()
    assert not calls


def test_an_exported_program_holds_the_call_of_the_wire_format(calls):
    """Where it is loaded, XLA gathers: no partitioner answers to that name."""
    args, devices = operands(tokens=8, heads_q=8, heads_kv=4, num_pages=6), mesh(x=4)
    placements = [NamedSharding(devices, by_heads("public").get(name, P())) for name in OPERANDS]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for x, s in zip(args, placements)]
    program = jax.export.export(
        jax.jit(lambda *args: bind(*args, **STATIC)),
        platforms=("cpu",),
        disabled_checks=runtime.export_disabled_checks(),
    )(*shapes)
    text = program.mlir_module()
    assert f"custom_call @{SPEC.target}(" in text and "sdy.sharding_rule" not in text and ".split" not in text


def call_of_the_op(*args):
    return CALL(args, static=static_of(**STATIC))


def lowered(function, *args):
    return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_where_the_rule_is_written():
    """Only where XLA may split something: programs of one device and of `shard_map` keep the text they have."""
    args = operands(tokens=8, heads_q=8, heads_kv=4, num_pages=6)
    devices = mesh(x=4)
    call = call_of_the_op
    assert "sdy.sharding_rule" not in lowered(call, *args)
    placed = [jax.device_put(x, NamedSharding(devices, P())) for x in args]
    text = lowered(call, *placed)
    assert (
        "#sdy.op_sharding_rule<([i, jk, l], [m, j, n, o], [i, jk, p], [m, j, n, q], [r], [s], [t], [u], [v], [jk], [i], [j])->([jk, w, i], [x])"
        in text
    )
    assert f"custom_call @{SPEC.target}.split(" in text
    manual = jax.shard_map(call, mesh=devices, in_specs=P(), out_specs=P(), check_vma=False)
    assert "sdy.sharding_rule" not in lowered(manual, *placed) and f"custom_call @{SPEC.target}(" in lowered(
        manual, *placed
    )


@pytest.mark.parametrize("why", ["no hooks", "switched off", "registration fails"])
def test_without_the_hooks_of_jax_the_call_is_as_before(monkeypatch, why):
    monkeypatch.setattr(sharding, "_registered", set())
    if why == "no hooks":
        monkeypatch.setattr(sharding, "xla_client", None)
        sharding.register("another.target", "cpu")  # does nothing, and does not fail
    elif why == "switched off":
        monkeypatch.setenv("JFI_SPLIT", "0")
    else:
        monkeypatch.setattr(sharding.xla_bridge, "register_plugin_callbacks", lambda add: add.func(no_such_argument=1))
        with pytest.warns(UserWarning, match="takes no partitioner here .*shard_map"):
            sharding.register(SPEC.target, "CUDA")
    devices = mesh(x=2)
    text = lowered(call_of_the_op, *(jax.device_put(x, NamedSharding(devices, P())) for x in operands()))
    assert f"custom_call @{SPEC.target}(" in text and "sdy.sharding_rule" not in text


def test_parse_reads_what_xla_hands_over():
    assert wire.parse(b'{format = "nvfp4", mask = 1 : i64, max_seqlen_q = 2147483647 : i64, path = "decode"}') == {
        "format": "nvfp4",
        "mask": 1,
        "max_seqlen_q": 2147483647,
        "path": "decode",
    }


@pytest.mark.parametrize(
    "q, kv, heads, want",
    [
        (
            [0, 1, 0, 1],
            [0, 0, 1, 1],
            (8, 4),
            ([0, 0, 1, 1], [0, 0, 1, 1]),
        ),  # they disagree: the keys stay where they are
        ([0, 1, 2, 3], [0, 0, 1, 1], (8, 2), ([0, 1, 2, 3], [0, 0, 1, 1])),
        (
            [0, 1, 2, 3],
            [0, 0, 1, 1],
            (8, 4),
            ([0, 0, 1, 1], [0, 0, 1, 1]),
        ),  # two KV heads a device: its query heads must be theirs
        ([0, 1, 2, 3], [0], (8, 2), ([0, 1, 2, 3], [0, 0, 1, 1])),
        ([0, 1, 2], [0], (6, 2), ([0, 0, 0], [0, 0, 0])),  # three parts of two KV heads: whole
        ([0, 1, 2, 3], [0], (4, 1), ([0, 1, 2, 3], [0, 0, 0, 0])),
        ([0], [0, 1], (4, 2), ([0, 1], [0, 1])),
    ],
)
def test_heads_that_a_device_can_work_with(q, kv, heads, want):
    got = sharding.choose(np.array(q), np.array(kv), *heads)
    assert [x.tolist() for x in got] == [list(x) for x in want]


def test_tokens_that_a_device_can_work_with():
    heads = np.array([0, 0, 1, 1])
    assert sharding.choose_apart(np.array([0, 1, 0, 1]), heads, 8).tolist() == [0, 1, 0, 1]
    assert sharding.choose_apart(np.array([0, 0, 1, 1]), heads, 8).tolist() == [
        0,
        0,
        0,
        0,
    ]  # the same devices hold both
    assert sharding.choose_apart(np.array([0, 1, 0, 1]), heads, 7).tolist() == [0, 0, 0, 0]


def test_explicit_axes_that_no_layout_lets_split_are_refused_with_the_choice_that_does():
    devices = mesh(AxisType.Explicit, x=4)
    args = operands(tokens=8, scale_layout="preordered_mma")
    args[0] = jax.device_put(args[0], NamedSharding(devices, P("x")))
    told = r"q: got tokens split over \('x',\) with .*scale_layout='preordered_mma', expected all tokens on every device.*pass scale_layout='public'"
    with jax.set_mesh(devices), pytest.raises(TypeError, match=told):
        CALL(args, static=static_of(**STATIC | dict(scale_layout="preordered_mma")))
