"""The bars: -inf and NaN in the same slots, equal bits on exact inputs, 4e-6 * sum|terms| elsewhere."""

import dataclasses

import numpy as np

from .oracle import FLT_MAX, FLT_MIN

BAR = 4e-6
GROUPS_MAX = 8  # group terms below 2^-126 may each be flushed, so a sum may lose this many times 2^-126


@dataclasses.dataclass
class Result:
    """Counts over the slots of one output. `problem` is empty when every bar holds."""

    slots: int
    minus_inf: int = 0
    nan: int = 0
    inf: int = 0
    equal: int = 0  # finite slots with the bits of the rounded oracle (0.0 == -0.0)
    flushed: int = 0  # finite slots that pass only because results below 2^-126 may be flushed
    worst: float = 0.0  # largest error / sum|terms|
    exact: bool = False
    problem: str = ""

    @property
    def ok(self):
        return not self.problem

    def raise_if_wrong(self, name):
        if self.problem:
            raise AssertionError(f"{name}: {self.problem}")


def compare(out, oracle, exact):
    """Compare fp32 `out` with an `Oracle` of the same shape; the first broken bar is named with its first slot."""
    out = np.asarray(out)
    if out.dtype != np.float32 or out.shape != oracle.scores.shape:
        return Result(
            out.size, problem=f"got {out.dtype}{list(out.shape)}, expected float32{list(oracle.scores.shape)}"
        )
    want = oracle.expected
    r = Result(
        out.size, int(np.isneginf(want).sum()), int(np.isnan(want).sum()), int(np.isposinf(want).sum()), exact=exact
    )

    def broken(bad, what):
        if r.problem or not bad.any():
            return
        slot = tuple(int(i) for i in np.argwhere(bad)[0])
        r.problem = (
            f"{what} in {int(bad.sum())} of {out.size} slots, first [hq, kb, tq] = {list(slot)}: got {out[slot]!r}, "
            f"expected {want[slot]!r} (float64 {oracle.scores[slot]!r}, sum|terms| {oracle.bound[slot]:.6g})"
        )

    broken(np.isnan(out) != np.isnan(want), "NaN set differs")
    finite = np.isfinite(want) & np.isfinite(out)
    with np.errstate(invalid="ignore", over="ignore"):
        tolerance = 0.0 if exact else BAR * oracle.bound
        # within the bar of fp32's maximum either side of the overflow is right
        edge = (
            np.isfinite(oracle.scores)
            & (np.abs(oracle.scores) + tolerance > FLT_MAX)
            & (np.abs(oracle.scores) - tolerance <= FLT_MAX)
        )
        edge &= np.sign(out) == np.sign(oracle.scores)
        broken((np.isneginf(out) != np.isneginf(want)) & ~edge, "-inf set differs")
        broken((np.isposinf(out) != np.isposinf(want)) & ~edge, "+inf set differs")
        same = finite & (out == want)
        error = np.where(finite, np.abs(out.astype(np.float64) - oracle.scores), 0.0)
        r.equal = int(same.sum())
        if exact:
            flushed = finite & ~same & (np.abs(oracle.scores) < FLT_MIN) & (out == 0)
            broken(finite & ~same & ~flushed, "bits differ on exact input")
        else:
            flushed = finite & (error > tolerance) & (error <= tolerance + GROUPS_MAX * FLT_MIN)
            broken(finite & (error > tolerance) & ~flushed, f"error above {BAR:g} * sum|terms|")
        r.flushed = int(flushed.sum())
        ratio = np.divide(error, oracle.bound, out=np.zeros_like(error), where=(oracle.bound > 0) & finite & ~flushed)
    r.worst = float(ratio.max(initial=0.0)) if not exact else float(np.where(same, 0.0, ratio).max(initial=0.0))
    return r


def same_bits(a, b):
    """Equal bit patterns, NaN payloads included: two runs of one kernel on what counts are one function."""
    return np.array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


def difference(a, b):
    """One line about the first slot whose bits differ."""
    a, b = np.asarray(a), np.asarray(b)
    bad = np.argwhere(a.view(np.uint32) != b.view(np.uint32))
    slot = tuple(int(i) for i in bad[0])
    return f"{len(bad)} slots differ, first {list(slot)}: {a[slot]!r} and {b[slot]!r}"
