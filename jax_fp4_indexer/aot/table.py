"""What the tables of variants consist of. Names only: nothing here imports the compiler, so that the tables can be read anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ..specs import OPS
from ..specs.expr import Expr, of


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One cubin: `target` ("module:Class"), built with `config` for `arch`.

    config       ((name, value), ...): keyword arguments of the class, or of `config_class` if that is given: what makes its one argument,
                 named in the same module, e.g. "Config" or "Config.choose"
    expect       ((instruction, bound), ...): gate on the SASS, in addition to what the class itself declares as `expect`; see
                 inspect.problems
    """

    target: str
    arch: str
    config: tuple = ()
    config_class: str = ""
    expect: tuple = ()

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def source(self) -> str:
        """The expression that makes the kernel, e.g. "pkg.decode:Decode(DecodeConfig(columns=16))": its identity within an arch."""
        inner = ", ".join(f"{k}={v!r}" for k, v in self.config)
        return f"{self.target}({self.config_class}({inner}))" if self.config_class else f"{self.target}({inner})"


@dataclasses.dataclass(frozen=True)
class Variant:
    """What one call runs: `launches` in order. Fields as in the manifest, see docs/architecture.md.

    op              a name of specs.OPS
    select          ((choice, value), ...): every choice that the op selects by, in the order of its spec
    bound           the variant is meant for calls whose `bound` (of the spec) is at most this; 0: any
    repeat          whether the launches are repeated as the op's loop says
    scratch         bytes of scratch that the launches use: an int, or an expression over what the op's kernels may name
    """

    op: str
    select: tuple[tuple[str, str], ...]
    arch: str
    launches: tuple[Kernel, ...]
    implementation: str = "native"
    bound: int = 0
    repeat: bool = False
    scratch: Expr | int = 0

    def __post_init__(self) -> None:
        spec = OPS.get(self.op)
        if spec is None:
            raise ValueError(f"variant: op: got {self.op!r}, expected one of {', '.join(OPS)}")
        if tuple(key for key, _ in self.select) != spec.select:
            raise ValueError(
                f"variant of {self.op}: select: got {self.select}, expected a value of each of {', '.join(spec.select)}, in order"
            )
        faults = [f"{key} {value!r}" for key, value in self.select if value not in spec.choices()[key]]
        faults += ["repeat without a loop of the op"] if self.repeat and spec.loop is None else []
        faults += [f"scratch of {name!r}" for name in sorted(of(self.scratch).names() - spec.scalar_names())]
        if faults:
            raise ValueError(f"variant of {self.op}: the op has no {'; no '.join(faults)}")

    @property
    def choices(self) -> dict[str, str]:
        return dict(self.select)

    def __getattr__(self, name: str) -> str:
        """A choice may be read as an attribute: `variant.path`."""
        for key, value in self.__dict__.get("select", ()):
            if key == name:
                return value
        raise AttributeError(f"a variant of {self.__dict__.get('op')} has no {name!r}")


def kernels_of(variants: Iterable[Variant]) -> tuple[Kernel, ...]:
    """Every kernel that `variants` launch, once, in order."""
    return tuple(dict.fromkeys(k for v in variants for k in v.launches))
