"""Build time only: compiles the kernels to cubins on a machine that needs no GPU, and keeps the manifest. `python -m jax_fp4_indexer.aot --help`.

variants/     a module for each op: which kernels exist, for which arch, and how launches combine into variants
table.py      what those tables consist of: Kernel, Variant
compile.py    one process an arch, incremental, gated
inspect.py    what a cubin says of itself, and the gates
manifest.py   cubins/manifest.json: fingerprints, selection, staleness
cli.py        the commands
"""
