"""What the figures are shares of: rates of this device measured in the same run, and what its tensor cores can do at
most."""

import jax
import jax.numpy as jnp

from jax_fp4_indexer.bench import timing

COUNTS = (1, 1, 1, 1)  # groups of one: XLA would merge two reductions of one array
GEMM_RATES = {"bf16": "bf16_tflops", "int8": "int8_tops"}
# Operations that the tensor cores of an SM finish in a clock, by compute capability: of the instructions that this
# package's kernels issue.
# 9.0: 989 TFLOP/s bf16 and 1,979 TOP/s int8 of an H200 are 132 SMs at 1.83 GHz.
TENSOR_RATES = {(9, 0): {"bf16": 4096, "int8": 8192}}


def measure() -> dict[str, dict[str, float]]:
    """{"burst": rates, "sustained": rates} with read_gbs, bf16_tflops and int8_tops: XLA's own reduction and GEMMs on
    this device.

    Where the host's clock times, both are the sustained ones.
    """
    gpu = jax.default_backend() == "gpu"
    words, size = (1 << 29, 8192) if gpu else (1 << 20, 128)
    x = jnp.arange(words, dtype=jnp.uint32)
    a = jax.random.normal(jax.random.key(0), (size, size), jnp.bfloat16)
    b = jax.random.randint(jax.random.key(1), (size, size), -12, 13, jnp.int8)
    gemm = lambda out: lambda args, i: jnp.dot(args[0], args[0].T, preferred_element_type=out)
    work = {
        "read_gbs": (lambda args, i: jnp.max(args[0] ^ jnp.uint32(i)), (x,), 4 * words / 1e3),
        "bf16_tflops": (gemm(jnp.bfloat16), (a,), 2 * size**3 / 1e6),
        "int8_tops": (gemm(jnp.int32), (b,), 2 * size**3 / 1e6),
    }
    rates = {"burst": {}, "sustained": {}}
    for name, (call, args, amount) in work.items():
        times = timing.measure(call, args, COUNTS, repeats=5, seconds=0.15)
        rates["sustained"][name] = amount / times.sustained_us
        rates["burst"][name] = amount / (times.burst_us if times.method == "device clock" else times.sustained_us)
    return rates


def read_us(nbytes: float, rates: dict[str, float]) -> float:
    """Microseconds that a plain read of the bytes takes at the measured rate."""
    return nbytes / rates["read_gbs"] / 1e3


def gemm_us(work: dict[str, float], rates: dict[str, float]) -> float:
    """Microseconds that XLA's own GEMM takes for as many operations, one type after the other. A peer, not a limit: it
    can be beaten."""
    return sum(operations / rates[GEMM_RATES[kind]] for kind, operations in work.items()) / 1e6


def floor(nbytes: float, work: dict[str, float], rates: dict[str, float]) -> tuple[str, float]:
    """(what binds, microseconds): the larger of `read_us` and `gemm_us`."""
    read, gemm = read_us(nbytes, rates), gemm_us(work, rates)
    if read > gemm:
        return "read", read
    total = sum(work.values())
    return " + ".join(
        kind if n == total else f"{n / total:.0%} {kind}" for kind, n in sorted(work.items(), reverse=True)
    ) + " gemm", gemm


def tensor_clocks(issued: dict[str, float], capability) -> float | None:
    """SM clocks, of all SMs together, for which `issued` operations keep the tensor cores busy; None for a device
    whose rates are not known."""
    rates = TENSOR_RATES.get(capability)
    return None if rates is None else sum(operations / rates[kind] for kind, operations in issued.items())
