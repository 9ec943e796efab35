"""The handler through jax.jit, registered for CPU with a stand-in driver: what it refuses, and what it launches."""
import ctypes
import itertools
import json
import os
import shutil

import jax
import jax.numpy as jnp
import pytest
from fake_driver import FakeDriver
from support.operands import STATIC, operands

from jax_fp4_indexer.aot import manifest as aot_manifest
from jax_fp4_indexer.configs.block_scores import scratch_bytes
from jax_fp4_indexer.primitives import runtime
from jax_fp4_indexer.primitives.block_scores import OPERANDS, attributes
from jax_fp4_indexer.primitives.scratch import scratch_plan

TARGET = "jax_fp4_indexer_test.block_scores"
SCALARS = ("num_seqs", "num_pages", "num_indices", "tokens", "k_tiles", "heads_q", "heads_kv", "mask", "max_seqlen_q", "first_page", "pages_per_pass")
BUFFERS = (*OPERANDS, "scores", "scratch")
PARAMS = [{"buffer": n} for n in BUFFERS] + [{"i32": n} for n in SCALARS]


def _manifest():
    kernels, variants = [], []

    def add(path, fmt, layout, arch, kind, max_columns, names):
        for name in names:
            kernels.append({"name": name, "arch": arch, "cubin": f"{arch}/{name}.cubin", "symbol": f"{arch}:{name}", "block": [256, 1, 1], "cluster": [1, 1, 1],
                            "grid": {"per_sm": 1}, "dynamic_shared_bytes": 4096, "params": PARAMS})
        variants.append({"op": "block_scores", "path": path, "format": fmt, "scale_layout": layout, "implementation": kind, "arch": arch, "max_columns": max_columns,
                         "passes": "pages" if "prefill.plan" in names else "once", "launches": names})

    for path in ("decode", "prefill"):
        for arch in ("sm_80", "sm_90a"):
            add(path, "nvfp4", "public", arch, "portable", 0, [f"{path}.direct"])
    add("decode", "nvfp4", "public", "sm_90a", "native", 8, ["decode.n8"])
    add("decode", "nvfp4", "public", "sm_90a", "native", 16, ["decode.n16"])
    add("prefill", "nvfp4", "public", "sm_90a", "native", 64, ["prefill.few"])
    add("prefill", "nvfp4", "public", "sm_90a", "native", 0, ["prefill.plan", "prefill.main"])
    add("decode", "mxfp4", "preordered_mma", "sm_90a", "native", 0, ["decode.mx"])
    return {"schema": 1, "fingerprint": "", "dsl": "", "kernels": kernels, "variants": variants}


@pytest.fixture(scope="session")
def driver(built, tmp_path_factory):
    """Registers a copy of the library of its own (the folder and the driver are choices of a process) under a test's target name."""
    folder = tmp_path_factory.mktemp("handler")
    manifest = _manifest()
    for kernel in manifest["kernels"]:
        path = folder / kernel["cubin"]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"cubin of " + kernel["name"].encode())
    (folder / "manifest.json").write_text(json.dumps(manifest))
    library = ctypes.CDLL(str(shutil.copy(built / runtime.LIBRARY, folder / "library.so")))
    runtime._declare(library)
    assert library.jfi_set_cubin_dir(str(folder).encode()) is None
    os.environ["JFI_LIBCUDA"] = str(built / "tests" / "libfake_cuda.so")
    jax.devices()       # XLA:CPU wants its backend up before it hears of a handler with state
    capsule = jax.ffi.pycapsule
    jax.ffi.register_ffi_type("jax_fp4_indexer_test.State", {"type_id": capsule(library.jfi_block_scores_state_type_id()),
                                                             "type_info": capsule(library.jfi_block_scores_state_type_info())}, platform="cpu")
    jax.ffi.register_ffi_target(TARGET, {"instantiate": capsule(library.jfi_block_scores_instantiate), "execute": capsule(library.jfi_block_scores_execute_on_host)}, platform="cpu")
    fake = FakeDriver(os.environ["JFI_LIBCUDA"])
    fake.library = library
    yield fake
    del os.environ["JFI_LIBCUDA"]


@pytest.fixture
def fake(driver):
    driver.device(0, (9, 0))
    driver.fail("", 0)
    driver.param_sizes([8] * len(BUFFERS) + [4] * len(SCALARS))
    driver.forget_launches()
    return driver


def call(args, k_tiles=3, scores_shape=None, scratch=None, **changed):
    """Compiles and runs a program of its own; returns when the handler has returned."""
    named = {k: changed.pop(k, STATIC[k]) for k in ("path", "fp4_format", "scale_layout", "mask", "max_seqlen_q")}
    (tokens, heads_q, _), heads_kv = args[0].shape[:3] if args[0].ndim == 3 else (4, 4, 64), args[1].shape[1]
    pages, size = scratch_plan(named["path"], named["fp4_format"], named["max_seqlen_q"], args[5].size - 1, tokens, heads_q, heads_kv, args[4].size)
    given = {**attributes(**named, pages=pages, implementation=changed.pop("implementation", "auto")), **changed}
    size = size if scratch is None else scratch
    out = jax.ffi.ffi_call(TARGET, (jax.ShapeDtypeStruct(scores_shape or (args[0].shape[1], k_tiles, args[0].shape[0]), jnp.float32), jax.ShapeDtypeStruct((size,), jnp.uint8)))
    return jax.block_until_ready(jax.jit(lambda *args: out(*args, **given))(*args)[0])


def error(*args, **changed):
    with pytest.raises(jax.errors.JaxRuntimeError) as e:
        call(*args, **changed)
    return str(e.value)


# ---- compile time
@pytest.mark.parametrize("changed, told", [
    (dict(path="both"), "path: got 'both', expected decode or prefill"), (dict(format="fp8"), "format: got 'fp8', expected nvfp4 or mxfp4"),
    (dict(scale_layout="tiled"), "scale_layout: got 'tiled', expected public or preordered_mma"), (dict(implementation="reference"), "implementation: got 'reference'"),
    (dict(mask=3), "mask: got 3, expected 0, 1 or 2"), (dict(max_seqlen_q=-1), "max_seqlen_q: got -1"), (dict(pages_per_pass=-1), "pages_per_pass: got -1"),
    (dict(path="prefill", fp4_format="mxfp4"), "these cubins hold no auto kernel for prefill, mxfp4, public; rebuild them")])
def test_attributes_are_refused_at_compile_time(fake, changed, told):
    if "scale_layout" in changed:
        given = dict(STATIC, scale_layout="public")
        given.pop("k_tiles")
        attrs = {**attributes(**given, pages=6, implementation="auto"), **changed}
        types = (jax.ShapeDtypeStruct((4, 3, 4), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.uint8))
        compiled = jax.jit(lambda *a: jax.ffi.ffi_call(TARGET, types)(*a, **attrs)).lower(*operands()).compile
        with pytest.raises(jax.errors.JaxRuntimeError, match=told):
            compiled()
        return
    text = error(operands(), **changed)
    assert f"fp4_indexer_block_scores: {told}" in text and "INVALID_ARGUMENT" in text
    assert fake.launches() == []


def test_a_missing_attribute_is_refused(fake):
    args = operands()
    f = jax.jit(lambda *a: jax.ffi.ffi_call(TARGET, (jax.ShapeDtypeStruct((4, 3, 4), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.uint8)))(*a, path="decode"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="[Aa]ttribute"):
        f(*args)


# ---- launches
def test_decode_launch(fake):
    args = operands(tokens=5, heads_q=6, heads_kv=3, num_pages=7, num_indices=11)
    call(args, mask=2)
    (symbol, grid, device, params), = fake.launches()
    assert (symbol, grid, device) == ("sm_90a:decode.n8", (132, 1, 1), 0)       # 2 * 6/3 = 4 columns
    assert dict(zip(SCALARS, params[len(BUFFERS):])) == dict(num_seqs=2, num_pages=7, num_indices=11, tokens=5, k_tiles=3, heads_q=6, heads_kv=3, mask=2, max_seqlen_q=2,
                                                             first_page=0, pages_per_pass=0)
    pointers = dict(zip(BUFFERS, params))
    assert len(set(pointers.values())) == len(BUFFERS) and all(pointers.values())
    for name, array in zip(OPERANDS, args):
        assert pointers[name] == array.unsafe_buffer_pointer(), name        # every operand in its own place


@pytest.mark.parametrize("max_seqlen_q, heads_q, symbol", [(4, 4, "n8"), (5, 4, "n16"), (8, 4, "n16"), (100, 4, "n16"), (1, 34, "n16")])
def test_columns_choose_the_variant(fake, max_seqlen_q, heads_q, symbol):
    call(operands(heads_q=heads_q), max_seqlen_q=max_seqlen_q)
    assert [l[0] for l in fake.launches()] == [f"sm_90a:decode.{symbol}"]


def test_choice_is_the_one_that_aot_explains(fake):
    """`jfi_choose_variant` (the handler's rule) against aot's, over capabilities, columns and kinds of call."""
    chosen = set()
    for capability, columns, implementation, path, fmt, layout in itertools.product(
            ((7, 5), (8, 0), (8, 9), (9, 0), (9, 1), (10, 0)), (0, 8, 9, 16, 17, 5000), ("auto", "portable"), ("decode", "prefill"), ("nvfp4", "mxfp4"), ("public", "preordered_mma")):
        text = ctypes.create_string_buffer(1000)
        failed = fake.library.jfi_choose_variant(*(s.encode() for s in ("block_scores", path, fmt, layout, implementation)), *capability, columns, text, 1000)
        variant, why = aot_manifest.choose(_manifest(), capability, path=path, format=fmt, scale_layout=layout, columns=columns, implementation=implementation)
        if variant is None:
            assert failed and f"compute capability {capability[0]}.{capability[1]}" in text.value.decode(), why
        else:
            assert not failed and text.value.decode().split() == [variant["arch"], variant["implementation"], *variant["launches"]], why
            chosen.add(text.value)
    assert len(chosen) == 9     # every variant of the table at least once


def test_portable_on_request_and_by_capability(fake):
    call(operands(), implementation="portable")
    fake.device(1, (8, 6), 84)
    call(operands())
    call(operands(), path="prefill")
    assert [l[:3] for l in fake.launches()] == [("sm_90a:decode.direct", (132, 1, 1), 0), ("sm_80:decode.direct", (84, 1, 1), 1), ("sm_80:prefill.direct", (84, 1, 1), 1)]


def test_one_program_on_several_devices(fake):
    f = jax.jit(lambda *a: jax.ffi.ffi_call(TARGET, (jax.ShapeDtypeStruct((4, 3, 4), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.uint8)))(
        *a, **attributes("decode", "nvfp4", "public", 0, 2, 0, "auto"))[0])
    args = operands()
    for device, capability, sms in ((2, (9, 0), 132), (3, (8, 0), 108), (2, (9, 0), 132)):
        fake.device(device, capability, sms)
        f(*args).block_until_ready()
    assert [l[:3] for l in fake.launches()] == [("sm_90a:decode.n8", (132, 1, 1), 2), ("sm_80:decode.direct", (108, 1, 1), 3), ("sm_90a:decode.n8", (132, 1, 1), 2)]


def test_preordered_scales_and_mxfp4(fake):
    call(operands(tokens=130, fp4_format="mxfp4", scale_layout="preordered_mma"), fp4_format="mxfp4", scale_layout="preordered_mma")
    assert [l[0] for l in fake.launches()] == ["sm_90a:decode.mx"]


def test_prefill_passes(fake):
    """Of a staged variant; one without widened pages takes the whole list at once."""
    args = operands(num_indices=10)
    call(args, path="prefill", max_seqlen_q=1000, pages_per_pass=4)
    first, per_pass = (len(BUFFERS) + SCALARS.index(n) for n in ("first_page", "pages_per_pass"))
    assert [(l[0].split(".")[-1], l[3][first], l[3][per_pass]) for l in fake.launches()] == [(k, p, 4) for p in (0, 4, 8) for k in ("plan", "main")]
    fake.forget_launches()
    call(operands(num_indices=0), path="prefill", max_seqlen_q=1000)
    assert len(fake.launches()) == 2        # no page, but every slot is still to be written
    fake.forget_launches()
    call(args, path="prefill", pages_per_pass=4)
    call(args, path="prefill", implementation="portable", max_seqlen_q=1000, pages_per_pass=4)
    assert [(l[0].split(":")[-1], l[3][first], l[3][per_pass]) for l in fake.launches()] == [("prefill.few", 0, 10), ("prefill.direct", 0, 10)]


@pytest.mark.parametrize("change", [dict(tokens=0), dict(k_tiles=0)])
def test_an_empty_result_launches_nothing(fake, change):
    k_tiles = change.pop("k_tiles", 3)
    assert call(operands(**change), k_tiles=k_tiles).size == 0
    assert fake.launches() == []


# ---- operands
@pytest.mark.parametrize("index", range(10))
@pytest.mark.parametrize("how", ["dtype", "rank", "shape"])
def test_every_operand_is_checked(fake, index, how):
    args = operands()
    x = args[index]
    args[index] = {"dtype": lambda: x.astype(jnp.float16), "rank": lambda: x[None], "shape": lambda: jnp.concatenate([x, x], axis=x.ndim - 1)}[how]()
    if how == "shape" and OPERANDS[index] == "kv_indices":
        call(args)      # any length is right
        return
    if how == "shape" and OPERANDS[index] == "cu_seqlens_q":
        assert "cu_seqlens_k: got int32[3], expected int32[6]" in error(args)   # it says how many sequences there are
        return
    text = error(args, scores_shape=(4, 3, 4))
    assert f"INVALID_ARGUMENT: fp4_indexer_block_scores: {OPERANDS[index]}: got " in text and ", expected " in text
    assert fake.launches() == []


def test_heads_results_and_scratch_are_checked(fake):
    assert "k: got 3 heads beside 4 of q, expected a divisor of q's heads" in error(operands(heads_q=4, heads_kv=3))
    assert "scores: got float32[4,3,5], expected float32[4,3,4]" in error(operands(), scores_shape=(4, 3, 5))
    for staged, max_seqlen_q in ((6, 1000), (None, 2)):
        need = scratch_bytes("nvfp4", 2, 4, 2, staged, 6)
        assert f"scratch: got {need - 1} bytes, expected {need} bytes for 6 pages a pass" in error(operands(), path="prefill", max_seqlen_q=max_seqlen_q, scratch=need - 1)
    assert "pages a pass" in error(operands(), path="prefill", max_seqlen_q=1000, pages_per_pass=2**31 - 1)
    assert "cu_seqlens_q: got int32[0]" in error([x[:0] if i == 5 else x for i, x in enumerate(operands())], scratch=16)
    assert fake.launches() == []


# ---- the device's errors
def test_no_kernel_for_this_gpu(fake):
    for device, capability, advice in ((4, (7, 5), "(kernels need 8.0 or newer)"), (5, (12, 1), "a newer jax_fp4_indexer")):
        fake.device(device, capability)
        text = error(operands())
        assert f"no decode nvfp4 public kernel for compute capability {capability[0]}.{capability[1]}; this build ships sm_80, sm_90a; use implementation=" in text
        assert advice in text
    fake.device(0, (9, 0))
    call(operands())
    assert len(fake.launches()) == 1


def test_a_driver_error_is_this_op_s_and_the_next_call_works(fake):
    fake.fail("cuLaunchKernelEx", 700)
    text = error(operands())
    assert "fp4_indexer_block_scores: cuLaunchKernelEx failed: an illegal memory access was encountered (CUDA error 700) [kernel decode.n8, cubin sm_90a, device 0]" in text
    fake.fail("cuCtxGetDevice", 201)
    assert "cuCtxGetDevice failed: invalid device context" in error(operands())
    fake.fail("", 0)
    call(operands())
    assert len(fake.launches()) == 1
