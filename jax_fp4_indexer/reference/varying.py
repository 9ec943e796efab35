"""Varying manual axes: inside `shard_map`, a loop carry must have the axes that its inputs vary over from the start."""
import jax


def _varying(x):
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)            # jax >= 0.10; before: `vma`
    return frozenset(manual.varying if manual is not None else getattr(aval, "vma", ()))


def _vary(x, axes):
    missing = tuple(sorted(axes - _varying(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def same_varying_axes(*xs):
    """The arrays, each varying over every manual axis that any of them varies over. Outside `shard_map` they come back as they are."""
    axes = frozenset().union(*map(_varying, xs))
    return tuple(_vary(x, axes) for x in xs)
