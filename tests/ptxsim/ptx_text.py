"""Small kernels for the tests of the simulator: a body of PTX with registers declared, run on two small buffers."""

import struct

import numpy as np

from .decode import Program
from .launch import Memory, run

HEAD = """
.version 8.6
.target sm_90a
.address_size 64
{shared}
.visible .entry kernel(.param .u64 in, .param .u64 out)
{{
    .reg .pred %p<8>;
    .reg .b16 %h<8>;
    .reg .b32 %r<64>;
    .reg .f32 %f<64>;
    .reg .b64 %rd<16>;
    ld.param.u64 %rd0, [in];
    ld.param.u64 %rd1, [out];
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;            // warp
    and.b32 %r2, %r0, 31;           // lane
    mul.wide.u32 %rd2, %r0, 4;
    add.s64 %rd3, %rd1, %rd2;       // own word of out
    mov.u32 %r3, smem;
    shl.b32 %r4, %r0, 2;
    add.s32 %r5, %r3, %r4;          // own word of shared memory
    {body}
    ret;
}}
"""
WORDS = 1024


def program(body, shared="4096"):
    return Program(HEAD.format(body=body, shared=f".shared .align 1024 .b8 smem[{shared}];"))


def execute(body, threads=64, *, data=None, grid=1, cluster=1, shared="4096", words=WORDS, **how):
    """Returns (Result, out as uint32 [words]). `data`: uint32 contents of `in`, default 0, 1, 2, ..."""
    given = np.arange(words, dtype=np.uint32)
    if data is not None:
        given[: len(data)] = data
    out = np.full(words, 0xDEADBEEF, np.uint32)
    memory = Memory()
    params = [struct.pack("<Q", memory.add("in", given, 16)), struct.pack("<Q", memory.add("out", out, 16, write=True))]
    result = run(
        program(body, shared),
        memory,
        params,
        (grid, 1, 1),
        (threads, 1, 1),
        0,
        (cluster, 1, 1),
        max_insts=200000,
        **how,
    )
    return result, out
