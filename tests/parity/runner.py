"""Runs rows of the case table through the public op under `jax.jit` and judges them. Shared by run.py and the pytest files.

One program per case holds every variant (implementation x scale layout), so a case costs one XLA compilation. The program takes the
outputs of an earlier run and counts the slots whose bits changed: repeats and the untouched-bytes test never leave the device.
"""

import collections
import dataclasses
import json
import threading
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_fp4_indexer as jfi
from support import check, inputs, oracle
from support.calls import IMPLEMENTATIONS, LAYOUTS, arguments, call, choice  # noqa: F401 - run.py, inside_jit.py and the tests name them through here

SAMPLES = 4096
ALONE_SLOTS = 2**22  # outputs larger than this are not compared sequence by sequence


def bits(x):
    return lax.bitcast_convert_type(x, jnp.uint32)


def calls(inp, implementations, layouts=LAYOUTS, only=None):
    """{(implementation, layout): static arguments} of the variants that a caller can reach; `only`: of these ("decode.public") alone."""
    return {
        (name, layout): c
        for name in implementations
        for layout in layouts
        if (only is None or f"{name}.{layout}" in only) and (c := call(name, inp, layout)) is not None
    }


class Program:
    """All variants of one set of shapes, compiled: (outputs, changed slots of each variant in order) = program(inputs, earlier outputs).

    With `comparing` False it holds the calls and no other work: (outputs, None) = program(inputs).
    """

    def __init__(self, inp, implementations, layouts=LAYOUTS, only=None, comparing=True):
        self.calls, self.comparing = calls(inp, implementations, layouts, only), comparing
        Tq, Hq, _, _, _, tiles = inp.shape
        self.out_shape = (Hq, tiles, Tq)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), arguments(inp))
        earlier = {v: jax.ShapeDtypeStruct(self.out_shape, jnp.float32) for v in self.keys()}
        lowered = jax.jit(self._body).lower(*shapes, earlier) if comparing else jax.jit(self._outputs).lower(*shapes)
        self.compiled = lowered.compile()

    def keys(self):
        return [f"{name}.{layout}" for name, layout in self.calls]

    def _outputs(self, arrays, scales):
        outs = {}
        for (name, layout), c in self.calls.items():
            q_scale, k_scale = scales[layout]
            outs[f"{name}.{layout}"] = jfi.fp4_indexer_block_scores(q_scale=q_scale, k_scale=k_scale, **arrays, **c)
        return outs

    def _body(self, arrays, scales, earlier):
        outs = self._outputs(arrays, scales)
        return outs, jnp.array(
            [jnp.sum((bits(o) != bits(earlier[v])).astype(jnp.int32)) for v, o in outs.items()], jnp.int32
        )

    def put(self, inp):
        return jax.device_put(arguments(inp))

    def __call__(self, placed, earlier=None):
        if not self.comparing:
            return self.compiled(*placed), None
        if earlier is None:
            nothing = jax.device_put(np.zeros(self.out_shape, np.float32))  # jnp.zeros would compile once a shape
            earlier = dict.fromkeys(self.keys(), nothing)
        return self.compiled(*placed, earlier)


class Programs:
    """The last programs compiled, by shapes and static arguments, which many rows of the table share. For several threads."""

    KEPT = 32

    def __init__(self, implementations, layouts=LAYOUTS, comparing=True):
        self.how, self.comparing = (implementations, layouts), comparing
        self.known, self.lock = collections.OrderedDict(), threading.Lock()

    def of(self, inp, only=None):
        key = self.key(inp, only)
        with self.lock:
            entry = self.known.setdefault(key, [threading.Lock(), None])
            self.known.move_to_end(key)
            if len(self.known) > self.KEPT:
                self.known.popitem(last=False)
        with entry[0]:  # who comes second waits for the compilation of the first
            entry[1] = entry[1] or Program(inp, *self.how, only=only, comparing=self.comparing)
        return entry[1]

    def key(self, inp, only=None):
        """Of max_seqlen_k the number of blocks alone is compiled."""
        shapes = jax.tree.map(lambda x: (np.shape(x), x.dtype.name), arguments(inp))
        how = {v: c | {"max_seqlen_k": inp.shape[5]} for v, c in calls(inp, *self.how, only).items()}
        return repr((shapes, how))


# -- oracles ---------------------------------------------------------------------------------------------------------------


def sample_slots(inp, name):
    """Slots to sample: half anywhere, half in the last block a row sees, where masks and tails act."""
    seen = oracle.visible_keys(inp)
    Tq, Hq, _, _, _, tiles = inp.shape
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    heads, tokens = rng.randint(0, Hq, SAMPLES), rng.randint(0, Tq, SAMPLES)
    blocks = (rng.random_sample(SAMPLES) * np.maximum((seen > 0).sum(0)[tokens], 1)).astype(np.int64)
    edge = np.arange(SAMPLES) % 2 == 1
    blocks[edge] = np.maximum((seen > 0).sum(0)[tokens][edge] - 1, 0)
    return heads, np.minimum(blocks, tiles - 1), tokens


def make_oracle(case, inp):
    return oracle.at(inp, *sample_slots(inp, case.name)) if case.compare == "sampled" else oracle.evaluate(inp)


class OracleStore:
    """Oracles computed elsewhere, one npz. An entry counts only if the digest of the inputs rebuilt here is the one it was made from."""

    def __init__(self, path=None):
        self.file = np.load(path) if path else None
        self.digests = json.loads(str(self.file["digests"])) if path else {}
        self.lock = threading.Lock()  # one zip file, one position in it, many threads that build cases

    def get(self, case, inp):
        """(oracle, whether it came from the store)"""
        if self.digests.get(case.name) == inp.digest():
            with self.lock:
                return oracle.Oracle(self.file[f"{case.name}|scores"], self.file[f"{case.name}|bound"]), True
        return make_oracle(case, inp), False

    @staticmethod
    def save(path, cases):
        """Scores keep 40 bits of mantissa (error 2^-40, the bar is 2^-18) and bounds 8, rounded down: they compress and stay strict."""
        arrays, digests = {}, {}
        for case in cases:
            inp = case.build()
            o = make_oracle(case, inp)
            keep = o.scores if case.exact else (o.scores.view(np.uint64) & ~np.uint64(2**12 - 1)).view(np.float64)
            arrays[f"{case.name}|scores"] = o.expected.astype(np.float64) if case.exact else keep
            arrays[f"{case.name}|bound"] = (o.bound.astype(np.float32).view(np.uint32) & ~np.uint32(2**15 - 1)).view(
                np.float32
            )
            digests[case.name] = inp.digest()
        np.savez_compressed(path, digests=np.array(json.dumps(digests)), **arrays)


# -- one case --------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Report:
    """Findings of one case: a check result per variant, problems as (variant, what), counts of the metamorphic checks."""

    case: str
    results: dict = dataclasses.field(default_factory=dict)
    problems: list = dataclasses.field(default_factory=list)
    counts: dict = dataclasses.field(default_factory=dict)

    def add(self, variant, what):
        self.problems.append((variant, what))

    def count(self, what, n=1):
        self.counts[what] = self.counts.get(what, 0) + n


def judge(case, inp, truth, out):
    """A `check.Result` for one output."""
    if case.compare == "full":
        return check.compare(out, truth, case.exact)
    heads, blocks, tokens = sample_slots(inp, case.name)
    r = check.compare(np.asarray(out)[heads, blocks, tokens], truth, case.exact)
    unseen = oracle.visible_keys(inp) == 0
    wrong = np.isneginf(out) != unseen[None]
    if wrong.any() and not r.problem:
        r.problem = f"-inf set differs in {int(wrong.sum())} of {out.size} slots, first [hq, kb, tq] = {np.argwhere(wrong)[0].tolist()}"
    elif np.isnan(out).any() and not r.problem:
        r.problem = f"NaN in {int(np.isnan(out).sum())} slots, none expected"
    return r


def run_case(case, inp, program, truth, repeats=20, scrambles=2):
    """Every check on one case. `truth` is its oracle. A program that does not compare is launched once and judged by the oracle alone."""
    report = Report(case.name)
    placed = program.put(inp)
    first, _ = program(placed)
    host = {v: np.asarray(o) for v, o in first.items()}
    for v, out in host.items():
        r = report.results[v] = judge(case, inp, truth, out)
        if not r.ok:
            report.add(v, r.problem)
    for v, out in host.items():
        other = v.split(".")[0] + ".public"
        if other in host and not check.same_bits(out, host[other]):
            report.add(v, f"differs from the public layout: {check.difference(out, host[other])}")

    if not program.comparing:
        return report
    kinds = ["repeat"] * repeats + ["bytes that do not count"] * scrambles
    changes = [program(placed, first)[1] for _ in range(repeats)]
    changes += [program(program.put(inputs.scramble(inp, seed)), first)[1] for seed in range(scrambles)]
    for what, changed in zip(kinds, jax.device_get(changes)):
        for v, n in zip(program.keys(), changed):
            report.count(what)
            if n:
                report.add(v, f"{what}: {n} slots changed their bits")
    if 1 < inp.shape[4] and not inputs.falls(inp) and np.prod(program.out_shape) <= ALONE_SLOTS:
        _alone(report, inp, program, host)
    report.problems = list(dict.fromkeys(report.problems))
    return report


def _alone(report, inp, program, host):
    """First, longest and last sequence as the only one: its rows keep their bits, all other rows are -inf."""
    rows = [(q_len * max(n, 1), b) for b, (_, q_len, _, _, n, _) in enumerate(inputs.sequences(inp)) if q_len]
    for b in sorted({rows[0][1], max(rows)[1], rows[-1][1]}) if rows else ():
        single, q0, q_len = inputs.alone(inp, b)
        outs, _ = program(program.put(single))
        for v, out in outs.items():
            out = np.asarray(out)
            report.count("alone")
            if not check.same_bits(out[..., :q_len].copy(), host[v][..., q0 : q0 + q_len].copy()):
                report.add(
                    v,
                    f"sequence {b} alone: {check.difference(out[..., :q_len].copy(), host[v][..., q0 : q0 + q_len].copy())}",
                )
            if not np.isneginf(out[..., q_len:]).all():
                report.add(v, f"sequence {b} alone: padding tokens are not all -inf")
