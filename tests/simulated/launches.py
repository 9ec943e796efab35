"""A variant of an op in the simulator, over one custom call, as the launcher of ffi/ would run it. All that is known of the op is its spec.

outcome = run_variant(kernels.load(variant.launches), variant, wire, mode="lazy")       # wire: harness/protocol.py
outcome.results["scores"], outcome.problems()
"""

import dataclasses
import struct

import ml_dtypes
import numpy as np

from jax_fp4_indexer.specs import OPS, expr
from ptxsim import tensor_map
from ptxsim.launch import Memory, run
from support import check

POISON = {
    4: 0x7FC12345,
    2: 0x7FD5,
}  # bytes of an element -> a NaN that no kernel writes: slots that keep it were not written
QUIET_NAN = {4: 0x7FC00000, 2: 0x7FFF}
MULTIPROCESSORS = 3  # of the pretended device: few, so that a worker walks many pages
MAX_INSTS = 5 * 10**7


def dtype_of(name):
    """The NumPy type of a spec's dtype."""
    return np.dtype(getattr(ml_dtypes, name, name))


def poisoned(dtype, shape):
    """An array of results in which nothing has been written."""
    size = dtype_of(dtype).itemsize
    return np.full(shape, POISON[size], f"u{size}").view(dtype_of(dtype))


def unwritten(results):
    """Sentences on results that hold slots which nothing wrote."""
    counts = {
        name: int((x.view(f"u{x.itemsize}") == POISON[x.itemsize]).sum()) for name, x in results.items() if x.size
    }
    return [f"{n} of {results[name].size} slots of {name} were not written" for name, n in counts.items() if n]


def judge(scores, truth, exact):
    """(check.Result, sentences on wrong scores) of block scores. truth: an Oracle."""
    result = check.compare(scores, truth, exact)
    return result, unwritten({"scores": scores}) + [result.problem] * (not result.ok)


@dataclasses.dataclass
class Outcome:
    results: dict  # {name: array}
    faults: list  # "kernel: [kind] text" of every report that is a fault
    notes: list
    insts: int = 0
    seconds: float = 0.0

    @property
    def scores(self):
        """The one result of the ops that have one."""
        (result,) = self.results.values()
        return result

    def problems(self):
        """Sentences on what is wrong whatever the results should be; empty if nothing is."""
        return self.faults + unwritten(self.results)

    def wrong(self, truth, exact=False):
        """Sentences on what is wrong with block scores. truth: an Oracle."""
        return self.faults + judge(self.scores, truth, exact)[1]

    def raise_if_wrong(self, name, truth, exact=False):
        """Of block scores. truth: an Oracle."""
        found = self.wrong(truth, exact)
        if found:
            raise AssertionError(f"{name}:\n" + "\n".join(found))


def bytes_of(param, address, values):
    """What the launcher passes for an entry of a kernel's `params`."""
    ((kind, what),) = param.items()
    if kind == "tensor_map":
        return tensor_map.encode(what, values, address[what["buffer"]])
    return struct.pack(
        {"buffer": "<Q", "i32": "<i", "i64": "<q"}[kind], address[what] if kind == "buffer" else values[what]
    )


def grid_of(grid, values, multiprocessors):
    """(x, y, z) of a rule of the manifest."""
    if "per_sm" in grid:
        return grid["per_sm"] * multiprocessors, 1, 1
    return (
        tuple(int(expr.parse(str(e)).value(values)) for e in grid["expr"]) if "expr" in grid else tuple(grid["fixed"])
    )


def passes(spec, variant, values):
    """[values of a pass]: with the loop's scalar and step, as the launcher sets them."""
    if spec.loop is None:
        return [values]
    stop = int(spec.loop.stop.value(values))
    step = (values.get(spec.loop.step) or stop) if variant.repeat else stop
    return [
        {**values, spec.loop.step: step, spec.loop.scalar: first}
        for first in (range(0, stop, step) if variant.repeat else [0])
    ]


def run_variant(
    kernels,
    variant,
    wire,
    *,
    mode="eager",
    seed=0,
    multiprocessors=MULTIPROCESSORS,
    races=True,
    elect_last=False,
    statistics=False,
    max_insts=MAX_INSTS,
):
    """All launches of `variant` (kernels: its compiled kernels in order) over a custom call. Returns an Outcome.

    Results start as poison, scratch as random bytes that count as undefined. SimError and Deadlock pass through.
    """
    spec, wire = OPS[variant.op], wire.of(variant.choices)
    values = wire.values(spec)
    rounds = passes(spec, variant, values)
    results = {
        name: poisoned(dtype, shape) for name, (dtype, shape) in spec.result_types(wire.attributes, values).items()
    }
    scratch = np.random.default_rng(seed).integers(
        0, 256, max(int(expr.of(variant.scratch).value(rounds[0])), 16), dtype=np.uint8
    )
    buffers = {
        **{name: np.ascontiguousarray(wire.operands[name]) for name in spec.operand_names},
        **results,
        **({"scratch": scratch} if spec.scratch else {}),
    }
    memory = Memory()
    address = {
        b.name: memory.add(
            b.name,
            buffers[b.name],
            b.align,
            write=b.name in results or b.name == "scratch",
            undefined=b.name == "scratch",
        )
        for b in spec.buffers
    }
    outcome = Outcome(results, [], [])
    for values in rounds:
        for kernel in kernels:
            params = [bytes_of(p, address, values) for p in kernel.params]
            result = run(
                kernel.program,
                memory,
                params,
                grid_of(kernel.grid, values, multiprocessors),
                kernel.block,
                kernel.dynamic_shared_bytes,
                kernel.cluster,
                mode=mode,
                seed=seed,
                races=races,
                max_insts=max_insts,
                elect_last=elect_last,
                statistics=statistics,
            )
            kernel.count(result)
            outcome.insts += result.insts
            outcome.seconds += result.seconds
            outcome.faults += [f"{kernel.name}: {f}" for f in result.faults]
            outcome.notes += [f"{kernel.name}: {f}" for f in result.findings if f not in result.faults]
    return outcome
