"""Block scores, as our op has them but of bf16 and FP8 keys: scores[head, block, token] = the greatest product of a token's query with the visible keys of a block of 128."""

import ctypes as C

import numpy as np

from ptxsim.probes import rounding

from .problems import Problem, as_type, e4m3_values, values_of

PAGE = 128


def problem(job, tokens, lens, seed=3):
    """`tokens`: queries of each sequence, `lens`: its keys; the last query sees the last key."""
    rng, batch, total = np.random.RandomState(seed), len(lens), sum(tokens)
    heads, kv_heads, decode = job["heads"], job.get("kv_heads", 1), job["kind"] == "decode_scores"
    need = [-(-n // PAGE) for n in lens]
    pages, tiles = sum(need) + 2, max(need) + 1

    def some(*shape):
        if decode:
            return as_type(rng.standard_normal(shape), "BFloat16")[0]
        return (rng.randint(0, 2, shape) << 7 | rng.randint(40, 72, shape)).astype(np.uint8)

    table, free = np.zeros((batch, tiles), np.int32), rng.permutation(pages)
    for b, n in enumerate(need):
        table[b, :n], free = free[:n], free[n:]
    small = lambda x: np.array(x, np.int32)
    buffers = [
        ("q", some(total, heads, 128), False),
        ("k", some(pages, kv_heads, PAGE, 128), False),
        ("starts", small([0, *np.cumsum(tokens)]), False),
        ("table", table, False),
        ("lens", small(lens), False),
    ]
    if not decode:
        buffers.append(("prefix", small(lens) - small(tokens), False))
    buffers.append(("scores", np.full((heads, tiles, total), -123, np.float32), True))
    scalars = [batch, pages, tiles] if decode else [batch, total, pages, tiles, job["chunks"], -(-max(tokens) // 128)]
    return Problem(buffers, [C.c_int32(x) for x in scalars])


def expected(job, problem, tokens, lens):
    """(scores, greatest sum of magnitudes among a block's visible keys), float64; -inf and 0 where none is visible."""
    decode = job["kind"] == "decode_scores"
    q, k = ((values_of(problem.array(n), "BFloat16") if decode else e4m3_values(problem.array(n))) for n in "qk")
    scores, sums = np.full(problem.array("scores").shape, -np.inf), np.zeros(problem.array("scores").shape)
    ratio, first = q.shape[1] // k.shape[1], 0
    for b, (n, keys) in enumerate(zip(tokens, lens)):
        for block in range(-(-keys // PAGE)):
            page = problem.array("table")[b, block]
            for h in range(q.shape[1]):
                rows, tile = q[first : first + n, h], k[page, h // ratio]
                seen = PAGE * block + np.arange(PAGE) <= (keys - n + np.arange(n))[:, None]
                scores[h, block, first : first + n] = np.where(seen, rows @ tile.T, -np.inf).max(-1)
                sums[h, block, first : first + n] = np.where(seen, np.abs(rows) @ np.abs(tile).T, 0).max(-1)
        first += n
    return scores, sums


def as_the_card_rounds(problem, tokens, lens):
    """float32 scores of FP8 keys by the model of wgmma in probes/rounding.py: four instructions of 32 products, each from what the last one left."""
    q, k = (e4m3_values(problem.array(n)) for n in "qk")
    scores, first = np.full(problem.array("scores").shape, -np.inf, np.float32), 0
    for b, (n, keys) in enumerate(zip(tokens, lens)):
        for block in range(-(-keys // PAGE)):
            tile = k[problem.array("table")[b, block], 0][None]
            seen = PAGE * block + np.arange(PAGE) <= (keys - n + np.arange(n))[:, None]
            for h in range(q.shape[1]):
                rows, sums = q[first : first + n, h][None], np.zeros((1, n, PAGE))
                for at in range(0, 128, 32):
                    sums = rounding.predict(
                        rounding.MODELS["e4m3"], rows[..., at : at + 32], tile[..., at : at + 32], sums
                    ).astype(np.float64)
                scores[h, block, first : first + n] = np.where(seen, sums[0], -np.inf).max(-1)
        first += n
    return scores
