"""What one row of the case table gave on one variant in one schedule, and where that is kept so that an unchanged kernel costs nothing.

    rows, ran = results.sweep(compiled, variant, "eager", cases)     # from build/ptxsim/rows where nothing that a result depends on has changed

A kept result is found by the texts of the kernels, the schedule, the code of the simulator and the code that prepares a launch; within a file by the
row's identity. Only right results are kept: what was wrong runs again. `JFI_PTXSIM_ROWS=off` keeps and finds nothing.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import zlib

import numpy as np

from jax_fp4_indexer.specs import expr
from harness import registry
from ptxsim import cache, identity

from . import launches, selection

TESTS = cache.HERE.parent
FOLDER = None  # of the tests that look at what is kept; else build/ptxsim/rows


@dataclasses.dataclass
class Row:
    """One row of one variant in one schedule."""

    id: str
    slots: int = 0
    exact: bool = False  # a row whose finite results have the reference's bits (0.0 == -0.0), where they must
    card: bool = False  # of those: a GPU has computed the row (`golden` of the op's tests), and it has those bits
    worst: float = 0.0  # error over sum of magnitudes
    bits: str = ""  # digest of the results
    instructions: int = 0  # of warps
    reports: list = dataclasses.field(default_factory=list)  # sentences: faults that the simulator reported
    wrong: list = dataclasses.field(default_factory=list)  # sentences: those and wrong scores
    hits: list = dataclasses.field(default_factory=list)  # of each launch: which instructions ran, packed bits
    phases: list = dataclasses.field(default_factory=list)  # of each launch: {offset of an mbarrier: phases completed}

    @property
    def good(self):
        return not self.wrong

    def executed(self, launch, size):
        """bool [size]: which instructions of a launch ran."""
        return np.unpackbits(
            np.frombuffer(zlib.decompress(bytes.fromhex(self.hits[launch])), np.uint8), count=size
        ).astype(bool)


def pack(hits):
    return zlib.compress(np.packbits(hits > 0).tobytes()).hex()


def _folder():
    return FOLDER or cache.folder() / "rows"


# ---- identities
def stamp(kernel):
    """16 hex digits of what a launch executes: the text, and how it is launched."""
    facts = [kernel.block, kernel.cluster, kernel.grid, kernel.dynamic_shared_bytes, kernel.params]
    return hashlib.sha256((json.dumps(_canonical(facts), sort_keys=True) + kernel.text).encode()).hexdigest()[:16]


def _canonical(facts):
    """Launch facts with every expression of sizes written in one way."""
    if isinstance(facts, dict):
        return {key: _canonical(value) for key, value in facts.items()}
    if isinstance(facts, (list, tuple)):
        return [_canonical(value) for value in facts]
    try:
        return str(expr.parse(str(facts)))
    except ValueError:
        return facts


@functools.cache
def simulator():
    """16 hex digits of the simulator's code: the core in C, the decoder, the launch."""
    files = [
        *(cache.HERE / "core").glob("*.[ch]"),
        *(cache.HERE / "decode").glob("*.py"),
        *(cache.HERE / name for name in ("parse.py", "launch.py", "tensor_map.py")),
    ]
    return identity.digest(files)


@functools.cache
def preparation():
    """16 hex digits of the code that prepares a launch and judges its result, of every op."""
    return identity.digest(
        [
            pathlib.Path(launches.__file__),
            TESTS / "harness" / "protocol.py",
            *(TESTS / "harness" / "ops").glob("*.py"),
            TESTS / "support" / "check.py",
        ]
    )


@functools.cache
def _ids():
    """{"op name of a row": id}, kept as long as the code that makes rows is the same: to know an id again nothing is built."""
    code = identity.digest(
        [*(TESTS / "support").glob("*.py"), *(TESTS / "harness" / "ops").glob("*.py"), TESTS / "simulated" / "cases.py"]
    )
    path = _folder() / f"ids.{code}.json"
    return path, json.loads(path.read_text()) if path.exists() else {}


def row_id(op, case):
    """8 hex digits: the inputs of a case of an op, and how its results are judged."""
    path, known = _ids()
    key = f"{op} {case.name}"
    if key not in known:
        known[key] = registry.op(op).identity(case)
    return known[key]


def rows_digest(ids):
    """8 hex digits of a list of rows, whatever its order."""
    return hashlib.blake2b("".join(sorted(ids)).encode(), digest_size=4).hexdigest()


# ---- running
def digest(results, salt=""):
    """16 hex digits of results; all NaN count as one, and both zeros."""
    h = hashlib.blake2b(salt.encode(), digest_size=8)
    for name, x in results.items():
        bits = (x + x.dtype.type(0)).view(f"u{x.itemsize}")
        bits[np.isnan(x)] = launches.QUIET_NAN[x.itemsize]
        h.update(f"{bits.shape}".encode() + bits.tobytes())
    return h.hexdigest()


def judged(tests, case, choices, results, verdict, reports):
    """The Row of a call. results: {name: array}, or None where the call failed; verdict: of OpTests.compare; reports: sentences of the simulator and on slots that nothing wrote."""
    row, problems = Row(row_id(tests.spec.name, case), reports=list(reports)), list(verdict.problems)
    if results is not None:
        row.slots, row.worst, row.bits, row.exact = (
            sum(x.size for x in results.values()),
            verdict.worst,
            digest(results, case.name),
            verdict.exact,
        )
        card = tests.golden(case, choices) if hasattr(tests, "golden") else None
        row.card = card is not None
        if card not in (None, digest(results)):
            problems.append("the results have not the bits of the H200")
    row.wrong = [f"{case.name}: {p}" for p in (*reports, *problems)]
    return row


def _simulate(compiled, variant, case, schedule, how):
    before = [(k.hits.copy(), dict(k.phases)) for k in compiled]
    for k in compiled:
        k.hits[:] = 0
        k.phases.clear()
    outcome, verdict = selection.judged(compiled, variant, case, schedule, **how)
    row = judged(
        registry.op(variant.op),
        case,
        variant.choices,
        outcome and outcome.results,
        verdict,
        outcome.problems() if outcome else [],
    )
    row.instructions = outcome.insts if outcome else 0
    row.hits, row.phases = (
        [pack(k.hits) for k in compiled],
        [{str(o): int(n) for o, n in k.phases.items()} for k in compiled],
    )
    for k, (hits, phases) in zip(compiled, before):
        k.hits += hits
        k.phases.update({o: max(n, k.phases.get(o, 0)) for o, n in phases.items()})
    return row


class Kept:
    """The results of one variant in one schedule. `ran`: how many rows were simulated, not found."""

    def __init__(self, compiled, variant, schedule, again=False, **how):
        self.again = again
        self.compiled, self.variant, self.schedule, self.how, self.ran = compiled, variant, schedule, how, 0
        key = [
            simulator(),
            preparation(),
            *(value for _, value in variant.select),
            variant.repeat,
            [stamp(k) for k in compiled],
            schedule,
            sorted(how.items()),
        ]
        self.path = _folder() / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}.json"
        self.rows = self._read()

    def _read(self):
        return json.loads(self.path.read_text()) if self._on() and self.path.exists() else {}

    @staticmethod
    def _on():
        return os.environ.get("JFI_PTXSIM_ROWS") != "off"

    def run(self, case):
        """The Row of a case."""
        kept = self.rows.get(row_id(self.variant.op, case))
        if kept is not None and not self.again:
            return Row(**kept)
        self.ran += 1
        row = _simulate(self.compiled, self.variant, case, self.schedule, self.how)
        if row.good:
            self.rows[row.id] = dataclasses.asdict(row)
        return row

    def save(self):
        """Keep what ran, in addition to what another process has kept meanwhile."""
        if self.ran and self._on():
            rows = {**self._read(), **self.rows}
            cache.replace(self.path, lambda to: to.write_text(json.dumps(rows)))
            path, ids = _ids()
            cache.replace(path, lambda to: to.write_text(json.dumps(ids)))


def sweep(compiled, variant, schedule, rows, again=False, **how):
    """([Row], how many of them were simulated now) of some cases. again: also those that are kept."""
    kept = Kept(compiled, variant, schedule, again, **how)
    try:
        return [kept.run(case) for case in rows], kept.ran
    finally:
        kept.save()
