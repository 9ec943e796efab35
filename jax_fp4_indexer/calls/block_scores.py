"""A block-score call: what is known while tracing (`Call`), how arguments are checked, and the operands they become."""
import dataclasses

import jax
import jax.numpy as jnp

from ..configs.block_scores import GROUPS, HEAD_DIM, PAGE
from ..errors import message
from ..formats import scale_layout as layouts
from ..formats import scales
from . import static_args as must

OP = "fp4_indexer_block_scores"
FLOAT4 = "float4_e2m1fn"


@dataclasses.dataclass(frozen=True)
class Call:
    """The static part of a call; hashable, so that one jit cache serves equal calls."""
    fp4_format: str
    scale_layout: str
    mask: int                   # 0 none, 1 causal with offset k_len - q_len, 2 causal with qo_offset
    max_seqlen_q: int
    k_tiles: int
    gqa_ratio: int
    implementation: object      # as the caller gave it
    max_scratch_bytes: int


def check(op, q_fp4, k_fp4, q_scale, k_scale, cu_seqlens_q, cu_seqlens_k, cu_page_offsets, *, max_seqlen_q, max_seqlen_k, kv_indices, fp4_format,
          causal, qo_offset, scale_layout, q_global_scale, k_global_scale, implementation, implementations, max_scratch_bytes):
    """Everything that shapes, dtypes and static arguments can get wrong; -> (Call, the arrays as given, in a dict).

    Never reads the contents of an array, so traced and concrete arguments take the same way.
    """
    must.choice(op, "fp4_format", fp4_format, tuple(scales.FORMATS))
    must.choice(op, "scale_layout", scale_layout, layouts.LAYOUTS)
    must.choice(op, "implementation", implementation, implementations)
    max_seqlen_q = must.static_int(op, "max_seqlen_q", max_seqlen_q, 1, "Pass the longest query length of the batch, or 1 if there is none.")
    max_seqlen_k = must.static_int(op, "max_seqlen_k", max_seqlen_k, 0, "Pass the longest key length of the batch.")
    max_scratch_bytes = must.static_int(op, "max_scratch_bytes", max_scratch_bytes, 0, "Pass a number of bytes; the default is 256 MiB.", bits=63)
    max_scratch_bytes = min(max_scratch_bytes, must.INT32_MAX)         # as much as was ever tried
    causal = must.static_bool(op, "causal", causal)
    if qo_offset is not None and not causal:
        raise ValueError(message(op, "qo_offset", qo_offset, "None with causal=False", "Drop qo_offset, or pass causal=True for it to shift the mask."))

    tokens, heads_q = _check_codes(op, "q_fp4", q_fp4, "[Tq, Hq, 64]", (None, None))
    num_pages, heads_kv, _ = _check_codes(op, "k_fp4", k_fp4, "[num_pages, Hkv, 128, 64]", (None, None, PAGE))
    if heads_kv == 0 or heads_q == 0 or heads_q % heads_kv:
        raise ValueError(message(op, "q_fp4", f"Hq = {heads_q} with Hkv = {heads_kv}", "Hq a positive multiple of Hkv", "Check axis 1 of q_fp4 and of k_fp4: they are the heads."))

    groups, padded = GROUPS[fp4_format], scale_layout == "preordered_mma"
    q_names = "[Hq, ceil(Tq/128), ceil(G/4), 32, 4, 4]" if padded else "[Tq, Hq, G]"
    k_names = "[num_pages*Hkv, 1, ceil(G/4), 32, 4, 4]" if padded else "[num_pages, Hkv, 128, G]"
    _check_scales(op, "q_scale", q_scale, fp4_format, layouts.q_scale_shape(scale_layout, tokens, heads_q, groups), q_names, scale_layout)
    _check_scales(op, "k_scale", k_scale, fp4_format, layouts.k_scale_shape(scale_layout, num_pages, heads_kv, groups, PAGE), k_names, scale_layout)

    must.int32_vector(op, "cu_seqlens_q", cu_seqlens_q, None, "[B+1]", "Pass the exclusive prefix sum of the query lengths.")
    if cu_seqlens_q.shape[0] == 0:
        raise ValueError(message(op, "cu_seqlens_q", cu_seqlens_q, "shape [B+1] with B >= 0", "A prefix sum has one entry more than the batch: pass [0] for an empty batch."))
    ends = cu_seqlens_q.shape[0]
    remedy = "All prefix sums have one entry more than the batch; cu_seqlens_q sets B."
    must.int32_vector(op, "cu_seqlens_k", cu_seqlens_k, ends, "[B+1]", remedy)
    must.int32_vector(op, "cu_page_offsets", cu_page_offsets, ends, "[B+1]", remedy)
    must.int32_vector(op, "kv_indices", kv_indices, None, "[N]", "Pass one vector of page ids for the whole batch.")
    if qo_offset is not None:
        must.int32_vector(op, "qo_offset", qo_offset, ends - 1, "[B]", "Pass one offset per sequence.")
    q_global_scale = _check_global(op, "q_global_scale", q_global_scale, fp4_format, heads_q, "Hq")
    k_global_scale = _check_global(op, "k_global_scale", k_global_scale, fp4_format, heads_kv, "Hkv")

    must.one_place(op, {"q_fp4": q_fp4, "k_fp4": k_fp4, "q_scale": q_scale, "k_scale": k_scale, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
                        "cu_page_offsets": cu_page_offsets, "kv_indices": kv_indices, "qo_offset": qo_offset, "q_global_scale": q_global_scale, "k_global_scale": k_global_scale})

    mask = 0 if not causal else 1 if qo_offset is None else 2
    call = Call(fp4_format, scale_layout, mask, max_seqlen_q, -(-max_seqlen_k // PAGE), heads_q // heads_kv, implementation, max_scratch_bytes)
    arrays = {"q": q_fp4, "k": k_fp4, "q_scale": q_scale, "k_scale": k_scale, "kv_indices": kv_indices, "cu_seqlens_q": cu_seqlens_q,
              "cu_seqlens_k": cu_seqlens_k, "cu_page_offsets": cu_page_offsets, "qo_offset": qo_offset,
              "q_global_scale": q_global_scale, "k_global_scale": k_global_scale}
    return call, arrays


def operands(call, arrays):
    """The ten operands of the op (see docs/architecture.md) from checked arrays: bytes are reinterpreted, never copied or converted."""
    q, k = code_bytes(arrays["q"]), code_bytes(arrays["k"])
    num_seqs = arrays["cu_seqlens_q"].shape[0] - 1
    qo_offset = jnp.zeros(num_seqs, jnp.int32) if call.mask != 2 else jnp.asarray(arrays["qo_offset"])
    metadata = (jnp.asarray(arrays[name]) for name in ("kv_indices", "cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets"))
    return (q, k, scale_bytes(arrays["q_scale"]), scale_bytes(arrays["k_scale"]), *metadata, qo_offset,
            _head_scale(arrays["q_global_scale"], arrays["k_global_scale"], q.shape[1], k.shape[1]))


def code_bytes(x):
    """Codes as uint8 [..., D/2]: uint8 as is, int8 by its bits, float4_e2m1fn [..., D] packed two a byte, low nibble first."""
    x = jnp.asarray(x)
    if x.dtype == jnp.uint8:
        return x
    return x.view(jnp.uint8) if x.dtype.name == FLOAT4 else jax.lax.bitcast_convert_type(x, jnp.uint8)


def scale_bytes(x):
    x = jnp.asarray(x)
    return x if x.dtype == jnp.uint8 else jax.lax.bitcast_convert_type(x, jnp.uint8)


def _head_scale(q_global, k_global, heads_q, heads_kv):
    product = jnp.ones(heads_q, jnp.float32)
    if q_global is not None:
        product = product * q_global
    if k_global is not None:
        product = product * (k_global if k_global.ndim == 0 else jnp.repeat(k_global, heads_q // heads_kv))
    return product


def _check_codes(op, argument, x, names, lead):
    """Checks packed codes [*lead, 64] (or float4 [*lead, 128]); returns the leading sizes."""
    must.array(op, argument, x, ("uint8", "int8", FLOAT4), "Pass packed E2M1 codes, two a byte, as quantize_nvfp4 and quantize_mxfp4 return them.")
    packed = x.dtype.name != FLOAT4
    width = HEAD_DIM // 2 if packed else HEAD_DIM
    names = names if packed else names.replace(" 64]", " 128]")
    must.shape(op, argument, x, (*lead, width), names, "The head dimension is 128: 64 bytes of packed codes, or 128 float4_e2m1fn values.")
    return x.shape[:-1]


def _check_scales(op, argument, x, fp4_format, expected, names, scale_layout):
    fmt = scales.FORMATS[fp4_format]
    must.array(op, argument, x, (fmt.scale_dtype, "uint8"), f"Scales of {fp4_format} are {fmt.scale_dtype}, or the same bytes as uint8; check fp4_format.")
    remedy = ("Reorder public scales with fp4_indexer_reorder_scales_for_mma, or pass scale_layout=\"public\"." if scale_layout == "preordered_mma"
              else f"{fp4_format} has one scale per {fmt.group_size} elements (G = {HEAD_DIM // fmt.group_size}); check fp4_format and scale_layout.")
    must.shape(op, argument, x, expected, names, remedy)


def _check_global(op, argument, x, fp4_format, heads, heads_name):
    """The scale as a float32 array, or None."""
    if x is None:
        return None
    if not scales.FORMATS[fp4_format].has_global_scale:
        raise ValueError(message(op, argument, x, f"None with fp4_format={fp4_format!r}", "Only nvfp4 has a global scale: drop it, or multiply the scores yourself."))
    if must.is_number(x):
        return must.number(op, argument, x)
    must.array(op, argument, x, ("float32",), "Cast it with .astype(jnp.float32).")
    if tuple(x.shape) not in ((), (heads,)):
        raise ValueError(message(op, argument, x, f"shape [] or [{heads_name}] = [{heads}]", "Pass one float32 for all heads, or one per head."))
    return x
