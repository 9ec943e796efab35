"""Scores that an H200 computed with the native kernels of sm_90a.

h200.npz     the scores of 36 rows, "<case>|<path>", 32 of them on both paths (jax 0.11.2)
exact.json   digests of the scores of every exact row of the simulator's list: {digest of the inputs: {path: digest}}

Both are made on a card, by `python -m simulated.golden` (golden/__main__.py).
"""

import functools
import hashlib
import json
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
SCORES = HERE / "h200.npz"


def digest(scores, salt=""):
    """16 hex digits of float32 scores; all NaN count as one, and both zeros."""
    bits = (scores + np.float32(0)).view(np.uint32)
    bits[np.isnan(scores)] = 0x7FC00000
    return hashlib.blake2b(f"{salt}{bits.shape}".encode() + bits.tobytes(), digest_size=8).hexdigest()


@functools.cache
def _exact():
    path = HERE / "exact.json"
    return json.loads(path.read_text()) if path.exists() else {}


def exact(inp, path):
    """Digest of the H200's scores of these inputs (support.inputs.Inputs), or None. `path` chooses where both were run."""
    kept = _exact().get(inp.digest(), {})
    return kept.get(path) or next(iter(kept.values()), None)
