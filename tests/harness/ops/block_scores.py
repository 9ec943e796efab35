"""`fp4_indexer_block_scores` for the tests that serve every op. Its rows: tests/support/cases.py, and tests/simulated/cases.py for the machinery of kernels."""

import dataclasses
import functools
import hashlib

import numpy as np

import jax_fp4_indexer as jfi
from jax_fp4_indexer.configs.block_scores import Scratch
from jax_fp4_indexer.specs.block_scores import SPEC
from simulated import cases, golden
from support import check, inputs, oracle

from ..protocol import Verdict, Wire

_kept = {}


def built(row):
    """(inputs, oracle) of a row of the table, made once; names are unique."""
    if row.name not in _kept:
        inp = row.build()
        _kept[row.name] = inp, oracle.evaluate(inp)
    return _kept[row.name]


def wire(inp, layout, passes_of=None):
    """The custom call of some inputs (support.inputs.Inputs). passes_of: pages of a pass, where a variant works in passes."""
    _, Hq, Hkv, _, B, tiles = inp.shape
    a = inp.arrays(layout)
    head_scale = np.broadcast_to(np.float32(1 if inp.q_global is None else inp.q_global), (Hq,)) * np.repeat(
        np.broadcast_to(np.float32(1 if inp.k_global is None else inp.k_global), (Hkv,)), Hq // Hkv
    )
    operands = dict(
        q=inp.q,
        k=inp.k,
        q_scale=np.ascontiguousarray(a["q_scale"]),
        k_scale=np.ascontiguousarray(a["k_scale"]),
        kv_indices=inp.kv_indices,
        cu_seqlens_q=inp.cu_q,
        cu_seqlens_k=inp.cu_k,
        cu_page_offsets=inp.cu_p,
        qo_offset=np.zeros(B, np.int32) if inp.qo_offset is None else inp.qo_offset,
        head_scale=np.ascontiguousarray(head_scale, np.float32),
    )
    mask = 0 if not inp.causal else 1 if inp.qo_offset is None else 2
    passes = {"pages_per_pass": passes_of} if passes_of else {}
    return Wire(
        operands,
        {"format": inp.fmt, "scale_layout": layout, "mask": mask, "max_seqlen_q": inp.max_seqlen_q, **passes},
        {"k_tiles": tiles},
    )


class BlockScores:
    spec = SPEC
    made_by_the_op = ("path",)  # choices that a caller does not make
    through_the_driver = "k_lengths_causal-,ragged_1-,wide_0,sim_passes-"  # parts of names of rows for jax.jit on a pretended GPU in make test; default: the quick ones
    apart = (
        "path",
    )  # of portable kernels whose source is another arch's, a decode and a prefill are among the quick variants

    def cases(self, *tags, path=None, format=None, match="", **_):
        rows = [
            c
            for p in ((path,) if path else ("decode", "prefill"))
            for f in ((format,) if format else SPEC.choices()["format"])
            for c in cases.of(p, f, match)
        ]
        return [c for c in {c.name: c for c in rows}.values() if set(tags) <= c.tags]

    def identity(self, case):
        inp, truth = built(case.table)
        h = hashlib.blake2b(repr((case.name, inp.digest(), case.passes_of, case.table.exact)).encode(), digest_size=4)
        for where in (np.isneginf(truth.scores), np.isnan(truth.scores)):
            h.update(np.packbits(where).tobytes())
        return h.hexdigest()

    def operands(self, case, choices):
        return wire(built(case.table)[0], choices["scale_layout"], case.passes_of)

    def implementations(self):
        return ("decode", "prefill", "portable")

    def call(self, case, implementation, choices):
        inp, bound = built(case.table)[0], {}
        if case.passes_of:  # a bound on the memory of a staged prefill that admits no more pages
            Tq, _, Hkv, _, B, _ = inp.shape
            bound["max_scratch_bytes"] = Scratch.layout(B, Tq, Hkv, case.passes_of).size(inp.fmt)
        layout = choices.get("scale_layout", "public")
        return functools.partial(
            jfi.fp4_indexer_block_scores, implementation=implementation, **bound, **inp.statics(layout)
        ), inp.arrays(layout)

    def truth(self, case):
        return built(case.table)[1]

    def compare(self, case, results):
        result = check.compare(results["scores"], self.truth(case), case.table.exact)
        return Verdict([] if result.ok else [result.problem], bool(case.table.exact and result.ok), float(result.worst))

    def golden(self, case, choices):
        """Digest of the scores that an H200 computed of a row whose result is exact, or None."""
        return golden.exact(built(case.table)[0], choices.get("path", "decode")) if case.table.exact else None

    def _with(self, case, name, inp):
        return dataclasses.replace(
            case, table=dataclasses.replace(case.table, name=f"{case.name}~{name}", make=lambda _: inp)
        )

    def scrambled(self, case, seed):
        return self._with(case, f"scrambled{seed}", inputs.scramble(built(case.table)[0], seed))

    def parts(self, case):
        """First and last sequence that have queries."""
        inp = built(case.table)[0]
        if inputs.falls(inp):
            return []
        rows = [b for b, (_, q_len, *_) in enumerate(inputs.sequences(inp)) if q_len]
        found = []
        for b in sorted({rows[0], rows[-1]}) if len(rows) > 1 else ():
            single, q0, q_len = inputs.alone(inp, b)
            found.append(
                (self._with(case, f"alone{b}", single), {"scores": (np.s_[..., q0 : q0 + q_len], np.s_[..., :q_len])})
            )
        return found


TESTS = BlockScores()
