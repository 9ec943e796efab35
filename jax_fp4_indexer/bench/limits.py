"""What the device can do at most, measured in the same run: read rate, GEMM rates of bf16 and int8; and the floor of a case under them."""
import jax
import jax.numpy as jnp

from jax_fp4_indexer.bench import timing

COUNTS = (1, 1, 1, 1)       # groups of one: XLA would merge two reductions of one array


def measure():
    """dict of "burst" and "sustained", each a dict: read_gbs, bf16_tflops, int8_tops. Where the host's clock times, both are the sustained ones."""
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


def floor_us(case, fmt, rates):
    """(name, microseconds): the larger of logical bytes at the read rate and products at the GEMM rates.

    Products count at the int8 rate where int8 holds them exactly (`Case.int8_share`), the others at the bf16 rate, one after the other.
    """
    share = case.int8_share(fmt)
    read = case.logical_bytes(fmt) / rates["read_gbs"] / 1e3
    products = case.flops() * (share / rates["int8_tops"] + (1 - share) / rates["bf16_tflops"]) / 1e6
    name = {0: "bf16 gemm", 1: "int8 gemm"}.get(share, f"{share:.0%} int8, {1 - share:.0%} bf16 gemm")
    return ("read", read) if read > products else (name, products)
