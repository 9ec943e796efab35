"""The tables of the documentation are those of the specs."""

import pathlib

import pytest

from jax_fp4_indexer.specs import OPS, docs

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_custom_call_of_every_op_is_documented(op):
    """In docs/architecture.md or on the op's page; `python -m jax_fp4_indexer.specs.docs OP` prints what to paste."""
    texts = {
        path.relative_to(DOCS).as_posix(): path.read_text()
        for path in (DOCS / "architecture.md", *DOCS.glob("ops/*.md"))
    }
    where = [name for name, text in texts.items() if docs.custom_call(op) in text and op.target in text]
    assert where, f"no page of docs holds\n{docs.custom_call(op)}\nand the name {op.target}"
