"""The whole stack on a CPU: jax.jit -> lowering -> the C++ handler -> manifest, choice of variant, packing -> a simulated launch.

A process that calls `install` pretends one GPU for good (library, cubin folder and driver are choices of a process), so tests run this
file, or sweep.py, in a process of its own:

    PYTHONPATH=tests python -m simulated.stand_in 9.0 --implementations decode,portable --cases k_lengths_causal-
"""
import argparse
import ctypes as C
import functools
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
from jax_fp4_indexer.configs.block_scores import Scratch
from jax_fp4_indexer.primitives import block_scores as primitive
from jax_fp4_indexer.primitives import runtime
from jax_fp4_indexer.specs import expr
from ptxsim import kernels, native
from ptxsim.launch import Memory, run
from support import oracle
from support.inputs import PAGE, batch

from . import cases, selection
from .launches import MAX_INSTS, MULTIPROCESSORS, POISON, judge

# Variants of toys.py: the only kernels so far that take a tensor map, which the launcher has the stand-in driver encode.
TOYS = [table.variant("decode", f, "preordered_mma", "sm_100a", (variants.Kernel("simulated.toys:PageMaxima", "sm_100a", (("format", f),)),)) for f in table.FORMATS]

_LAUNCH = C.CFUNCTYPE(C.c_int, C.c_char_p, *[C.POINTER(C.c_uint)] * 3, C.c_uint, C.POINTER(C.c_void_p))


class Device:
    """The pretended GPU. `launched`: "arch:kernel" of every launch since the last `expect`; `problems`: what the simulator found;
    `instructions`: of warps."""

    def __init__(self, kernels_by_symbol, scratch, schedule):
        """scratch: symbol of a kernel -> the expressions of the variants that begin with it."""
        self.kernels, self.scratch, self.schedule = kernels_by_symbol, scratch, schedule
        self._callback = _LAUNCH(self._launch)      # has to stay alive as long as the driver

    def expect(self, fmt, layout):
        """What the next call is about: the sizes of the scale operands are not among the parameters of a launch."""
        self.format, self.layout, self.memory, self.address = fmt, layout, Memory(), None
        self.launched, self.problems, self.instructions = [], [], 0

    def _place(self, given, alignments, scratch_bytes):
        """Put the caller's buffers where the simulator has them. The host's own addresses are better aligned than what is promised."""
        n = {k: given[k] for k in ("tokens", "heads_q", "heads_kv", "num_pages", "num_indices", "num_seqs", "k_tiles")}
        q, k = (n["tokens"], n["heads_q"], 64), (n["num_pages"], n["heads_kv"], 128, 64)
        types = primitive.operand_types(q, k, n["num_indices"], n["num_seqs"], self.format, self.layout)
        types["scores"] = ("float32", (n["heads_q"], n["k_tiles"], n["tokens"]))
        types["scratch"] = ("uint8", (scratch_bytes,))
        self.address = {}
        for name, (dtype, shape) in types.items():
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            view = np.frombuffer((C.c_ubyte * size).from_address(given[name]), np.uint8) if size else np.zeros(0, np.uint8)
            if name == "scores":
                view.view(np.uint32)[:] = POISON
            self.address[name] = self.memory.add(name, view, alignments[name], write=name in ("scores", "scratch"), undefined=name == "scratch")

    def _moved(self, param, value):
        """The bytes of a parameter with the simulator's address in place of the caller's."""
        (kind, what), = param.items()
        if kind == "tensor_map" and any(value):
            return self.address[what["buffer"]].to_bytes(8, "little") + value[8:]
        return self.address[what].to_bytes(8, "little") if kind == "buffer" else value

    def _launch(self, symbol, grid, block, cluster, shared, params):
        try:
            kernel = self.kernels[symbol.decode()]
            raw = [C.string_at(p, size) for p, (_, size) in zip(params, kernel.program.params)]
            given = {}
            for p, value in zip(kernel.params, raw):
                (kind, what), = p.items()
                if kind == "tensor_map":        # starts with the address of the buffer
                    given.setdefault(what["buffer"], int.from_bytes(value[:8], "little"))
                else:
                    given[what] = int.from_bytes(value, "little", signed=kind != "buffer")
            self.launched.append(symbol.decode())
            if self.address is None:
                # The least that a variant with this launch may use: the driver is not told how much there is
                self._place(given, kernel.alignments, min(e.value(given) for e in self.scratch[symbol.decode()]))
            raw = [self._moved(p, value) for p, value in zip(kernel.params, raw)]
            mode, _, seed = self.schedule.partition(":")
            result = run(kernel.program, self.memory, raw, tuple(grid[:3]), tuple(block[:3]), shared, tuple(cluster[:3]), mode=mode, seed=int(seed or 0), max_insts=MAX_INSTS)
            kernel.count(result)
            self.instructions += result.insts
            self.problems += [f"{kernel.name}: {f}" for f in result.faults]
            return 0
        except Exception as e:      # SimError, and whatever else: nothing may pass through C++
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
            name=k.name, arch=k.arch, cubin=f"{k.arch}/{k.name}.cubin", symbol=f"{k.arch}:{k.name}", block=list(k.block), cluster=list(k.cluster),
            grid=k.grid, dynamic_shared_bytes=k.dynamic_shared_bytes, params=k.params, fingerprint="")
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
    device.driver = C.CDLL(str(driver_path))
    device.driver.stand_in_device(*capability, MULTIPROCESSORS, device._callback)
    jax.devices()       # XLA:CPU wants its backend up before it hears of a handler with state
    capsule = jax.ffi.pycapsule
    jax.ffi.register_ffi_type(runtime.STATE, {"type_id": capsule(library.jfi_state_type_id()),
                                              "type_info": capsule(library.jfi_state_type_info())}, platform="cpu")
    for target in runtime.TARGETS:
        stages = {"instantiate": capsule(library.jfi_instantiate), "execute": capsule(library.jfi_execute_on_host)}
        jax.ffi.register_ffi_target(target, stages, platform="cpu")
    mlir.register_lowering(primitive.block_scores_p, primitive._lower_cuda, platform="cpu")
    return device


def program(inp, layout, implementation, passes_of=None):
    """The public op over `inp`, compiled by jax.jit. passes_of: pages of a pass of a staged prefill, by a bound on its memory that admits no more."""
    import jax

    import jax_fp4_indexer as jfi
    bound = {}
    if passes_of:
        Tq, _, Hkv, _, B, _ = inp.shape
        bound["max_scratch_bytes"] = Scratch.layout(B, Tq, Hkv, passes_of).size(inp.fmt)
    op = functools.partial(jfi.fp4_indexer_block_scores, implementation=implementation, **bound, **inp.statics(layout))
    return jax.jit(op).lower(**inp.arrays(layout)).compile()


def call(device, compiled, inp, layout):
    """Run what `program` compiled. Returns float32 [Hq, Ktiles, Tq], or None where the call failed: device.problems says why."""
    import jax
    device.expect(inp.fmt, layout)
    try:
        return np.array(compiled(**inp.arrays(layout)))
    except jax.errors.JaxRuntimeError as e:
        device.problems.append(str(e))
        return None


def _case_calls(args):
    """(name, inputs, oracle, exact, layout, implementation, pages of a pass) of the calls asked for."""
    for fmt in table.FORMATS:
        if args.toys:
            inp = batch(fmt, [70], [5 * PAGE], 1, 1, seed=9, causal=False)
            yield f"page_maxima-{fmt}", inp, oracle.evaluate(inp), False, "preordered_mma", "decode", None
            continue
        rows = {c.name: c for path in ("decode", "prefill") for c in cases.of(path, fmt, args.cases, args.tag)}
        for case in rows.values():
            for layout in table.SCALE_LAYOUTS:
                for implementation in args.implementations.split(","):
                    yield case.name, *selection.built(case.table), case.table.exact, layout, implementation, case.passes_of


def main():
    parser = argparse.ArgumentParser(description="The case table through jax.jit on a pretended GPU; prints one JSON line a call.")
    parser.add_argument("capability", help="e.g. 9.0")
    parser.add_argument("--implementations", default="decode,prefill,portable", help="values of the op's argument")
    parser.add_argument("--cases", default="")
    parser.add_argument("--tag", help="only rows with this tag, e.g. quick")
    parser.add_argument("--schedule", default="eager")
    parser.add_argument("--toys", action="store_true", help="the kernels of toys.py instead of the tree's, on the one batch they are made for")
    args = parser.parse_args()
    device = install(tuple(int(x) for x in args.capability.split(".")), args.schedule, TOYS if args.toys else variants.VARIANTS)
    bad = 0
    for name, inp, truth, exact, layout, implementation, passes_of in _case_calls(args):
        out = call(device, program(inp, layout, implementation, passes_of), inp, layout)
        problems = device.problems + (judge(out, truth, exact)[1] if out is not None else [])
        bad += bool(problems)
        print(json.dumps(dict(case=name, layout=layout, implementation=implementation, launches=device.launched, slots=0 if out is None else out.size, problems=problems)), flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
