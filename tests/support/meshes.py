"""Meshes of fake devices, and what a compiled program communicates."""

import re

import jax
import numpy as np
from jax.sharding import AxisType

COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast|reduce-scatter|ragged-all-to-all)(?:-start)?\("
)


def mesh(kind=AxisType.Auto, **axes):
    """A mesh of the first devices: mesh(x=2, y=4)."""
    count = int(np.prod(list(axes.values())))
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), devices=jax.devices()[:count], axis_types=(kind,) * len(axes)
    )


def collectives(compiled):
    """Names of the collectives in a compiled program, in order."""
    return COLLECTIVE.findall(compiled.as_text())
