"""Inputs for the kernels of the wheel, and what they should give, in float64."""

import ctypes as C
import dataclasses

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.array([(8 + m if e else m) * 2.0 ** (max(e, 1) - 10) for e in range(16) for m in range(8)])
E4M3[127] = np.nan
POISON = 0xDE
HEADS = 64


def e4m3_values(codes):
    return np.where(codes & 128, -1.0, 1.0) * E4M3[codes & 127]


def fp4_values(codes):
    """uint8 [..., n] -> float64 [..., 2 n]: the lower half of a byte first."""
    return E2M1[np.stack([codes & 15, codes >> 4], -1)].reshape(*codes.shape[:-1], -1)


def to_bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(u):
    return (u.astype(np.uint32) << 16).view(np.float32)


def as_type(x, name):
    """float -> the array whose bytes are `x` in that type, and its values in float64."""
    array = {
        "Float32": lambda: x.astype(np.float32),
        "Float16": lambda: x.astype(np.float16),
        "BFloat16": lambda: to_bf16(x),
    }[name]()
    return array, values_of(array, name)


def values_of(array, name):
    return from_bf16(array).astype(np.float64) if name == "BFloat16" else array.astype(np.float64)


@dataclasses.dataclass
class Problem:
    """Buffers in the order of the entry's pointers: (name, array, written by the kernel); then its integers and floats."""

    buffers: list
    scalars: list

    def array(self, name):
        return next(a for n, a, _ in self.buffers if n == name)


def schedule(job, lens):
    return Problem(
        [("lens", np.array(lens, np.int32), False), ("meta", np.full((job["ctas"] + 1, 2), -7, np.int32), True)],
        [C.c_int32(len(lens))],
    )


def schedule_expected(job, lens):
    """[ctas + 1, 2]: sequence and pair of blocks where each CTA starts: pairs of 128 keys, shared evenly, the first CTAs one more."""
    pairs = -(-np.array(lens, np.int64) // 256)
    ends, n = np.cumsum(pairs), job["ctas"]
    starts = np.arange(n + 1) * (ends[-1] // n) + np.minimum(np.arange(n + 1), ends[-1] % n)
    sequence = np.searchsorted(ends, starts, side="right")
    return np.stack([sequence, starts - np.concatenate([[0], ends])[sequence]], 1)


def logits(job, lens, seed=0):
    """Random pages of codes and scales, queries, weights of heads; `table` names pages in random order."""
    rng, page, next_n, batch, fp4 = (
        np.random.RandomState(seed),
        job["page"],
        job["next_n"],
        len(lens),
        job["kind"] == "fp4_logits",
    )
    rows, width = HEADS * next_n, 64 if fp4 else 128
    need = [-(-n // 128) * 128 // page for n in lens]
    pages = sum(need) + 2
    some = lambda *shape: (
        rng.randint(0, 256, shape).astype(np.uint8)
        if fp4
        else rng.randint(0, 2, shape).astype(np.uint8) << 7 | rng.randint(40, 64, shape).astype(np.uint8)
    )
    table, free = np.zeros((batch, max(need)), np.int32), rng.permutation(pages)
    for b, n in enumerate(need):
        table[b, :n], free = free[:n], free[n:]
    codes = some(pages, page, width)
    if fp4:
        scales = rng.randint(124, 131, (pages, page, 4)).astype(np.uint8)
    else:
        scales = (
            (2.0 ** rng.randint(-3, 3, (pages, page, 1)) * (1 + rng.randint(0, 128, (pages, page, 1)) / 128))
            .astype(np.float32)
            .view(np.uint8)
        )
    kv = np.concatenate([codes.reshape(pages, -1), scales.reshape(pages, -1)], 1)
    weights, _ = as_type(rng.randint(-8, 9, (batch, rows)) / 8, job["epilogue"])
    columns = -(-max(lens) // 256) * 256
    scores = (
        np.full((batch * next_n, columns), POISON, np.uint8)
        .repeat({"Float32": 4}.get(job["output"], 2), 1)
        .view({"Float32": np.float32, "Float16": np.float16, "BFloat16": np.uint16}[job["output"]])
    )
    buffers = [("kv", kv, False), ("q", some(batch, rows, width), False)]
    if fp4:
        buffers.append(("sf_q", rng.randint(124, 131, (batch, rows, 4)).astype(np.uint8), False))
    buffers += [
        ("weights", weights, False),
        ("scores", scores, True),
        ("table", table, False),
        ("lens", np.array(lens, np.int32), False),
        ("meta", schedule_expected(job, lens).astype(np.int32), False),
    ]
    return Problem(buffers, [C.c_int32(x) for x in (pages, batch, columns, table.shape[1])])


def logits_expected(job, problem):
    """(scores, sums of magnitudes), both float64 [batch * next_n, columns]; NaN behind the keys of a sequence. score = sum over heads of weight * relu(q . k)."""
    kv, q, table, lens, weights = (problem.array(n) for n in ("kv", "q", "table", "lens", "weights"))
    page, next_n, fp4, batch = job["page"], job["next_n"], job["kind"] == "fp4_logits", len(lens)
    width = 64 if fp4 else 128
    codes, scales = (
        kv[:, : page * width].reshape(-1, page, width),
        np.ascontiguousarray(kv[:, page * width :]).reshape(-1, page, 4),
    )
    if fp4:
        keys = fp4_values(codes) * np.repeat(2.0 ** (scales.astype(int) - 127), 32, -1)
        queries, after = fp4_values(q) * np.repeat(2.0 ** (problem.array("sf_q").astype(int) - 127), 32, -1), None
    else:
        keys, queries, after = e4m3_values(codes), e4m3_values(q), scales.view(np.float32)[..., 0].astype(np.float64)
    scores = np.full(problem.array("scores").shape, np.nan)
    sums, w = scores.copy(), values_of(weights, job["epilogue"]).reshape(batch, next_n, HEADS)
    for b, n in enumerate(lens):
        used = table[b, : -(-n // page)]
        k = keys[used].reshape(-1, 128)[:n]
        factor = 1.0 if after is None else after[used].reshape(-1)[:n]
        for t in range(next_n):
            rows = queries[b, t * HEADS : (t + 1) * HEADS]
            scores[b * next_n + t, :n] = w[b, t] @ np.maximum(rows @ k.T, 0) * factor
            sums[b * next_n + t, :n] = np.abs(w[b, t]) @ (np.abs(rows) @ np.abs(k).T) * factor
    return scores, sums


def quantiser(job, rows, seed=1):
    rng, width, group = np.random.RandomState(seed), job["width"], job["group"]
    x, _ = as_type(rng.standard_normal((rows, width)) * np.exp2(rng.randint(-2, 3, (rows, 1))), job["dtype"])
    w, _ = as_type(rng.uniform(0.5, 1.5, width), job["dtype"])
    groups = width // group
    size = -(-rows // 128) * 128 * -(-groups // 4) * 4 if job["swizzled"] else rows * groups
    codes, scales = np.full((rows, width // 2), POISON, np.uint8), np.full(size, POISON, np.uint8)
    return Problem(
        [
            ("x", x, False),
            ("w", w, False),
            ("codes", codes, True),
            ("scales", scales, True),
            ("global_scale", np.float32([0.75]), False),
        ],
        [C.c_int32(rows), C.c_int32(size), C.c_float(1e-6)],
    )


def row_major_scales(scales, rows, groups, swizzled):
    """[rows, groups] of the kernel's bytes: tiles of 128 rows and 4 groups, row r of a tile at (r % 32) * 16 + r / 32 * 4."""
    if not swizzled:
        return scales.reshape(rows, groups)
    tiles = scales.reshape(-(-rows // 128), -(-groups // 4), 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-(-rows // 128) * 128, -1)[:rows, :groups]


def quantiser_expected(job, problem):
    """(normalised rows in units of their group's scale, scale bytes as the exact arithmetic rounds them), given the scales that the kernel chose.

    Scales: E4M3 of global_scale * greatest / 6, or the power of two from greatest / 6 upwards, without global_scale. F16 rows are multiplied by w in F16 first.
    """
    x, w = values_of(problem.array("x"), job["dtype"]), values_of(problem.array("w"), job["dtype"])
    product = (x * w).astype(np.float16).astype(np.float64) if job["dtype"] == "Float16" else x * w
    y = (product / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)).reshape(len(x), -1, job["group"])
    greatest, by = np.abs(y).max(-1), float(problem.array("global_scale")[0])
    chosen = row_major_scales(problem.array("scales"), len(x), job["width"] // job["group"], job["swizzled"])
    if job["group"] == 16:
        want, value = nearest(by * greatest / 6, E4M3[:127]), E4M3[chosen & 127] / by
    else:
        want, value = np.ceil(np.log2(greatest / 6)).astype(int) + 127, 2.0 ** (chosen.astype(int) - 127)
    return (y / value[..., None]).reshape(len(x), -1), want, chosen


def nearest(x, table):
    """Index of the nearest entry of an ascending table; of two as near, the even one."""
    distance = np.abs(x[..., None] - table)
    close = distance == distance.min(-1, keepdims=True)
    even = close & (np.arange(len(table)) % 2 == 0)
    return np.where(even.any(-1), even.argmax(-1), close.argmax(-1))


def tiled_scales(scales):
    """The inverse of row_major_scales: bytes [rows, groups] in tiles, 0 beyond them."""
    rows, groups = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-groups // 4) * 4), np.uint8)
    padded[:rows, :groups] = scales
    return np.ascontiguousarray(padded.reshape(padded.shape[0] // 128, 4, 32, -1, 4).transpose(0, 3, 2, 1, 4)).reshape(
        -1
    )


def gemm(job, m, n, k, seed=2):
    rng, fp4 = np.random.RandomState(seed), job["codes"] == "Float4E2M1FN"

    def codes(rows):
        return (
            rng.randint(0, 256, (rows, k // 2)).astype(np.uint8)
            if fp4
            else (rng.randint(0, 2, (rows, k)) << 7 | rng.randint(40, 72, (rows, k))).astype(np.uint8)
        )

    def scales(rows):
        return (
            rng.randint(40, 72, (rows, k // job["group"]))
            if job["scales"] == "Float8E4M3FN"
            else rng.randint(124, 131, (rows, k // job["group"]))
        ).astype(np.uint8)

    sfa, sfb = scales(m), scales(n)
    out, _ = as_type(np.full((m, n), -123.0), job["output"])
    problem = Problem(
        [
            ("a", codes(m), False),
            ("b", codes(n), False),
            ("sfa", tiled_scales(sfa), False),
            ("sfb", tiled_scales(sfb), False),
            ("c", out, True),
            ("alpha", np.float32([0.5]), False),
        ],
        [C.c_int32(x) for x in (m, n, k)],
    )
    return problem, (sfa, sfb)


def gemm_expected(job, problem, scales):
    """(C, sums of magnitudes) in float64."""
    widen = fp4_values if job["codes"] == "Float4E2M1FN" else e4m3_values
    factor = (lambda s: E4M3[s & 127]) if job["scales"] == "Float8E4M3FN" else lambda s: 2.0 ** (s.astype(int) - 127)
    a, b = (widen(problem.array(name)) * np.repeat(factor(s), job["group"], -1) for name, s in zip("ab", scales))
    return 0.5 * (a @ b.T), 0.5 * (np.abs(a) @ np.abs(b).T)
