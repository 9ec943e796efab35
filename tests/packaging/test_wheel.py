"""The wheel: what is in it, and that it works beside nothing but its run-time requirements."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile

import load_test
from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.aot.variants import KERNELS

LIBRARY = "jax_fp4_indexer/_lib/libjax_fp4_indexer_ffi.so"


def run(installed, code):
    """Run `code` where the installed package is first on the path, the DSL cannot be imported and there is no driver.

    -S: no .pth file, so that an editable install of this checkout stays out; site-packages is for JAX.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(installed), sysconfig.get_path("purelib")]),
        "JFI_LIBCUDA": "/nonexistent/libcuda.so.1",
        "JAX_PLATFORMS": "cpu",
    }
    lines = [
        "import sys",
        "sys.modules['cutlass'] = None",
        "import jax_fp4_indexer",
        f"assert jax_fp4_indexer.__file__.startswith({str(installed)!r})",
        code,
    ]
    done = subprocess.run(
        [sys.executable, "-S", "-c", "\n".join(lines)], capture_output=True, text=True, env=environment, cwd=installed
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_wheel_serves_every_python(wheel):
    assert (
        re.fullmatch(r"jax_fp4_indexer-[\d.]+-py3-none-(linux|manylinux\w*)_x86_64\.whl", wheel.name)
        or os.uname().machine != "x86_64"
    )
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")


def test_the_wheel_has_the_library_and_every_cubin(wheel, installed):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    assert LIBRARY in names
    data = manifest.read(installed / "jax_fp4_indexer/cubins")
    assert {(k["arch"], k["source"]) for k in data["kernels"]} == {(k.arch, k.source) for k in KERNELS}
    assert manifest.damaged(installed / "jax_fp4_indexer/cubins", data) == []
    cubins = {n for n in names if n.endswith(".cubin")}
    assert cubins == {f"jax_fp4_indexer/cubins/{k['cubin']}" for k in data["kernels"]}
    assert any(n.endswith("/licenses/LICENSE") for n in names)
    strange = [
        n
        for n in names
        if not n.startswith("jax_fp4_indexer") or "__pycache__" in n or n.endswith((".cc", ".h", ".ptx"))
    ]
    assert strange == []


def test_the_wheel_asks_for_what_it_needs(wheel):
    with zipfile.ZipFile(wheel) as z:
        (name,) = (n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = z.read(name).decode()
        (entry,) = (n for n in z.namelist() if n.endswith("entry_points.txt"))
        assert "jax-fp4-indexer = jax_fp4_indexer.__main__:main" in z.read(entry).decode().replace("=", " = ").replace(
            "  ", " "
        )
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", metadata, re.M)
    assert "jax" in needed and not [n for n in needed if "cutlass" in n or "nvidia" in n]
    assert set(re.findall(r"^Provides-Extra: (\S+)", metadata, re.M)) == {
        "cuda12",
        "cuda13",
        "export",
        "cli",
        "test",
        "bench",
        "dev",
    }
    assert "Requires-Python: >=3.11" in metadata


def test_the_library_loads_without_a_driver(installed):
    load_test.check(str(installed / LIBRARY))


def test_the_package_works_without_the_dsl_and_without_a_driver(installed):
    out = run(
        installed,
        """
import numpy as np
import jax
import jax.numpy as jnp
from jax_fp4_indexer.primitives import runtime
arch, kind, kernels = runtime.choose_variant((9, 0), "block_scores", path="decode", format="nvfp4", scale_layout="public", bound=16)
print(arch, kind, *kernels)
print(*runtime.choose_variant((9, 0), "batched_gemv", columns="1", k_multiple="256", scale_layout="public")[2])
rng = np.random.default_rng(0)
q, k = (rng.integers(0, 256, s, dtype=np.uint8) for s in ((1, 2, 64), (1, 1, 128, 64)))
s = lambda x: jnp.full((*x.shape[:-1], 8), 0x38, jnp.uint8)
i = lambda *x: jnp.array(x, jnp.int32)
y = jax.jit(lambda: jax_fp4_indexer.fp4_indexer_block_scores(q, k, s(q), s(k), i(0, 1), i(0, 128), i(0, 1), max_seqlen_q=1, max_seqlen_k=128, kv_indices=i(0)))()
assert y.shape == (2, 1, 1) and bool(jnp.isfinite(y).all()), y
c = lambda *shape: jnp.full(shape, 0x22, jnp.uint8)
y = jax.jit(lambda: jax_fp4_indexer.nvfp4_batched_gemv(c(2, 3, 64), c(2, 64), s(c(2, 3, 64)), s(c(2, 64))))()
assert y.shape == (2, 3) and bool((y == 128).all()), y
assert 'jax_fp4_indexer.kernels' not in sys.modules and 'click' not in sys.modules
print("both")
""",
    )
    scores, gemv, end = out.splitlines()
    assert scores.startswith("sm_90a native block_scores.decode.nvfp4.public.") and end == "both"
    assert gemv.startswith("batched_gemv.public.n1"), gemv
