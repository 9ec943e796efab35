"""What only the data of a ragged batch shows: `validate` on the host, `check` inside jit under `checkify`. Both make
the same checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from ..calls import must
from ..calls.fp4 import scale_bytes
from ..configs.block_scores import GROUPS, PAGE
from ..errors import describe, message
from ..formats import scale_layout as layouts
from ..formats import scales

SIGN = ~np.uint8(scales.UE4M3_MASK)
Check = tuple[Any, str, dict[str, Any]]  # whether it holds, text for when it does not, values of the text
REMEDY = "Rebuild the batch's metadata from its lengths and page lists."


def validate(
    cu_seqlens_q: must.Array,
    cu_seqlens_k: must.Array,
    cu_page_offsets: must.Array,
    kv_indices: must.Array,
    *,
    tokens: int,
    num_pages: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    qo_offset: must.Array | None = None,
    q_scale: must.Array | None = None,
    k_scale: must.Array | None = None,
    fp4_format: str = "nvfp4",
    scale_layout: str = "public",
) -> None:
    """Checks the metadata of a block-score call by value; raises one ValueError that lists everything found.

    Copies the arrays to the host (it waits for the device), so it belongs in tests, loaders and debugging, not in a
    serving loop; inside jit use `ragged.check`. The op itself never reads metadata on the host and keeps within its
    buffers whatever the metadata says.

    Args:
      cu_seqlens_q, cu_seqlens_k, cu_page_offsets: [B+1] int32; kv_indices: [N] int32; qo_offset: [B] int32 or None. As
        for `fp4_indexer_block_scores`.
      tokens: rows of q_fp4 (Tq). Padding rows past cu_seqlens_q[-1] are allowed.
      num_pages: pages of the pool k_fp4.
      max_seqlen_q, max_seqlen_k: as passed to the op.
      q_scale, k_scale, fp4_format, scale_layout: as passed to the op, or left out. Given NVFP4 scales are checked for
        sign bits, which the op ignores where other software may not.

    Raises:
      ValueError: any finding: dtypes and shapes, prefix sums that do not start at 0 or that decrease, tokens past
        q_fp4, lengths above the maxima, fewer pages than ceil(k_len / 128), pages past kv_indices, page ids in use
        outside [0, num_pages), NVFP4 scales with a sign bit. Padding is not checked: entries of
        kv_indices and pages not in use, keys past the end of a sequence, padding tokens.
      TypeError: tokens, num_pages or a maximum is no Python int; an argument is no array, or traced.
    """
    op = "ragged.validate"
    sizes = _sizes(op, tokens, num_pages, max_seqlen_q, max_seqlen_k)
    arrays = {
        name: _host(op, name, x, "a vector of int32")
        for name, x in (
            ("cu_seqlens_q", cu_seqlens_q),
            ("cu_seqlens_k", cu_seqlens_k),
            ("cu_page_offsets", cu_page_offsets),
            ("kv_indices", kv_indices),
            ("qo_offset", qo_offset),
        )
        if x is not None or name != "qo_offset"
    }
    found = [
        f"{name}: got {describe(x)}, expected a vector of int32"
        for name, x in arrays.items()
        if x.dtype != np.int32 or x.ndim != 1
    ]
    found = found or _lengths_of_vectors(arrays)
    if not found:
        checks = _checks(np, {name: x.astype(np.int64) for name, x in arrays.items()}, *sizes)
        checks += _sign_checks(
            np, arrays, *_nvfp4_scales(np, op, q_scale, k_scale, fp4_format, scale_layout, *sizes[:2])
        )
        found = [text.format(**values) for right, text, values in checks if not right]
    if found:
        raise ValueError(f"{op}: " + "; ".join(found) + f". {REMEDY}")


def check(
    cu_seqlens_q: must.Array,
    cu_seqlens_k: must.Array,
    cu_page_offsets: must.Array,
    kv_indices: must.Array,
    *,
    tokens: int,
    num_pages: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    qo_offset: must.Array | None = None,
    q_scale: must.Array | None = None,
    k_scale: must.Array | None = None,
    fp4_format: str = "nvfp4",
    scale_layout: str = "public",
) -> None:
    """The checks of `ragged.validate` as `jax.experimental.checkify` checks: they run on the device, inside jit, and
    wait for nothing.

        def step(...):
            ragged.check(cu_q, cu_k, cu_pages, ids, tokens=Tq, num_pages=P, max_seqlen_q=..., max_seqlen_k=...)
            return fp4_indexer_block_scores(...)
        error, scores = checkify.checkify(jax.jit(step))(...)
        error.throw()           # or keep `error` and look later

    Arguments as for `ragged.validate`; arrays may be traced.

    Raises:
      TypeError, ValueError: dtypes, shapes and sizes, while tracing. What the values show goes into the error that
        `checkify` returns: the first finding.
    """
    op = "ragged.check"
    sizes = _sizes(op, tokens, num_pages, max_seqlen_q, max_seqlen_k)
    arrays = {
        name: x
        for name, x in (
            ("cu_seqlens_q", cu_seqlens_q),
            ("cu_seqlens_k", cu_seqlens_k),
            ("cu_page_offsets", cu_page_offsets),
            ("kv_indices", kv_indices),
            ("qo_offset", qo_offset),
        )
        if x is not None or name != "qo_offset"
    }
    for name, x in arrays.items():
        must.int32_vector(
            op, name, x, None, "[N]" if name == "kv_indices" else "[B]" if name == "qo_offset" else "[B+1]", REMEDY
        )
    if found := _lengths_of_vectors(arrays):
        raise ValueError(f"{op}: " + "; ".join(found) + f". {REMEDY}")
    arrays = {name: jnp.asarray(x) for name, x in arrays.items()}
    checks = _checks(jnp, arrays, *sizes) + _sign_checks(
        jnp, arrays, *_nvfp4_scales(jnp, op, q_scale, k_scale, fp4_format, scale_layout, *sizes[:2])
    )
    for right, text, values in checks:
        checkify.check(right, f"{op}: {text}. {REMEDY}", **{name: jnp.asarray(value) for name, value in values.items()})


def _host(op: str, name: str, x: Any, expected: str) -> np.ndarray:
    """An array as NumPy."""
    must.is_array(op, name, x, expected)
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            message(
                op,
                name,
                f"a traced {describe(x)}",
                "an array with values",
                "Call it outside of jit; inside, use ragged.check.",
            )
        )
    return np.asarray(x)


def _sizes(op: str, tokens: Any, num_pages: Any, max_seqlen_q: Any, max_seqlen_k: Any) -> list[int]:
    named = (
        ("tokens", tokens, 0),
        ("num_pages", num_pages, 0),
        ("max_seqlen_q", max_seqlen_q, 1),
        ("max_seqlen_k", max_seqlen_k, 0),
    )
    return [must.static_int(op, name, value, least, "Pass what the op is called with.") for name, value, least in named]


def _lengths_of_vectors(arrays: Mapping[str, Any]) -> list[str]:
    ends = arrays["cu_seqlens_q"].shape[0]
    if ends == 0:
        return ["cu_seqlens_q: got 0 entries, expected B + 1 >= 1"]
    lengths = {"cu_seqlens_k": ends, "cu_page_offsets": ends, "qo_offset": ends - 1}
    return [
        f"{name}: got {arrays[name].shape[0]} entries, expected {n} (cu_seqlens_q has {ends})"
        for name, n in lengths.items()
        if name in arrays and arrays[name].shape[0] != n
    ]


def _checks(
    xp: ModuleType, a: Mapping[str, Any], tokens: int, num_pages: int, max_seqlen_q: int, max_seqlen_k: int
) -> list[Check]:
    """The checks in NumPy or jnp (`xp`). A later check may find more than is there if an earlier one fails."""
    checks = []
    sums = ("cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets")
    for name in sums:
        hint = (
            ""
            if a[name].shape[0] > 1
            else ": one entry is a batch of no sequence, one sequence of length {first} is [0, {first}]"
        )
        checks.append((a[name][0] == 0, f"{name}[0]: got {{first}}, expected 0{hint}", {"first": a[name][0]}))
    for name in sums:
        low, high = a[name][:-1], a[name][1:]
        checks += _no_sequence(
            xp,
            high < low,
            f"{name} of sequence {{b}}: got {{low}} to {{high}}, expected a non-decreasing prefix sum",
            low=low,
            high=high,
        )
    for name, limit, what in (
        ("cu_seqlens_q", tokens, "rows of q_fp4"),
        ("cu_page_offsets", a["kv_indices"].shape[0], "entries of kv_indices"),
    ):
        checks.append(
            (
                a[name][-1] <= limit,
                f"{name}[-1]: got {{end}}, expected at most the {limit} {what}",
                {"end": a[name][-1]},
            )
        )
    q_lens, k_lens, pages = (a[name][1:] - a[name][:-1] for name in sums)
    for name, lens, limit in (("q", q_lens, max_seqlen_q), ("k", k_lens, max_seqlen_k)):
        checks += _no_sequence(
            xp,
            lens > limit,
            f"{name}_len of sequence {{b}}: got {{n}}, expected at most max_seqlen_{name} = {limit}",
            n=lens,
        )
    need = -(-k_lens // PAGE)
    checks += _no_sequence(
        xp,
        pages < need,
        f"pages of sequence {{b}}: got {{n}} for {{keys}} keys, expected at least ceil({{keys}} / {PAGE}) = {{need}}",
        n=pages,
        keys=k_lens,
        need=need,
    )
    ids = a["kv_indices"]
    outside = (_keys_of_entries(xp, a) > 0) & ((ids < 0) | (ids >= num_pages))
    return checks + _none(
        xp,
        outside,
        f"kv_indices[{{i}}]: got {{id}}, expected an id in [0, {num_pages}) ({{count}} such ids in use)",
        "i",
        id=ids,
    )


def _keys_of_entries(xp: ModuleType, a: Mapping[str, Any]) -> Any:
    """[N] keys in use of the page at each entry of kv_indices: 0 where the entry is in no sequence, or past the pages
    that its keys need."""
    first = a["cu_page_offsets"]
    at = xp.arange(a["kv_indices"].shape[0], dtype=np.int32)
    if first.shape[0] < 2:
        return xp.zeros_like(at)
    b = xp.clip(xp.searchsorted(first, at, side="right") - 1, 0, first.shape[0] - 2)
    keys = xp.clip(a["cu_seqlens_k"][b + 1] - a["cu_seqlens_k"][b] - PAGE * (at - first[b]), 0, PAGE)
    return xp.where((at >= first[0]) & (at < first[-1]), keys, 0)


def _sign_checks(xp: ModuleType, a: Mapping[str, Any], q_scale: Any, k_scale: Any) -> list[Check]:
    """NVFP4 scales in use have no sign bit. Scales are bytes [Tq, Hq, G] and [num_pages, Hkv, 128, G], or None."""
    checks = []
    if q_scale is not None:
        counts = xp.arange(q_scale.shape[0], dtype=np.int32) < a["cu_seqlens_q"][-1]
        checks += _none(
            xp,
            ((q_scale & SIGN) != 0).any((1, 2)) & counts,
            "q_scale of token {i}: got a scale with its sign bit set, expected none ({count} such tokens)",
            "i",
        )
    if k_scale is not None and a["cu_seqlens_q"].shape[0] > 1 and 0 not in (a["kv_indices"].shape[0], k_scale.shape[0]):
        keys = xp.where((a["kv_indices"] >= 0) & (a["kv_indices"] < k_scale.shape[0]), _keys_of_entries(xp, a), 0)
        signed = ((k_scale & SIGN) != 0).any((1, 3))[xp.clip(a["kv_indices"], 0, k_scale.shape[0] - 1)]  # [N, 128]
        counts = xp.arange(PAGE, dtype=np.int32)[None] < keys[:, None]
        checks += _none(
            xp,
            (signed & counts).any(1),
            "k_scale of page {page}: got a scale with its sign bit set, expected none ({count} such entries of kv_indices)",
            "i",
            page=a["kv_indices"],
        )
    return checks


def _no_sequence(xp: ModuleType, wrong: Any, text: str, **values: Any) -> list[Check]:
    return _none(xp, wrong, text + " ({count} such sequences)", "b", **values)


def _none(xp: ModuleType, wrong: Any, text: str, index: str, **values: Any) -> list[Check]:
    """The check that no entry of `wrong` is set; its text tells the first that is, with the entries of `values` at the
    same place."""
    if wrong.shape[0] == 0:
        return []
    at = xp.argmax(wrong)
    return [(~wrong.any(), text, {index: at, "count": wrong.sum(), **{name: x[at] for name, x in values.items()}})]


def _nvfp4_scales(
    xp: ModuleType, op: str, q_scale: Any, k_scale: Any, fp4_format: str, scale_layout: str, tokens: int, num_pages: int
) -> tuple[Any, Any]:
    """Scale bytes [Tq, Hq, G] and [num_pages, Hkv, 128, G], each None where it was not given or the format has no
    sign."""
    must.choice(op, "fp4_format", fp4_format, tuple(scales.FORMATS))
    must.choice(op, "scale_layout", scale_layout, layouts.LAYOUTS)
    if fp4_format != "nvfp4":
        return None, None
    tiled, groups = scale_layout == "preordered_mma", GROUPS[fp4_format]
    q_shape = (None, *layouts.tiled_shape(tokens, groups)) if tiled else (tokens, None, groups)
    k_shape = (None, *layouts.tiled_shape(PAGE, groups)) if tiled else (num_pages, None, PAGE, groups)
    q, k = (
        None if x is None else _bytes(xp, op, name, x, shape, scale_layout)
        for name, x, shape in (("q_scale", q_scale, q_shape), ("k_scale", k_scale, k_shape))
    )
    if tiled and q is not None:
        q = xp.swapaxes(_untiled(xp, q, tokens, groups), 0, 1)
    if tiled and k is not None:
        k = _untiled(xp, k, PAGE, groups).reshape(num_pages, k.shape[0] // max(num_pages, 1), PAGE, groups)
    return q, k


def _bytes(xp: ModuleType, op: str, name: str, x: Any, shape: Sequence[int | None], scale_layout: str) -> Any:
    must.array(op, name, x, (scales.NVFP4.scale_dtype, "uint8"), "Pass the scales that the op is called with.")
    must.shape(
        op,
        name,
        x,
        shape,
        f"of scale_layout={scale_layout!r}",
        "Pass the scales that the op is called with, and its scale_layout.",
    )
    return _host(op, name, x, "scales").view(np.uint8) if xp is np else scale_bytes(x)


def _untiled(xp: ModuleType, tiled: Any, rows: int, groups: int) -> Any:
    return tiled[(slice(None), *layouts.tiled_index(xp.arange(rows)[:, None], xp.arange(groups)[None]))]
