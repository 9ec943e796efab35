"""How a test asks the public op for one implementation and scale layout. Shared by tests/parity and tests/fuzz."""
LAYOUTS = ("public", "preordered_mma")
IMPLEMENTATIONS = ("decode", "prefill", "portable_decode", "portable_prefill")


def call(name, inp, layout):
    """Static arguments that make the public op take implementation `name`, or None where a caller cannot reach it.

    The portable kernels follow the dispatch rule, which reads max_seqlen_q and nothing else of the queries, so that is what is set.
    """
    _, Hq, Hkv, *_ = inp.shape
    s = inp.statics(layout)
    if name == "portable_decode":
        if Hq // Hkv > 16:
            return None
        s["max_seqlen_q"] = min(s["max_seqlen_q"], 8)
    elif name == "portable_prefill":
        s["max_seqlen_q"] = max(s["max_seqlen_q"], 9)
    return s | {"implementation": None if name == "auto" else name.split("_")[0]}


def arguments(inp):
    """Arrays of a call with both scale layouts side by side."""
    a, tiled = inp.arrays("public"), inp.arrays("preordered_mma")
    scales = {"public": (a.pop("q_scale"), a.pop("k_scale")), "preordered_mma": (tiled["q_scale"], tiled["k_scale"])}
    return a, scales
