"""The benchmark cases of every op: one file an op, found by listing this folder.

A new op is a new file `<op>.py` here and no edit elsewhere. The file holds CASES, a tuple of `BenchCase` whose names
are unique over all ops. What the benchmark does with a case: `make` gives the arrays of a whole program, `call` the
function that is timed, `bytes` and `work` what the figures are shares of, `baselines` what is timed for comparison.
"""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class How:
    """In which of its forms a case is timed. `implementation`: as the op's argument of this name, None for its own
    choice."""

    format: str
    scale_layout: str
    implementation: str | None = None


class BenchCase(Protocol):
    """One problem of an op.

    op            name of the op, as in records
    name          e.g. "decode_8k"
    formats       of `How.format`
    scale_layouts of `How.scale_layout`
    tags          "headline": the cases of a run without arguments; "quick": those of `--quick`; "layouts": timed in
                  every scale layout; "cpu": what runs where there is no GPU (left out of "all")
    published_us  microseconds of the source's own kernel on a B200, by format
    """

    op: str
    name: str
    formats: tuple[str, ...]
    scale_layouts: tuple[str, ...]
    tags: frozenset[str]
    published_us: dict[str, float]

    def make(self, how: How, calls: int, seed: int = 0) -> Any:
        """The arrays of a program of up to `calls` calls, as a pytree.

        Its first leaf must be an array of integers (codes) that every call uses: the benchmark orders calls by passing
        it through other kernels. Calls must read different memory, together at least `COLD_BYTES`, so that L2 is cold
        and XLA cannot merge two calls. No input is all zeros: a card needs less power for zeros, and its clock is then
        higher than on real data.
        """

    def call(self, how: How) -> Callable[[Any, int], Any]:
        """The op as a function of (what `make` returned, number of the call in its program)."""

    def bytes(self, how: How) -> int:
        """Logical bytes of a call: every operand and result that is needed, counted once."""

    def work(self, how: How) -> dict[str, float]:
        """Useful floating-point operations of a call, by the type in which the tensor cores can do them exactly:
        {"bf16": n, "int8": n}."""

    def issued(self, how: How) -> dict[str, float] | None:
        """Operations that whole tiles of the tensor cores make of `work`, by type; None for a case that the tensor
        cores do not bind."""

    def result_bytes(self) -> int:
        """Of one call's results."""

    def bytes_at_least(self) -> int:
        """Memory that timing the case takes at least."""

    def baselines(self, how: How) -> dict[str, Callable[[Any, int], Any]]:
        """What is timed for comparison, on the arrays of `make` with public scales. A row has the time as "<name>_us".

        Names with a column of their own: "xla", what a JAX user writes without a kernel and which materialises what it
        likes; "reference", the definition under `jit`. A name is left out where the case does not fit.
        """

    def describe(self) -> str:
        """Its shape in a few words."""


COLD_BYTES = 160 * 2**20  # reading this much in turn leaves nothing of it in a 60 MB L2


@functools.cache
def all_cases() -> dict[str, BenchCase]:
    """Every op's cases by name."""
    found = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        for case in importlib.import_module(f"{__name__}.{module}").CASES:
            if case.name in found:
                raise ValueError(
                    f"bench/cases/{module}.py: got a second case named {case.name!r}, "
                    "expected names that are unique over all ops"
                )
            found[case.name] = case
    return found


def ops() -> list[str]:
    """Names of the ops that have cases."""
    return sorted({case.op for case in all_cases().values()})


def select(names=(), op: str | None = None, tag: str = "headline") -> list[BenchCase]:
    """Cases by name, of one op or of all: no names: those with `tag`; "all": every one that a GPU is for. KeyError
    names an unknown one."""
    of_op = {name: case for name, case in all_cases().items() if op in (None, case.op)}
    if not names:
        return [case for case in of_op.values() if tag in case.tags]
    if "all" in names:
        return [case for case in of_op.values() if "cpu" not in case.tags]
    return [of_op[name] for name in names]
