"""What this machine is, which kernels each op would use here, what is missing and how to get it."""

import importlib.metadata
import itertools
import os
import platform

import jax
from rich.markup import escape
from rich.table import Table

from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.cli.screen import console
from jax_fp4_indexer.configs.arch import runs_on
from jax_fp4_indexer.primitives import runtime
from jax_fp4_indexer.specs import OPS, OpSpec

LAYOUT = "preordered_mma"  # the scale layout of the calls that are shown, of the two that an op may have


def kernel_for(op: str, select: dict[str, str], bound: int) -> str:
    """One phrase: what a call of `op` runs on the default device. LookupError if there is no such kernel.

    select: {choice: value} as the op's spec selects kernels by; bound: the value of the spec's `bound` for the call.
    """
    reason = reference_reason(op)
    if reason:
        return f"the jnp reference ({reason})"
    arch, kind, kernels = runtime.choose_variant(runtime.capability_of(jax.devices()[0]), op, bound=bound, **select)
    return f"{kind} {arch} kernels {' + '.join(kernels)}"


def reference_reason(op: str) -> str | None:
    """Why `op` runs the jnp reference here; None where there are kernels."""
    if jax.default_backend() != "gpu" or runtime.capability_of(jax.devices()[0]) is None:
        return f"no CUDA GPU; JAX runs on {jax.default_backend()}"
    return runtime.unsupported_reason(op)


def calls_of(op: OpSpec) -> list[dict[str, str]]:
    """Every combination of what the op's kernels are selected by, in one scale layout."""
    choices = [(LAYOUT,) if name == "scale_layout" else op.choices()[name] for name in op.select]
    return [dict(zip(op.select, values)) for values in itertools.product(*choices)]


def kernels_by_bound(op: OpSpec, select: dict[str, str], variants: list[dict]) -> str:
    """What calls of one kind run, from small to large values of the op's `bound`. `variants`: of the manifest.
    LookupError as `kernel_for`."""
    capability = runtime.capability_of(jax.devices()[0])
    fitting = {
        v["bound"] for v in variants if v["op"] == op.name and v["select"] == select and runs_on(v["arch"], capability)
    }
    limits = sorted(fitting - {0})
    found = [(limit, kernel_for(op.name, select, limit or 1)) for limit in limits] + [
        (None, kernel_for(op.name, select, (limits or [0])[-1] + 1))
    ]
    last = [
        (limit, what) for (limit, what), (_, following) in zip(found, [*found[1:], (None, None)]) if what != following
    ]
    if len(last) == 1:
        return last[0][1]
    return f"{op.bound} " + "; ".join(f"{'above' if limit is None else f'<= {limit}'}: {what}" for limit, what in last)


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
        return [
            (
                "driver facts",
                'cuda-python is not installed: pip install "jax-fp4-indexer[bench]" shows driver version, '
                "SM count and memory",
            )
        ]
    try:
        (error,) = cu.cuInit(0)
    except Exception as failure:  # the bindings raise RuntimeError or their own type where libcuda is absent
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
        rows.append(
            (
                f"GPU {i}",
                f"{name}, compute capability {get('COMPUTE_CAPABILITY_MAJOR')}.{get('COMPUTE_CAPABILITY_MINOR')}, "
                f"{get('MULTIPROCESSOR_COUNT')} SMs, {get('L2_CACHE_SIZE') / 2**20:.0f} MiB L2, "
                f"{get('MAX_SHARED_MEMORY_PER_BLOCK_OPTIN') // 1024} KiB shared memory a CTA, "
                f"{cu.cuDeviceTotalMem(device)[1] / 2**30:.0f} GiB",
            )
        )
    return rows


def library_facts():
    """(rows about the FFI library and the cubins, whether all is well, the manifest's variants); a problem names its
    remedy."""
    rows, sound = [], True
    try:
        library = runtime.load()
        rows.append(
            (
                "FFI library",
                "built for XLA FFI API {}.{}, jaxlib serves {}.{}".format(
                    *divmod(library.jfi_ffi_api_version(), 1000), *divmod(runtime.runtime_api_version(), 1000)
                ),
            )
        )
    except ImportError as error:
        rows, sound = [("FFI library", str(error))], False
    path = runtime.find("cubins/manifest.json")
    if path is None:
        return [*rows, ("cubins", f"none: there is no cubins/manifest.json; {runtime.REINSTALL}")], False, []
    try:
        data = manifest.read(path.parent)
    except manifest.ManifestError as error:
        return [*rows, ("cubins", f"{error}, or {runtime.REINSTALL}")], False, []
    archs = {}
    for kernel in data["kernels"]:
        archs.setdefault(kernel["arch"], []).append(kernel["name"])
    rows.append(
        (
            "cubins",
            (", ".join(f"{arch} ({len(names)})" for arch, names in sorted(archs.items())) or "none")
            + f"; DSL {data['dsl']}",
        )
    )
    broken = manifest.altered(path.parent, data)
    if broken or not archs:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        rows.append(
            ("cubins, problem", f"{broken[0] if broken else 'the manifest lists no kernel'}{more}; {runtime.REINSTALL}")
        )
        sound = False
    return rows, sound, data["variants"]


def jax_facts():
    """(row about JAX and its devices, whether there are any)."""
    version = f"{jax.__version__}, jaxlib {jax.lib.__version__}"
    try:
        return (
            "jax",
            f"{version}, backend {jax.default_backend()}: {', '.join(sorted({d.device_kind for d in jax.devices()}))}",
        ), True
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # jax 0.10 asserts where a plugin was found and its platform was not
        return (
            "jax",
            f"{version}, no device to run on ({str(error).partition(chr(10))[0] or 'no backend'}); "
            f"JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS', '')!r}: unset it, or install what it names",
        ), False


def op_facts(variants: list[dict]) -> list[tuple[str, str, bool]]:
    """Rows (op and kind of call, what it runs, whether there is something to run) of every op of the registry."""
    rows = []
    for op in OPS.values():
        reason = reference_reason(op.name)
        if reason:
            rows.append((op.name, f"the jnp reference ({reason})", True))
            continue
        for select in calls_of(op):
            kind = ", ".join([op.name, *(value for name, value in select.items() if name != "scale_layout")])
            try:
                rows.append((kind, kernels_by_bound(op, select, variants), True))
            except LookupError as error:
                rows.append((kind, str(error), False))
    return rows


def run() -> int:
    """Prints the report; 0 if every op has something to run, 1 if something is missing that should be there."""
    table = Table(title="jax-fp4-indexer doctor", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("machine", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}")
    row, devices = jax_facts()
    table.add_row(row[0], escape(row[1]))
    plugins = [f"{name} {_version(name)}" for name in ("jax-cuda13-plugin", "jax-cuda12-plugin") if _version(name)]
    table.add_row(
        "CUDA plugin",
        escape(
            ", ".join(plugins)
            if plugins
            else 'none installed; for an NVIDIA GPU: pip install "jax-fp4-indexer[cuda13]" (or cuda12)'
        ),
    )
    facts, sound, variants = library_facts()
    for name, value in [*gpu_facts(), *facts]:
        table.add_row(name, escape(value))
    for name, value, found in op_facts(variants) if devices else ():
        table.add_row(name, escape(value))
        sound = sound and found
    console().print(table)
    return 0 if devices and sound and all(runtime.unsupported_reason(op) is None for op in OPS) else 1
