"""How a tensor core adds up: a model of one D = A B + C, in NumPy.

Products are exact. They and C are aligned to the greatest exponent among them and cut toward zero to so many bits of fraction below it; the sum of what is left is exact; it is
cut to fp32, or to fewer bits. core/dot.c is the same in C.
"""

import dataclasses

import numpy as np

LEAST = -10000  # the exponent of a zero


@dataclasses.dataclass(frozen=True)
class Model:
    fraction: int  # bits kept below the greatest exponent
    result: int = 23  # bits kept of the sum, below its own exponent
    least: int = -126  # exponent of a subnormal operand
    normalised: bool = False  # exponent of a product: its own instead of the sum of its factors'


MODELS = {
    "f16": Model(25, least=-14),
    "bf16": Model(25),
    "e4m3": Model(13, 13, -6),
}  # of wgmma; mma.sync has the first two, and widens E4M3 to F16
changed = dataclasses.replace


def exponent(x):
    """floor(log2 |x|)."""
    return np.where(x == 0, LEAST, np.frexp(x)[1] - 1)


def cut(x, at):
    """x cut toward zero to multiples of 2^at; `at` may differ by element."""
    return np.ldexp(np.trunc(np.ldexp(x, -at)), at)


def predict(model, A, B, C):
    """A [g, m, k], B [g, n, k], C [g, m, n] in float64 -> float32 [g, m, n]."""
    products = A[:, :, None, :] * B[:, None, :, :]
    a, b = (np.maximum(exponent(x), model.least) for x in (A, B))
    exponents = exponent(products) if model.normalised else a[:, :, None, :] + b[:, None, :, :]
    top = np.maximum(np.where(products == 0, LEAST, exponents).max(-1), exponent(C))
    at = np.maximum(top, -126) - model.fraction
    total = cut(products, at[..., None]).sum(-1) + cut(C, at)
    return cut(total, np.maximum(exponent(total) - model.result, -149)).astype(np.float32)
