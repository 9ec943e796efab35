"""How a test asks the public op for one implementation and scale layout. Shared by tests/parity and tests/fuzz."""

from jax_fp4_indexer.configs.block_scores import DIRECT_COLUMNS

LAYOUTS = ("public", "preordered_mma")
IMPLEMENTATIONS = ("decode", "prefill_direct", "prefill_staged", "portable_decode", "portable_prefill")


def choice(name, max_seqlen_q, ratio, fmt):
    """(max_seqlen_q, implementation) that make the public op take implementation `name`, or None where a caller cannot reach it.

    The portable kernels follow the dispatch rule, and the forms of the native prefill a bound on max_seqlen_q * Hq/Hkv; neither reads anything else of the queries.
    """
    if name == "portable_decode":
        return (min(max_seqlen_q, 8), "portable") if ratio <= 16 else None
    if name == "portable_prefill":
        return max(max_seqlen_q, 9), "portable"
    if name == "prefill_direct":
        return (DIRECT_COLUMNS[fmt] // ratio, "prefill") if ratio <= DIRECT_COLUMNS[fmt] else None
    if name == "prefill_staged":
        return max(max_seqlen_q, DIRECT_COLUMNS[fmt] + 1), "prefill"
    return max_seqlen_q, None if name == "auto" else name


def call(name, inp, layout):
    """Static arguments that make the public op take implementation `name`, or None where a caller cannot reach it."""
    _, Hq, Hkv, *_ = inp.shape
    s = inp.statics(layout)
    chosen = choice(name, s["max_seqlen_q"], Hq // Hkv, s["fp4_format"])
    return None if chosen is None else s | {"max_seqlen_q": chosen[0], "implementation": chosen[1]}


def arguments(inp):
    """Arrays of a call with both scale layouts side by side."""
    a, tiled = inp.arrays("public"), inp.arrays("preordered_mma")
    scales = {"public": (a.pop("q_scale"), a.pop("k_scale")), "preordered_mma": (tiled["q_scale"], tiled["k_scale"])}
    return a, scales
