"""Random calls of `nvfp4_batched_gemv` against float64.

    PYTHONPATH=.:tests python -m fuzz.batched_gemv --seed 1 --cases 3000  # kernels on a GPU, else the definition
    PYTHONPATH=.:tests python -m fuzz.batched_gemv --seed 1 --shape 17 --cases 30  # 30 draws of one shape again
    compute-sanitizer --tool memcheck --error-exitcode 7 python -m fuzz.batched_gemv --bare --cases 100

A case is a shape (with its static arguments, so that few programs are compiled) and a draw of values for it. The fp32
result of a case is compared with float64 in every element: NaN in the same places, equal where every order of
additions is exact, else within BOUND of the sum of magnitudes. A narrower result equals that fp32 result rounded
once. A repeat has the same bits, and so have rows and matrices alone. With --bare every shape is called once.

Exit status: 0 all well, 1 something failed, 3 cases were left out for lack of time.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable

import jax
import ml_dtypes
import numpy as np

import jax_fp4_indexer as jfi
from support import claims
from support.batched_gemv import BOUND, E2M1, tiled, ue4m3

SHAPES = 100
DRAWS_BEFORE_RESULTS = 24  # draws that are made ahead
KINDS = ("narrow", "wide", "exact", "zeros", "nan_a", "nan_b", "positive", "nan_both")
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
NEAR = (256, 512, 1024, 1536, 2048, 4096, 4608, 7168, 8192, 9216, 16384, 16640, 32768, 33792)  # groups, chunks, pieces
ROWS = (1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 255, 257, 1023, 4097, 8000)
BATCHES = (65535, 65536, 65537, 70000)
VALUES = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], -1).astype(np.float32)  # of a byte
SCALES = np.nan_to_num(ue4m3(np.arange(256))).astype(np.float32)  # of a byte; NaN is looked for by itself


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one program is compiled for. columns 0: b has no axis of columns. Globals: "none", "one" or "batch"."""

    number: int
    batch: int
    rows: int
    k: int
    columns: int
    layout: str
    out_dtype: str
    globals_: tuple[str, str]

    @property
    def n(self) -> int:
        return self.columns or 1


def shapes(seed: int, count: int = SHAPES, most: float = 4e6) -> list[Shape]:
    """most: values of a, at most; each 20th shape may have eight times as many, each 25th has many matrices."""
    rng, found = np.random.default_rng([seed, 1]), []
    between = lambda low, high: int(np.exp(rng.uniform(np.log(low), np.log(high + 0.999))))
    for number in range(count):
        budget = 8 * most if number % 20 == 19 else np.exp(rng.uniform(np.log(most / 300), np.log(most)))
        columns = int(rng.integers(1, 9)) if rng.random() < 0.65 else 0
        budget = min(budget, 4e7 / max(1, columns))
        k = between(1, 2125) * 16
        if rng.random() < 0.6:
            k = int(rng.choice(NEAR)) + 16 * int(rng.choice((-2, -1, 0, 0, 1, 2)))
        k = max(16, min(k, int(budget) // 16 * 16))
        if number % 25 == 24 and most >= 4e6:
            batch, rows, k = int(rng.choice(BATCHES)), int(rng.integers(1, 3)), 16
        else:
            room = max(1, int(budget / k))
            rows = min(room, 8000, int(rng.choice(ROWS)) if rng.random() < 0.5 else between(1, 8000))
            batch = between(1, max(1, room // rows))
        found.append(
            Shape(
                number,
                batch,
                rows,
                k,
                columns,
                str(rng.choice(("public", "preordered_mma"))),
                str(rng.choice(tuple(DTYPES))),
                tuple(str(x) for x in rng.choice(("none", "one", "batch"), 2)),
            )
        )
    return found


@dataclasses.dataclass
class Draw:
    """Values for a shape, scales in the public layout, and what the fp32 result has to be, [L, M, N]."""

    shape: Shape
    kind: str
    exact: bool
    codes: tuple[np.ndarray, np.ndarray]
    scales: tuple[np.ndarray, np.ndarray]
    globals_: tuple[np.ndarray | None, np.ndarray | None]
    seed: list[int]
    want: np.ndarray = None
    magnitude: np.ndarray = None
    nan: np.ndarray = None

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The array arguments. What pads tiled scales is random."""
        rng = np.random.default_rng([*self.seed, 2])
        squeeze = (lambda x: x) if self.shape.columns else (lambda x: x[:, 0])
        of = {"a": self.codes[0], "b": squeeze(self.codes[1])}
        of |= {"a_scale": self.scales[0], "b_scale": squeeze(self.scales[1])}
        if self.shape.layout == "preordered_mma":
            of |= {name: _tiled(x, rng) for name, x in zip(("a_scale", "b_scale"), self.scales)}
        given = zip(("a_global_scale", "b_global_scale"), self.globals_)
        return of | {name: x for name, x in given if x is not None}

    def part(self, batch: slice, rows: slice) -> Draw:
        """Some matrices, and some rows of each."""
        (a, b), (a_scale, b_scale) = self.codes, self.scales
        codes, scales = (a[batch, rows], b[batch]), (a_scale[batch, rows], b_scale[batch])
        of = dataclasses.replace(self.shape, batch=codes[0].shape[0], rows=codes[0].shape[1])
        globals_ = tuple(x[batch] if np.ndim(x) else x for x in self.globals_)
        return dataclasses.replace(self, shape=of, codes=codes, scales=scales, globals_=globals_)


def _tiled(scales: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    batch, lines, groups = scales.shape
    whole = (batch, -(-lines // 128) * 128, -(-groups // 4) * 4)
    return tiled(scales, rng.integers(0, 256, whole, dtype=np.uint8))


def _scales(rng: np.random.Generator, kind: str, size: tuple[int, ...], span: int) -> np.ndarray:
    """Scale bytes. span: binades that scales of an exact draw lie in, less one."""
    if kind == "exact":
        first = int(rng.integers(1, 15 - span))
        return (rng.integers(first, first + span + 1, size) * 8).astype(np.uint8)
    first, last = (0, 127) if kind in ("wide", "nan_both") else (lambda x: (x, x + 16))(int(rng.integers(0, 110)))
    found = rng.integers(first, last, size, dtype=np.uint8)
    return found * (rng.random(size, np.float32) < 0.5) if kind == "zeros" else found


def draw(shape: Shape, number: int, seed: int) -> Draw:
    """The values alone."""
    key = [seed, shape.number, number]
    rng = np.random.default_rng([*key, 3])
    kind = KINDS[(number + shape.number) % len(KINDS)]
    lines = (shape.rows, shape.n)
    codes = [rng.integers(0, 256, (shape.batch, x, shape.k // 2), dtype=np.uint8) for x in lines]
    # All partial sums are multiples of a unit and below 2^24 of it: products of two values are at most 144 units.
    bits = int(np.log2(2**24 / (144 * shape.k)))
    spans = (min(3, bits // 2), min(3, (bits + 1) // 2))
    scales = [_scales(rng, kind, (shape.batch, x, shape.k // 16), s) for x, s in zip(lines, spans)]
    if kind == "positive":
        codes = [x & 0x77 for x in codes]
    for i, name in enumerate(("a", "b")):
        if kind in (f"nan_{name}", "nan_both"):  # one of b: the other vectors still have numbers
            for _ in range(3 if name == "a" else 1):
                scales[i][tuple(int(rng.integers(n)) for n in scales[i].shape)] = 0x7F
    if rng.random() < 0.5:
        scales = [x ^ (rng.integers(0, 2, x.shape, dtype=np.uint8) << np.uint8(7)) for x in scales]
    globals_ = []
    for form in shape.globals_:
        size = () if form == "one" else (shape.batch,)
        value = 2.0 ** rng.integers(-6, 7, size) if kind == "exact" else 2.0 ** rng.uniform(-6, 6, size)
        value = np.float32(value * rng.choice((-1.0, 1.0), size))
        globals_.append(None if form == "none" else value)
    return Draw(shape, kind, kind == "exact", tuple(codes), tuple(scales), tuple(globals_), key)


def truth(d: Draw) -> Draw:
    """The same draw, with what its fp32 result has to be. Dequantised values are exact in float32."""
    shape = d.shape
    a, b = (
        (VALUES[x].reshape(*s.shape, 16) * SCALES[s][..., None]).reshape(*s.shape[:2], shape.k).astype(np.float64)
        for x, s in zip(d.codes, d.scales)
    )
    factor = np.ones(shape.batch)
    for g in d.globals_:
        factor = factor * (1.0 if g is None else np.float64(g))
    b, factor = b.transpose(0, 2, 1), factor[:, None, None]
    d.want, d.magnitude = a @ b * factor, np.abs(a) @ np.abs(b) * np.abs(factor)
    of_a, of_b = ((s & 0x7F == 0x7F).any(-1) for s in d.scales)
    d.nan = of_a[:, :, None] | of_b[:, None, :]
    return d


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def judge(d: Draw, got: np.ndarray) -> tuple[list[str], float]:
    """(what is wrong with a fp32 result, its worst error over the sum of magnitudes)."""
    if got.shape != d.want.shape or got.dtype != np.float32:
        return [f"{got.dtype} {got.shape}, expected float32 {d.want.shape}"], 0.0
    if not np.array_equal(np.isnan(got), d.nan):
        return [f"NaN at {int(np.isnan(got).sum())} places, expected {int(d.nan.sum())}"], 0.0
    error = np.where(d.nan, 0, np.abs(np.where(d.nan, 0, got).astype(np.float64) - d.want))
    worst = float(np.max(error / np.where(d.magnitude > 0, d.magnitude, np.inf), initial=0.0))
    wrong = ~(error <= (0.0 if d.exact else BOUND) * d.magnitude)
    if not wrong.any():
        return [], worst
    at = tuple(int(x) for x in np.argwhere(wrong)[0])
    return [f"{int(wrong.sum())} of {wrong.size} wrong, first {at}: {got[at]!r}, expected {d.want[at]!r}"], worst


def rounded_once(got: np.ndarray, single: np.ndarray, out_dtype: str) -> list[str]:
    """What is wrong with a narrower result; single: the fp32 result."""
    if got.dtype != DTYPES[out_dtype]:
        return [f"dtype {got.dtype}, expected {out_dtype}"]
    with np.errstate(over="ignore"):
        want = single.astype(DTYPES[out_dtype])
    wrong = np.where(np.isnan(want), ~np.isnan(got), bits(got) != bits(want))
    return [f"{int(wrong.sum())} of {wrong.size} are not the fp32 result rounded once"] if wrong.any() else []


class Programs:
    """The op, compiled once for each shape and dtype of the result."""

    def __init__(self, implementation: str):
        self.implementation, self.known = implementation, {}

    def __call__(self, d: Draw, out_dtype: str, operands: dict) -> np.ndarray:
        """The result [L, M, N]."""
        shape = dataclasses.replace(d.shape, number=0, out_dtype=out_dtype)
        if shape not in self.known:
            statics = {"scale_layout": shape.layout, "out_dtype": out_dtype, "implementation": self.implementation}
            op = jax.jit(functools.partial(jfi.nvfp4_batched_gemv, **statics))
            self.known[shape] = op.lower(**operands).compile()
        return np.asarray(self.known[shape](**operands)).reshape(shape.batch, shape.rows, shape.n)


class Fuzzer:
    """call(draw, out_dtype, operands on the device) -> the result [L, M, N]."""

    def __init__(self, call: Callable, seed: int, bare: bool = False):
        self.call, self.seed, self.bare = call, seed, bare
        self.counts, self.kinds = collections.Counter(), collections.Counter()
        self.failures: list[dict] = []
        self.worst = 0.0

    def check(self, d: Draw, number: int) -> list[str]:
        """Sentences on what is wrong with a case."""
        operands = jax.device_put(d.arrays)
        if self.bare:
            got = self.call(d, d.shape.out_dtype, operands)
            self.counts["elements"] += got.size
            same_nan = np.array_equal(np.isnan(got), d.nan)
            return judge(d, got)[0] if got.dtype == np.float32 else [] if same_nan else ["NaN at other places"]
        single = self.call(d, "float32", operands)
        found, worst = judge(d, single)
        self.worst = max(self.worst, worst)
        self.counts["elements"] += single.size
        self.counts["exact"] += d.exact
        self.counts["elements NaN"] += int(d.nan.sum())
        if d.shape.out_dtype != "float32":
            self.counts["rounded once"] += 1
            found += rounded_once(self.call(d, d.shape.out_dtype, operands), single, d.shape.out_dtype)
        self.counts["repeats"] += 1
        if (bits(self.call(d, "float32", operands)) != bits(single)).any():
            found.append("a repeat has other bits")
        if number % 3 == 0 and d.shape.number % 2 == 0:
            for of in self.parts(d):
                self.counts["parts alone"] += 1
                part = d.part(*of)
                alone = self.call(part, "float32", jax.device_put(part.arrays))
                if (bits(alone) != bits(single[of])).any():
                    found.append(f"matrices {of[0]}, rows {of[1]} alone have other bits")
        return found

    @staticmethod
    def parts(d: Draw) -> Iterable[tuple[slice, slice]]:
        rng = np.random.default_rng([*d.seed, 4])
        if d.shape.rows > 3:
            first = int(rng.integers(0, d.shape.rows - 2))
            yield np.s_[:], np.s_[first : first + 3]
        if d.shape.batch > 1:
            one = int(rng.integers(0, d.shape.batch))
            yield np.s_[one : one + 1], np.s_[:]

    def run(self, of: list[Shape], cases: int, workers: int = 1, time_limit: float = 1e9) -> bool:
        """One draw of every shape, then the next: where time runs out, every shape was called."""
        start = time.monotonic()
        each, more = divmod(cases, len(of))
        todo = [(s, i) for i in range(each + 1) for s in (of if i < each else of[:more])]
        todo = [(s, 0) for s in of] if self.bare else todo
        make = lambda s, i: truth(draw(s, i, self.seed))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            ahead = collections.deque()
            coming = iter(todo)
            for shape, number in todo:
                while len(ahead) < max(DRAWS_BEFORE_RESULTS, workers) and (next_ := next(coming, None)):
                    ahead.append(pool.submit(make, *next_))
                made = ahead.popleft()
                if time.monotonic() - start > time_limit:
                    self.counts["not run"] += 1
                    made.cancel()
                    continue
                try:
                    d = made.result()
                    self.kinds[d.kind] += 1
                    problems = self.check(d, number)
                except Exception as e:  # a case that does not run must not hide the others
                    problems = [f"{type(e).__name__}: {str(e).strip()[:300]}"]
                self.counts["cases"] += 1
                for p in problems:
                    kind = KINDS[(number + shape.number) % len(KINDS)]
                    self.failures.append({"shape": dataclasses.asdict(shape), "draw": number, "kind": kind, "what": p})
                    print(f"FAIL {shape} draw {number} {kind}: {p}", flush=True)
        self.seconds = time.monotonic() - start
        total = len(todo)
        print(f"{len(self.failures)} failures, {self.counts['cases']}/{total} cases")
        return not self.failures and not self.counts["not run"]

    def summary(self) -> dict:
        return {"seed": self.seed, "kinds": dict(self.kinds), "worst": self.worst, **self.counts}


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="fuzz.batched_gemv")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--cases", type=int, default=1000, help="of all shapes together; with --bare, the number of shapes")
    p.add_argument("--shape", default="", help="numbers of the shapes to call, separated by commas; default: all")
    p.add_argument("--bare", action="store_true", help="call every shape once, for compute-sanitizer")
    p.add_argument("--largest", type=float, default=4e6, help="values of a matrix operand that most shapes may have")
    p.add_argument("--implementation", help="default: portable on a GPU, else reference")
    p.add_argument("--workers", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 2)))
    p.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no further case starts")
    claims.add_option(p)
    args = p.parse_args(argv)
    every = shapes(args.seed, most=args.largest)
    chosen = [every[int(i)] for i in args.shape.split(",")] if args.shape else every
    if args.bare and not args.shape:
        chosen = chosen[: args.cases]
    device = jax.devices()[0]
    implementation = args.implementation or ("portable" if device.platform == "gpu" else "reference")
    fuzzer = Fuzzer(Programs(implementation), args.seed, args.bare)
    well = fuzzer.run(chosen, args.cases, args.workers, args.time_limit)
    print(f"{implementation} on {device.device_kind}, {len(chosen)} shapes, {fuzzer.seconds:.0f} s: {fuzzer.summary()}")
    if args.record is not None:
        name, capability = claims.card()
        counts = {**fuzzer.summary(), "shapes": len(chosen), "implementation": implementation}
        command = "python -m fuzz.batched_gemv " + " ".join(sys.argv[1:] if argv is None else argv)
        where = {"name": name, "capability": capability, "folder": args.record, "command": command}
        print("record:", claims.record("batched_gemv_fuzz", counts, fuzzer.failures, **where))
    return 0 if well else 1 if fuzzer.failures else 3


if __name__ == "__main__":
    sys.exit(main())
