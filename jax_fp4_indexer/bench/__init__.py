"""Timing of the ops: cases, clocks, limits, figures. Used by `jax-fp4-indexer bench` and by `benchmarks/`; needs JAX
and NumPy alone.

cases/       what is timed: a file an op
clock.py     the device's own clock inside a program;   host.py: the host's, where there is no such clock
timing.py    microseconds a call, in a burst, sustained and in a chain
card.py      power, clock and identity of the GPU
limits.py    rates of this device, measured in the same run
figures.py   shares and rates of a row
run.py       a case into a row;   table.py: rows into text
"""
