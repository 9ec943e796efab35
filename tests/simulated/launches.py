"""Block scores in the simulator: a variant of aot/variants.py over one case of tests/support, as the launcher of ffi/ would run it.

    outcome = run_variant(kernels.load(variant.launches), variant, inputs, mode="lazy")
    outcome.raise_if_wrong("name", truth, exact)
"""
import dataclasses
import struct

import numpy as np

from jax_fp4_indexer.specs import expr
from ptxsim import tensor_map
from ptxsim.launch import Memory, run
from support import check

POISON = 0x7FC12345             # a NaN that no kernel writes: slots that keep it were not written
MULTIPROCESSORS = 3             # of the pretended device: few, so that a worker walks many pages
MAX_INSTS = 5 * 10**7


def arguments(inp, layout):
    """{name: array or int} of BlockScoresArgs, without results and pass."""
    Tq, Hq, Hkv, num_pages, B, tiles = inp.shape
    a = inp.arrays(layout)
    head_scale = np.broadcast_to(np.float32(1 if inp.q_global is None else inp.q_global), (Hq,)) \
        * np.repeat(np.broadcast_to(np.float32(1 if inp.k_global is None else inp.k_global), (Hkv,)), Hq // Hkv)
    mask = 0 if not inp.causal else 1 if inp.qo_offset is None else 2
    return dict(
        q=inp.q, k=inp.k, q_scale=np.ascontiguousarray(a["q_scale"]), k_scale=np.ascontiguousarray(a["k_scale"]), kv_indices=inp.kv_indices,
        cu_seqlens_q=inp.cu_q, cu_seqlens_k=inp.cu_k, cu_page_offsets=inp.cu_p, qo_offset=np.zeros(B, np.int32) if inp.qo_offset is None else inp.qo_offset,
        head_scale=np.ascontiguousarray(head_scale, np.float32), num_seqs=B, num_pages=num_pages, num_indices=inp.kv_indices.size, tokens=Tq, k_tiles=tiles,
        heads_q=Hq, heads_kv=Hkv, mask=mask)


def judge(scores, truth, exact):
    """(check.Result, sentences on wrong scores). truth: an Oracle."""
    unwritten, result = int((scores.view(np.uint32) == POISON).sum()), check.compare(scores, truth, exact)
    return result, [f"{unwritten} of {scores.size} slots were not written"] * bool(unwritten) + [result.problem] * (not result.ok)


@dataclasses.dataclass
class Outcome:
    scores: np.ndarray      # f32 [Hq, Ktiles, Tq]
    faults: list            # "kernel: [kind] text" of every report that is a fault
    notes: list
    insts: int = 0
    seconds: float = 0.0

    def problems(self, truth, exact=False):
        """Sentences on what is wrong; empty if nothing is. truth: an Oracle."""
        return self.faults + judge(self.scores, truth, exact)[1]

    def raise_if_wrong(self, name, truth, exact=False):
        found = self.problems(truth, exact)
        if found:
            raise AssertionError(f"{name}:\n" + "\n".join(found))


def bytes_of(param, address, args):
    """What the launcher passes for an entry of a kernel's `params`."""
    (kind, what), = param.items()
    if kind == "tensor_map":
        return tensor_map.encode(what, args, address[what["buffer"]])
    return struct.pack({"buffer": "<Q", "i32": "<i", "i64": "<q"}[kind], address[what] if kind == "buffer" else args[what])


def run_variant(kernels, variant, inp, *, mode="eager", seed=0, passes_of=None, multiprocessors=MULTIPROCESSORS, races=True, elect_last=False,
                statistics=False, max_insts=MAX_INSTS):
    """All launches of `variant` (kernels: its compiled kernels in order) over `inp` (support.inputs.Inputs). Returns an Outcome.

    passes_of   pages of a pass, where the variant works in passes; default: all in one

    Results start as poison, scratch as random bytes that count as undefined. SimError and Deadlock pass through.
    """
    args = arguments(inp, variant.scale_layout)
    B, Tq, N, Hkv = args["num_seqs"], args["tokens"], args["num_indices"], args["heads_kv"]
    whole = max(N, 1)
    pages = passes_of or whole if variant.repeat else whole
    size = expr.of(variant.scratch).value({"num_seqs": B, "tokens": Tq, "heads_kv": Hkv, "pages_per_pass": pages})
    scores = np.full((args["heads_q"], args["k_tiles"], Tq), POISON, np.uint32).view(np.float32)
    args |= dict(scores=scores, pages_per_pass=pages, scratch=np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8))
    memory, align = Memory(), kernels[0].alignments
    address = {name: memory.add(name, x, align[name], write=name in ("scores", "scratch"), undefined=name == "scratch")
               for name, x in args.items() if isinstance(x, np.ndarray)}
    outcome = Outcome(scores, [], [])
    for first_page in range(0, whole, max(pages, 1)) if variant.repeat else [0]:
        for kernel in kernels:
            params = [bytes_of(p, address, {**args, "first_page": first_page}) for p in kernel.params]
            grid = (kernel.grid["per_sm"] * multiprocessors, 1, 1) if "per_sm" in kernel.grid else tuple(kernel.grid["fixed"])
            result = run(kernel.program, memory, params, grid, kernel.block, kernel.dynamic_shared_bytes, kernel.cluster, mode=mode, seed=seed, races=races,
                         max_insts=max_insts, elect_last=elect_last, statistics=statistics)
            kernel.count(result)
            outcome.insts += result.insts
            outcome.seconds += result.seconds
            outcome.faults += [f"{kernel.name}: {f}" for f in result.faults]
            outcome.notes += [f"{kernel.name}: {f}" for f in result.findings if f not in result.faults]
    return outcome
