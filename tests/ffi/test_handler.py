"""The handler through jax.jit, registered for CPU with a stand-in driver: what it launches for block scores, and what it says of errors.

What it refuses of attributes and operands, for every op: test_refusals.py.
"""

import ctypes
import itertools

import jax
import jax.numpy as jnp
import pytest
from support.operands import OPERANDS, STATIC, attributes, operands

from jax_fp4_indexer.aot import manifest as aot_manifest
from jax_fp4_indexer.aot.variants.block_scores import SCRATCH
from jax_fp4_indexer.configs.block_scores import scratch_bytes
from jax_fp4_indexer.primitives.scratch import scratch_plan
from jax_fp4_indexer.specs.block_scores import SPEC

TARGET = "jax_fp4_indexer_test.block_scores"
SCALARS = (
    "num_seqs",
    "num_pages",
    "num_indices",
    "tokens",
    "k_tiles",
    "heads_q",
    "heads_kv",
    "mask",
    "max_seqlen_q",
    "first_page",
    "pages_per_pass",
)
BUFFERS = (*OPERANDS, "scores", "scratch")
PARAMS = [{"buffer": n} for n in BUFFERS] + [{"i32": n} for n in SCALARS]


def _manifest():
    kernels, variants = [], []

    def add(path, fmt, layout, arch, kind, bound, names):
        for name in names:
            kernels.append(
                {
                    "name": name,
                    "arch": arch,
                    "cubin": f"{arch}/{name}.cubin",
                    "symbol": f"{arch}:{name}",
                    "block": [256, 1, 1],
                    "cluster": [1, 1, 1],
                    "grid": {"per_sm": 1},
                    "dynamic_shared_bytes": 4096,
                    "params": PARAMS,
                }
            )
        staged = "prefill.plan" in names
        scratch = 16 if path == "decode" else SCRATCH.size(fmt) if staged else SCRATCH.wide
        variants.append(
            {
                "op": "block_scores",
                "select": {"path": path, "format": fmt, "scale_layout": layout},
                "implementation": kind,
                "arch": arch,
                "bound": bound,
                "repeat": staged,
                "scratch": str(scratch),
                "launches": names,
            }
        )

    for path in ("decode", "prefill"):
        for arch in ("sm_80", "sm_90a"):
            add(path, "nvfp4", "public", arch, "portable", 0, [f"{path}.direct"])
    add("decode", "nvfp4", "public", "sm_90a", "native", 8, ["decode.n8"])
    add("decode", "nvfp4", "public", "sm_90a", "native", 16, ["decode.n16"])
    add("prefill", "nvfp4", "public", "sm_90a", "native", 64, ["prefill.few"])
    add("prefill", "nvfp4", "public", "sm_90a", "native", 0, ["prefill.plan", "prefill.main"])
    add("decode", "mxfp4", "preordered_mma", "sm_90a", "native", 0, ["decode.mx"])
    return {
        "schema": 2,
        "fingerprint": "",
        "dsl": "",
        "ops": [SPEC.to_json()],
        "kernels": kernels,
        "variants": variants,
    }


@pytest.fixture(scope="session")
def driver(serve):
    return serve("handler", _manifest(), [TARGET])


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
    pages, size = scratch_plan(
        named["path"],
        named["fp4_format"],
        named["max_seqlen_q"],
        args[5].size - 1,
        tokens,
        heads_q,
        heads_kv,
        args[4].size,
    )
    given = {
        **attributes(
            **named, pages=changed.pop("pages_per_pass", pages), implementation=changed.pop("implementation", "auto")
        ),
        **changed,
    }
    size = size if scratch is None else scratch
    out = jax.ffi.ffi_call(
        TARGET,
        (
            jax.ShapeDtypeStruct(scores_shape or (args[0].shape[1], k_tiles, args[0].shape[0]), jnp.float32),
            jax.ShapeDtypeStruct((size,), jnp.uint8),
        ),
    )
    return jax.block_until_ready(jax.jit(lambda *args: out(*args, **given))(*args)[0])


def error(*args, **changed):
    with pytest.raises(jax.errors.JaxRuntimeError) as e:
        call(*args, **changed)
    return str(e.value)


# ---- compile time
def test_what_no_kernel_serves_is_refused_at_compile_time(fake):
    text = error(operands(fp4_format="mxfp4"), path="prefill", fp4_format="mxfp4")
    assert (
        "INVALID_ARGUMENT: fp4_indexer_block_scores: these cubins hold no prefill mxfp4 public kernel; rebuild them"
        in text
    )
    assert fake.launches() == []


# ---- launches
def test_decode_launch(fake):
    args = operands(tokens=5, heads_q=6, heads_kv=3, num_pages=7, num_indices=11)
    call(args, mask=2)
    ((symbol, grid, device, params),) = fake.launches()
    assert (symbol, grid, device) == ("sm_90a:decode.n8", (132, 1, 1), 0)  # 2 * 6/3 = 4 columns
    assert dict(zip(SCALARS, params[len(BUFFERS) :])) == dict(
        num_seqs=2,
        num_pages=7,
        num_indices=11,
        tokens=5,
        k_tiles=3,
        heads_q=6,
        heads_kv=3,
        mask=2,
        max_seqlen_q=2,
        first_page=0,
        pages_per_pass=11,
    )  # one pass over the whole list
    pointers = dict(zip(BUFFERS, params))
    assert len(set(pointers.values())) == len(BUFFERS) and all(pointers.values())
    for name, array in zip(OPERANDS, args):
        assert pointers[name] == array.unsafe_buffer_pointer(), name  # every operand in its own place


@pytest.mark.parametrize(
    "max_seqlen_q, heads_q, symbol", [(4, 4, "n8"), (5, 4, "n16"), (8, 4, "n16"), (100, 4, "n16"), (1, 34, "n16")]
)
def test_columns_choose_the_variant(fake, max_seqlen_q, heads_q, symbol):
    call(operands(heads_q=heads_q), max_seqlen_q=max_seqlen_q)
    assert [l[0] for l in fake.launches()] == [f"sm_90a:decode.{symbol}"]


def test_choice_is_the_one_that_aot_explains(fake):
    """`jfi_choose_variant` (the handler's rule) against aot's, over capabilities, columns and kinds of call."""
    chosen = set()
    for capability, columns, implementation, path, fmt, layout in itertools.product(
        ((7, 5), (8, 0), (8, 9), (9, 0), (9, 1), (10, 0)),
        (0, 8, 9, 16, 17, 5000),
        ("auto", "portable"),
        ("decode", "prefill"),
        ("nvfp4", "mxfp4"),
        ("public", "preordered_mma"),
    ):
        text = ctypes.create_string_buffer(1000)
        select = {"path": path, "format": fmt, "scale_layout": layout}
        given = ";".join(f"{key}={value}" for key, value in select.items())
        failed = fake.library.jfi_choose_variant(
            b"block_scores", given.encode(), implementation.encode(), *capability, columns, text, 1000
        )
        variant, why = aot_manifest.choose(
            _manifest(), capability, op="block_scores", select=select, bound=columns, implementation=implementation
        )
        if variant is None:
            assert failed and f"compute capability {capability[0]}.{capability[1]}" in text.value.decode(), why
        else:
            assert not failed and text.value.decode().split() == [
                variant["arch"],
                variant["implementation"],
                *variant["launches"],
            ], why
            chosen.add(text.value)
    assert len(chosen) == 9  # every variant of the table at least once


@pytest.mark.parametrize(
    "op, select, told",
    [
        ("none", "", "these cubins hold no op none"),
        ("block_scores", "colour=red", "select: got colour=red, expected path, format, scale_layout; name each"),
        ("block_scores", "path", "got path, expected key=value"),
        ("block_scores", "path=decode;path=prefill", "select: got path=decode;path=prefill, expected path, format"),
    ],
)
def test_a_choice_of_another_kind_is_refused(fake, op, select, told):
    text = ctypes.create_string_buffer(1000)
    assert fake.library.jfi_choose_variant(op.encode(), select.encode(), b"auto", 9, 0, 1, text, 1000) == 1
    assert told in text.value.decode()


def test_any_choice_will_do_where_none_is_named(fake):
    text = ctypes.create_string_buffer(1000)
    assert fake.library.jfi_choose_variant(b"block_scores", b"format=mxfp4", b"auto", 9, 0, 1, text, 1000) == 0
    assert text.value.decode() == "sm_90a native decode.mx"


def test_executions_are_counted_by_op(fake):
    before = fake.library.jfi_executions(b"block_scores")
    call(operands())
    assert (fake.library.jfi_executions(b"block_scores") - before, fake.library.jfi_executions(b"another")) == (1, 0)


def test_portable_on_request_and_by_capability(fake):
    call(operands(), implementation="portable")
    fake.device(1, (8, 6), 84)
    call(operands())
    call(operands(), path="prefill")
    assert [l[:3] for l in fake.launches()] == [
        ("sm_90a:decode.direct", (132, 1, 1), 0),
        ("sm_80:decode.direct", (84, 1, 1), 1),
        ("sm_80:prefill.direct", (84, 1, 1), 1),
    ]


def test_one_program_on_several_devices(fake):
    f = jax.jit(
        lambda *a: jax.ffi.ffi_call(
            TARGET, (jax.ShapeDtypeStruct((4, 3, 4), jnp.float32), jax.ShapeDtypeStruct((16,), jnp.uint8))
        )(*a, **attributes("decode", "nvfp4", "public", 0, 2, 0, "auto"))[0]
    )
    args = operands()
    for device, capability, sms in ((2, (9, 0), 132), (3, (8, 0), 108), (2, (9, 0), 132)):
        fake.device(device, capability, sms)
        f(*args).block_until_ready()
    assert [l[:3] for l in fake.launches()] == [
        ("sm_90a:decode.n8", (132, 1, 1), 2),
        ("sm_80:decode.direct", (108, 1, 1), 3),
        ("sm_90a:decode.n8", (132, 1, 1), 2),
    ]


def test_preordered_scales_and_mxfp4(fake):
    call(
        operands(tokens=130, fp4_format="mxfp4", scale_layout="preordered_mma"),
        fp4_format="mxfp4",
        scale_layout="preordered_mma",
    )
    assert [l[0] for l in fake.launches()] == ["sm_90a:decode.mx"]


def test_prefill_passes(fake):
    """Of a staged variant; one without widened pages takes the whole list at once."""
    args = operands(num_indices=10)
    call(args, path="prefill", max_seqlen_q=1000, pages_per_pass=4)
    first, per_pass = (len(BUFFERS) + SCALARS.index(n) for n in ("first_page", "pages_per_pass"))
    assert [(l[0].split(".")[-1], l[3][first], l[3][per_pass]) for l in fake.launches()] == [
        (k, p, 4) for p in (0, 4, 8) for k in ("plan", "main")
    ]
    fake.forget_launches()
    call(operands(num_indices=0), path="prefill", max_seqlen_q=1000)
    assert len(fake.launches()) == 2  # no page, but every slot is still to be written
    fake.forget_launches()
    call(args, path="prefill", pages_per_pass=4)
    call(args, path="prefill", implementation="portable", max_seqlen_q=1000, pages_per_pass=4)
    assert [(l[0].split(":")[-1], l[3][first], l[3][per_pass]) for l in fake.launches()] == [
        ("prefill.few", 0, 10),
        ("prefill.direct", 0, 10),
    ]


@pytest.mark.parametrize("change", [dict(tokens=0), dict(k_tiles=0)])
def test_an_empty_result_launches_nothing(fake, change):
    k_tiles = change.pop("k_tiles", 3)
    assert call(operands(**change), k_tiles=k_tiles).size == 0
    assert fake.launches() == []


# ---- operands
def test_heads_sizes_and_scratch_are_checked(fake):
    assert "k: got uint8[3,3,128,64], expected a number of heads that divides q's" in error(
        operands(heads_q=4, heads_kv=3)
    )
    more = [jnp.concatenate([x, x]) if i == OPERANDS.index("cu_seqlens_q") else x for i, x in enumerate(operands())]
    assert "cu_seqlens_k: got int32[3], expected int32[6]" in error(
        more
    )  # the first with a size says how many sequences there are
    assert "cu_seqlens_q: got int32[0], expected int32[num_seqs + 1]" in error(
        [x[:0] if i == 5 else x for i, x in enumerate(operands())], scratch=16
    )
    for staged, max_seqlen_q in ((6, 1000), (None, 2)):
        need = scratch_bytes("nvfp4", 2, 4, 2, staged, 6)
        text = error(operands(), path="prefill", max_seqlen_q=max_seqlen_q, scratch=need - 1)
        assert f"scratch: got {need - 1} bytes, expected {need} bytes for pages_per_pass = 6" in text
    assert "bytes for pages_per_pass = 2147483647" in error(
        operands(), path="prefill", max_seqlen_q=1000, pages_per_pass=2**31 - 1
    )
    assert "pages_per_pass: got 0, expected at least 1" in error(
        operands(), path="prefill", max_seqlen_q=1000, pages_per_pass=0
    )
    assert fake.launches() == []


# ---- the device's errors
def test_no_kernel_for_this_gpu(fake):
    for device, capability, advice in (
        (4, (7, 5), "(kernels need 8.0 or newer)"),
        (5, (12, 1), "a newer jax_fp4_indexer"),
    ):
        fake.device(device, capability)
        text = error(operands())
        assert (
            f"no decode nvfp4 public kernel for compute capability {capability[0]}.{capability[1]}; this build ships sm_80, sm_90a; use implementation="
            in text
        )
        assert advice in text
    fake.device(0, (9, 0))
    call(operands())
    assert len(fake.launches()) == 1


def test_a_driver_error_is_this_op_s_and_the_next_call_works(fake):
    fake.fail("cuLaunchKernelEx", 700)
    text = error(operands())
    assert (
        "fp4_indexer_block_scores: cuLaunchKernelEx failed: an illegal memory access was encountered (CUDA error 700) [kernel decode.n8, cubin sm_90a, device 0]"
        in text
    )
    fake.fail("cuCtxGetDevice", 201)
    assert "cuCtxGetDevice failed: invalid device context" in error(operands())
    fake.fail("", 0)
    call(operands())
    assert len(fake.launches()) == 1
