"""Timing of the ops: named cases, data, clocks, limits. Used by `jax-fp4-indexer bench` and by `benchmarks/`."""
