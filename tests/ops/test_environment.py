"""Settings of the calling program: NumPy's error state, JAX's types, promotion rules and debugging aids, the locale.

One call of everything public under each setting, in a process of its own, gives the bytes of the plain process.
"""

import hashlib
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import jax_fp4_indexer as jfi

from support import inputs

SETTINGS = {
    "strict": """
np.seterr(all="raise")
locale.setlocale(locale.LC_ALL, "")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_check_tracer_leaks", True)
jax.config.update("jax_default_matmul_precision", "bfloat16")""",
    "x64": "jax.config.update('jax_enable_x64', True)",
    "debug_nans": "jax.config.update('jax_debug_nans', True)",
    "debug_nans and disable_jit": "jax.config.update('jax_debug_nans', True); jax.config.update('jax_disable_jit', True)",
}
GLOBAL_SCALES = {"none": None, "number": 0.3, "float64": np.float64(0.3), "float32": np.float32(0.3)}


def results():
    """(name, arrays) of a call of every public function, with arguments of every dtype, NumPy and JAX arrays alike."""
    x = np.random.default_rng(0).normal(size=(2, 64))
    x[0, :32] = 1e-50
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        with np.errstate(all="ignore"):
            given = x.astype(jax.numpy.dtype(dtype))
        for name, scale in GLOBAL_SCALES.items():
            yield f"nvfp4 {dtype} {name}", jfi.quantize_nvfp4(given, global_scale=scale)
        yield f"mxfp4 {dtype}", jfi.quantize_mxfp4(given)
        yield f"pack {dtype}", jfi.pack_e2m1(given)
    yield "huge", jfi.quantize_nvfp4(np.full((1, 32), 1e300))
    codes, scales = jfi.quantize_nvfp4((x + 1).astype(np.float32))
    yield "dequantize", jfi.dequantize(codes, scales, "nvfp4", global_scale=np.float64(3))
    yield "dequantize mxfp4", jfi.dequantize(np.asarray(codes), np.full((2, 2), 130, np.uint8), "mxfp4")
    yield "unpack", jfi.unpack_e2m1(np.arange(256, dtype=np.uint8))
    yield "blocked", jfi.from_blocked(jfi.to_blocked(np.full((3, 130, 6), 7, np.uint8)), 130, 6)
    # disable_jit runs a step of the definition at a time, so the batch is small
    for fmt, layout, more in (("nvfp4", "public", {"qo_offset": np.int32([1, -1])}), ("mxfp4", "preordered_mma", {})):
        batch = inputs.batch(fmt, [1, 1], [130, 3], 2, 1, kind="exact", spare_pages=1, **more)
        scale = {"q_global_scale": 0.5, "k_global_scale": np.float64(2)} if fmt == "nvfp4" else {}
        for module in (jfi, jfi.reference):
            arrays = {**batch.arrays(layout), **scale}
            yield f"scores {fmt}", module.fp4_indexer_block_scores(**arrays, **batch.statics(layout))
    batch = inputs.batch("nvfp4", [1, 1], [130, 3], 2, 1, spare_pages=1)
    yield "reorder", jfi.fp4_indexer_reorder_scales_for_mma(batch.q_scale, batch.k_scale)
    sums = batch.cu_q, batch.cu_k, batch.cu_p
    sizes = {"tokens": 2, "num_pages": batch.k.shape[0], "max_seqlen_q": 1, "max_seqlen_k": 130}
    jfi.ragged.validate(*sums, batch.kv_indices, **sizes)
    yield "shard", tuple(y for y in jfi.ragged.shard(*sums, batch.kv_indices, num_shards=2) if y is not None)
    yield "token_range", jfi.ragged.token_range(*sums[:2], 0, 1)
    yield "block_range", jfi.ragged.block_range(*sums, 0, 1)


def digest():
    """One line a result: its name, and a hash of dtypes, shapes and bytes."""
    lines = []
    for name, arrays in results():
        state = hashlib.blake2b(digest_size=8)
        for array in map(np.asarray, jax.tree.leaves(arrays)):
            state.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        lines.append(f"{name} {state.hexdigest()}")
    return "\n".join(lines)


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_change_no_byte(setting):
    here = pathlib.Path(__file__).parent
    path = os.pathsep.join(map(str, [here, here.parent, here.parents[1], *filter(None, sys.path)]))
    script = f"import jax, locale, numpy as np\n{SETTINGS[setting]}\nimport test_environment\nprint(test_environment.digest())"
    given = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=given, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == digest()


def test_a_float64_array_as_a_global_scale_is_refused_by_name():
    with jax.enable_x64(True), pytest.raises(TypeError, match=r"global_scale: got float64\[\], expected dtype float32"):
        jfi.quantize_nvfp4(np.ones((1, 16), np.float32), global_scale=jax.numpy.asarray(0.5, "float64"))
