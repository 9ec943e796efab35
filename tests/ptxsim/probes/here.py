"""The same launches in the simulator."""

import struct

import numpy as np

from ptxsim import tensor_map
from ptxsim.decode import Program
from ptxsim.launch import Memory, SimError, run


def run_one(launch, **how):
    """(uint32 [launch.words], Result), or (text of the SimError, None)."""
    memory, out = Memory(), np.full(launch.words, launch.fill, np.uint32)
    at = {"in": memory.add("in", launch.data, 128), "out": memory.add("out", out, 128, write=True)}
    params = [struct.pack("<Q", a) for a in at.values()]
    if launch.map:
        params.append(tensor_map.encode(launch.map, {}, at[launch.map["buffer"]]))
    try:
        result = run(
            Program(launch.ptx),
            memory,
            params,
            (launch.grid, 1, 1),
            (launch.threads, 1, 1),
            0,
            (max(launch.cluster, 1), 1, 1),
            max_insts=10**7,
            **how,
        )
    except SimError as e:
        return str(e), None
    return out, result
