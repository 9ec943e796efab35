"""`validate_metadata`: silent on good metadata, names every fault of bad metadata."""
import numpy as np
import pytest

from jax_fp4_indexer import validate_metadata

i32 = lambda *x: np.array(x, np.int32)
GOOD = dict(cu_seqlens_q=i32(0, 2, 2, 5), cu_seqlens_k=i32(0, 300, 300, 301), cu_page_offsets=i32(0, 3, 3, 4), kv_indices=i32(7, 0, 3, 3, 99, -1), tokens=8, num_pages=8,
            max_seqlen_q=3, max_seqlen_k=300)


def test_good_metadata_passes_padding_and_unused_ids_included():
    assert validate_metadata(**GOOD) is None
    assert validate_metadata(**GOOD, qo_offset=i32(-1, 0, 2**31 - 1)) is None
    assert validate_metadata(i32(0), i32(0), i32(0), i32(), tokens=0, num_pages=0, max_seqlen_q=1, max_seqlen_k=0) is None


@pytest.mark.parametrize("change, parts", [
    (dict(cu_seqlens_q=i32(1, 2, 2, 5)), ["cu_seqlens_q[0] is 1, expected 0"]),
    (dict(cu_seqlens_q=i32(0, 3, 2, 5)), ["cu_seqlens_q falls at sequence 1 (3 to 2)"]),
    (dict(tokens=4), ["cu_seqlens_q[-1] is 5, expected at most the 4 rows of q_fp4"]),
    (dict(max_seqlen_q=2), ["q_len of sequence 2 is 3, expected at most max_seqlen_q = 2"]),
    (dict(max_seqlen_k=299), ["k_len of sequence 0 is 300, expected at most max_seqlen_k = 299"]),
    (dict(cu_page_offsets=i32(0, 2, 3, 4)), ["sequence 0 and 1 more has 2 pages for 300 keys, expected ceil(300 / 128) = 3"]),
    (dict(kv_indices=i32(7, 0, 3)), ["cu_page_offsets[-1] is 4, expected at most the 3 entries of kv_indices"]),
    (dict(kv_indices=i32(7, 8, 3, -2)), ["kv_indices holds 8 among the pages in use (2 ids outside), expected ids in [0, 8)"]),
    (dict(cu_seqlens_k=i32(0, 2**31 - 1, -2**31, 1)), ["cu_seqlens_k falls at sequence 1", "2147483647"]),
    (dict(kv_indices=np.arange(6)), ["kv_indices is int64[6], expected a vector of int32"]),
    (dict(cu_seqlens_k=i32(0, 300)), ["cu_seqlens_k has 2 entries, expected 4"]),
    (dict(qo_offset=i32(1, 2)), ["qo_offset has 2 entries, expected 3"]),
    (dict(tokens=4, num_pages=4), ["4 rows of q_fp4", "kv_indices holds 7"]),                 # both are told at once
])
def test_findings(change, parts):
    with pytest.raises(ValueError, match="validate_metadata: .*Rebuild the batch's metadata") as caught:
        validate_metadata(**{**GOOD, **change})
    for part in parts:
        assert part in str(caught.value)
