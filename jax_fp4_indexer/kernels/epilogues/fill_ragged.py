"""The -inf of every slot that no block's arithmetic reaches: blocks past a sequence's pages, and tokens of no
sequence.

Scores are [Hq, Ktiles, Tq]. A lane has a token of its own and a warp goes through the rows (head, block) that its
tokens need, so that a store fills a line; where a row is shorter than a line, a warp writes several rows at a time.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ..addressing.ragged import QUERIES
from ..device.ptx_math import clz, opaque, shl_by
from ..device.ptx_memory import stg32
from .fill_by_table import fill_bits


@cute.jit
def fill_invisible(seqs, falls, scores, heads_q, thread, threads, store: cutlass.Constexpr = stg32):
    """Threads `thread` of `threads` of the whole grid together, whole warps. scores: address of f32 [Hq, Ktiles, Tq].
    falls: 1 to write NaN to every slot. store: of a word (device/ptx_memory.py)."""
    seqs, nothing = seqs.unless(falls), fill_bits(falls)
    thread, tokens = opaque(thread), seqs.tokens
    warp, warps, lane = thread >> 5, threads >> 5, thread & 31
    side = cutlass.min(32 - clz(tokens - 1), 5)  # log2 of the tokens that a warp writes side by side
    groups = cutlass.max((tokens + 31) >> 5, 1)
    # Warps `group`, `group + groups`, ... share the rows of a group of tokens; those over are idle. More groups than
    # warps: one after the other.
    sharing, group, first = Int32(1), warp, Int32(0)
    if groups <= warps:
        sharing = warps // groups
        first = warp // groups
        group = warp - first * groups
        if first >= sharing:
            group = groups
    while group < groups:
        token = group * 32 + (lane & (shl_by(Int32(1), side) - 1))
        fill_tokens(
            seqs,
            nothing,
            scores,
            heads_q,
            token,
            shl_by(first, 5 - side) + (lane >> side),
            shl_by(sharing, 5 - side),
            store,
        )
        group = group + warps


@cute.jit
def fill_tokens(seqs, nothing, scores, heads_q, token, first, step, store: cutlass.Constexpr):
    """A warp, a token a lane: of every head the rows first, first + step, ... from the last block upwards that the
    lane's token does not have. Upwards from the end, all lanes are in the same row until they are done, whatever
    their sequences have, without asking one another (which cost the wide kernels 45 registers)."""
    k_tiles, tokens = seqs.k_tiles, seqs.tokens
    blocks = k_tiles  # nothing to write: a token that does not exist
    if token < tokens:
        blocks = blocks_of(seqs, token)
    head = Int32(0)
    while head < heads_q:
        block = k_tiles - 1 - first
        at = scores + ((Int64(head) * Int64(k_tiles) + Int64(block)) * Int64(tokens) + Int64(token)) * 4
        while block >= blocks:
            store(at, nothing)
            at = at - Int64(step) * Int64(tokens) * 4
            block = block - step
        head = head + 1


@cute.jit
def blocks_of(seqs, token):
    """Blocks that exist for a token: those of its sequence, 0 for a token of none."""
    low, high = Int32(0), seqs.count
    while high - low > 1:
        middle = (low + high) >> 1
        if seqs.entry(QUERIES, middle) <= token:
            low = middle
        else:
            high = middle
    blocks = Int32(0)
    if seqs.count > 0:
        first, q_len = seqs.queries(low)
        if (token >= first) & (token - first < q_len):
            _, _, blocks = seqs.pages(low)
    return blocks
