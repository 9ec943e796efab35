"""Problems of the batched GEMV: a table of cases with reasons, their operands, and an oracle in float64 that shares no
code with the package.
"""

from __future__ import annotations

import dataclasses

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
BOUND = 4e-6  # of the sum of magnitudes
ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
NAN_BYTES = (0x7F, 0xFF)


def ue4m3(byte: np.ndarray) -> np.ndarray:
    """Scale bytes -> float64 without the sign bit; 0x7F is NaN."""
    byte = byte.astype(np.int64) & 0x7F
    exponent, mantissa = byte >> 3, byte & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    return np.where(byte == 0x7F, np.nan, value)


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem. values: "random" codes and scales up to 8; "wide": scales up to 448; "exact" small scales that are
    powers of two (every order of additions gives one result); "positive": no cancellation; "signs": sign bits of
    scales set; "spread": small scales of a, far apart ones of b. globals_: scales of a and b, each "none", "one" or
    "batch". reason: what it is for.
    """

    name: str
    reason: str
    batch: int
    rows: int
    k: int
    columns: int = 0  # 0: b has no axis of columns
    values: str = "random"
    globals_: tuple[str, str] = ("none", "none")
    out_dtype: str = "float32"
    nan: str = ""  # "a", "b": one scale is NaN
    tags: frozenset = frozenset()
    padding: int = 0x7F  # byte of what pads tiled scales
    problem: Problem | None = dataclasses.field(
        default=None, compare=False
    )  # operands that are not drawn: of a part, or scrambled

    @property
    def n(self) -> int:
        return self.columns or 1

    @property
    def exact(self) -> bool:
        return self.values == "exact"


def case(name: str, reason: str, batch: int, rows: int, k: int, columns: int = 0, tags: str = "", **rest) -> Case:
    return Case(name, reason, batch, rows, k, columns, tags=frozenset(tags.split()), **rest)


CASES = (
    case("one_group", "the least K: one lane has one group", 3, 1, 16, tags="quick"),
    case(
        "three_groups",
        "rows of codes start on 8 bytes, scales on any; more rows than a stage of one CTA",
        1,
        129,
        48,
        tags="quick",
    ),
    case(
        "many_rows",
        "many stages and several passes a CTA, at shared sizes that divide nothing",
        5,
        251,
        256,
        tags="quick",
    ),
    case("many_rows_any_k", "the same, unaligned", 3, 333, 80, tags="quick"),
    case("n4_rows_any_k", "the same with columns", 2, 130, 48, 4, tags="quick"),
    case("k256", "the least K of the aligned kernels", 2, 37, 256, tags="quick"),
    case(
        "k1024_shared",
        "a whole chunk; shares that end inside a batch",
        3,
        41,
        1024,
        globals_=("batch", "one"),
        tags="quick",
    ),
    case("k2048", "two chunks a row", 1, 70, 2048, values="positive", tags="quick"),
    case("k4608", "chunks that do not divide the warps, the last one short", 1, 40, 4608, tags="quick"),
    case("wide", "scales of every binade", 2, 40, 1024, 3, values="wide"),
    case("k7168", "seven chunks; more rows than the ring holds", 1, 100, 7168),
    case("k16384", "a whole piece of K on large chips, several on small ones", 1, 34, 16384, values="positive"),
    case("k16640", "a second piece of one group of 256", 1, 5, 16640, tags="quick"),
    case("k16400", "a second piece of one group, rows unaligned", 1, 5, 16400, tags="quick"),
    case(
        "k33808", "three pieces; the array ends inside 16 bytes of codes and of scales", 1, 9, 33808, values="positive"
    ),
    case("k2064", "the last lane has one of two groups", 2, 7, 2064, tags="quick"),
    case("exact", "equal bits whatever the order", 2, 50, 1536, values="exact", globals_=("one", "one"), tags="quick"),
    case("exact_any_k", "the same with unaligned rows", 2, 19, 1552, values="exact", tags="quick"),
    case("sign_bits", "bit 7 of a scale plays no part", 1, 17, 512, values="signs", tags="quick"),
    case("nan_a", "a NaN scale of a reaches its row alone", 2, 33, 512, nan="a", tags="quick"),
    case("nan_b", "a NaN scale of b reaches its vector alone", 2, 33, 512, 3, nan="b", tags="quick"),
    case(
        "nan_a_any_k",
        "the same in the last group of an array that ends inside 16 bytes",
        1,
        5,
        528,
        2,
        nan="a",
        tags="quick",
    ),
    case(
        "float16", "results are rounded once", 2, 24, 512, out_dtype="float16", globals_=("none", "batch"), tags="quick"
    ),
    case("bfloat16", "the same", 2, 24, 512, out_dtype="bfloat16", globals_=("batch", "none"), tags="quick"),
    case("n1_axis", "an axis of one column", 2, 20, 512, 1, tags="quick"),
    case("n2", "columns that are not there are zeros", 2, 19, 1536, 2, tags="quick"),
    case(
        "n8", "all columns, tiles of 16 rows, the last of 3", 2, 19, 1536, 8, globals_=("batch", "batch"), tags="quick"
    ),
    case(
        "n8_tiles",
        "many tiles: both places of the partial sums, every turn of the reducing warps",
        1,
        131,
        2560,
        8,
        tags="quick",
    ),
    case("n8_pieces", "several pieces of K with eight columns", 1, 20, 9216, 8, tags="quick"),
    case("n5_pieces", "the same, unaligned, the last segment of few codes", 1, 3, 8720, 5, tags="quick"),
    case("n3_any_k", "unaligned rows, three columns", 2, 33, 2832, 3, tags="quick"),
    case(
        "n8_spread",
        "small scales of a, scales of b 2^11 apart in one matrix instruction: subnormal operands would lose bits",
        1,
        48,
        1024,
        8,
        values="spread",
        tags="quick",
    ),
    case("spread", "the same for one column", 1, 48, 1024, values="spread", tags="quick"),
    case("n8_exact", "equal bits", 2, 24, 1024, 8, values="exact", tags="quick"),
    case("many_batches", "a vector for every row", 70, 1, 256, tags="quick"),
    case("tiles_of_rows", "more than one tile of 128 rows, the last of 2", 2, 130, 256, tags="quick"),
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Operands of a case, public scales."""

    case: Case
    a: np.ndarray
    b: np.ndarray
    a_scale: np.ndarray
    b_scale: np.ndarray
    a_global: np.ndarray | None
    b_global: np.ndarray | None

    def arrays(self, layout: str = "public", padding: int = 0x7F) -> dict:
        """The public function's array arguments."""
        squeeze = (lambda x: x) if self.case.columns else (lambda x: x[:, 0])
        scales = {"a_scale": self.a_scale, "b_scale": squeeze(self.b_scale)}
        if layout == "preordered_mma":
            scales = {"a_scale": tiled(self.a_scale, padding), "b_scale": tiled(self.b_scale, padding)}
        return {
            "a": self.a,
            "b": squeeze(self.b),
            **scales,
            "a_global_scale": self.a_global,
            "b_global_scale": self.b_global,
        }


def build(c: Case, seed: int = 0) -> Problem:
    rng = np.random.default_rng([seed, c.batch, c.rows, c.k, c.columns])
    a, b = (rng.integers(0, 256, (c.batch, lines, c.k // 2), dtype=np.uint8) for lines in (c.rows, c.n))
    scales = []
    for lines in (c.rows, c.n):
        s = rng.integers(0, 127 if c.values == "wide" else 80, (c.batch, lines, c.k // 16), dtype=np.uint8)
        if c.values == "exact":
            s = (rng.integers(6, 9, s.shape) * 8).astype(np.uint8)  # 0.5, 1, 2
        scales.append(s | 128 if c.values == "signs" else s)
    if c.values == "positive":
        a, b = a & 0x77, b & 0x77
    if c.values == "spread":
        a = (a & 0x88) | rng.integers(1, 4, a.shape, dtype=np.uint8) | rng.integers(1, 4, a.shape, dtype=np.uint8) << 4
        large = np.arange(c.k // 16) // 2 % 4 == 0
        scales = [
            rng.integers(1, 4, scales[0].shape, dtype=np.uint8),
            np.where(large, 0x7E, rng.integers(0x18, 0x28, scales[1].shape)).astype(np.uint8),
        ]
    a_scale, b_scale = scales
    if c.nan == "a":
        a_scale[-1, -1, -1] = NAN_BYTES[0]
    if c.nan == "b":
        b_scale[0, c.n - 1, 0] = NAN_BYTES[1]
    of = {"none": None, "one": np.float32(2.0), "batch": (2.0 ** rng.integers(-2, 3, c.batch)).astype(np.float32)}
    if c.values == "random":
        of = {"none": None, "one": np.float32(0.3), "batch": rng.uniform(0.5, 2, c.batch).astype(np.float32)}
    return Problem(c, a, b, a_scale, b_scale, *(of[g] for g in c.globals_))


def tiled(scales: np.ndarray, padding: int = 0x7F) -> np.ndarray:
    """[L, R, G] bytes in tiles of 128 rows and 4 groups; padding is NaN bytes, so that it is seen where it counts."""
    batch, rows, groups = scales.shape
    whole = np.full((batch, -(-rows // 128) * 128, -(-groups // 4) * 4), padding, np.uint8)
    whole[:, :rows, :groups] = scales
    return np.ascontiguousarray(whole.reshape(batch, -1, 4, 32, whole.shape[2] // 4, 4).transpose(0, 1, 4, 3, 2, 5))


def oracle(p: Problem) -> tuple[np.ndarray, np.ndarray]:
    """(result, sum of magnitudes), float64 [L, M, N]."""

    def dequantised(codes, scales):
        x = np.empty((*codes.shape[:2], codes.shape[2] * 2))
        x[..., 0::2], x[..., 1::2] = E2M1[codes & 15], E2M1[codes >> 4]
        return x * np.repeat(ue4m3(scales), 16, -1)

    a, b = dequantised(p.a, p.a_scale), dequantised(p.b, p.b_scale)
    factor = np.ones(p.case.batch)
    for g in (p.a_global, p.b_global):
        factor = factor * (1.0 if g is None else np.float64(g))
    factor = factor[:, None, None]
    return np.einsum("lmk,lnk->lmn", a, b) * factor, np.einsum("lmk,lnk->lmn", np.abs(a), np.abs(b)) * np.abs(factor)


def compare(c: Case, got: np.ndarray, truth: tuple[np.ndarray, np.ndarray]) -> tuple[list[str], float]:
    """(what is wrong with a result [L, M, N] or [L, M], the worst error over the sum of magnitudes, what rounding to
    out_dtype explains left out).
    """
    want, magnitude = truth
    got = np.asarray(got).astype(np.float64).reshape(want.shape)
    if not np.array_equal(np.isnan(got), np.isnan(want)):
        return [f"{c.name}: NaN at {int(np.isnan(got).sum())} places, expected {int(np.isnan(want).sum())}"], 0.0
    counted = ~np.isnan(want) & (np.abs(want) < {"float16": 65000.0}.get(c.out_dtype, 3e38))
    allowed = ROUNDING[c.out_dtype] * np.maximum(np.abs(want), 1e-7)
    error = np.where(counted, np.maximum(np.abs(got - np.where(counted, want, 0)) - allowed, 0), 0)
    wrong = (error > BOUND * magnitude) | (counted & c.exact & (c.out_dtype == "float32") & (got != want))
    worst = float(np.max(error / np.where(magnitude > 0, magnitude, np.inf), initial=0.0))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        return [
            f"{c.name}: {int(wrong.sum())} of {wrong.size} wrong, the first at {at}: {got[at]!r}, expected {want[at]!r} +- {BOUND * magnitude[at]:.3g}"
        ], worst
    return [], worst


def problems(c: Case, got: np.ndarray, truth: tuple[np.ndarray, np.ndarray]) -> list[str]:
    """What is wrong with a result."""
    return compare(c, got, truth)[0]
