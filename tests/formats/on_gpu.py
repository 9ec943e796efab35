"""The bytes of every function on FP4 tensors, on the default device, against those of a CPU and of exact arithmetic.

`python tests/formats/on_gpu.py` runs without pytest: one line, exit status 1 if a byte differs or there is no GPU
("--any-device" takes what there is).
"""

import pathlib
import sys

if __name__ == "__main__":
    sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

import exact
import jax
import ml_dtypes
import numpy as np

import jax_fp4_indexer as jfi

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
QUANTISE = {"nvfp4": jfi.quantize_nvfp4, "mxfp4": lambda x, global_scale=None: jfi.quantize_mxfp4(x)}
COLUMNS = 128
FACTOR = np.float32(0.7)


def edges(dtype):
    """Rows [n, COLUMNS] of what goes wrong first.

    Ties of codes and of scales with their neighbours, zeros, subnormals, the ends of the type, infinities, NaN.
    """
    ties = np.outer(exact.E4M3[1:], [*exact.MIDPOINTS, *exact.MAGNITUDES[1:]]).reshape(-1)
    scale_ties = 3 * (exact.E4M3[1:-1] + exact.E4M3[2:])
    values = [np.concatenate(exact.neighbours(np.concatenate([ties, scale_ties]), dtype)).astype(np.float64)]
    info = ml_dtypes.finfo(dtype)
    ends = np.array([0, float(info.tiny), float(info.smallest_subnormal), float(info.max), np.inf, np.nan])
    rng = np.random.default_rng(7)
    x = np.concatenate(
        [
            rng.choice(values[0], 40 * COLUMNS),
            rng.choice(ends, 4 * COLUMNS),
            np.zeros(COLUMNS),
            rng.choice(ends[:4], 4 * COLUMNS),
        ]
    )
    return (x * rng.choice([-1, 1], x.size)).astype(dtype).reshape(-1, COLUMNS)


def normals(count, dtype):
    return np.random.default_rng(3).normal(size=(count // COLUMNS, COLUMNS)).astype(np.float32).astype(dtype)


def global_scales(rows, fmt):
    """None, a number, one scale for each group (without a short significand)."""
    groups = COLUMNS // exact.GROUP[fmt]
    each = np.random.default_rng(5).uniform(0.01, 3, (rows, groups)).astype(np.float32)
    return {"no global scale": None} | (
        {"one global scale": np.float32(0.0123), "global scale of each group": each} if fmt == "nvfp4" else {}
    )


def in_a_larger_program(fmt, dtype):
    """The values are rounded to `dtype` in the program, and its end dequantises what the quantiser returned."""

    def program(x, scale):
        codes, scales = QUANTISE[fmt]((x * FACTOR).astype(dtype), global_scale=scale)
        return codes, scales, jfi.dequantize(codes, scales, fmt).sum()

    return jax.jit(program)


def comparisons(count):
    """(name, got, want) as lists of NumPy arrays; `want` of exact arithmetic and of a CPU alike."""
    cpu = jax.devices("cpu")[0]
    here = jax.devices()[0]

    def both(name, function, *arguments, want=None):
        on_cpu, on_device = (
            [np.asarray(y) for y in jax.tree.leaves(function(*jax.device_put(arguments, device)))]
            for device in (cpu, here)
        )
        yield f"{name}, against a CPU", on_device, on_cpu
        if want is not None:
            yield f"{name}, exact", on_device, want

    for dtype_name, dtype in DTYPES.items():
        x = np.concatenate([edges(dtype), normals(count, dtype)])
        x32 = normals(count, np.float32)
        for fmt, quantise in QUANTISE.items():
            for scale_name, scale in global_scales(x.shape[0], fmt).items():
                name = f"quantize_{fmt} of {dtype_name}, {scale_name}"
                run = lambda x, scale, quantise=quantise: quantise(x, global_scale=scale)
                want = exact.quantised(fmt, x, 1.0 if scale is None else scale)
                yield from both(f"{name}, eager", run, x, scale, want=want)
                yield from both(f"{name}, jit", jax.jit(run), x, scale, want=want)
                scale = scale if np.ndim(scale) == 0 else scale[: x32.shape[0]]
                want = exact.quantised(fmt, (x32 * FACTOR).astype(dtype), 1.0 if scale is None else scale)
                larger = in_a_larger_program(fmt, dtype)
                yield from both(
                    f"{name}, in a larger program",
                    lambda x, scale, larger=larger: larger(x, scale)[:2],
                    x32,
                    scale,
                    want=want,
                )
        yield from both(f"pack_e2m1 of {dtype_name}", jax.jit(jfi.pack_e2m1), x)
    every = np.arange(256, dtype=np.uint8)
    yield from both("unpack_e2m1", jfi.unpack_e2m1, every)
    for fmt, group in exact.GROUP.items():
        codes = np.broadcast_to(
            np.tile(np.arange(0, 256, 17, dtype=np.uint8), group // 16)[: group // 2], (254, group // 2)
        ).copy()
        scales = every[1:255, None]  # of byte 0 of MXFP4 the values are subnormal, which a CPU makes 0
        yield from both(f"dequantize, {fmt}", lambda c, s, fmt=fmt: jfi.dequantize(c, s, fmt), codes[4:], scales[4:])
    matrix = np.random.default_rng(1).integers(0, 256, (3, 130, 6), dtype=np.uint8)
    yield from both("to_blocked", jfi.to_blocked, matrix)
    yield from both("from_blocked", lambda x: jfi.from_blocked(jfi.to_blocked(x), 130, 6), matrix, want=[matrix])


def one_nan(x):
    """`x` with one NaN for all: which bits a float32 NaN has is the platform's choice."""
    return np.where(np.isnan(x), np.float32(np.nan), x) if x.dtype == np.float32 else x


def differences(count=2**20):
    """(number of comparisons, bytes compared, texts of those that differ)."""
    number, size, found = 0, 0, []
    for name, got, want in comparisons(count):
        number += 1
        for part, (a, b) in enumerate(zip(got, want, strict=True)):
            a, b = (np.frombuffer(one_nan(y).tobytes(), np.uint8) for y in (a, b))
            size += a.size
            if a.size != b.size or (a != b).any():
                wrong = int((a != b).sum()) if a.size == b.size else "sizes"
                found.append(f"{name}, result {part}: {wrong} of {b.size} bytes differ")
    return number, size, found


def main():
    device = jax.devices()[0]
    if device.platform != "gpu" and "--any-device" not in sys.argv:
        print(f"formats: no GPU, JAX runs on {device.device_kind}")
        return 1
    number, size, found = differences()
    for text in found:
        print(text, file=sys.stderr)
    print(
        f"formats on {device.device_kind}, jax {jax.__version__}: "
        f"{number} comparisons, {size} bytes, {len(found)} results differ"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
