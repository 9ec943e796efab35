"""The whole stack on a CPU: jax.jit -> lowering -> the C++ handler -> manifest, choice of variant, packing -> a simulated launch.

A process that calls `install` pretends one GPU for good (library, cubin folder and driver are choices of a process), so tests run this
file, or sweep.py, in a process of its own:

    PYTHONPATH=tests python -m simulated.stand_in 9.0 --implementations decode,portable --cases k_lengths_causal-
"""

import argparse
import ctypes as C
import itertools
import json
import os
import pathlib
import shutil
import sys
import tempfile

import numpy as np

from jax_fp4_indexer.aot import manifest, variants
from jax_fp4_indexer.aot.variants import block_scores as table
from jax_fp4_indexer.configs.arch import runs_on
from jax_fp4_indexer.primitives import kernel_call, runtime
from jax_fp4_indexer.specs import expr
from harness import registry
from ptxsim import kernels, native
from ptxsim.launch import Memory, run
from support import cases as table_of_cases
from support.inputs import PAGE, batch

from . import selection
from .cases import Case
from .launches import MAX_INSTS, MULTIPROCESSORS, dtype_of, poisoned, unwritten

# Variants of toys.py: the only kernels so far that take a tensor map, which the launcher has the stand-in driver encode.
TOYS = [
    table.variant(
        "decode",
        f,
        "preordered_mma",
        "sm_100a",
        (variants.Kernel("simulated.toys:PageMaxima", "sm_100a", (("format", f),)),),
    )
    for f in table.FORMATS
]

_LAUNCH = C.CFUNCTYPE(C.c_int, C.c_char_p, *[C.POINTER(C.c_uint)] * 3, C.c_uint, C.POINTER(C.c_void_p))


class Device:
    """The pretended GPU. `launched`: "arch:kernel" of every launch since the last `expect`; `problems`: what the simulator found;
    `instructions`: of warps; `variants`: [(variant, what it launches)] of those that it runs."""

    def __init__(self, kernels_by_symbol, scratch, schedule):
        """scratch: symbol of a kernel -> the expressions of the variants that begin with it."""
        self.kernels, self.scratch, self.schedule = kernels_by_symbol, scratch, schedule
        self._callback = _LAUNCH(self._launch)  # has to stay alive as long as the driver

    def expect(self, spec, wire):
        """What the next call is about: shapes of operands are not among the parameters of a launch."""
        self.spec, self.wire, self.memory, self.address = spec, wire, Memory(), None
        self.launched, self.problems, self.instructions = [], [], 0

    def _place(self, given, scratch_bytes):
        """Put the caller's buffers where the simulator has them. The host's own addresses are better aligned than what is promised."""
        operands = {name: (x.dtype, x.shape) for name, x in self.wire.operands.items()}
        results = self.spec.result_types(self.wire.attributes, self.wire.values(self.spec))
        types = {**operands, **results, "scratch": ("uint8", (max(scratch_bytes, 16),))}
        self.address = {}
        for b in self.spec.buffers:
            dtype, shape = types[b.name]
            size = int(np.prod(shape)) * (dtype_of(dtype).itemsize if isinstance(dtype, str) else dtype.itemsize)
            view = (
                np.frombuffer((C.c_ubyte * size).from_address(given[b.name]), np.uint8)
                if size
                else np.zeros(0, np.uint8)
            )
            if b.name in results and size:
                view[:] = poisoned(dtype, shape).reshape(-1).view(np.uint8)
            self.address[b.name] = self.memory.add(
                b.name, view, b.align, write=b.name in results or b.name == "scratch", undefined=b.name == "scratch"
            )

    def _moved(self, param, value):
        """The bytes of a parameter with the simulator's address in place of the caller's."""
        ((kind, what),) = param.items()
        if kind == "tensor_map" and any(value):
            return self.address[what["buffer"]].to_bytes(8, "little") + value[8:]
        return self.address[what].to_bytes(8, "little") if kind == "buffer" else value

    def _launch(self, symbol, grid, block, cluster, shared, params):
        try:
            kernel = self.kernels[symbol.decode()]
            raw = [C.string_at(p, size) for p, (_, size) in zip(params, kernel.program.params)]
            given = {}
            for p, value in zip(kernel.params, raw):
                ((kind, what),) = p.items()
                if kind == "tensor_map":  # starts with the address of the buffer
                    given.setdefault(what["buffer"], int.from_bytes(value[:8], "little"))
                else:
                    given[what] = int.from_bytes(value, "little", signed=kind != "buffer")
            self.launched.append(symbol.decode())
            if self.address is None:
                # The least that a variant with this launch may use: the driver is not told how much there is
                self._place(given, min(e.value(given) for e in self.scratch[symbol.decode()]))
            raw = [self._moved(p, value) for p, value in zip(kernel.params, raw)]
            mode, _, seed = self.schedule.partition(":")
            result = run(
                kernel.program,
                self.memory,
                raw,
                tuple(grid[:3]),
                tuple(block[:3]),
                shared,
                tuple(cluster[:3]),
                mode=mode,
                seed=int(seed or 0),
                max_insts=MAX_INSTS,
            )
            kernel.count(result)
            self.instructions += result.insts
            self.problems += [f"{kernel.name}: {f}" for f in result.faults]
            return 0
        except Exception as e:  # SimError, and whatever else: nothing may pass through C++
            self.problems.append(f"{symbol.decode()}: {type(e).__name__}: {e}")
        return 1


def _write_manifest(folder, compiled, chosen):
    """cubins/manifest.json as the build writes it, with a text in place of every cubin."""
    entries = {}
    for wanted, k in compiled.items():
        path = pathlib.Path(folder, k.arch, f"{k.name}.cubin")
        path.parent.mkdir(exist_ok=True)
        path.write_text(k.name)
        entries[wanted.arch, wanted.source] = dict(
            name=k.name,
            arch=k.arch,
            cubin=f"{k.arch}/{k.name}.cubin",
            symbol=f"{k.arch}:{k.name}",
            block=list(k.block),
            cluster=list(k.cluster),
            grid=k.grid,
            dynamic_shared_bytes=k.dynamic_shared_bytes,
            params=k.params,
            fingerprint="",
        )
    manifest.write(folder, manifest.compose(entries, chosen, dsl=""))


def install(capability, schedule="eager", table=variants.VARIANTS):
    """Make this process pretend a GPU of `capability` ((major, minor)) for which the variants of `table` are built: the op's custom call is
    lowered and served on the CPU platform. Returns the Device."""
    import jax
    from jax.interpreters import mlir

    chosen = [v for v in table if runs_on(v.arch, capability)]
    wanted = variants.kernels_of(chosen)
    compiled = dict(zip(wanted, kernels.load(wanted)))
    folder = tempfile.mkdtemp(prefix="ptxsim_stack_")
    _write_manifest(folder, compiled, chosen)
    path = runtime.find(f"_lib/{runtime.LIBRARY}")
    if path is None:
        raise RuntimeError(f"{runtime.LIBRARY} is not built; run: make library")
    library = C.CDLL(str(shutil.copy(path, pathlib.Path(folder, "library.so"))))
    runtime._declare(library)
    refused = library.jfi_set_cubin_dir(folder.encode())
    if refused is not None:
        raise RuntimeError(refused.decode())
    driver_path = native.build("libcuda", "driver")
    os.environ["JFI_LIBCUDA"] = str(driver_path)
    scratch = {}
    for v in chosen:
        first = compiled[v.launches[0]]
        scratch.setdefault(f"{first.arch}:{first.name}", []).append(expr.of(v.scratch))
    device = Device({f"{k.arch}:{k.name}": k for k in compiled.values()}, scratch, schedule)
    device.variants = [(v, [f"{k.arch}:{compiled[k].name}" for k in v.launches]) for v in chosen]
    device.driver = C.CDLL(str(driver_path))
    device.driver.stand_in_device(*capability, MULTIPROCESSORS, device._callback)
    jax.devices()  # XLA:CPU wants its backend up before it hears of a handler with state
    capsule = jax.ffi.pycapsule
    jax.ffi.register_ffi_type(
        runtime.STATE,
        {"type_id": capsule(library.jfi_state_type_id()), "type_info": capsule(library.jfi_state_type_info())},
        platform="cpu",
    )
    for target in runtime.TARGETS:
        stages = {"instantiate": capsule(library.jfi_instantiate), "execute": capsule(library.jfi_execute_on_host)}
        jax.ffi.register_ffi_target(target, stages, platform="cpu")
    for call in kernel_call.calls().values():
        mlir.register_lowering(call.primitive, call.lower_cuda, platform="cpu")
    return device


def program(tests, case, choices, implementation):
    """The public op over a case (tests: harness.protocol.OpTests), compiled by jax.jit."""
    import jax

    op, arrays = tests.call(case, implementation, choices)
    return jax.jit(op).lower(**arrays).compile()


def call(device, compiled, tests, case, choices):
    """Run what `program` compiled. Returns {result: array}, or None where the call failed: device.problems says why."""
    import jax

    device.expect(tests.spec, tests.operands(case, choices).of(choices))
    try:
        out = compiled(**tests.call(case, None, choices)[1])
    except jax.errors.JaxRuntimeError as e:
        device.problems.append(str(e))
        return None
    return dict(zip((b.name for b in tests.spec.results), map(np.array, out if isinstance(out, tuple) else (out,))))


class _OneCase:
    """Tests of block scores with one case, which no list has."""

    def __init__(self, make, fmt):
        self.tests, self.case = (
            registry.op("block_scores"),
            Case(table_of_cases.Case(f"page_maxima-{fmt}", "what toys.py is made for", fmt, make)),
        )

    def __getattr__(self, name):
        return getattr(self.tests, name)


def _case_calls(args):
    """(tests, case, choices, implementation) of the calls that are requested."""
    if args.toys:
        for fmt in table.FORMATS:
            one = _OneCase(lambda f: batch(f, [70], [5 * PAGE], 1, 1, seed=9, causal=False), fmt)
            yield one, one.case, {"format": fmt, "scale_layout": "preordered_mma"}, "decode"
        return
    for tests in registry.chosen():
        implementations = args.implementations.split(",") if args.implementations else tests.implementations()
        for choices in selection.combinations(tests.spec, without=getattr(tests, "made_by_the_op", ())):
            rows = [
                c
                for c in tests.cases(*([args.tag] if args.tag else []), **choices)
                if any(part in c.name for part in args.cases.split(","))
            ]
            for case, implementation in itertools.product(rows, implementations):
                yield tests, case, choices, implementation


def taken(device, op):
    """Implementations of the op's variants whose launches, once or several times, are what the last call launched."""
    launched = list(dict.fromkeys(device.launched))
    return sorted({v.implementation for v, symbols in device.variants if v.op == op and symbols == launched})


def main():
    parser = argparse.ArgumentParser(
        description="The case tables through jax.jit on a pretended GPU; prints one JSON line a call. JFI_OP names one op."
    )
    parser.add_argument("capability", help="e.g. 9.0")
    parser.add_argument(
        "--implementations",
        default="",
        help="values of the op's argument, separated by commas; default: all that request kernels",
    )
    parser.add_argument("--cases", default="")
    parser.add_argument("--tag", help="only rows with this tag, e.g. quick")
    parser.add_argument("--schedule", default="eager")
    parser.add_argument(
        "--toys",
        action="store_true",
        help="the kernels of toys.py instead of the tree's, on the one batch they are made for",
    )
    args = parser.parse_args()
    device = install(
        tuple(int(x) for x in args.capability.split(".")), args.schedule, TOYS if args.toys else variants.VARIANTS
    )
    bad = 0
    for tests, case, choices, implementation in _case_calls(args):
        found = call(device, program(tests, case, choices, implementation), tests, case, choices)
        problems = device.problems + (unwritten(found) + tests.compare(case, found).problems if found else [])
        bad += bool(problems)
        print(
            json.dumps(
                dict(
                    op=tests.spec.name,
                    case=case.name,
                    choices=choices,
                    implementation=implementation,
                    launches=device.launched,
                    taken=taken(device, tests.spec.name),
                    slots=sum(x.size for x in found.values()) if found else 0,
                    problems=problems,
                )
            ),
            flush=True,
        )
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
