"""A case: a bucket, one of its pools, and metadata, all from (seed, index)."""

import dataclasses
import functools
import threading

import numpy as np

from jax_fp4_indexer import ragged

from . import metadata, shapes, values

INVALID_SHARE = 0.45  # of the cases with a fault; some of those break no rule (offsets may be anything)
RUN = 16  # cases in a row over one bucket: a short process needs few programs


@dataclasses.dataclass
class Case:
    seed: int
    index: int
    bucket: shapes.Bucket
    pool: values.Pool | None
    number: int  # of the pool
    metadata: metadata.Metadata
    invalid: str  # what ragged.validate finds; empty for a valid batch

    def __str__(self):
        return f"case {self.index} of seed {self.seed} ({self.bucket.name}, pool {self.number}, {', '.join(self.metadata.faults) or 'no fault'})"


class Pools:
    """The pools of all buckets, made on demand, each once, also from several threads."""

    def __init__(self, seed):
        self.seed, self._lock, self._made = seed, threading.Lock(), {}

    def get(self, bucket, number):
        with self._lock:
            make = self._made.setdefault(
                (bucket, number), functools.cache(lambda: values.make(bucket, number, self.seed))
            )
            lock = self._made.setdefault((bucket, number, "lock"), threading.Lock())
        with lock:
            return make()


@functools.lru_cache(maxsize=None)
def _order(seed, turn, count):
    return np.random.RandomState([seed, turn]).permutation(count)


def bucket_of(seed, index, buckets):
    """Every bucket in turn, in an order that the seed shuffles."""
    turn, place = divmod(index // RUN, len(buckets))
    return buckets[_order(seed, turn, len(buckets))[place]]


def make(seed, index, buckets, pools=None):
    """Case `index`; without `pools` it has no codes and scales, only metadata."""
    bucket = bucket_of(seed, index, buckets)
    rng = np.random.RandomState([seed, index, 1])
    number = int(rng.choice(values.POOLS, p=(0.4, 0.35, 0.25)))
    m = metadata.faulty(rng, bucket) if rng.random_sample() < INVALID_SHARE else metadata.valid(rng, bucket)
    try:
        ragged.validate(
            m.cu_q,
            m.cu_k,
            m.cu_p,
            m.kv_indices,
            tokens=bucket.tokens,
            num_pages=bucket.pages,
            max_seqlen_q=bucket.max_seqlen_q,
            max_seqlen_k=bucket.max_seqlen_k,
            qo_offset=m.qo_offset,
        )
        invalid = ""
    except ValueError as error:
        invalid = str(error)
    return Case(seed, index, bucket, pools and pools.get(bucket, number), number, m, invalid)
