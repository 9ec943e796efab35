"""The ops that have tests: the modules of ops/. `JFI_OP` (make check OP=...) narrows them to one."""

import functools
import importlib
import os
import pkgutil

from jax_fp4_indexer.specs import OPS

from . import ops


@functools.cache
def everything():
    """{name of the op: OpTests}, of every module of ops/."""
    found = {}
    for module in sorted(pkgutil.iter_modules(ops.__path__), key=lambda m: m.name):
        tests = importlib.import_module(f"{ops.__name__}.{module.name}").TESTS
        found[tests.spec.name] = tests
    return found


def op(name):
    """OpTests of an op. KeyError, with what to write, if it has none."""
    try:
        return everything()[name]
    except KeyError:
        raise KeyError(
            f"op {name!r} has no tests: write tests/harness/ops/{name}.py with TESTS (tests/harness/protocol.py)"
        ) from None


def chosen():
    """[OpTests] of JFI_OP, or of every op."""
    wanted = os.environ.get("JFI_OP")
    if wanted and wanted not in everything():
        raise ValueError(f"OP={wanted}: no such op; there are {', '.join(sorted(OPS))}")
    return [op(wanted)] if wanted else [op(name) for name in OPS]
