"""The 128-byte tensor map of the device. The layout of its bits is that of what the driver of an H200 writes, and the DSL's host code for sm_100a.

raw = encode({"buffer": "k", "dtype": "u8", "dims": [64, "num_pages*heads_kv*128"], ...}, {"num_pages": 9, ...}, address)
decode(raw).box
"""

import ctypes as C
import dataclasses
import struct

from jax_fp4_indexer.specs import expr

from . import native

_BITS = [
    8,
    16,
    32,
    32,
    64,
    64,
    16,
    32,
    32,
    64,
    16,
    4,
]  # u8 u16 u32 s32 u64 s64 f16 f32 f32-ftz f64 bf16 u4 (16 elements in 8 bytes)


@dataclasses.dataclass
class TensorMap:
    base: int
    bits: int  # of an element
    swizzle: int  # 0 none, 1 32 bytes, 2 64, 3 128
    dims: list  # elements, innermost first
    strides: list  # bytes, of the dimensions after the first
    box: list  # elements
    integer32: bool  # the elements are u32 or s32


def decode(raw):
    """128 bytes -> TensorMap. ValueError for interleaved maps and strides between elements."""
    w = struct.unpack("<16Q", raw)
    rank = (w[1] >> 4 & 7) + 1
    if w[1] >> 11 & 3 or any(w[6] >> (32 + 3 * i) & 7 for i in range(rank)):
        raise ValueError("tensor map: interleaving and strides between elements are not simulated")
    strides = [
        low | (w[3] >> (32 + 4 * i) & 15) << 32
        for i, low in enumerate([w[1] >> 32, w[2] & 0xFFFFFFFF, w[2] >> 32, w[3] & 0xFFFFFFFF])
    ]
    dims = [w[4] & 0xFFFFFFFF, w[4] >> 32, w[5] & 0xFFFFFFFF, w[5] >> 32, w[6] & 0xFFFFFFFF]
    box = [w[6] >> 56, *(w[7] >> (8 * i) & 255 for i in range(4))]
    return TensorMap(
        w[0],
        _BITS[w[1] >> 7 & 15],
        w[1] >> 13 & 3,
        [x + 1 for x in dims[:rank]],
        [16 * x for x in strides[: rank - 1]],
        [x + 1 for x in box[:rank]],
        w[1] >> 7 & 15 in (2, 3),
    )


DTYPES = {
    "u8": 0,
    "u16": 1,
    "u32": 2,
    "i32": 3,
    "f16": 6,
    "f32": 7,
    "bf16": 9,
}  # numbers of the driver, names of the manifest
SWIZZLES, PROMOTIONS = ["none", "32", "64", "128"], ["none", "64", "128", "256"]


def encode(recipe, scalars, address, driver=None):
    """128 bytes of a manifest's recipe, made by the stand-in driver (or `driver`, a loaded libcuda), as the launcher has the driver make them. Zeros for a tensor without elements.

    ValueError for what the driver refuses.
    """
    dims, strides = ([expr.parse(e).value(scalars) for e in recipe[key]] for key in ("dims", "strides"))
    out, rank = (C.c_char * 128)(), len(dims)
    if min(dims) <= 0:
        return out.raw
    wide = lambda values: (C.c_uint64 * rank)(*values)
    narrow = lambda values: (C.c_uint32 * rank)(*values)
    driver = driver or C.CDLL(str(native.build("libcuda", "driver")))
    refused = driver.cuTensorMapEncodeTiled(
        out,
        DTYPES[recipe["dtype"]],
        rank,
        C.c_void_p(address),
        wide(dims),
        wide(strides),
        narrow(recipe["box"]),
        narrow([1] * rank),
        0,
        SWIZZLES.index(recipe["swizzle"]),
        PROMOTIONS.index(recipe["l2_promotion"]),
        0,
    )
    if refused:
        raise ValueError(
            f"the driver refuses the tensor map {recipe}: dims {dims}, strides {strides}, address {address:#x}"
        )
    return out.raw
