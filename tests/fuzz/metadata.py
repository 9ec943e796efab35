"""Metadata of a case: valid batches, and the faults that make them contradict themselves."""

import dataclasses

import numpy as np

from support.inputs import INT32_MAX, INT32_MIN, PAGE

WILD = np.array([-1, -2, INT32_MIN, INT32_MIN + 1, INT32_MAX, INT32_MAX - 1, 2**30, 2**24, 1 << 16])


@dataclasses.dataclass
class Metadata:
    cu_q: np.ndarray
    cu_k: np.ndarray
    cu_p: np.ndarray
    kv_indices: np.ndarray
    qo_offset: np.ndarray | None
    faults: tuple = ()

    def arrays(self):
        """By the keyword names of the public function."""
        a = dict(
            cu_seqlens_q=self.cu_q,
            cu_seqlens_k=self.cu_k,
            cu_page_offsets=self.cu_p,
            kv_indices=self.kv_indices,
            qo_offset=self.qo_offset,
        )
        return {name: x for name, x in a.items() if x is not None}


def _i32(x):
    """Wraps, as int32 arithmetic of the caller would."""
    return np.asarray(x, np.int64).astype(np.int32)


def _sums(lengths, count):
    """Prefix sums of `lengths`, followed by empty sequences up to `count`."""
    sums = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))])
    return _i32(np.concatenate([sums, np.full(count + 1 - sums.size, sums[-1])]))


def valid(rng, b, longest_q=None):
    """A batch that keeps every rule. longest_q: other than max_seqlen_q (which chooses the kernel and nothing else)."""
    longest_q = longest_q or b.max_seqlen_q
    live = b.seqs if rng.randint(3) else rng.randint(0, b.seqs + 1)
    ql, kl, tokens, entries = [], [], b.tokens, b.indices
    share = max(1, b.indices // max(live, 1)) if rng.randint(2) else b.indices
    for _ in range(live):
        n = (rng.randint(0, longest_q + 1), longest_q, 1, 0)[rng.choice(4, p=(0.6, 0.2, 0.15, 0.05))]
        ql.append(min(int(n), tokens))
        tokens -= ql[-1]
        most = min(min(share, entries) * PAGE, b.max_seqlen_k)
        n = (
            rng.randint(0, most + 1),
            most,
            PAGE * rng.randint(0, most // PAGE + 1) + rng.randint(-1, 2),
            rng.randint(0, 3),
        )[rng.choice(4, p=(0.4, 0.2, 0.3, 0.1))]
        kl.append(min(max(int(n), 0), most))
        entries -= -(-kl[-1] // PAGE)
    used = b.indices - entries
    ids = (
        rng.randint(0, max(b.pages, 1), b.indices),
        np.arange(b.indices) % max(b.pages, 1),
        np.resize(rng.permutation(max(b.pages, 1)), b.indices),
    )[rng.randint(3)].astype(np.int64)
    if b.pages == 0:  # no id of it exists: keep all sequences empty of keys
        kl, used = [0] * live, 0
    ids[used:] = rng.choice(np.concatenate([WILD, [b.pages]]), b.indices - used)
    offset = None
    if b.mask == 2:
        near = np.array([k - q for q, k in zip(ql, kl)] + [0] * (b.seqs - live), np.int64)
        some = rng.randint(-9, 10, b.seqs) + (rng.random_sample(b.seqs) * (np.abs(near) + 2)).astype(np.int64)
        offset = _i32(
            np.where(
                rng.randint(0, 4, b.seqs) == 0,
                rng.choice(WILD, b.seqs),
                np.where(rng.randint(0, 2, b.seqs), near, some),
            )
        )
    return Metadata(_sums(ql, b.seqs), _sums(kl, b.seqs), _sums([-(-k // PAGE) for k in kl], b.seqs), _i32(ids), offset)


# -- faults: functions (rng, metadata, bucket) that change one array in place, or return it anew ---------------------------


def _pick(rng, x, share=0.3):
    """Some places of an array, at least one if it has any."""
    where = rng.random_sample(x.size) < share
    if x.size:
        where[rng.randint(x.size)] = True
    return where


def page_ids(rng, m, b):
    where = _pick(rng, m.kv_indices)
    m.kv_indices[where] = rng.choice(np.concatenate([WILD, [b.pages, b.pages + 1]]), where.sum())


def page_ids_random(rng, m, b):
    m.kv_indices[:] = rng.randint(INT32_MIN, INT32_MAX, b.indices)


def _sum_faults(name, limit):
    """Faults of one prefix sum; limit(bucket): what its last entry may be at most."""

    def edit(function):
        def fault(rng, m, b):
            setattr(m, name, _i32(function(rng, getattr(m, name).astype(np.int64), limit(b))))

        return fault

    def starts_late(rng, x, most):
        return x + rng.choice([1, 2, 5, most // 2 + 1])

    def starts_early(rng, x, most):
        return x - rng.choice([1, 3, most, 2**31 - 5])

    def past_the_end(rng, x, most):
        x[rng.randint(x.size) :] += rng.choice([1, 7, most + 1, 2**20])
        return x

    def falls(rng, x, most):
        i, j = rng.randint(0, x.size, 2)
        x[[i, j]] = x[[j, i]]
        return x

    def dips(rng, x, most):
        x[rng.randint(x.size)] -= rng.randint(1, max(most, 2))
        return x

    def shuffled(rng, x, most):
        return rng.permutation(x)

    def extremes(rng, x, most):
        where = _pick(rng, x)
        x[where] = rng.choice(WILD, where.sum())
        return x

    def random_near(rng, x, most):
        return rng.randint(-3, most + 4, x.size)

    def random_sorted(rng, x, most):
        return np.sort(rng.randint(-most - 2, 2 * most + 3, x.size))

    def random(rng, x, most):
        return rng.randint(INT32_MIN, INT32_MAX, x.size)

    found = (
        starts_late,
        starts_early,
        past_the_end,
        falls,
        dips,
        shuffled,
        extremes,
        random_near,
        random_sorted,
        random,
    )
    return {f"{name}.{f.__name__}": edit(f) for f in found}


def longer_than_max_q(rng, m, b):
    other = valid(rng, b, longest_q=max(b.tokens, 1))
    m.cu_q = other.cu_q


def longer_than_max_k(rng, m, b):
    """Lengths beyond max_seqlen_k and beyond the pages listed."""
    lengths = np.diff(m.cu_k.astype(np.int64))
    where = _pick(rng, lengths)
    lengths[where] += rng.choice([1, 127, 128, 1000, 10**6], where.sum())
    m.cu_k = _i32(np.concatenate([[0], np.cumsum(lengths)]))


def high_sums(rng, m, b):
    """Sums near 2^31, past it and around: only their differences count."""
    m.cu_k = _i32(m.cu_k.astype(np.int64) + INT32_MAX - rng.choice([0, 5, int(m.cu_k[-1])]))


def offsets_anywhere(rng, m, b):
    if m.qo_offset is not None:
        m.qo_offset[:] = rng.randint(INT32_MIN, INT32_MAX, b.seqs)


def everything_random(rng, m, b):
    for x in (m.cu_q, m.cu_k, m.cu_p, m.kv_indices) + (() if m.qo_offset is None else (m.qo_offset,)):
        x[:] = rng.randint(INT32_MIN, INT32_MAX, x.size)


FAULTS = {
    f.__name__: f
    for f in (
        page_ids,
        page_ids_random,
        longer_than_max_q,
        longer_than_max_k,
        high_sums,
        offsets_anywhere,
        everything_random,
    )
}
FAULTS |= (
    _sum_faults("cu_q", lambda b: b.tokens)
    | _sum_faults("cu_k", lambda b: b.indices * PAGE)
    | _sum_faults("cu_p", lambda b: b.indices)
)


def faulty(rng, b):
    """A valid batch with one to three faults."""
    m = valid(rng, b)
    names = [str(n) for n in rng.choice(sorted(FAULTS), rng.choice([1, 2, 3], p=(0.6, 0.3, 0.1)), replace=False)]
    for name in names:
        FAULTS[name](rng, m, b)
    return dataclasses.replace(m, faults=tuple(names))
