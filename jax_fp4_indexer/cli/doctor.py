"""What this machine is, which kernel each op would use here, what is missing and how to get it."""
import importlib.metadata
import os
import platform

import jax
from rich.markup import escape
from rich.table import Table

from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.cli.screen import console
from jax_fp4_indexer.primitives import runtime

# (path, an example of a call that takes it, columns = max_seqlen_q * Hq / Hkv)
CALLS = (("decode", "q_len 4, heads 4/1", 16), ("decode", "q_len 8, heads 16/1", 128), ("prefill", "q_len 8192, heads 64/4", 8192 * 16))
FORMATS = ("nvfp4", "mxfp4")


def kernel_for(path, fmt, columns, layout="preordered_mma"):
    """One phrase: what a call of this kind runs on the default device. LookupError if there is no such kernel."""
    device = jax.devices()[0]
    capability = runtime.capability_of(device) if jax.default_backend() == "gpu" else None
    if capability is None:
        return f"the jnp reference (no CUDA GPU; JAX runs on {jax.default_backend()})"
    reason = runtime.unsupported_reason()
    if reason:
        return f"the jnp reference ({reason})"
    arch, kind, kernels = runtime.choose_variant(capability, path=path, fp4_format=fmt, scale_layout=layout, columns=columns)
    return f"{kind} {arch} kernels {' + '.join(kernels)}"


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpu_facts():
    """Rows (name, value) from the driver through cuda-python, or the reason why there are none."""
    try:
        from cuda.bindings import driver as cu
    except ImportError:
        return [("driver facts", 'cuda-python is not installed: pip install "jax-fp4-indexer[bench]" shows driver version, SM count and memory')]
    try:
        error, = cu.cuInit(0)
    except Exception as failure:            # the bindings raise RuntimeError or their own type where libcuda is absent
        return [("driver", f"no CUDA driver (libcuda.so.1): {str(failure).splitlines()[0]}")]
    if error != cu.CUresult.CUDA_SUCCESS:
        return [("driver", f"cuInit answers {error.name}")]
    attribute = cu.CUdevice_attribute
    version = cu.cuDriverGetVersion()[1]
    rows = [("driver", f"CUDA {version // 1000}.{version % 1000 // 10}")]
    for i in range(cu.cuDeviceGetCount()[1]):
        device = cu.cuDeviceGet(i)[1]
        get = lambda name: cu.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)[1]
        name = cu.cuDeviceGetName(128, device)[1].split(b"\0")[0].decode()
        rows.append((f"GPU {i}", f"{name}, compute capability {get('COMPUTE_CAPABILITY_MAJOR')}.{get('COMPUTE_CAPABILITY_MINOR')}, {get('MULTIPROCESSOR_COUNT')} SMs, "
                                 f"{get('L2_CACHE_SIZE') / 2**20:.0f} MiB L2, {get('MAX_SHARED_MEMORY_PER_BLOCK_OPTIN') // 1024} KiB shared memory a CTA, "
                                 f"{cu.cuDeviceTotalMem(device)[1] / 2**30:.0f} GiB"))
    return rows


def library_facts():
    """(rows about the FFI library and the cubins, whether all is well); a problem names its remedy."""
    rows, sound = [], True
    try:
        library = runtime.load()
        rows.append(("FFI library", "built for XLA FFI API {}.{}, jaxlib serves {}.{}".format(*divmod(library.jfi_ffi_api_version(), 1000), *divmod(runtime.runtime_api_version(), 1000))))
    except ImportError as error:
        rows, sound = [("FFI library", str(error))], False
    path = runtime.find("cubins/manifest.json")
    if path is None:
        return [*rows, ("cubins", f"none: there is no cubins/manifest.json; {runtime.REINSTALL}")], False
    try:
        data = manifest.read(path.parent)
    except manifest.ManifestError as error:
        return [*rows, ("cubins", f"{error}, or {runtime.REINSTALL}")], False
    archs = {}
    for kernel in data["kernels"]:
        archs.setdefault(kernel["arch"], []).append(kernel["name"])
    rows.append(("cubins", (", ".join(f"{arch} ({len(names)})" for arch, names in sorted(archs.items())) or "none") + f"; DSL {data['dsl']}"))
    broken = manifest.altered(path.parent, data)
    if broken or not archs:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        rows.append(("cubins, problem", f"{broken[0] if broken else 'the manifest lists no kernel'}{more}; {runtime.REINSTALL}"))
        sound = False
    return rows, sound


def jax_facts():
    """(row about JAX and its devices, whether there are any)."""
    version = f"{jax.__version__}, jaxlib {jax.lib.__version__}"
    try:
        return ("jax", f"{version}, backend {jax.default_backend()}: {', '.join(sorted({d.device_kind for d in jax.devices()}))}"), True
    except (RuntimeError, AssertionError) as error:             # jax 0.10 asserts where a plugin was found and its platform was not
        return ("jax", f"{version}, no device to run on ({str(error).partition(chr(10))[0] or 'no backend'}); "
                       f"JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS', '')!r}: unset it, or install what it names"), False


def run():
    """Print the report; 0 if every op has something to run, 1 if something is missing that should be there."""
    table = Table(title="jax-fp4-indexer doctor", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("machine", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}")
    row, devices = jax_facts()
    table.add_row(row[0], escape(row[1]))
    plugins = [f"{name} {_version(name)}" for name in ("jax-cuda13-plugin", "jax-cuda12-plugin") if _version(name)]
    table.add_row("CUDA plugin", escape(", ".join(plugins) if plugins else 'none installed; for an NVIDIA GPU: pip install "jax-fp4-indexer[cuda13]" (or cuda12)'))
    facts, sound = library_facts()
    for name, value in [*gpu_facts(), *facts]:
        table.add_row(name, escape(value))
    for path, example, columns in CALLS if devices else ():
        for fmt in FORMATS:
            try:
                what = kernel_for(path, fmt, columns)
            except LookupError as error:
                what, sound = str(error), False
            table.add_row(f"block scores, {path}, {fmt}", escape(f"{example}: {what}"))
    console().print(table)
    return 0 if devices and sound and runtime.unsupported_reason() is None else 1
