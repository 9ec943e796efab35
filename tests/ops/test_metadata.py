"""`ragged.validate` and `ragged.check`: silent on good metadata, name every fault of bad metadata, on the host and inside jit alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from jax_fp4_indexer import fp4_indexer_block_scores, fp4_indexer_reorder_scales_for_mma, ragged

i32 = lambda *x: np.array(x, np.int32)
GOOD = dict(
    cu_seqlens_q=i32(0, 2, 2, 5),
    cu_seqlens_k=i32(0, 300, 300, 301),
    cu_page_offsets=i32(0, 3, 3, 4),
    kv_indices=i32(7, 0, 3, 3, 99, -1),
    tokens=8,
    num_pages=8,
    max_seqlen_q=3,
    max_seqlen_k=300,
)
EMPTY = dict(
    cu_seqlens_q=i32(0),
    cu_seqlens_k=i32(0),
    cu_page_offsets=i32(0),
    kv_indices=i32(),
    tokens=0,
    num_pages=0,
    max_seqlen_q=1,
    max_seqlen_k=0,
)


def checked(**changes):
    """The message of `ragged.check` inside jit under checkify, or None."""
    given = {**GOOD, **changes}
    traced = {name: x for name, x in given.items() if hasattr(x, "shape")}
    static = {name: x for name, x in given.items() if name not in traced}
    error, _ = checkify.checkify(jax.jit(lambda arrays: ragged.check(**arrays, **static)))(traced)
    return error.get()


def test_good_metadata_passes_padding_and_unused_ids_included():
    assert ragged.validate(**GOOD) is None and checked() is None
    assert (
        ragged.validate(**GOOD, qo_offset=i32(-1, 0, 2**31 - 1)) is None
        and checked(qo_offset=i32(-1, 0, 2**31 - 1)) is None
    )
    assert ragged.validate(**EMPTY) is None and checked(**EMPTY) is None
    longest = dict(
        EMPTY, cu_seqlens_q=i32(0, 0), cu_seqlens_k=i32(0, 2**31 - 1), cu_page_offsets=i32(0, 0), max_seqlen_k=2**31 - 1
    )
    for found in (checked(**longest), str(pytest.raises(ValueError, ragged.validate, **longest).value)):
        assert (
            "pages of sequence 0: got 0 for 2147483647 keys, expected at least ceil(2147483647 / 128) = 16777216"
            in found
        )


def test_page_tables_of_a_fixed_stride_pass():
    """Entries past the pages that a sequence's keys need are not in use, whatever they hold."""
    stride = dict(cu_page_offsets=i32(0, 4, 8, 12), kv_indices=i32(7, 0, 3, -1, *[GOOD["num_pages"]] * 4, *range(1, 5)))
    stride["kv_indices"][4:8][: -(-int(GOOD["cu_seqlens_k"][2] - GOOD["cu_seqlens_k"][1]) // 128)] = 5
    assert ragged.validate(**{**GOOD, **stride}) is None and checked(**stride) is None
    stride["kv_indices"][2] = -1
    assert "kv_indices[2]: got -1" in checked(**stride)


@pytest.mark.parametrize(
    "change, parts",
    [
        (dict(cu_seqlens_q=i32(1, 2, 2, 5)), ["cu_seqlens_q[0]: got 1, expected 0"]),
        (
            dict(cu_seqlens_q=i32(4), cu_seqlens_k=i32(300), cu_page_offsets=i32(3)),
            [
                "cu_seqlens_q[0]: got 4, expected 0: one entry is a batch of no sequence, one sequence of length 4 is [0, 4]"
            ],
        ),
        (
            dict(cu_seqlens_q=i32(0, 3, 2, 5)),
            ["cu_seqlens_q of sequence 1: got 3 to 2, expected a non-decreasing prefix sum (1 such"],
        ),
        (dict(tokens=4), ["cu_seqlens_q[-1]: got 5, expected at most the 4 rows of q_fp4"]),
        (dict(max_seqlen_q=2), ["q_len of sequence 2: got 3, expected at most max_seqlen_q = 2"]),
        (dict(max_seqlen_k=299), ["k_len of sequence 0: got 300, expected at most max_seqlen_k = 299"]),
        (
            dict(cu_page_offsets=i32(0, 2, 3, 4)),
            ["pages of sequence 0: got 2 for 300 keys, expected at least ceil(300 / 128) = 3 (1 such sequences)"],
        ),
        (dict(kv_indices=i32(7, 0, 3)), ["cu_page_offsets[-1]: got 4, expected at most the 3 entries of kv_indices"]),
        (dict(kv_indices=i32(7, 8, 3, -2)), ["kv_indices[1]: got 8, expected an id in [0, 8) (2 such ids in use)"]),
        (
            dict(cu_seqlens_k=i32(0, 2**31 - 1, -(2**31), 1)),
            ["cu_seqlens_k of sequence 1: got 2147483647 to -2147483648"],
        ),
    ],
)
def test_findings_on_the_host_and_inside_jit(change, parts):
    with pytest.raises(ValueError, match="^ragged.validate: .*Rebuild the batch's metadata") as caught:
        ragged.validate(**{**GOOD, **change})
    inside = checked(**change)
    assert inside is not None and inside.startswith("ragged.check: ")
    for part in parts:
        assert part in str(caught.value), str(caught.value)
        assert part in inside, inside


def test_the_host_tells_everything_at_once():
    with pytest.raises(ValueError, match=r"4 rows of q_fp4.*kv_indices\[0\]: got 7"):
        ragged.validate(**{**GOOD, "tokens": 4, "num_pages": 4})


@pytest.mark.parametrize(
    "change, error, part",
    [
        (dict(kv_indices=np.arange(6)), TypeError, "kv_indices: got int64[6]"),
        (dict(cu_seqlens_k=i32(0, 300)), ValueError, "cu_seqlens_k: got 2 entries, expected 4"),
        (dict(qo_offset=i32(1, 2)), ValueError, "qo_offset: got 2 entries, expected 3"),
        (dict(cu_seqlens_q=i32()), ValueError, "cu_seqlens_q: got 0 entries, expected B + 1 >= 1"),
        (dict(kv_indices=i32(1)[None]), ValueError, "kv_indices: got int32[1, 1]"),
    ],
)
def test_dtypes_and_shapes(change, error, part):
    with pytest.raises(ValueError) as caught:  # on the host all is a finding
        ragged.validate(**{**GOOD, **change})
    assert part in str(caught.value)
    with pytest.raises(error) as caught:
        ragged.check(**{**GOOD, **change})
    assert part in str(caught.value)


@pytest.mark.parametrize("name", ["tokens", "num_pages", "max_seqlen_q", "max_seqlen_k"])
@pytest.mark.parametrize("function", [ragged.validate, ragged.check])
def test_sizes_must_be_known(function, name):
    with pytest.raises(TypeError, match=f"{function.__name__}: {name}: got str 'x', expected a Python int"):
        function(**{**GOOD, name: "x"})


# NVFP4 scales: a sign bit where it counts.

HEADS_Q, HEADS_KV = 3, 2


def unsigned_scales():
    return np.full((8, HEADS_Q, 8), 0x38, np.uint8), np.full((8, HEADS_KV, 128, 8), 0x38, np.uint8)


@pytest.mark.parametrize("layout", ["public", "preordered_mma"])
@pytest.mark.parametrize(
    "which, at, part",
    [
        ("q", (4, 2, 7), "q_scale of token 4"),
        ("q", (5, 0, 0), None),  # token 5 is padding
        ("k", (7, 1, 0, 3), "k_scale of page 7"),
        ("k", (0, 0, 127, 0), "k_scale of page 0"),
        ("k", (3, 1, 43, 7), "k_scale of page 3"),
        ("k", (3, 0, 44, 0), None),  # 300 = 2 * 128 + 44 keys; 1 key in its other use
        ("k", (1, 0, 0, 0), None),
    ],
)  # no page of the batch
def test_signs_of_scales_that_count(layout, which, at, part):
    q, k = unsigned_scales()
    (q if which == "q" else k)[at] |= 0x80
    if layout == "preordered_mma":
        q, k = map(np.asarray, fp4_indexer_reorder_scales_for_mma(q, k))
    given = dict(q_scale=q, k_scale=k, scale_layout=layout)
    inside = checked(**given)
    if part is None:
        assert inside is None and ragged.validate(**GOOD, **given) is None
        return
    assert part in inside and "sign bit" in inside
    with pytest.raises(ValueError, match=part):
        ragged.validate(**GOOD, **given)
    with pytest.raises(ValueError, match=part):
        ragged.validate(
            **GOOD,
            **{
                **given,
                "q_scale": jnp.asarray(q).view(jnp.float8_e4m3fn),
                "k_scale": jnp.asarray(k).view(jnp.float8_e4m3fn),
            },
        )
    assert checked(q_scale=q, k_scale=k, fp4_format="mxfp4") is None  # E8M0 has no sign: 0x80 is 2


def test_scales_of_wrong_shape_or_type():
    q, k = unsigned_scales()
    with pytest.raises(ValueError, match=r"ragged.validate: k_scale: got uint8\[7, 2, 128, 8\]"):
        ragged.validate(**GOOD, q_scale=q, k_scale=k[:7])
    with pytest.raises(TypeError, match="ragged.check: q_scale: got float32"):
        ragged.check(**GOOD, q_scale=q.astype(np.float32))


def test_beside_the_op_in_one_program():
    """As the docstring says: one checkified step, whose error is looked at when it suits."""
    q, k = unsigned_scales()
    codes = np.full((8, HEADS_Q * 2, 64), 0x22, np.uint8), np.full((8, HEADS_KV, 128, 64), 0x22, np.uint8)

    @jax.jit
    def step(kv_indices):
        given = {**GOOD, "kv_indices": kv_indices}
        ragged.check(**given)
        return fp4_indexer_block_scores(
            *codes,
            np.concatenate([q, q], 1),
            k,
            **{name: x for name, x in given.items() if name not in ("tokens", "num_pages")},
        )

    run = checkify.checkify(step)
    error, scores = run(GOOD["kv_indices"])
    error.throw()
    assert scores[0, 0, 0] == 128
    error, scores = run(i32(7, 0, 3, 8, 0, 0))
    assert np.isnan(scores[0, 0, 4]) and scores[0, 0, 0] == 128
    with pytest.raises(
        checkify.JaxRuntimeError, match=r"ragged.check: kv_indices\[3\]: got 8, expected an id in \[0, 8\)"
    ):
        error.throw()
    with pytest.raises(checkify.JaxRuntimeError, match="got 8"):  # eagerly it raises at once
        ragged.check(**{**GOOD, "kv_indices": i32(7, 0, 3, 8)})
