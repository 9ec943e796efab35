"""One situation of an installation, in a process of its own: python probe.py SITUATION PACKAGE_FOLDER FAKE_LIBCUDA

Needs JAX and the installed package, nothing else of a checkout. Prints one JSON line: {"result": what came out} or {"remedy": the message}.
The GPU is pretended: the library's handlers are registered for XLA:CPU over a stand-in driver that records launches.
"""
import ctypes
import json
import os
import pathlib
import shutil
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
    call = jax.jit(lambda q: jfi.fp4_indexer_block_scores(q, byte(0x22, 1, 1, 128, 64), byte(0x38, 1, 1, 8), byte(0x38, 1, 1, 128, 8), cu, cu, cu,
                                                          max_seqlen_q=1, max_seqlen_k=1, kv_indices=np.zeros(1, np.int32), **how))
    value = float(call(byte(0x22, 1, 1, 64))[0, 0, 0])
    assert value == 128, value
    return f"score {value:.0f}"


def launched(fake, capability, driver=None):
    """The op on a pretended GPU: lowered for CUDA, served by the library. Names of the kernels that were launched."""
    import jax
    from jax.interpreters import mlir

    from jax_fp4_indexer.primitives import kernel_call, runtime
    os.environ["JFI_LIBCUDA"] = driver or fake
    recorder = ctypes.CDLL(fake)
    recorder.fake_set_device(0, *capability, 132)
    library = runtime.load()
    jax.devices()       # XLA:CPU wants its backend up before it hears of a handler with state
    capsule = jax.ffi.pycapsule
    jax.ffi.register_ffi_type(runtime.STATE, {"type_id": capsule(library.jfi_state_type_id()),
                                              "type_info": capsule(library.jfi_state_type_info())}, platform="cpu")
    for target in runtime.TARGETS:
        stages = {"instantiate": capsule(library.jfi_instantiate), "execute": capsule(library.jfi_execute_on_host)}
        jax.ffi.register_ffi_target(target, stages, platform="cpu")
    for call in kernel_call.calls().values():
        mlir.register_lowering(call.primitive, call.lower_cuda, platform="cpu")
    try:
        scores()
    except AssertionError:
        pass            # nothing computes behind this driver
    assert recorder.fake_num_launches() > 0
    return f"{recorder.fake_num_launches()} launch on {capability[0]}.{capability[1]}"


def edit_manifest(package, change):
    path = pathlib.Path(package, "cubins", "manifest.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def decode_cubin(package, arch="sm_90a"):
    """File of the kernel that the call of `scores` launches on `arch`."""
    data = json.loads(pathlib.Path(package, "cubins", "manifest.json").read_text())
    select = {"path": "decode", "format": "nvfp4", "scale_layout": "public"}
    chosen = [v for v in data["variants"] if (v["arch"], v["select"], v["implementation"]) == (arch, select, "native")]
    name = min(chosen, key=lambda v: v["bound"] or 2**31)["launches"][0]
    (kernel,) = (k for k in data["kernels"] if (k["arch"], k["name"]) == (arch, name))
    return pathlib.Path(package, "cubins", kernel["cubin"])


# -- what ends in a result -------------------------------------------------------------------------------------------------

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
    """implementation=None runs the reference and says so once."""
    pretend_gpu("7.5")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = scores()
    told = [str(w.message) for w in caught if "plain-jnp reference" in str(w.message)]
    assert len(told) == 1 and "\n" not in told[0] and "7.5" in told[0], told
    return f"{out}, one warning"


# -- what ends in a remedy -------------------------------------------------------------------------------------------------

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
    edit_manifest(package, lambda m: m.update(schema=2))
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
    runtime.runtime_api_version = lambda: ctypes.CDLL(str(runtime.find(f"_lib/{runtime.LIBRARY}"))).jfi_ffi_api_version() - 1
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
    main(*sys.argv[1:])
