"""How a tensor core adds up: models of one D = A B + C, against what a card gave.

A model: products are exact; all addends of a group are aligned to the greatest exponent among them and cut to so many bits of fraction below it; they are added exactly;
the sum is cut, or rounded, to fp32. With several groups of K, one group's result is an addend of the next.
"""
import dataclasses
import itertools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Model:
    fraction: int           # bits kept below the greatest exponent
    group: int              # products added at a time
    normalised: bool        # exponent of a product: its own, or the sum of its factors' exponents
    nearest: bool           # the sum is rounded to nearest even, not cut
    c_last: bool = False    # C is added to the sum of products, cut to fraction bits as they are, and not aligned with them


def exponent(x):
    """floor(log2 |x|); of a zero, far below all others."""
    return np.where(x == 0, -10000, np.frexp(x)[1] - 1)


def cut(x, at):
    """x cut toward zero to multiples of 2^at; `at` may differ by element."""
    return np.ldexp(np.trunc(np.ldexp(x, -at)), at)


def to_fp32(x, nearest):
    if nearest:
        return x.astype(np.float32)
    return cut(x, np.maximum(exponent(x) - 23, -149)).astype(np.float32)


def predict(model, A, B, C):
    """A [g, m, k], B [g, n, k], C [g, m, n] in float64 -> float32 [g, m, n]."""
    products = A[:, :, None, :] * B[:, None, :, :]
    exponents = exponent(products) if model.normalised else exponent(A)[:, :, None, :] + exponent(B)[:, None, :, :]
    exponents = np.where(products == 0, -10000, exponents)
    result = C
    for first in range(0, A.shape[-1], model.group):
        p, e = products[..., first:first + model.group], exponents[..., first:first + model.group]
        top = e.max(-1) if model.c_last else np.maximum(e.max(-1), exponent(result))
        at = np.maximum(top, -126) - model.fraction
        total = cut(p, at[..., None]).sum(-1)
        if model.c_last:
            at = np.maximum(np.maximum(exponent(total), exponent(result)), -126) - model.fraction
            total = cut(total, at)
        result = to_fp32(total + cut(result, at), model.nearest).astype(np.float64)
    return result.astype(np.float32)


def candidates(K):
    for fraction, group, normalised, nearest, c_last in itertools.product([*range(11, 16), *range(21, 31)], [g for g in (4, 8, 16, 32) if g <= K], (False, True), (False, True), (False, True)):
        yield Model(fraction, group, normalised, nearest, c_last)


def fit(A, B, C, D, keep=4):
    """[(share of results that differ, Model)], the best first."""
    K = A.shape[-1]
    scored = sorted(((float((predict(m, A, B, C).view(np.uint32) != D.view(np.uint32)).mean()), m) for m in candidates(K)), key=lambda x: x[0])
    return scored[:keep]
