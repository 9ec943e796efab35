"""The 128-byte tensor map of the device, decoded. The layout of its bits is inferred from what the DSL's host code writes, not from a document."""
import dataclasses
import struct

_BITS = [8, 16, 32, 32, 64, 64, 16, 32, 32, 64, 16, 4]      # u8 u16 u32 s32 u64 s64 f16 f32 f32-ftz f64 bf16 u4 (16 elements in 8 bytes)


@dataclasses.dataclass
class TensorMap:
    base: int
    bits: int           # of an element
    swizzle: int        # 0 none, 1 32 bytes, 2 64, 3 128
    dims: list          # elements, innermost first
    strides: list       # bytes, of the dimensions after the first
    box: list           # elements


def decode(raw):
    """128 bytes -> TensorMap. ValueError for interleaved maps, element strides and strides of 2^36 bytes or more."""
    w = struct.unpack("<16Q", raw)
    rank = (w[1] >> 4 & 7) + 1
    if w[1] >> 11 & 3 or any(w[6] >> (32 + 3 * i) & 7 for i in range(rank)) or w[3] >> 32:
        raise ValueError("tensor map: interleaving, element strides and strides of 2^36 bytes or more are not simulated")
    strides = [w[1] >> 32, w[2] & 0xFFFFFFFF, w[2] >> 32, w[3] & 0xFFFFFFFF]
    dims = [w[4] & 0xFFFFFFFF, w[4] >> 32, w[5] & 0xFFFFFFFF, w[5] >> 32, w[6] & 0xFFFFFFFF]
    box = [w[6] >> 56, *(w[7] >> (8 * i) & 255 for i in range(4))]
    return TensorMap(w[0], _BITS[w[1] >> 7 & 15], w[1] >> 13 & 3, [x + 1 for x in dims[:rank]], [16 * x for x in strides[:rank - 1]], [x + 1 for x in box[:rank]])
