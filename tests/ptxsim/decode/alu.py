"""Control, moves, arithmetic, predicates, conversions."""

from ..parse import Special, Vec
from .operands import SHARED_WINDOW, Unsupported, form, width

COMPARE = {
    "eq": 0,
    "ne": 1,
    "lt": 2,
    "le": 3,
    "gt": 4,
    "ge": 5,
    "lo": 2,
    "ls": 3,
    "hi": 4,
    "hs": 5,
    "equ": 6,
    "neu": 7,
    "ltu": 8,
    "leu": 9,
    "gtu": 10,
    "geu": 11,
    "num": 12,
    "nan": 13,
}
HALF = r"(f16|bf16|f16x2|bf16x2)"


@form(r"bra(\.uni)?")
def _branch(d, ins, m):
    return d.row("BRA", im=[ins.target])


@form("ret", "exit")
def _return(d, ins, m):
    return d.row("RET")


@form("trap", "brkpt")
def _trap(d, ins, m):
    return d.row("TRAP")


@form(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32")
def _setmaxnreg(d, ins, m):
    return d.row("SETMAXNREG", im=[int(m.group(1) == "inc"), ins.args[0].value])


@form(r"griddepcontrol\.(wait|launch_dependents)", r"nanosleep\.u32", r"pmevent(\.mask)?")
def _nothing(d, ins, m):
    return d.row("NOP")


@form(r"mov\.pred")
def _mov_pred(d, ins, m):
    index, negated = d.predicate(ins.args[1])
    return d.row("PNOT" if negated else "PMOV", im=[index, 0, index, 0, 0, 0, d.predicate(ins.args[0])[0]])


@form(r"mov\.([busf](?:16|32|64))")
def _mov(d, ins, m):
    to, value = ins.args
    bits = width(m.group(1))
    if isinstance(to, Vec):
        return d.row(
            "UNPACK",
            [d.destination(o, bits // len(to.items)) for o in to.items],
            [d.source(value, bits)],
            [bits // len(to.items)],
        )
    if isinstance(value, Vec):
        part = bits // len(value.items)
        return d.row("PACK", [d.destination(to, bits)], [d.source(o, part) for o in value.items], [part])
    if isinstance(value, Special) and value.name.startswith(("clock", "globaltimer")):
        return d.row("CLOCK", [d.destination(to, bits)], simple=1)
    return d.plain("MOV", ins, bits, 1)


@form(r"cvta\.(to\.)?(shared|shared::cta|shared::cluster|global|local|const|param)\.u64")
def _cvta(d, ins, m):
    if not m.group(2).startswith("shared"):
        return d.plain("MOV", ins, 64, 1)
    return d.row(
        "SUB64" if m.group(1) else "ADD64",
        [d.destination(ins.args[0], 64)],
        [d.source(ins.args[1], 64), d.constant("value", SHARED_WINDOW)],
        simple=1,
    )


@form(r"mapa\.shared::cluster\.u32")
def _mapa(d, ins, m):
    return d.plain("MAPA", ins, 32, 2)


# ---- integers
@form(r"(add|sub)\.([us](?:16|32|64))")
def _add(d, ins, m):
    bits = width(m.group(2))
    return d.plain(f"{m.group(1).upper()}{bits}", ins, bits, 2)


@form(r"(add|sub)\.sat\.s32")
def _add_sat(d, ins, m):
    return d.plain(f"{m.group(1).upper()}SAT", ins, 32, 2)


@form(r"mul\.lo\.[us](16|32|64)")
def _mul_lo(d, ins, m):
    return d.plain(f"MUL{m.group(1)}", ins, int(m.group(1)), 2)


@form(r"mul\.hi\.([us])(32|64)")
def _mul_hi(d, ins, m):
    return d.plain(f"MULHI{m.group(1).upper()}{m.group(2)}", ins, int(m.group(2)), 2)


@form(r"mul\.wide\.([us])(16|32)")
def _mul_wide(d, ins, m):
    return d.plain(f"MULW{m.group(1).upper()}{m.group(2)}", ins, int(m.group(2)), 2, to=2 * int(m.group(2)))


@form(r"mad\.lo\.[us](16|32|64)")
def _mad_lo(d, ins, m):
    return d.plain(f"MAD{m.group(1)}", ins, int(m.group(1)), 3)


@form(r"mad\.hi\.([us])32")
def _mad_hi(d, ins, m):
    return d.plain(f"MADHI{m.group(1).upper()}32", ins, 32, 3)


@form(r"mad\.wide\.([us])(16|32)")
def _mad_wide(d, ins, m):
    bits = int(m.group(2))
    return d.plain(f"MADW{m.group(1).upper()}{bits}", ins, [bits, bits, 2 * bits], 3, to=2 * bits)


@form(r"(div|rem)\.([us])(32|64)")
def _div(d, ins, m):
    return d.plain("".join(m.groups()).upper(), ins, int(m.group(3)), 2)


@form(r"(min|max)\.u(16|32|64)")
def _min_unsigned(d, ins, m):
    return d.plain(f"{m.group(1).upper()}U", ins, int(m.group(2)), 2)


@form(r"(min|max)\.s(16|64)", r"(min|max)\.s(32)", r"(min|max)\.relu\.s(32)")
def _min_signed(d, ins, m):
    n = len(ins.args) - 1
    if n != 2 and (n != 3 or m.group(2) != "32"):
        raise Unsupported(f"{n} sources")
    return d.plain(f"{m.group(1).upper()}S{m.group(2)}", ins, int(m.group(2)), n, [int("relu" in ins.op)])


@form(r"neg\.s(16|32|64)")
def _neg(d, ins, m):
    return d.plain(f"NEG{m.group(1)}", ins, int(m.group(1)), 1)


@form(r"abs\.s(32|64)")
def _abs(d, ins, m):
    return d.plain(f"ABS{m.group(1)}", ins, int(m.group(1)), 1)


# ---- bits and predicates
@form(r"(and|or|xor)\.pred")
def _logic_pred(d, ins, m):
    (a, na), (b, nb) = d.predicate(ins.args[1]), d.predicate(ins.args[2])
    return d.row(f"P{m.group(1).upper()}", im=[a, na, b, nb, 0, 0, d.predicate(ins.args[0])[0]])


@form(r"not\.pred")
def _not_pred(d, ins, m):
    index, negated = d.predicate(ins.args[1])
    return d.row("PMOV" if negated else "PNOT", im=[index, 0, index, 0, 0, 0, d.predicate(ins.args[0])[0]])


@form(r"(and|or|xor)\.b(16|32|64)")
def _logic(d, ins, m):
    return d.plain(m.group(1).upper(), ins, int(m.group(2)), 2)


@form(r"not\.b(16|32|64)")
def _not(d, ins, m):
    return d.plain(f"NOT{m.group(1)}", ins, int(m.group(1)), 1)


@form(r"shl\.b(16|32|64)")
def _shl(d, ins, m):
    return d.plain(f"SHL{m.group(1)}", ins, [int(m.group(1)), 32], 2)


@form(r"shr\.([bus])(16|32|64)")
def _shr(d, ins, m):
    return d.plain(f"SHRS{m.group(2)}" if m.group(1) == "s" else "SHRU", ins, [int(m.group(2)), 32], 2)


@form(r"shf\.([lr])\.(clamp|wrap)\.b32")
def _shf(d, ins, m):
    return d.plain(f"SHF_{m.group(1).upper()}", ins, 32, 3, [int(m.group(2) == "wrap")])


@form(r"popc\.b(32|64)")
def _popc(d, ins, m):
    return d.plain("POPC", ins, int(m.group(1)), 1, to=32)


@form(r"(clz|brev)\.b(32|64)")
def _clz(d, ins, m):
    return d.plain(f"{m.group(1).upper()}{m.group(2)}", ins, int(m.group(2)), 1, to=32 if m.group(1) == "clz" else 0)


@form(r"bfind\.u32")
def _bfind(d, ins, m):
    return d.plain("BFINDU32", ins, 32, 1)


@form(r"bfe\.(u32|s32|u64)")
def _bfe(d, ins, m):
    return d.plain(f"BFE{m.group(1).upper()}", ins, [width(m.group(1)), 32, 32], 3)


@form(r"bfi\.b(32|64)")
def _bfi(d, ins, m):
    bits = int(m.group(1))
    return d.plain(f"BFI{bits}", ins, [bits, bits, 32, 32], 4)


@form(r"prmt\.b32")
def _prmt(d, ins, m):
    return d.plain("PRMT", ins, 32, 3)


@form(r"dp4a\.([us])32\.([us])32")
def _dp4a(d, ins, m):
    return d.plain("DP4A", ins, 32, 3, [int(m.group(1) == "s"), int(m.group(2) == "s")])


@form(r"lop3\.b32")
def _lop3(d, ins, m):
    return d.row(
        "LOP3", [d.destination(ins.args[0], 32)], [d.source(o, 32) for o in ins.args[1:4]], [ins.args[4].value], 1
    )


@form(
    r"setp\.(eq|ne|lt|le|gt|ge|lo|ls|hi|hs)(?:\.(and|or|xor))?\.([bus](?:16|32|64))",
    r"setp\.(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)(?:\.(and|or|xor))?\.(f16|bf16|f32|f64)",
)
def _setp(d, ins, m):
    compare, combine, t = m.groups()
    kind = {"f32": 2, "f64": 3, "f16": 4, "bf16": 5}.get(t, int(t[0] == "s"))
    bits = width(t)
    other, negated = d.predicate(ins.args[3]) if combine else (0, 0)
    true, false = d.pair(ins.args[0])
    return d.row(
        "SETP",
        (),
        [d.source(o, bits) for o in ins.args[1:3]],
        [
            COMPARE[compare],
            kind,
            bits,
            {None: 0, "and": 1, "or": 2, "xor": 3}[combine],
            other,
            negated,
            d.predicate_out(true),
            d.predicate_out(false),
        ],
    )


@form(r"selp\.([busf](?:16|32|64))")
def _selp(d, ins, m):
    index, negated = d.predicate(ins.args[3])
    values = [d.source(o, width(m.group(1))) for o in ins.args[1:3]]
    return d.row(
        "SELP",
        [d.destination(ins.args[0], width(m.group(1)))],
        values[::-1] if negated else values,
        [0, 0, 0, 0, index],
    )


# ---- floating point
@form(r"(add|sub|mul)(?:\.rn)?(\.ftz)?\.f32")
def _f32(d, ins, m):
    return d.plain(f"F{m.group(1).upper()}", ins, 32, 2, [int(bool(m.group(2)))])


@form(r"(?:fma\.rn|mad\.rn)(\.ftz)?\.f32")
def _fma(d, ins, m):
    return d.plain("FFMA", ins, 32, 3, [int(bool(m.group(1)))])


@form(r"(add|sub|mul|fma)(?:\.rn)?(\.ftz)?\.f32x2")
def _f32x2(d, ins, m):
    op = ["add", "sub", "mul", "fma"].index(m.group(1))
    return d.plain("FX2", ins, 64, 2 + (op == 3), [int(bool(m.group(2))), op])


@form(r"fma\.rn\.f32\.(f16|bf16)")
def _fma_mixed(d, ins, m):
    """The factors are halves, the addend and the result fp32: one rounding."""
    return d.plain("FFMAH", ins, [16, 16, 32], 3, [int(m.group(1) == "bf16")], 32)


@form(r"(min|max)(\.ftz)?(\.NaN)?\.f32")
def _min_f32(d, ins, m):
    n = len(ins.args) - 1
    if n not in (2, 3):
        raise Unsupported(f"{n} sources")
    return d.plain(f"F{m.group(1).upper()}", ins, 32, n, [int(bool(m.group(2))), int(bool(m.group(3)))])


@form(r"(neg|abs)(\.ftz)?\.f32")
def _sign(d, ins, m):
    return d.plain(f"F{m.group(1).upper()}", ins, 32, 1, [int(bool(m.group(2)))])


@form(r"copysign\.f32")
def _copysign(d, ins, m):
    return d.plain("FCOPYSIGN", ins, 32, 2)


@form(r"(div)\.(?:rn|full|approx)(\.ftz)?\.f32")
def _div_f32(d, ins, m):
    return d.plain("FDIV", ins, 32, 2, [int(bool(m.group(2)))])


@form(r"(rcp|sqrt)\.(?:rn|approx)(\.ftz)?\.f32", r"(rsqrt|ex2|lg2)\.approx(\.ftz)?\.f32")
def _unary(d, ins, m):
    return d.plain(f"F{m.group(1).upper()}", ins, 32, 1, [int(bool(m.group(2)))])


@form(r"(add|sub|mul|div)(?:\.rn)?\.f64")
def _f64(d, ins, m):
    return d.plain(f"D{m.group(1).upper()}", ins, 64, 2)


@form(r"fma\.rn\.f64")
def _fma_f64(d, ins, m):
    return d.plain("DFMA", ins, 64, 3)


def _half(d, ins, t, n, code, nan=0):
    two = t.endswith("x2")
    return d.plain("HALF", ins, 32 if two else 16, n, [code, int(t.startswith("bf")), 2 if two else 1, nan])


@form(rf"(add|sub|mul)(?:\.rn)?\.{HALF}")
def _half_arithmetic(d, ins, m):
    return _half(d, ins, m.group(2), 2, ["add", "sub", "mul"].index(m.group(1)))


@form(rf"fma\.rn\.{HALF}")
def _half_fma(d, ins, m):
    return _half(d, ins, m.group(1), 3, 3)


@form(rf"(min|max)(\.NaN)?\.{HALF}")
def _half_min(d, ins, m):
    return _half(d, ins, m.group(3), 2, 4 if m.group(1) == "min" else 5, int(bool(m.group(2))))


@form(rf"(neg|abs)\.{HALF}")
def _half_sign(d, ins, m):
    return _half(d, ins, m.group(2), 1, 6 if m.group(1) == "neg" else 7)


# ---- conversions
ROUNDING = ["rni", "rzi", "rmi", "rpi"]


@form(r"cvt(\.sat)?\.([us](?:8|16|32|64))\.([us](?:8|16|32|64))")
def _cvt_int(d, ins, m):
    sat, to, of = m.groups()
    bits = d.bits[ins.args[0].name]
    return d.plain(
        "CVTI",
        ins,
        width(of),
        1,
        [width(of), int(of[0] == "s"), width(to), int(bool(sat)), bits, int(to[0] == "s")],
        width(to),
        True,
    )


@form(r"cvt\.rn\.(f32|f64)\.([us](?:8|16|32|64))")
def _cvt_int_float(d, ins, m):
    return d.plain(
        "CVT_I2F",
        ins,
        width(m.group(2)),
        1,
        [width(m.group(2)), int(m.group(2)[0] == "s"), int(m.group(1) == "f64")],
        width(m.group(1)),
        True,
    )


@form(r"cvt\.(rni|rzi|rmi|rpi)(?:\.ftz)?(?:\.sat)?\.([us](?:8|16|32|64))\.(f32|f64)")
def _cvt_float_int(d, ins, m):
    by, to, of = m.groups()
    return d.plain(
        "CVT_F2I",
        ins,
        width(of),
        1,
        [ROUNDING.index(by), width(to), int(to[0] == "s"), int(of == "f64")],
        width(to),
        True,
    )


@form(r"cvt\.f32\.(f16|bf16)")
def _cvt_half_f32(d, ins, m):
    return d.plain("CVT_H2F", ins, 16, 1, [int(m.group(1) == "bf16")], 32)


@form(r"cvt\.rn\.(f16|bf16)\.f32")
def _cvt_f32_half(d, ins, m):
    return d.plain("CVT_F2H", ins, 32, 1, [int(m.group(1) == "bf16")], 16)


@form(r"cvt\.rn\.(f16x2|bf16x2)\.f32")
def _cvt_f32_halves(d, ins, m):
    return d.plain("CVT_F2H2", ins, 32, 2, [int(m.group(1) == "bf16x2")])


@form(r"cvt\.rn\.f16x2\.e4m3x2")
def _cvt_e4m3(d, ins, m):
    return d.plain("CVT_E4M3X2_H2", ins, 16, 1, to=32)


@form(r"cvt\.rn\.satfinite\.(e4m3|e2m1)x2\.f32")
def _cvt_to_small(d, ins, m):
    return d.plain(f"CVT_{m.group(1).upper()}X2_F2", ins, 32, 2, to=16, wider=True)


@form(r"cvt\.f64\.f32")
def _cvt_f32_f64(d, ins, m):
    return d.plain("CVT_F2F", ins, 32, 1, [0], 64)


@form(r"cvt\.rn\.f32\.f64")
def _cvt_f64_f32(d, ins, m):
    return d.plain("CVT_F2F", ins, 64, 1, [1], 32)


@form(r"cvt\.(rni|rzi|rmi|rpi)\.f32\.f32")
def _cvt_integral(d, ins, m):
    return d.plain("CVT_F2F", ins, 32, 1, [2, ROUNDING.index(m.group(1))])
