"""`nvfp4_batched_gemv` for the tests that serve every op. Its rows: tests/support/batched_gemv.py."""

import dataclasses
import functools
import hashlib

import numpy as np

import jax_fp4_indexer as jfi
from jax_fp4_indexer.specs.batched_gemv import SPEC
from support.batched_gemv import CASES, Problem, build, compare, oracle, tiled

from ..protocol import Verdict, Wire

KEPT: dict[str, tuple[Problem, tuple]] = {}


def kept(case):
    """(problem, truth) of a row, made once; names are unique."""
    if case.name not in KEPT:
        problem = case.problem or build(case)
        KEPT[case.name] = problem, oracle(problem)
    return KEPT[case.name]


def of_case(case):
    return {"columns": "1" if case.n == 1 else "8", "k_multiple": "256" if case.k % 256 == 0 else "16"}


class BatchedGemv:
    spec = SPEC
    made_by_the_op = ("columns", "k_multiple")
    through_the_driver = "exact,n3_any_k,float16,shared"

    def cases(self, *tags, columns=None, k_multiple=None, match="", **_):
        asked = {key: value for key, value in (("columns", columns), ("k_multiple", k_multiple)) if value}
        return [c for c in CASES if set(tags) <= c.tags and match in c.name and asked.items() <= of_case(c).items()]

    def identity(self, case):
        p, _ = kept(case)
        h = hashlib.blake2b(repr((case.name, case.values, case.globals_, case.out_dtype)).encode(), digest_size=4)
        for x in (p.a, p.b, p.a_scale, p.b_scale, p.a_global, p.b_global, case.padding):
            h.update(repr(x).encode() if x is None or np.ndim(x) == 0 else np.ascontiguousarray(x).tobytes())
        return h.hexdigest()

    def operands(self, case, choices):
        p, _ = kept(case)
        arrays = {"a": p.a, "b": p.b, "a_scale": p.a_scale, "b_scale": p.b_scale}
        if choices["scale_layout"] == "preordered_mma":
            arrays |= {name: tiled(arrays[name], case.padding) for name in ("a_scale", "b_scale")}
        given = dict(zip(("a_global_scale", "b_global_scale"), (p.a_global, p.b_global)))
        arrays |= {
            name: np.ones(1, np.float32) if x is None else np.reshape(x, -1).astype(np.float32)
            for name, x in given.items()
        }
        named = {key: "batch" if g == "batch" else "one" for key, g in zip(("a_global", "b_global"), case.globals_)}
        return Wire(
            arrays, {**of_case(case), "scale_layout": choices["scale_layout"], "out_dtype": case.out_dtype, **named}
        )

    def implementations(self):
        return ("portable",)

    def call(self, case, implementation, choices):
        layout = choices.get("scale_layout", "public")
        op = functools.partial(
            jfi.nvfp4_batched_gemv, scale_layout=layout, out_dtype=case.out_dtype, implementation=implementation
        )
        arrays = kept(case)[0].arrays(layout, case.padding)
        arrays = {name: np.asarray(x) for name, x in arrays.items() if x is not None}
        shape = (case.batch, case.rows, case.n)
        return (lambda **x: op(**x).reshape(shape)), arrays

    def truth(self, case):
        return kept(case)[1]

    def compare(self, case, results):
        found, worst = compare(case, results["y"], self.truth(case))
        return Verdict(found, case.exact and not found, worst)

    def scrambled(self, case, seed):
        """Other padding of tiled scales, and other sign bits of scales."""
        p, _ = kept(case)
        rng = np.random.default_rng(seed)
        signs = [
            (x ^ rng.integers(0, 2, x.shape, dtype=np.uint8) * np.uint8(128)).astype(np.uint8)
            for x in (p.a_scale, p.b_scale)
        ]
        other = dataclasses.replace(case, name=f"{case.name}~scrambled{seed}", padding=int(rng.integers(1, 127)))
        return self._with(other, dataclasses.replace(p, a_scale=signs[0], b_scale=signs[1]))

    def parts(self, case):
        """The last three rows of every matrix; the last matrix."""
        p, _ = kept(case)
        found = []
        if case.rows > 3:
            part = dataclasses.replace(case, name=f"{case.name}~rows", rows=3)
            found.append(
                (
                    self._with(part, dataclasses.replace(p, a=p.a[:, -3:], a_scale=p.a_scale[:, -3:])),
                    {"y": (np.s_[:, -3:], np.s_[:])},
                )
            )
        if case.batch > 1:
            part = dataclasses.replace(case, name=f"{case.name}~matrix", batch=1)
            g = [x[-1:] if np.ndim(x) else x for x in (p.a_global, p.b_global)]
            one = dataclasses.replace(
                p, a=p.a[-1:], b=p.b[-1:], a_scale=p.a_scale[-1:], b_scale=p.b_scale[-1:], a_global=g[0], b_global=g[1]
            )
            found.append((self._with(part, one), {"y": (np.s_[-1:], np.s_[:])}))
        return found

    def _with(self, case, problem):
        case = dataclasses.replace(case, problem=dataclasses.replace(problem, case=case))
        return case


TESTS = BatchedGemv()
