"""The -inf of every slot that no block's arithmetic reaches: blocks past a sequence's pages, and tokens of no sequence."""
import cutlass.cute as cute
from cutlass import Int32, Int64

from .asm import stg32
from .fill import fill_bits


@cute.jit
def fill_invisible(seqs, falls, scores, heads_q, thread, threads):
    """Threads `thread` of `threads` of the whole grid together. scores: address of f32 [Hq, Ktiles, Tq]. falls: 1 to write NaN to every slot."""
    seqs, nothing = seqs.unless(falls), fill_bits(falls)
    count, k_tiles, tokens = seqs.count, seqs.k_tiles, seqs.tokens
    # Pairs (sequence, block), sequence fastest: neighbouring threads write neighbouring tokens
    if count > 0:
        b, kb = thread % count, thread // count
        while kb < k_tiles:
            _, _, blocks = seqs.pages(b)
            if (kb >= blocks) | (b == 0):
                first, q_len = seqs.queries(b)
                j = Int32(0)
                if b == 0:              # with the tokens before it: none where the sums start at 0
                    j = -first
                if kb < blocks:
                    q_len = Int32(0)
                while j < q_len:
                    at = scores + (Int64(kb) * Int64(tokens) + Int64(first + j)) * 4
                    h = Int32(0)
                    while h < heads_q:
                        stg32(at, nothing)
                        at = at + Int64(k_tiles) * Int64(tokens) * 4
                        h = h + 1
                    j = j + 1
            b = b + threads % count
            kb = kb + threads // count
            if b >= count:
                b = b - count
                kb = kb + 1
    # Padding tokens, token fastest; a row is (head, block)
    end = seqs.token_end()
    padding = tokens - end
    if padding > 0:
        t, row = thread % padding, thread // padding
        step_t, step_row = threads % padding, threads // padding
        rows = heads_q * k_tiles
        while row < rows:
            stg32(scores + (Int64(row) * Int64(tokens) + Int64(end + t)) * 4, nothing)
            t = t + step_t
            row = row + step_row
            if t >= padding:
                t = t - padding
                row = row + 1
