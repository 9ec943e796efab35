"""The schedule of a prefill: which query rows meet which key pages, in one numbering of steps (docs/architecture.md, "The
plan of a prefill"; a partition is worked through in kernels/README.md).

An *item* is `rows_per_item` query rows (head, token) of one KV head of one sequence; a *step* is one key page against
one item. An entry of the table describes a pair of token tiles; its units, (KV head, head group), are items of the
first tile, then of the second.

    words of an entry
    0-1     first_step, int64: steps before this entry
    2, 3    token_a, token_b: first token of either tile
    4       token_end: one past the sequence's last token
    5       page: first page of either tile in this pass
    6, 7    pages_a, pages_b
    8       position in the page list of the sequence's page 0
    9       k_len
    10, 11  key_a, key_b: token token_a + j sees the keys up to min(k_len - 1 - j, key_a) + j, which never overflows
    12      log2(tile width)
    13      head groups
    14      sequence
    15      zero

    header, by byte
    0       total steps, int64
    12      number of entries; each has at least one step
    32      1 where a prefix sum of queries or pages decreases. There are no steps then, and the fill writes NaN to
            every slot

`write_table` is the work of one CTA, `write_token_pages` of every warp of the launch. Both only need the metadata;
nothing they write depends on what scratch held before. Prefix sums that do not decrease give no more entries than
there is room for: ceil(q_len / 16) a sequence at most.
"""

import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from ...configs.block_scores import PAGE, Scratch
from ..addressing.ragged import range_length, range_start
from ..device.integers import clamp_from_below, saturate_from_below
from ..device.ptx_math import clz
from ..device.ptx_memory import ldg32, lds32, lds_s64, stg32, stg64, stg_v4, sts32, sts64
from ..device.ptx_warp import redux, scan_add_s64

NO_LIMIT = 2**31 - 1  # the causal offset that hides nothing
MIN_TILE_LOG2 = 3
FALL = 1 << 48  # a fall, in a sum that counts pairs of tiles below it


def scratch_layout(args):
    """Byte offsets of the scratch buffer, as Int64."""
    return Scratch.layout(Int64(args.num_seqs), Int64(args.tokens), Int64(args.heads_kv), Int64(args.pages_per_pass))


def schedule_shared_bytes(threads):
    """Shared memory of `write_table`."""
    return threads * 4 + (threads // 32) * 8


# ---------------------------------------------------------------- one sequence
@dataclasses.dataclass(frozen=True)
class Sequence:
    """A sequence, clamped to what exists: q_len tokens from `token` on, k_len keys, `pages` pages from position
    `first` of the page list on. Token i sees the keys up to i + offset."""

    token: Int32
    q_len: Int32
    k_len: Int32
    first: Int32
    pages: Int32
    offset: Int64


@cute.jit
def sequence(args, b: Int32):
    """Sequence b. Its offset is NO_LIMIT without a mask."""
    at = Int64(b) * 4
    cu_q, cu_k, cu_p = args.cu_seqlens_q.toint() + at, args.cu_seqlens_k.toint() + at, args.cu_page_offsets.toint() + at
    q0 = range_start(ldg32(cu_q), args.tokens, clamp_from_below)
    q_len = range_length(q0, ldg32(cu_q, 4), args.tokens, clamp_from_below)
    k_len = Int32(clamp_from_below(Int64(ldg32(cu_k, 4)) - Int64(ldg32(cu_k)), Int64(0), Int64(NO_LIMIT)))
    p0 = range_start(ldg32(cu_p), args.num_indices, clamp_from_below)
    listed = range_length(p0, ldg32(cu_p, 4), args.num_indices, clamp_from_below)
    n = cutlass.min(cutlass.min(listed, Int32((Int64(k_len) + (PAGE - 1)) >> 7)), args.k_tiles)
    offset = Int64(NO_LIMIT)
    if args.mask == 1:
        offset = Int64(k_len) - Int64(q_len)
    if args.mask == 2:
        offset = Int64(ldg32(args.qo_offset.toint() + at))
    return Sequence(q0, q_len, k_len, p0, n, offset)


def falls_at(args, b: Int32):
    """Whether the sum of queries or of pages decreases from sequence b to the next."""
    at = Int64(b) * 4
    cu_q, cu_p = args.cu_seqlens_q.toint() + at, args.cu_page_offsets.toint() + at
    return (ldg32(cu_q, 4) < ldg32(cu_q)) | (ldg32(cu_p, 4) < ldg32(cu_p))


@cute.jit
def find_all(starts: Int64, count: Int32, values):
    """For each of `values`: the last of `count` > 0 ascending int32 at address `starts` that is <= it; 0 where there
    is none. The searches run side by side, with the same number of loads in every lane."""
    n = len(values)
    low, high = [Int32(0)] * n, [count] * n
    for _ in cutlass.range(32 - clz(count - 1), unroll=1):
        middle = [(low[i] + high[i]) // 2 for i in range(n)]
        found = [ldg32(starts + Int64(m) * 4) for m in middle]
        for i in cutlass.range_constexpr(n):
            if found[i] <= values[i]:
                low[i] = middle[i]
            else:
                high[i] = middle[i]
    return low


def find(starts, count, value):
    """find_all of one value."""
    return find_all(starts, count, [value])[0]


@cute.jit
def tile_log2(args, q_len: Int32, rows_log2: cutlass.Constexpr):
    """log2 of the tile width TW of a sequence: of the widths up to the one that holds all its queries (where R = 1;
    else half the rows of an item at most) the one with the fewest items, tiles * head groups; of those the widest:
    items of the same pages then follow one another, and find them in L2."""
    cap = rows_log2 - cutlass.min(args.heads_q // args.heads_kv - 1, 1)
    cap = clamp_from_below(32 - clz(q_len - 1), MIN_TILE_LOG2, cap)
    best, least = Int32(MIN_TILE_LOG2), Int32(NO_LIMIT)
    for log2 in cutlass.range_constexpr(MIN_TILE_LOG2, rows_log2 + 1):
        items = ((q_len + ((1 << log2) - 1)) >> log2) * head_groups(args, log2, rows_log2)
        if (items <= least) & (log2 <= cap):
            best, least = Int32(log2), items
    return best


def tile_pages(tile, log2, offset, n):
    """v(t): pages that some token of the tile may see."""
    last = (Int64(tile) << Int64(log2)) + (Int64(1) << Int64(log2)) - 1 + offset
    return Int32(clamp_from_below((last >> 7) + 1, Int64(0), Int64(n)))


def head_groups(args, log2, rows_log2):
    """Items that the query heads of one KV head need: ceil(R / HB)."""
    ratio = args.heads_q // args.heads_kv
    shift = rows_log2 - log2
    return (ratio + (Int32(1) << Int32(shift)) - 1) >> Int32(shift)


# ---------------------------------------------------------------- the table
@cute.jit
def block_scan(x: Int64, tid: Int32, smem: Int32, threads: cutlass.Constexpr):
    """(sum of x over the threads below, sum over all). smem: 8 bytes a warp. Every thread of the CTA takes part."""
    warps = threads // 32
    inclusive = scan_add_s64(x, tid % 32)
    if tid % 32 == 31:
        sts64(smem + tid // 32 * 8, 0, inclusive)
    cute.arch.sync_threads()
    below, total = inclusive - x, Int64(0)
    for w in cutlass.range_constexpr(warps):
        part = lds_s64(smem, w * 8)
        total = total + part
        if w < tid // 32:
            below = below + part
    cute.arch.sync_threads()
    return below, total


@cute.jit
def search_shared(prefix: Int32, count: cutlass.Constexpr, x: Int32):
    """The last of `count` ascending int32 in shared memory (a power of two of them, the first is 0) that is <= x."""
    low = Int32(0)
    for i in cutlass.range_constexpr(count.bit_length() - 1):
        mid = low + (count >> (i + 1))
        if lds32(prefix + mid * 4) <= x:
            low = mid
    return low


@cute.jit
def write_table(args, layout, tid: Int32, smem: Int32, rows_log2: cutlass.Constexpr, threads: cutlass.Constexpr):
    """All threads of one CTA write header and entries. smem: shared address of schedule_shared_bytes(threads);
    threads: a power of two."""
    scratch = args.scratch.toint()
    prefix, sums = smem, smem + threads * 4
    steps_done, entries = Int64(0), Int64(0)
    chunk, falls = Int32(0), Int32(0)
    while chunk < args.num_seqs:
        # pairs of tiles of `threads` sequences at a time, numbered through
        pairs = Int64(0)
        if chunk + tid < args.num_seqs:
            s = sequence(args, chunk + tid)
            log2 = tile_log2(args, s.q_len, rows_log2)
            pairs = Int64((((s.q_len + (Int32(1) << log2) - 1) >> log2) + 1) >> 1)
            if falls_at(args, chunk + tid):
                pairs = Int64(FALL)
        below, total = block_scan(pairs, tid, sums, threads)
        all_pairs = Int32(total)
        if total >= Int64(FALL):  # the entries of earlier chunks stay unread
            falls, all_pairs = Int32(1), Int32(0)
            steps_done, entries, chunk = Int64(0), Int64(0), args.num_seqs - threads
        sts32(prefix + tid * 4, 0, Int32(below))
        cute.arch.sync_threads()
        first = Int32(0)
        while first < all_pairs:
            steps, words = pair_entry(args, chunk, first + tid, all_pairs, prefix, rows_log2, threads)
            some = Int64(cutlass.min(steps, Int64(1)))
            slot, found = block_scan(some, tid, sums, threads)
            before, more = block_scan(steps, tid, sums, threads)
            if steps > Int64(0):
                at = scratch + layout.entries + (entries + slot) * Scratch.ENTRY_BYTES
                stg64(at, steps_done + before)
                stg32(at + 8, words[0])
                stg32(at + 12, words[1])
                for i in cutlass.range_constexpr(3):
                    stg_v4(at + 16 * (i + 1), words[2 + 4 * i : 6 + 4 * i])
            steps_done = steps_done + more
            entries = entries + found
            first = first + threads
        cute.arch.sync_threads()  # before `prefix` is written again
        chunk = chunk + threads
    if tid == 0:
        stg64(scratch, steps_done)
        stg32(scratch + 12, Int32(entries))
        stg32(scratch + Scratch.FALLS, falls)


@cute.jit
def pair_entry(
    args,
    chunk: Int32,
    index: Int32,
    count: Int32,
    prefix: Int32,
    rows_log2: cutlass.Constexpr,
    threads: cutlass.Constexpr,
):
    """(steps in this pass, the 14 words after first_step) of pair `index` of the sequences chunk .. chunk + threads -
    1; no steps past `count`."""
    z = Int32(0)
    token_a, token_b, token_end, page, pages_a, pages_b, first_flat, keys, key_a, key_b, log2, groups, b = (
        z,
        z,
        z,
        z,
        z,
        z,
        z,
        z,
        z,
        z,
        z,
        z,
        z,
    )
    steps = Int64(0)
    if index < count:
        found = search_shared(prefix, threads, index)
        b = chunk + found
        pair = index - lds32(prefix + found * 4)
        s = sequence(args, b)
        q0, q_len, k_len, p0, n, offset = s.token, s.q_len, s.k_len, s.first, s.pages, s.offset
        log2 = tile_log2(args, q_len, rows_log2)
        tiles = (q_len + (Int32(1) << log2) - 1) >> log2
        groups = head_groups(args, log2, rows_log2)
        tile_a, tile_b = tiles - 1 - pair, pair
        token_a, token_b, token_end = q0 + (tile_a << log2), q0 + (tile_b << log2), q0 + q_len
        # the pages of this pass; a later tile sees at least what an earlier one sees
        skip = Int64(args.first_page) - Int64(p0)
        low = cutlass.max(skip, Int64(0))
        high_a = cutlass.min(Int64(tile_pages(tile_a, log2, offset, n)), skip + Int64(args.pages_per_pass))
        high_b = cutlass.min(Int64(tile_pages(tile_b, log2, offset, n)), skip + Int64(args.pages_per_pass))
        pages_a = Int32(cutlass.max(high_a - low, Int64(0)))
        if tile_a != tile_b:  # the middle tile of an odd number stands alone
            pages_b = Int32(cutlass.max(high_b - low, Int64(0)))
        page = Int32(cutlass.min(low, Int64(NO_LIMIT)))
        first_flat, keys = p0, k_len
        key_a = saturate_from_below((Int64(tile_a) << Int64(log2)) + offset)
        key_b = saturate_from_below((Int64(tile_b) << Int64(log2)) + offset)
        steps = Int64(args.heads_kv * groups) * (Int64(pages_a) + Int64(pages_b))
    return steps, [
        token_a,
        token_b,
        token_end,
        page,
        pages_a,
        pages_b,
        first_flat,
        keys,
        key_a,
        key_b,
        log2,
        groups,
        b,
        z,
    ]


# ---------------------------------------------------------------- what the fill needs
@cute.jit
def write_token_pages(args, layout, warp: Int32, warps: Int32, lane: Int32, rows_log2: cutlass.Constexpr):
    """token_pages[t] = pages of the token's tile (0 for a token of no sequence), and its minimum and maximum over
    chunks of 128 tokens. `warps` warps of the whole launch share the chunks."""
    scratch = args.scratch.toint()
    chunks = (args.tokens + 127) // 128
    c = warp
    while c < chunks:
        least, most = Int32(NO_LIMIT), Int32(0)
        tokens = [c * 128 + i * 32 + lane for i in range(4)]
        pages = pages_of_tokens(args, [cutlass.min(t, args.tokens - 1) for t in tokens], rows_log2)
        for i in cutlass.range_constexpr(4):
            if tokens[i] < args.tokens:
                stg32(scratch + layout.token_pages + Int64(tokens[i]) * 4, pages[i])
                least, most = cutlass.min(least, pages[i]), cutlass.max(most, pages[i])
        least, most = redux("min", least), redux("max", most)
        if lane == 0:
            stg32(scratch + layout.chunk_min + Int64(c) * 4, least)
            stg32(scratch + layout.chunk_max + Int64(c) * 4, most)
        c = c + warps


@cute.jit
def pages_of_tokens(args, tokens, rows_log2: cutlass.Constexpr):
    """For each token: v of the tile that it lies in; 0 for a token of no sequence."""
    pages = [Int32(0)] * len(tokens)
    if args.num_seqs > 0:
        found = find_all(args.cu_seqlens_q.toint(), args.num_seqs, tokens)
        for i in cutlass.range_constexpr(len(tokens)):
            s = sequence(args, found[i])
            if (tokens[i] >= s.token) & (tokens[i] < s.token + s.q_len):
                log2 = tile_log2(args, s.q_len, rows_log2)
                pages[i] = tile_pages((tokens[i] - s.token) >> log2, log2, s.offset, s.pages)
    return pages
