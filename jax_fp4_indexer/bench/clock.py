"""The device's own clocks at points of a program: the custom call `jax_fp4_indexer.clock.v1` (ffi/handlers/clock.cc).
CUDA only."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jax_fp4_indexer.primitives import runtime

TARGET = "jax_fp4_indexer.clock.v1"
WORDS = 6  # uint32 words a multiprocessor: three 64-bit numbers


@functools.cache
def available():
    """Whether programs of the default backend can hold stamps: a CUDA GPU, and the library is there. Registers the
    call with JAX."""
    if jax.default_backend() != "gpu" or runtime.capability_of(jax.local_devices()[0]) is None:
        return False
    try:
        library = runtime.load()
    except ImportError:
        return False
    register("CUDA", library)
    return True


def register(platform, library):
    """Registers the handler of a loaded library; called once a process and platform."""
    stages = {
        "prepare": jax.ffi.pycapsule(library.jfi_clock_prepare),
        "execute": jax.ffi.pycapsule(library.jfi_clock_execute),
    }
    jax.ffi.register_ffi_target(TARGET, stages, platform=platform)


def multiprocessors():
    return jax.local_devices()[0].core_count


def stamp(x, *after):
    """(x, ticks): the clocks when every array of `after` is there, and before anything that uses the returned x starts.

    Args:
      x: any array. It is passed on in its own memory: where it is a program's argument, XLA copies it once, before the
      first stamp.
      after: arrays whose computation must end first.
    Returns: x; ticks, uint32 [multiprocessors, 6], for `read`.
    """
    types = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((multiprocessors(), WORDS), jnp.uint32)
    return jax.ffi.ffi_call(TARGET, types, input_output_aliases={0: 0})(x, *after)


def _numbers(ticks):
    """[..., multiprocessors, 6] -> int64 [..., multiprocessors, (multiprocessor, clock, ns)]."""
    return np.ascontiguousarray(ticks, np.uint32).view(np.uint64).astype(np.int64)


def busy(runs):
    """Share of the time from the first run's first stamp to the last one's first that lies between first and last
    stamps: ticks of runs, [runs, stamps, ...]."""
    ns = _numbers(runs)[..., 2].min(-1)
    return float((ns[:-1, -1] - ns[:-1, 0]).sum() / (ns[-1, 0] - ns[0, 0]))


def read(ticks):
    """What the stamps of one run say.

    Args: ticks: uint32 [stamps, multiprocessors, 6].
    Returns: (us, mhz), float64 [stamps - 1] each: microseconds from a stamp to the next, and the clock rate between
    them, the median over the multiprocessors that ran a thread of both (their counters start at different times; NaN
    where none did).
    """
    numbers = _numbers(ticks)
    us = np.diff(numbers[..., 2].min(-1)) / 1e3
    mhz = []
    for before, after in itertools.pairwise(numbers):
        at = {sm: (clock, ns) for sm, clock, ns in before}
        passed = [(clock - at[sm][0], ns - at[sm][1]) for sm, clock, ns in after if sm in at]
        mhz.append(np.median([clocks / ns * 1e3 for clocks, ns in passed if ns > 0] or [np.nan]))
    return us, np.array(mhz)
