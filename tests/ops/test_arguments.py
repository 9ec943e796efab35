"""Arrays that are not what they look like: masked, deleted, in another byte order, in host memory, on another device; numbers that float32 cannot hold."""

import json
import os
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fp4_indexer as jfi

i32 = lambda *x: np.array(x, np.int32)
SUMS = (i32(0, 1, 3), i32(0, 130, 190), i32(0, 2, 3), i32(2, 0, 1))
SIZES = dict(tokens=3, num_pages=3, max_seqlen_q=2, max_seqlen_k=130)
ONES = np.ones((1, 32), np.float32)


def arguments(**changes):
    return {
        **dict(
            q_fp4=np.full((3, 4, 64), 0x22, np.uint8),
            k_fp4=np.full((3, 2, 128, 64), 0x22, np.uint8),
            q_scale=np.full((3, 4, 8), 0x38, np.uint8),
            k_scale=np.full((3, 2, 128, 8), 0x38, np.uint8),
            cu_seqlens_q=SUMS[0],
            cu_seqlens_k=SUMS[1],
            cu_page_offsets=SUMS[2],
            kv_indices=SUMS[3],
            max_seqlen_q=2,
            max_seqlen_k=130,
        ),
        **changes,
    }


def call(**changes):
    return jfi.fp4_indexer_block_scores(**arguments(**changes))


def deleted(x):
    x = jnp.array(x)
    x.delete()
    return x


def donated(x):
    x = jnp.array(x)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x


masked = lambda x: np.ma.array(x, mask=np.arange(x.size).reshape(x.shape) == 1)
host = lambda x: jax.device_put(x, jax.memory.Space.Host)


@pytest.mark.parametrize(
    "function, error, parts",
    [
        (
            lambda: call(k_fp4=deleted(arguments()["k_fp4"])),
            ValueError,
            (
                "fp4_indexer_block_scores: k_fp4: got a deleted uint8[3, 2, 128, 64]",
                "alive",
                "pass what that call returned",
            ),
        ),
        (
            lambda: call(kv_indices=donated(SUMS[3])),
            ValueError,
            ("kv_indices: got a deleted int32[3]", "donate_argnums"),
        ),
        (lambda: call(kv_indices=masked(SUMS[3])), TypeError, ("kv_indices: got a masked int32[3]", "x.filled(value)")),
        (
            lambda: call(k_fp4=host(arguments()["k_fp4"])),
            ValueError,
            ("k_fp4: got uint8[3, 2, 128, 64] in host memory", "device memory", "jax.device_put"),
        ),
        (
            lambda: jax.jit(lambda k: call(k_scale=k))(host(arguments()["k_scale"])),
            ValueError,
            ("k_scale: got uint8[3, 2, 128, 8] in host memory", "jax.device_put"),
        ),
        (
            lambda: jfi.reference.fp4_indexer_block_scores(**arguments(q_scale=host(arguments()["q_scale"]))),
            ValueError,
            ("q_scale: got uint8[3, 4, 8] in host memory",),
        ),
        (
            lambda: call(q_global_scale=1e-50),
            ValueError,
            ("q_global_scale: got float 1e-50", "from 1.17549e-38 to 3.40282e+38, zero", "float32 can hold"),
        ),
        (
            lambda: jfi.ragged.validate(*SUMS[:3], None, **SIZES),
            TypeError,
            ("ragged.validate: kv_indices: got NoneType, expected a vector of int32",),
        ),
        (
            lambda: jfi.ragged.validate([[0], [1, 3]], *SUMS[1:], **SIZES),
            TypeError,
            ("ragged.validate: cu_seqlens_q: got list",),
        ),
        (
            lambda: jfi.ragged.validate(masked(SUMS[0]), *SUMS[1:], **SIZES),
            TypeError,
            ("ragged.validate: cu_seqlens_q: got a masked int32[3]",),
        ),
        (
            lambda: jfi.ragged.validate(*SUMS[:3], deleted(SUMS[3]), **SIZES),
            ValueError,
            ("ragged.validate: kv_indices: got a deleted int32[3]",),
        ),
        (
            lambda: jax.jit(lambda x: jfi.ragged.validate(x, *SUMS[1:], **SIZES))(SUMS[0]),
            TypeError,
            ("cu_seqlens_q: got a traced int32[3]", "use ragged.check"),
        ),
        (
            lambda: jax.jit(lambda x: jfi.ragged.validate(*SUMS, **SIZES, q_scale=x))(arguments()["q_scale"]),
            TypeError,
            ("q_scale: got a traced uint8[3, 4, 8]", "use ragged.check"),
        ),
        (
            lambda: jfi.ragged.shard(*SUMS[:3], masked(SUMS[3]), num_shards=2),
            TypeError,
            ("ragged.shard: kv_indices: got a masked int32[3]",),
        ),
        (
            lambda: jfi.ragged.shard(i32(1, 1, 3), *SUMS[1:], num_shards=2),
            ValueError,
            ("ragged.shard: cu_seqlens_q: got 1 first, expected 0", "cut them off q"),
        ),
        (
            lambda: jfi.ragged.token_range(i32(), i32(), 0, 1),
            ValueError,
            ("ragged.token_range: cu_seqlens_q: got int32[0]", "pass [0]"),
        ),
        (
            lambda: jfi.ragged.block_range(i32(), i32(), i32(), 0, 1),
            ValueError,
            ("ragged.block_range: cu_seqlens_q: got int32[0]", "pass [0]"),
        ),
        (lambda: jfi.quantize_nvfp4(deleted(ONES)), ValueError, ("quantize_nvfp4: x: got a deleted float32[1, 32]",)),
        (lambda: jfi.quantize_nvfp4(masked(ONES)), TypeError, ("quantize_nvfp4: x: got a masked float32[1, 32]",)),
        (
            lambda: jfi.quantize_nvfp4(ONES.astype(">f4")),
            TypeError,
            ("quantize_nvfp4: x: got >f4[1, 32]", "byte order", "astype"),
        ),
        (lambda: jfi.quantize_mxfp4(ONES.astype(">f4")), TypeError, ("quantize_mxfp4: x: got >f4[1, 32]",)),
        (lambda: jfi.pack_e2m1(ONES.astype(">f8")), TypeError, ("pack_e2m1: x: got >f8[1, 32]",)),
        (
            lambda: jfi.quantize_mxfp4(ONES.astype(np.longdouble)),
            TypeError,
            ("quantize_mxfp4: x: got <f16[1, 32]", "a floating dtype of JAX"),
        ),
        (
            lambda: jfi.quantize_nvfp4(ONES, global_scale=1e-40),
            ValueError,
            ("global_scale: got float 1e-40", "a positive number from 1.17549e-38"),
        ),
        (
            lambda: jfi.dequantize(
                np.zeros((1, 8), np.uint8), np.zeros((1, 1), np.uint8), "nvfp4", global_scale=np.float64(1e-300)
            ),
            ValueError,
            ("dequantize: global_scale: got float64[]",),
        ),
    ],
)
def test_errors_name_the_parts(function, error, parts):
    with pytest.raises(error) as caught:
        function()
    text = str(caught.value)
    for part in (": got ", ", expected ", *parts):
        assert part in text, text
    assert "\n" not in text and len(text) < 400


def test_max_scratch_bytes_may_be_more_than_an_int32():
    params = lambda n: str(jax.make_jaxpr(lambda q: call(q_fp4=q, max_scratch_bytes=n))(arguments()["q_fp4"]))
    assert "max_scratch_bytes=2147483647" in params(8 * 2**30) and params(8 * 2**30) == params(2**31 - 1)
    with pytest.raises(
        ValueError, match=r"max_scratch_bytes: got 9223372036854775808, expected an int in \[0, 2\*\*63 - 1\]"
    ):
        call(max_scratch_bytes=2**63)


def test_concrete_zero_dimensional_arrays_are_static_arguments():
    assert (call(causal=jnp.asarray(True), max_seqlen_q=jnp.asarray(2), max_seqlen_k=np.array(130)) == call()).all()


def test_a_global_scale_of_symbolic_size():
    (n,) = jax.export.symbolic_shape("n")
    types = jax.ShapeDtypeStruct((n, 64), np.float32), jax.ShapeDtypeStruct((n, 1), np.float32)
    program = jax.export.export(jax.jit(lambda x, g: jfi.quantize_nvfp4(x, global_scale=g)))(*types)
    x, g = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32), np.float32([[1], [2], [4]])
    for a, b in zip(program.call(x, g), jfi.quantize_nvfp4(x, global_scale=g)):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    with pytest.raises(ValueError, match=r"global_scale: got float32\[n, 2\], expected a shape that broadcasts"):
        jax.export.export(jax.jit(lambda x, g: jfi.quantize_nvfp4(x, global_scale=g)))(
            types[0], jax.ShapeDtypeStruct((n, 2), np.float32)
        )


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("quantise", [jfi.quantize_nvfp4, jfi.quantize_mxfp4])
def test_float64_is_rounded_to_float32_without_a_warning(quantise, x64, recwarn):
    x = np.random.default_rng(0).normal(size=(4, 128))
    x[0, 3], x[1, 5] = 1e300, -1e300
    with jax.enable_x64(x64):
        got = quantise(x)
        with np.errstate(over="ignore"):
            want = quantise(x.astype(np.float32))
    assert [a.tobytes() for a in map(np.asarray, got)] == [a.tobytes() for a in map(np.asarray, want)]
    assert not recwarn.list


def test_nvfp4_counts_subnormals_as_zero_on_every_platform():
    """XLA:CPU flushes them, a GPU does not: the bytes must not tell."""
    codes, scale = jfi.quantize_nvfp4(np.full((1, 16), 1e-40, np.float32))
    assert not np.asarray(codes).any() and np.asarray(scale).view(np.uint8) == 0x38
    assert np.asarray(jfi.quantize_nvfp4(np.full((1, 16), 2.0**-126, np.float32))[1]).view(np.uint8) == 1


def test_arrays_on_two_devices_are_named():
    """In a process of its own, which has two devices."""
    script = """
import json, sys, jax, numpy as np
from test_arguments import arguments, call
a, (first, second) = arguments(), jax.devices()
moved = lambda device, *names: {n: jax.device_put(a[n], device) for n in names}
try:
    call(**moved(first, "q_fp4"), **moved(second, "kv_indices", "k_fp4"))
except ValueError as e:
    print(json.dumps(str(e)))
scores = call(**moved(second, "k_fp4", "kv_indices"))                # the others are where they are wanted
print(json.dumps([d.id for d in scores.devices()]))
"""
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    error, devices = map(json.loads, done.stdout.splitlines())
    assert (
        "k_fp4: got uint8[3, 2, 128, 64] on " in error
        and "1, expected " in error
        and "where q_fp4 is" in error
        and "jax.device_put" in error
    )
    assert devices == [1]
