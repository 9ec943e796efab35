"""One situation of an installation, in a process of its own: python probe.py SITUATION PACKAGE_FOLDER FAKE_LIBCUDA

Needs JAX, flatbuffers (for export) and the installed package, nothing else of a checkout. Prints one JSON line:
{"result": what came out} or {"remedy": the message}. The GPU is pretended: the library's handlers are registered for
XLA:CPU over a stand-in driver that records launches.
"""

import ctypes
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import warnings

import numpy as np

SITUATIONS = {}


def situation(function):
    SITUATIONS[function.__name__] = function
    return function


def scores(**how):
    """A call with the answer 128 everywhere, through jax.jit."""
    import jax

    import jax_fp4_indexer as jfi

    cu, byte = np.array([0, 1], np.int32), lambda value, *shape: np.full(shape, value, np.uint8)
    call = jax.jit(
        lambda q: jfi.fp4_indexer_block_scores(
            q,
            byte(0x22, 1, 1, 128, 64),
            byte(0x38, 1, 1, 8),
            byte(0x38, 1, 1, 128, 8),
            cu,
            cu,
            cu,
            max_seqlen_q=1,
            max_seqlen_k=1,
            kv_indices=np.zeros(1, np.int32),
            **how,
        )
    )
    value = float(call(byte(0x22, 1, 1, 64))[0, 0, 0])
    assert value == 128, value
    return f"score {value:.0f}"


def product(**how):
    """The same of nvfp4_batched_gemv: 256 products of 1."""
    import jax

    import jax_fp4_indexer as jfi

    byte = lambda value, *shape: np.full(shape, value, np.uint8)  # noqa: E731
    call = jax.jit(
        lambda a: jfi.nvfp4_batched_gemv(
            a, byte(0x22, 2, 128), byte(0x38, 2, 3, 16), byte(0x38, 2, 16), out_dtype="float32", **how
        )
    )
    value = np.unique(call(byte(0x22, 2, 3, 128)))
    assert value.tolist() == [256], value
    return "product 256"


# -- random problems of both ops, and what float64 says of them

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def float64_of(codes, scales):
    """Dequantised NVFP4: two codes a byte, low nibble first; a byte of scale for 16 codes, positive and normal."""
    values = E2M1[np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)]
    scales = scales.astype(np.int64)
    return values * np.repeat((8 + scales % 8) * 2.0 ** (scales // 8 - 10), 16, axis=-1)


def problems():
    """name of the op -> (function of arrays alone, its arrays, the result in float64)."""
    import jax_fp4_indexer as jfi

    random = np.random.default_rng(7)

    def codes(*shape):
        return random.integers(0, 256, shape, np.uint8)

    def scale(*shape):
        return random.integers(0x30, 0x48, shape, np.uint8)

    # Two queries of two heads over one key head; block 0 lies in page 2, block 1 (two keys) in page 0.
    q, k, q_scale, k_scale = codes(2, 2, 64), codes(3, 1, 128, 64), scale(2, 2, 8), scale(3, 1, 128, 8)
    cu = [np.array([0, n], np.int32) for n in (2, 130, 2)]
    dots = np.einsum("thd,pjd->htpj", float64_of(q, q_scale), float64_of(k, k_scale)[:, 0])
    blocks = [dots[:, :, 2].max(-1), np.stack([dots[:, 0, 0, 0], dots[:, 1, 0, :2].max(-1)], -1)]

    def block_scores(q, k, q_scale, k_scale, cu_q, cu_k, cu_pages, pages):
        return jfi.fp4_indexer_block_scores(
            q, k, q_scale, k_scale, cu_q, cu_k, cu_pages, max_seqlen_q=2, max_seqlen_k=130, kv_indices=pages
        )

    a, b, a_scale, b_scale = codes(2, 5, 256), codes(2, 256), scale(2, 5, 32), scale(2, 32)
    y = np.einsum("lmk,lk->lm", float64_of(a, a_scale), float64_of(b, b_scale))

    def batched_gemv(a, b, a_scale, b_scale):
        return jfi.nvfp4_batched_gemv(a, b, a_scale, b_scale, out_dtype="float32")

    pages = np.array([2, 0], np.int32)
    return {
        "block_scores": (block_scores, (q, k, q_scale, k_scale, *cu, pages), np.stack(blocks, 1)),
        "batched_gemv": (batched_gemv, (a, b, a_scale, b_scale), y),
    }


def compare(got, want):
    got = np.asarray(got, np.float64)
    assert got.shape == want.shape and np.abs(got - want).max() <= 1e-5 * np.abs(want).max(), (got, want)


def pretend_driver(fake, capability, driver=None):
    """The library's handlers on XLA:CPU over the stand-in driver; returns that driver."""
    import jax

    from jax_fp4_indexer.primitives import runtime

    os.environ["JFI_LIBCUDA"] = driver or fake
    recorder = ctypes.CDLL(fake)
    recorder.fake_symbol_of.restype, recorder.fake_symbol_of.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    recorder.fake_set_device(0, *capability, 132)
    library = runtime.load()
    jax.devices()  # XLA:CPU wants its backend up before it hears of a handler with state
    capsule = jax.ffi.pycapsule
    state = {"type_id": capsule(library.jfi_state_type_id()), "type_info": capsule(library.jfi_state_type_info())}
    jax.ffi.register_ffi_type(runtime.STATE, state, platform="cpu")
    for target in runtime.TARGETS:
        stages = {
            "instantiate": capsule(library.jfi_instantiate),
            "execute": capsule(library.jfi_execute_on_host),
        }
        jax.ffi.register_ffi_target(target, stages, platform="cpu")
    return recorder


def launched(fake, capability, driver=None, call=scores, op="block_scores"):
    """The op on a pretended GPU: lowered for CUDA, served by the library. How many kernels were launched."""
    from jax.interpreters import mlir

    from jax_fp4_indexer.primitives import kernel_call

    recorder = pretend_driver(fake, capability, driver)
    for each in kernel_call.calls().values():
        mlir.register_lowering(each.primitive, each.lower_cuda, platform="cpu")
    try:
        call()
    except AssertionError:
        pass  # nothing computes behind this driver
    return told(recorder, capability, op)


def told(recorder, capability, op):
    """How many launches the driver was asked for; all kernels that were loaded have to be of `op`."""
    launches, loads = recorder.fake_num_launches(), recorder.fake_num_loads()
    symbols = [recorder.fake_symbol_of(i + 1).decode() for i in range(loads)]
    assert launches > 0 and symbols and all(op in symbol for symbol in symbols), (launches, symbols)
    return f"{launches} launch on {capability[0]}.{capability[1]}"


def edit_manifest(package, change):
    path = pathlib.Path(package, "cubins", "manifest.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def decode_cubin(package, arch="sm_90a"):
    """File of the kernel that the call of `scores` launches on `arch`."""
    data = json.loads(pathlib.Path(package, "cubins", "manifest.json").read_text())
    select = {"path": "decode", "format": "nvfp4", "scale_layout": "public"}
    chosen = [
        v
        for v in data["variants"]
        if (v["op"], v["arch"], v["select"], v["implementation"]) == ("block_scores", arch, select, "native")
    ]
    name = min(chosen, key=lambda v: v["bound"] or 2**31)["launches"][0]
    (kernel,) = (k for k in data["kernels"] if (k["arch"], k["name"]) == (arch, name))
    return pathlib.Path(package, "cubins", kernel["cubin"])


# -- what ends in a result


@situation
def import_before_the_backend(package, fake):
    import jax_fp4_indexer

    jax_fp4_indexer.register()
    return scores()


@situation
def import_after_the_backend(package, fake):
    import jax

    jax.devices()
    import jax_fp4_indexer

    jax_fp4_indexer.register()
    return scores()


@situation
def handler_on_a_pretended_hopper(package, fake):
    return launched(fake, (9, 0))


@situation
def handler_on_a_pretended_ampere(package, fake):
    return launched(fake, (8, 6))


@situation
def gemv_on_a_pretended_hopper(package, fake):
    return launched(fake, (9, 0), call=product, op="batched_gemv")


@situation
def gemv_on_a_pretended_ampere(package, fake):
    return launched(fake, (8, 6), call=product, op="batched_gemv")


@situation
def both_ops_against_float64(package, fake):
    """The definitions, which are what runs on a CPU."""
    import jax

    for function, arrays, want in problems().values():
        compare(jax.jit(function)(*arrays), want)
        compare(function(*arrays), want)
    return "2 ops"


@situation
def both_ops_lowered_for_cuda(package, fake):
    """One custom call each, without a GPU and without the library."""
    import jax

    from jax_fp4_indexer.specs import OPS

    shutil.rmtree(pathlib.Path(package, "_lib"))
    for name, (function, arrays, _) in problems().items():
        text = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("custom_call") == 1 and f"custom_call @{OPS[name].target}(" in text, text
    return "2 custom calls"


@situation
def both_ops_exported_and_run_in_a_new_process(package, fake):
    """Exported for the CPU and for CUDA. A new process computes with the one, and launches the kernel of the other."""
    import jax.export

    import jax_fp4_indexer as jfi

    for name, (function, arrays, _) in problems().items():
        exported = jax.export.export(
            jax.jit(function), platforms=("cpu", "cuda"), disabled_checks=jfi.export_disabled_checks()
        )
        pathlib.Path(f"{name}.both").write_bytes(exported(*arrays).serialize())
        exported = jax.export.export(
            jax.jit(function), platforms=("cuda",), disabled_checks=jfi.export_disabled_checks()
        )
        pathlib.Path(f"{name}.cuda").write_bytes(exported(*arrays).serialize())
        done = subprocess.run(
            [sys.executable, "-S", __file__, "--exported", name, fake], capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split() == ["1", "launch", "on", "9.0"], done.stdout
    return "2 ops"


def exported(name, fake):
    """The new process: runs what the situation above has written into this folder."""
    import jax
    import jax.export

    import jax_fp4_indexer

    jax_fp4_indexer.register()
    _, arrays, want = problems()[name]
    compare(jax.export.deserialize(pathlib.Path(f"{name}.both").read_bytes()).call(*arrays), want)
    recorder = pretend_driver(fake, (9, 0))
    disabled = (*jax_fp4_indexer.export_disabled_checks(), jax.export.DisabledSafetyCheck.platform())
    for_cuda = jax.export.deserialize(pathlib.Path(f"{name}.cuda").read_bytes())
    assert for_cuda.platforms == ("cuda",)
    module = dataclasses.replace(for_cuda, disabled_safety_checks=disabled)
    jax.block_until_ready(module.call(*arrays))
    print(told(recorder, (9, 0), name))


@situation
def another_fingerprint(package, fake):
    """Cubins of other sources with the same parameters serve: what they are called by is checked name by name."""
    edit_manifest(package, lambda m: m.update(fingerprint="0" * 64))
    return launched(fake, (9, 0))


@situation
def the_same_copy_imported_twice(package, fake):
    import jax_fp4_indexer

    jax_fp4_indexer.register()
    for name in [n for n in sys.modules if n.startswith("jax_fp4_indexer")]:
        del sys.modules[name]
    import jax_fp4_indexer

    jax_fp4_indexer.register()
    return scores()


@situation
def no_library_and_no_gpu(package, fake):
    shutil.rmtree(pathlib.Path(package, "_lib"))
    return scores()


@situation
def no_cubins_and_no_gpu(package, fake):
    shutil.rmtree(pathlib.Path(package, "cubins"))
    return scores()


@situation
def gpu_without_a_kernel_by_default(package, fake):
    """implementation=None runs the definition and says so once for each op."""
    pretend_gpu("7.5")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = [call() for call in (scores, product) for _ in range(2)][::2]
    said = [str(w.message) for w in caught if "plain-jnp reference" in str(w.message)]
    assert len(said) == 2 and all("\n" not in text and "7.5" in text for text in said), said
    return f"{', '.join(out)}, one warning each"


# -- what ends in a remedy


def pretend_gpu(capability):
    import types

    import jax

    import jax_fp4_indexer  # noqa: F401

    jax.default_backend = lambda: "gpu"
    jax.local_devices = lambda: [types.SimpleNamespace(compute_capability=capability)]


@situation
def gpu_without_a_kernel_by_name(package, fake):
    pretend_gpu("7.5")
    return scores(implementation="decode")


@situation
def gpu_without_a_gemv_by_name(package, fake):
    pretend_gpu("7.5")
    return product(implementation="portable")


@situation
def handler_on_an_old_gpu(package, fake):
    return launched(fake, (7, 5))


@situation
def no_cubins_for_this_gpu(package, fake):
    def drop(m):
        m["variants"] = [v for v in m["variants"] if v["arch"] != "sm_90a"]
        m["kernels"] = [k for k in m["kernels"] if k["arch"] != "sm_90a"]

    edit_manifest(package, drop)
    return launched(fake, (9, 0))


@situation
def damaged_cubin(package, fake):
    path = decode_cubin(package)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return launched(fake, (9, 0))


@situation
def missing_cubin(package, fake):
    decode_cubin(package).unlink()
    return launched(fake, (9, 0))


@situation
def missing_manifest(package, fake):
    pathlib.Path(package, "cubins", "manifest.json").unlink()
    return launched(fake, (9, 0))


@situation
def half_a_manifest(package, fake):
    path = pathlib.Path(package, "cubins", "manifest.json")
    path.write_text(path.read_text()[:5000])
    return launched(fake, (9, 0))


@situation
def manifest_of_another_schema(package, fake):
    edit_manifest(package, lambda m: m.update(schema=m["schema"] + 1))
    return launched(fake, (9, 0))


@situation
def kernels_that_want_other_arguments(package, fake):
    def change(m):
        for kernel in m["kernels"]:
            kernel["params"][0] = {"buffer": "block_table"}

    edit_manifest(package, change)
    return launched(fake, (9, 0))


@situation
def missing_library(package, fake):
    shutil.rmtree(pathlib.Path(package, "_lib"))
    return launched(fake, (9, 0))


@situation
def library_that_does_not_load(package, fake):
    next(pathlib.Path(package, "_lib").glob("*.so")).write_bytes(b"\x7fELF and nothing behind")
    return launched(fake, (9, 0))


@situation
def library_newer_than_jaxlib(package, fake):
    from jax_fp4_indexer.primitives import runtime

    runtime.runtime_api_version = lambda: (
        ctypes.CDLL(str(runtime.find(f"_lib/{runtime.LIBRARY}"))).jfi_ffi_api_version() - 1
    )
    return launched(fake, (9, 0))


@situation
def two_copies_of_the_library(package, fake):
    import jax_fp4_indexer

    jax_fp4_indexer.register()
    second = pathlib.Path(package).parent / "second"
    shutil.copytree(package, second / "jax_fp4_indexer")
    for name in [n for n in sys.modules if n.startswith("jax_fp4_indexer")]:
        del sys.modules[name]
    sys.path.insert(0, str(second))
    import jax_fp4_indexer

    assert jax_fp4_indexer.__file__.startswith(str(second))
    jax_fp4_indexer.register()


@situation
def no_driver(package, fake):
    return launched(fake, (9, 0), driver="/nonexistent/libcuda.so.1")


def main(name, package, fake):
    os.environ.pop("JFI_LIBCUDA", None)
    import jax

    found = {"situation": name, "jax": jax.__version__, "python": sys.version.split()[0]}
    try:
        found["result"] = SITUATIONS[name](package, fake)
    except Exception as error:
        found["remedy"], found["type"] = str(error), type(error).__name__
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "--exported":
        exported(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
