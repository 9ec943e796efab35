"""Specs and their expressions: text and value agree, and a spec says what the op's layers say today."""

import itertools
import random

import pytest

from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.configs.block_scores import Scratch
from jax_fp4_indexer.specs import OPS, expr, spec
from jax_fp4_indexer.specs.block_scores import SPEC
from jax_fp4_indexer.specs.expr import align, ceil_div, max_, min_, parse, sizes

a, b, c = sizes("a b c")
EXPRESSIONS = [
    a,
    a + 1,
    1 + a,
    a * b + c,
    a * (b + c),
    (a + b) // 4 % c,
    ceil_div(a, 128) * b,
    align(a * 4, 64),
    min_(a, b) - max_(c, 3),
    a - (b - c),
    a // (b // c),
    a % b * c,
    2 - a,
    3 * a - b,
]


@pytest.mark.parametrize("e", EXPRESSIONS, ids=str)
def test_text_and_value_agree_with_python(e):
    again = parse(str(e))
    rng = random.Random(7)
    for _ in range(50):
        values = {"a": rng.randrange(1000), "b": rng.randrange(8, 99), "c": rng.randrange(1, 8)}
        python = eval(
            str(e).replace("/", "//"), {"min": min, "max": max}, dict(values)
        )  # the text means what it means in Python
        assert e.value(values) == again.value(values) == python
    assert e.names() == again.names()


def test_constants_fold_and_neutral_elements_vanish():
    assert str(expr.of(2) + 3) == "5"
    assert a + 0 is a and a * 1 is a and a // 1 is a
    assert str(ceil_div(a, 1)) == "a"


@pytest.mark.parametrize(
    "text", ["a +", "a ** b", "a if b else c", "f(a, b)", "min(a)", "a < b", "1.5", "", "a.b", "True"]
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ValueError, match="is no expression"):
        parse(text)


def test_a_size_is_no_bool():
    with pytest.raises(TypeError, match="has no value yet"):
        max(a, b)


def test_the_scratch_layout_yields_its_formula():
    seqs, tokens, heads, pages = sizes("num_seqs tokens heads_kv pages_per_pass")
    layout = Scratch.layout(seqs, tokens, heads, pages)
    for values in itertools.product((0, 1, 33), (1, 127, 4096), (1, 4), (1, 77)):
        named = dict(zip(("num_seqs", "tokens", "heads_kv", "pages_per_pass"), values))
        plain = Scratch.layout(*values)
        assert parse(str(layout.total)).value(named) == plain.total
        assert layout.wide.value(named) == plain.wide and layout.size("nvfp4").value(named) == plain.size("nvfp4")


def test_sizes_come_from_shapes():
    choices = {"path": "decode", "format": "mxfp4", "scale_layout": "public"}
    shapes = [(5, 8, 64), (7, 2, 128, 64), (5, 8, 4), (7, 2, 128, 4), (11,), (4,), (4,), (4,), (3,), (8,)]
    values = SPEC.bind(choices, shapes, {"k_tiles": 9})
    assert values == {
        "groups": 4,
        "k_tiles": 9,
        "tokens": 5,
        "heads_q": 8,
        "num_pages": 7,
        "heads_kv": 2,
        "num_indices": 11,
        "num_seqs": 3,
    }
    assert [shape for _, shape in SPEC.operand_types(choices, values).values()] == shapes
    assert SPEC.result_types(choices, values) == {"scores": ("float32", (8, 9, 5))}
    assert SPEC.result_sizes() == ("k_tiles",)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_manifest_entry_reads_back(op):
    entry = op.to_json()
    assert entry["op"] == op.name and op.target == f"jax_fp4_indexer.{op.name}.v{op.version}"
    for b in entry["operands"] + entry["results"]:
        shapes = b["shape"]["cases"].values() if isinstance(b["shape"], dict) else [b["shape"]]
        for shape in shapes:
            for dim in shape:
                assert parse(dim).names() <= op.size_names()
    assert parse(entry["bound"]).value(
        dict.fromkeys(op.size_names() | {x.name for x in op.attributes}, 6)
    ) == op.bound.value(dict.fromkeys(op.size_names() | {x.name for x in op.attributes}, 6))


@pytest.mark.parametrize(
    "fault, change",
    [
        ("twice", {"operands": (SPEC.operands[0],) * 2}),
        ("no Choice", {"select": ("mask",)}),
        ("nothing sets", {"bound": a}),
        ("no size", {"scalars": ("nothing",)}),
        ("dtype", {"results": (spec.buffer("y", "float128", [a], 1),), "scalars": (), "loop": None}),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(fault, change):
    import dataclasses

    with pytest.raises(ValueError, match=fault):
        dataclasses.replace(SPEC, **change)


@pytest.mark.parametrize("op", OPS)
def test_a_kernel_is_out_of_date_by_its_own_op_alone(op):
    found = manifest.sources(f"jax_fp4_indexer.kernels.{op}.kernel")
    specs = {name.removeprefix("jax_fp4_indexer.specs.") for name in found if name.startswith("jax_fp4_indexer.specs.")}
    assert op in specs and not specs & (set(OPS) - {op} | {"registry"})
