"""What the tests that serve every op need of one: OpTests. Readers: the simulator, the stand-in driver, the runs on a GPU, fuzzing, the smoke tests.

An op's file in ops/ has TESTS, an object with these members. A case is an object of the op's own, with `name` and `tags`.
"""

import dataclasses
from typing import Any, Protocol

import numpy as np

from jax_fp4_indexer.specs.spec import Choice, Integer, OpSpec


@dataclasses.dataclass(frozen=True)
class Wire:
    """A custom call: what the handler is given.

    operands    {name: array}, of every operand of the spec
    attributes  {name: value}, of its choices and integers. Those that a variant is made for may be absent: the variant says them. The step
                of the op's loop may be absent: everything is one pass then
    sizes       {name: int}, of the sizes that stand in results alone
    """

    operands: dict
    attributes: dict
    sizes: dict = dataclasses.field(default_factory=dict)

    def of(self, choices):
        """The same call with these choices."""
        return dataclasses.replace(self, attributes={**self.attributes, **choices})

    def values(self, spec: OpSpec) -> dict[str, int]:
        """What kernel parameters and expressions may name, but for the loop's scalar and step: sizes, integers, choices by the index of their value."""
        shapes = [self.operands[name].shape for name in spec.operand_names]
        numbers = {
            a.name: int(self.attributes[a.name])
            for a in spec.attributes
            if isinstance(a, Integer) and a.name in self.attributes
        }
        chosen = {
            a.name: a.values.index(self.attributes[a.name])
            for a in spec.attributes
            if isinstance(a, Choice) and a.name in self.attributes
        }
        return {**spec.bind(self.attributes, shapes, self.sizes), **numbers, **chosen}


@dataclasses.dataclass
class Verdict:
    """How results compare with the truth. problems: sentences; exact: the row asks for equal bits, and has them; worst: error over the sum of magnitudes."""

    problems: list
    exact: bool = False
    worst: float = 0.0


class OpTests(Protocol):
    spec: OpSpec

    def cases(self, *tags: str, **choices: str) -> list[Any]:
        """Rows with reasons that have all of the tags ("quick": a row for each thing that goes wrong alone) and fit the choices that are given."""

    def identity(self, case: Any) -> str:
        """8 hex digits of the inputs and of how the row is judged."""

    def operands(self, case: Any, choices: dict[str, str]) -> Wire:
        """The custom call of a row, for these choices."""

    def call(self, case: Any, implementation: str | None, choices: dict[str, str]) -> tuple[Any, dict[str, Any]]:
        """(function, {name: array}): `function(**arrays)` is the public op, with everything static bound; it may be put under jax.jit. Choices that the op makes itself are ignored."""

    def implementations(self) -> tuple[str, ...]:
        """Values of the op's argument that ask for kernels."""

    def truth(self, case: Any) -> Any:
        """The answer of an oracle in float64 that shares no code with the library, for `compare`."""

    def compare(self, case: Any, results: dict[str, np.ndarray]) -> Verdict:
        """results: {name: array} of every result of the spec."""

    def scrambled(self, case: Any, seed: int) -> Any:
        """A case with other bytes wherever nothing counts: its results have the same bits."""

    def parts(self, case: Any) -> list[tuple[Any, dict[str, tuple]]]:
        """[(a case that is a part of this one, {result: (index in this one's result, index in the part's)})]: results there have the same bits."""
