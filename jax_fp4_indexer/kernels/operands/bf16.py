"""E2M1 codes times their group's scale as bf16, exactly.

A nibble s e e m put at the sign, exponent and mantissa of a bf16 (s at bit 15, e e m at bits 8..6) reads as value *
2^-126, subnormal code included. One packed multiply by scale * 2^(126 + shift) gives value * scale * 2^shift for two
elements; at most 6 significant bits, so nothing rounds as long as the exponent stays in range. Codes i and i + 4 of a
32-bit word share a register: order 0 4 1 5 2 6 3 7 along D, the same for queries and keys, so that dot products do
not see it.

    nvfp4   queries and keys carry 2^-10 each: every UE4M3 scale fits. An E4M3 byte at bits 10..4 reads as scale *
            2^-120. 0x7F is NaN, bit 7 ignored.
    mxfp4   scale 2^(byte - 127). Queries carry 2^-31 and are exact for bytes of QUERY_WINDOW, keys carry 2^31 and are
            exact for bytes of KEY_WINDOW (configs/block_scores.py); 255 is NaN. Products are then exact and far from
            both ends of fp32. Other bytes give a finite wrong value: prepare flags them and the exact kernel replaces
            the scores.
"""

from cutlass import Int32

from ..device.ptx_math import and_, bmul2, imad, mux, select, shl, shr
from ..device.ptx_memory import ld_u8, ld_u16

OUT_SCALE = {"nvfp4": 2.0**20, "mxfp4": 1.0}  # what the scores are multiplied by to undo the shifts
NAN_PAIR = 0x7FC07FC0


def codes_to_bf16(w, scale):
    """8 codes, scale word of them -> 4 words of bf16 pairs (codes i, i + 4)."""
    return [bmul2(pair, scale) for pair in _pairs(w)]


def key_codes_to_bf16(w, scale, format):
    """codes_to_bf16 for keys: MXFP4 keys need a second multiply, because 2^(126 + 31) times the scale is out of
    range."""
    if format == "nvfp4":
        return codes_to_bf16(w, scale)
    return [bmul2(bmul2(pair, Int32(0x7E807E80)), scale) for pair in _pairs(w)]  # 2^126


def _pairs(w):
    """8 codes -> 4 words of bf16 pairs of value * 2^-126 (codes i, i + 4)."""
    out = []
    for i in range(4):
        sign = shl(w, 12 - 4 * i) if i < 3 else w
        code = shl(w, 6 - 4 * i) if i < 2 else shr(w, 4 * i - 6)
        out.append(and_(mux(sign, code, 0x80008000), 0x81C081C0))
    return out


def _e4m3_scale(byte):
    """scale * 2^116, twice in a word; only the low 7 bits of `byte` are looked at."""
    m = imad(and_(byte, 0x7F), 0x00100010, Int32(0))
    x = bmul2(bmul2(m, Int32(0x7F007F00)), Int32(0x76007600))  # * 2^127 * 2^109
    return select(m, Int32(0x07F007F0), Int32(NAN_PAIR), x)


def _e8m0_scale(byte, add):
    """2^(byte + add - 127), twice in a word, for 0 < byte + add < 255."""
    return select(byte, Int32(255), Int32(NAN_PAIR), imad(byte + add, 0x00800080, Int32(0)))


def query_scale(byte, format):
    """Scale byte -> the factor of codes_to_bf16."""
    return _e4m3_scale(byte) if format == "nvfp4" else _e8m0_scale(byte, 126 - 31)


def key_scale(byte, format):
    """Scale byte -> the factor of key_codes_to_bf16."""
    return _e4m3_scale(byte) if format == "nvfp4" else _e8m0_scale(byte, 31)


def query_scales_of_quarter(raw, format):
    """`load_scales` of 32 codes -> the factors of their first and last 16."""
    if format == "nvfp4":
        return query_scale(raw, format), query_scale(shr(raw, 8), format)
    s = query_scale(raw, format)
    return s, s


def load_scales(addr, format):
    """The scale bytes of 32 codes: two E4M3 or one E8M0."""
    return ld_u16(addr) if format == "nvfp4" else ld_u8(addr)
