"""What a call of the sm_90a kernels consists of, counted from its shapes: units of a decode, items and steps of a prefill (docs/architecture.md, "The plan of a prefill")."""

import dataclasses
import math

from jax_fp4_indexer.configs.block_scores import choose_path, pages_per_pass

ROWS_LOG2 = 8  # query rows of an item
MIN_LOG2 = 3


def ratio(case):
    return case.heads_q // case.heads_kv


def path(case):
    return choose_path(max(case.q_lens), ratio(case))


def columns(case):
    """Packed query rows of a KV head, by which the handler takes a variant."""
    return max(case.q_lens) * ratio(case)


def items_of(q_len, heads, log2):
    """Items of a KV head of a sequence, with tiles of 2^log2 tokens."""
    return math.ceil(q_len / 2**log2) * math.ceil(heads / 2 ** (ROWS_LOG2 - log2))


def tile_log2(q_len, heads):
    """log2 of the width of a sequence's tiles, for `heads` query heads a KV head: the fewest items, of those the widest."""
    most = max(MIN_LOG2, min((q_len - 1).bit_length(), ROWS_LOG2 - (heads > 1)))
    return min(range(MIN_LOG2, most + 1), key=lambda log2: (items_of(q_len, heads, log2), -log2))


@dataclasses.dataclass(frozen=True)
class Plan:
    """items, steps (a page against an item) of a whole call; masked: steps in which some row does not see the whole page; entries of the table."""

    items: int
    steps: int
    masked: int
    entries: int


def plan(case):
    items = steps = masked = entries = 0
    for q, k in zip(case.q_lens, case.k_lens):
        log2 = tile_log2(q, ratio(case))
        tiles, pages, offset = math.ceil(q / 2**log2), math.ceil(k / 128), k - q if case.causal else k
        units = case.heads_kv * math.ceil(ratio(case) / 2 ** (ROWS_LOG2 - log2))
        entries += (tiles + 1) // 2
        for t in range(tiles):
            last = min(t * 2**log2 + 2**log2 - 1 + offset, k - 1)
            seen = min(pages, max(0, (last >> 7) + 1))
            whole = min(seen, max(0, min(t * 2**log2 + offset, k - 1) + 1 >> 7))
            items, steps, masked = items + units, steps + units * seen, masked + units * (seen - whole)
    return Plan(items, steps, masked, entries)


def passes(case, fmt):
    """(passes of a staged prefill, pages of one)"""
    pages = pages_per_pass(fmt, len(case.q_lens), case.tokens, case.heads_kv, case.pages)
    return math.ceil(case.pages / pages), pages


def fill_sectors(case):
    """32-byte sectors of -inf that a decode writes, row by row (head, block) along the tokens: eight tokens share one, and it is written where one of them needs it."""
    blocks = [math.ceil(k / 128) for q, k in zip(case.q_lens, case.k_lens) for _ in range(q)]
    return case.heads_q * sum(case.k_tiles - min(blocks[i : i + 8]) for i in range(0, len(blocks), 8))
