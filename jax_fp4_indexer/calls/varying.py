"""Types of loop carries under meshes: a carry must have from the start the mesh and the varying axes that the loop's
inputs give it."""

from __future__ import annotations

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def _varying(x: jax.Array) -> frozenset[str]:
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)  # jax >= 0.10; before: `vma`
    return frozenset(manual.varying if manual is not None else getattr(aval, "vma", ()))


def _vary(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    missing = tuple(sorted(axes - _varying(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def same_varying_axes(*xs: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each varying over every manual axis that any of them varies over. Outside `shard_map` they come back
    as they are."""
    axes = frozenset().union(*map(_varying, xs))
    return tuple(_vary(x, axes) for x in xs)


def on_one_mesh(*xs: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, each replicated over the mesh with Explicit axes that the type of any of them names. Without such a
    mesh they come back as they are.

    An array that is made inside a function, or that the caller did not place, has no mesh in its type, and JAX takes it
    for another type than an array that has one.
    """
    meshes = [jax.typeof(x).sharding.mesh for x in xs]
    explicit = next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)
    if explicit is None:
        return xs
    return tuple(
        x if mesh == explicit else jax.sharding.reshard(x, NamedSharding(explicit, P()))
        for x, mesh in zip(xs, meshes, strict=True)
    )
