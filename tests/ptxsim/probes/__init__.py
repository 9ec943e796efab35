"""What a card does where the manual is silent, asked once and kept: small PTX kernels that run on a GPU and in the simulator alike.

    PYTHONPATH=tests python -m ptxsim.probes card OUT.npz      on a machine with a GPU of compute capability 9.0 (driver, NumPy; no toolkit, no JAX)
    PYTHONPATH=tests python -m ptxsim.probes keep OUT.npz      writes h200.npz from it
    PYTHONPATH=tests python -m ptxsim.probes compare OUT.npz   anywhere: the simulator against those answers

The answers of an H200 are in h200.npz, test_probes.py holds the simulator to them, and docs/facts.md says in words what they are.
"""
