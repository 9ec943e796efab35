"""The arguments of kernels follow from the op's spec: order, types, alignments."""

import dataclasses

import cutlass
import pytest

from jax_fp4_indexer.kernels.device.args import alignments_of, args_of, example_args, params_of
from jax_fp4_indexer.specs import OPS
from jax_fp4_indexer.specs.expr import sizes
from jax_fp4_indexer.specs.spec import Choice, OpSpec, buffer, cases

(rows,) = sizes("rows")
SMALL = OpSpec(
    "two_words",
    "two_words",
    1,
    operands=(buffer("codes", "uint8", [rows, 64], align=128), buffer("sums", "int32", [rows], align=4)),
    results=(buffer("y", cases("out", f32="float32", f16="float16"), [rows], align=16),),
    attributes=(Choice("out", ("f32", "f16")),),
    select=("out",),
    scalars=("rows", "out"),
    scratch=True,
)


@pytest.mark.parametrize("spec", [*OPS.values(), SMALL], ids=lambda spec: spec.name)
def test_a_pointer_for_each_buffer_then_the_scalars(spec):
    names = [b.name for b in (*spec.operands, *spec.results)] + ["scratch"] * spec.scratch + list(spec.scalars)
    assert [f.name for f in dataclasses.fields(args_of(spec))] == names
    assert [value for p in params_of(spec) for value in p.values()] == names
    assert [key for p in params_of(spec) for key in p] == ["buffer"] * (len(names) - len(spec.scalars)) + ["i32"] * len(
        spec.scalars
    )
    assert alignments_of(spec) == {b.name: b.align for b in spec.buffers}


def test_the_class_is_named_after_the_op_and_made_once():
    assert args_of(SMALL).__name__ == "TwoWordsArgs" and args_of(SMALL) is args_of(dataclasses.replace(SMALL))
    assert args_of(OPS["block_scores"]).__name__ == "BlockScoresArgs"


def test_example_arguments_have_the_types_of_the_spec():
    """A dtype that depends on an attribute is bytes."""
    args = example_args(SMALL)
    assert [getattr(args, name).dtype for name in ("codes", "sums", "y", "scratch")] == [
        cutlass.Uint8,
        cutlass.Int32,
        cutlass.Uint8,
        cutlass.Uint8,
    ]
    assert isinstance(args.rows, cutlass.Int32)
