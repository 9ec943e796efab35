"""What a case must give, slot by slot: whatever metadata says, every slot is decided (docs/architecture.md,
"Rules of every block-score kernel").

Prefix sums of queries and of pages that fall somewhere give NaN everywhere. Those that do not, clamped, do not fall either: no token has two sequences.
"""

import dataclasses

import numpy as np

from support import check
from support.inputs import PAGE, falls, sequences
from support.oracle import Oracle

POISON = 0x7FC12345  # bits of a NaN that no kernel writes: what results hold before the call


@dataclasses.dataclass
class Expected:
    """truth: an oracle of the whole output. visible [tiles, Tq]: the token sees the block (nowhere where a sum falls)."""

    truth: Oracle
    visible: np.ndarray
    falls: bool  # the sum of queries or of pages does


def expect(pool, metadata):
    """The scores of `metadata` over a pool (values.py): a gather from its table."""
    inp = dataclasses.replace(
        pool.inp,
        cu_q=metadata.cu_q,
        cu_k=metadata.cu_k,
        cu_p=metadata.cu_p,
        kv_indices=metadata.kv_indices,
        qo_offset=metadata.qo_offset,
    )
    Tq, Hq, _, P, _, tiles = inp.shape
    if falls(inp):
        bound = np.zeros((Hq, tiles, Tq))
        return Expected(Oracle(np.full_like(bound, np.nan), bound), np.zeros((tiles, Tq), bool), True)
    N = inp.kv_indices.size
    table = np.array(list(sequences(inp)), np.int64).reshape(-1, 6)
    table = np.concatenate([table, [[0, 0, 0, 0, 0, 0]]])  # the last row: of no sequence
    owner = np.full(Tq, -1)
    for b in np.nonzero(table[:, 1])[0]:
        owner[table[b, 0] : table[b, 0] + table[b, 1]] = b
    q0, _, k_len, p0, n, offset = table[owner].T
    last = np.minimum(k_len - 1, np.arange(Tq) - q0 + offset)
    kb = np.arange(tiles)[:, None]
    visible = (owner >= 0) & (kb < n) & (last >= kb * PAGE)
    ids = inp.kv_indices[np.where(visible, p0 + kb, 0)].astype(np.int64) if N else np.zeros((tiles, Tq), np.int64)
    exists = (ids >= 0) & (ids < P)
    page, key = np.where(exists & visible, ids, 0), np.clip(last - kb * PAGE, 0, PAGE - 1)
    got = pool.scores[:, np.arange(Tq)[None], page, key]
    scores = np.where(visible, np.where(exists, got, np.nan), -np.inf)
    bound = (
        np.zeros_like(scores)
        if pool.bound is None
        else np.where(visible, pool.bound[:, np.arange(Tq)[None], page, key], 0.0)
    )
    return Expected(Oracle(scores, bound), visible, False)


def judge(out, pool, e):
    """What is wrong with `out`, float32 [Hq, tiles, Tq]; "" if nothing is."""
    want = e.truth.scores
    if out.dtype != np.float32 or out.shape != want.shape:
        return f"got {out.dtype}{list(out.shape)}, expected float32{list(want.shape)}"
    stale = out.view(np.uint32) == POISON
    if stale.any():
        return f"{int(stale.sum())} of {out.size} slots were not written, first [hq, kb, tq] = {np.argwhere(stale)[0].tolist()}"
    if pool.exact and np.array_equal(out, want, equal_nan=True):
        return ""
    return check.compare(out, e.truth, pool.exact).problem
