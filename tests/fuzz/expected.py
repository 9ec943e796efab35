"""What a case must give, slot by slot, and how much of it is decided where metadata contradicts itself (docs/architecture.md, "Rules every kernel keeps").

    SURE    the slot holds the expected score
    MAYBE   it does, or the call has not written it: never another page's data
    FREE    only that nothing outside a buffer is touched, the call ends and the next one is right
"""
import dataclasses

import numpy as np

from support import check
from support.inputs import PAGE, sequences
from support.oracle import Oracle

FREE, MAYBE, SURE = 0, 1, 2
POISON = 0x7FC12345             # bits of a NaN that no kernel writes: what results hold before the call


@dataclasses.dataclass
class Expected:
    """truth: an oracle of the whole output. visible, listed [tiles, Tq]: the token sees the block; its sequence has such a block. claims [Tq]: how many sequences own a token; what lies before the first or past the last is owned by none, which counts as one."""
    truth: Oracle
    visible: np.ndarray
    listed: np.ndarray
    claims: np.ndarray
    tokens_rise: bool           # the clamped sums of queries and of pages never fall
    pages_rise: bool


def expect(pool, metadata):
    """The scores of `metadata` over a pool (values.py): a gather from its table."""
    inp = dataclasses.replace(pool.inp, cu_q=metadata.cu_q, cu_k=metadata.cu_k, cu_p=metadata.cu_p, kv_indices=metadata.kv_indices, qo_offset=metadata.qo_offset)
    Tq, Hq, _, P, _, tiles = inp.shape
    N = inp.kv_indices.size
    table = np.array(list(sequences(inp)), np.int64).reshape(-1, 6)
    table = np.concatenate([table, [[0, 0, 0, 0, 0, 0]]])          # the last row: of no sequence
    owner, claims = np.full(Tq, -1), np.zeros(Tq, np.int64)
    for b in np.nonzero(table[:, 1])[0]:
        mine = slice(table[b, 0], table[b, 0] + table[b, 1])
        owner[mine] = b
        claims[mine] += 1
    claims[:max(int(inp.cu_q[0]), 0)] += 1
    claims[min(max(int(inp.cu_q[-1]), 0), Tq):] += 1
    q0, _, k_len, p0, n, offset = table[owner].T
    last = np.minimum(k_len - 1, np.arange(Tq) - q0 + offset)
    kb = np.arange(tiles)[:, None]
    listed = (owner >= 0) & (kb < n)
    visible = listed & (last >= kb * PAGE)
    ids = inp.kv_indices[np.where(visible, p0 + kb, 0)].astype(np.int64) if N else np.zeros((tiles, Tq), np.int64)
    exists = (ids >= 0) & (ids < P)
    page, key = np.where(exists & visible, ids, 0), np.clip(last - kb * PAGE, 0, PAGE - 1)
    got = pool.scores[:, np.arange(Tq)[None], page, key]
    scores = np.where(visible, np.where(exists, got, np.nan), -np.inf)
    bound = np.zeros_like(scores) if pool.bound is None else np.where(visible, pool.bound[:, np.arange(Tq)[None], page, key], 0.0)
    cuts = [np.clip(x, 0, limit) for x, limit in ((inp.cu_q, Tq), (inp.cu_p, N))]
    return Expected(Oracle(scores, bound), visible, listed, claims, *((np.diff(x) >= 0).all() for x in cuts))


def decided(e, implementation):
    """int8 [tiles, Tq]: FREE, MAYBE or SURE.

    A token of two sequences has no score of its own. Which further slots are decided is up to how a kernel finds its work: decode from the list of
    pages, prefill from the tokens, and the staged prefill of sm_90a widens a page once for the sequence that owns it.
    """
    level = np.full(e.visible.shape, SURE, np.int8)
    if "decode" in implementation and not e.pages_rise:
        level[e.listed] = MAYBE
    if "prefill" in implementation and not e.tokens_rise:
        level[:] = FREE
    if implementation == "prefill_staged" and not e.pages_rise:
        level[e.visible] = FREE
    level[:, e.claims > 1] = FREE
    return level


def judge(out, pool, e, implementation):
    """(problem or "", slots compared, slots that were not written and need not be). `out`: float32 [Hq, tiles, Tq]."""
    level = decided(e, implementation)
    want = e.truth.scores
    if out.dtype != np.float32 or out.shape != want.shape:
        return f"got {out.dtype}{list(out.shape)}, expected float32{list(want.shape)}", 0, 0
    free = level == FREE
    unwritten = out.view(np.uint32) == POISON
    free = free[None] | ((level == MAYBE)[None] & unwritten)
    compared, untouched = int(free.size - free.sum()), int((unwritten & free).sum())
    stale = unwritten & ~free
    if stale.any():
        return f"{int(stale.sum())} of {out.size} slots were not written, first [hq, kb, tq] = {np.argwhere(stale)[0].tolist()}", compared, untouched
    if free.any():
        with np.errstate(over="ignore"):
            out = np.where(free, want.astype(np.float32), out)
    if pool.exact and np.array_equal(out, want, equal_nan=True):
        return "", compared, untouched
    return check.compare(out, e.truth, pool.exact).problem, compared, untouched
