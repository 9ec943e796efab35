"""Loads and stores of global memory (addresses are Int64) and of shared memory (addresses are Int32), and atomic
updates.

Global loads come in two families, which differ in what the compilers may do with them:

| names | PTX | use |
|---|---|---|
| `ldg*` | ld.global.nc, read-only | what no thread of the launch writes. ptxas moves such a load down to its first use, past barriers |
| `ld_*`, `ld32` | ld.global | what another thread of the launch may have written, and loads that have to stay before the next barrier |

Of 16 bytes: `ldg_v4` is the plain read-only load; `ldg128` takes a cache policy and leaves no line in the L1 cache
(keys that are read once); `ld_v4` stays where it is written; `ld_v4_passing` does as well, and leaves no line in the
L1 cache. Names that end in `_if` are predicated by a flag (Int32, not 0), so that the warp stays together.
"""

from cutlass import Float32, Int32, Int64

from .ptx import asm


def evict_first():
    """A cache policy: what it loads is the first to leave the L2 cache."""
    return asm("createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", [Int64], [], "=l", pure=False)


# ---- global memory, read-only
def ldg128(addr, offset, policy):
    """Four words, with a cache policy; no line of the L1 cache is taken."""
    return list(
        asm(
            f"ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}], $5;",
            [Int32] * 4,
            [addr, policy],
            "=r,=r,=r,=r,l,l",
            pure=False,
        )
    )


def ldg32(addr, offset=0):
    """A word."""
    return asm(f"ld.global.nc.b32 $0, [$1+{offset}];", [Int32], [addr], "=r,l", pure=False)


def ldg32_if(flag, addr):
    """0 where flag is 0; predicated, so that the warp stays together."""
    return asm(
        "{ .reg .pred p; mov.b32 $0, 0; setp.ne.b32 p, $1, 0; @p ld.global.nc.b32 $0, [$2]; }",
        [Int32],
        [flag, addr],
        "=&r,r,l",
        pure=False,
    )


def ldg64(addr, offset=0):
    """An Int64."""
    return asm(f"ld.global.nc.b64 $0, [$1+{offset}];", [Int64], [addr], "=l,l", pure=False)


def ldg_v4(addr, offset=0):
    """Four words at a 16-byte boundary."""
    return list(
        asm(f"ld.global.nc.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Int32] * 4, [addr], "=r,=r,=r,=r,l", pure=False)
    )


def ldg_f32(addr, offset=0):
    """A float."""
    return asm(f"ld.global.nc.f32 $0, [$1+{offset}];", [Float32], [addr], "=f,l", pure=False)


def ldg_u16(addr, offset=0):
    """Two bytes, zero-extended."""
    return asm(
        f"{{ .reg .u16 h; ld.global.nc.u16 h, [$1+{offset}]; cvt.u32.u16 $0, h; }}", [Int32], [addr], "=r,l", pure=False
    )


def ldg_u8(addr, offset=0):
    """A byte, zero-extended."""
    return asm(f"ld.global.nc.u8 $0, [$1+{offset}];", [Int32], [addr], "=r,l", pure=False)


# ---- global memory, kept in place
def ld_v4(addr, offset=0):
    """Four words at a 16-byte boundary."""
    return list(
        asm(f"ld.global.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Int32] * 4, [addr], "=r,=r,=r,=r,l", pure=False)
    )


def ld_v4_passing(addr, offset=0):
    """As ld_v4, of what this SM does not read again soon: it takes no place in the L1 cache."""
    return list(
        asm(
            f"ld.global.L1::no_allocate.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}];",
            [Int32] * 4,
            [addr],
            "=r,=r,=r,=r,l",
            pure=False,
        )
    )


def ld32(addr, offset=0):
    """A word."""
    return asm(f"ld.global.b32 $0, [$1+{offset}];", [Int32], [addr], "=r,l", pure=False)


def ld_u16(addr, offset=0):
    """Two bytes, zero-extended."""
    return asm(
        f"{{ .reg .u16 h; ld.global.u16 h, [$1+{offset}]; cvt.u32.u16 $0, h; }}", [Int32], [addr], "=r,l", pure=False
    )


def ld_u8(addr, offset=0):
    """A byte, zero-extended."""
    return asm(f"ld.global.u8 $0, [$1+{offset}];", [Int32], [addr], "=r,l", pure=False)


def _load_if(kind, registers, flag, addr):
    """A predicated load of `registers` registers, 0 where flag is 0."""
    names = ",".join(f"${i}" for i in range(registers))
    zero = " ".join(f"mov.b32 ${i}, 0;" for i in range(registers))
    value = f"{{{names}}}" if registers > 1 else names
    out = asm(
        "{ .reg .pred p; "
        + zero
        + f" setp.ne.b32 p, ${registers}, 0; @p ld.global.{kind} {value}, [${registers + 1}]; }}",
        [Int32] * registers,
        [flag, addr],
        ",".join(["=&r"] * registers) + ",r,l",
        pure=False,
    )
    return list(out) if registers > 1 else out


def ld_v4_if(flag, addr):
    """These three: 0 where flag is 0; predicated, so that the warp stays together."""
    return _load_if("v4.b32", 4, flag, addr)


def ld_u16_if(flag, addr):
    """Two bytes, zero-extended."""
    return _load_if("u16", 1, flag, addr)


def ld_u8_if(flag, addr):
    """A byte, zero-extended."""
    return _load_if("u8", 1, flag, addr)


# ---- global memory, stores
def stg_f32(addr, value):
    """Store a float."""
    asm("st.global.f32 [$0], $1;", [], [addr, value], "l,f")


def stg_f32_if(flag, addr, value):
    """Where flag is not 0; predicated, so that the warp stays together."""
    asm("{ .reg .pred p; setp.ne.b32 p, $0, 0; @p st.global.f32 [$1], $2; }", [], [flag, addr, value], "r,l,f")


def stg32(addr, value):
    """Store a word."""
    asm("st.global.b32 [$0], $1;", [], [addr, value], "l,r")


def stg32_streaming(addr, value):
    """What no thread reads again in this launch: the first to leave the L2 cache."""
    asm("st.global.cs.b32 [$0], $1;", [], [addr, value], "l,r")


def stg64(addr, value):
    """Store an Int64."""
    asm("st.global.b64 [$0], $1;", [], [addr, value], "l,l")


def stg_v4(addr, values):
    """Four words to a 16-byte boundary."""
    asm("st.global.v4.b32 [$0], {$1,$2,$3,$4};", [], [addr, *values], "l,r,r,r,r")


def red_max(addr, value):
    """Word at a global address = the larger of it and `value` (signed)."""
    asm("red.global.max.s32 [$0], $1;", [], [addr, value], "l,r")


def red_or(addr, value):
    """Word at a global address |= value."""
    asm("red.global.or.b32 [$0], $1;", [], [addr, value], "l,r")


# ---- shared memory, loads
def lds32(addr, offset=0):
    """A word."""
    return asm(f"ld.shared.b32 $0, [$1+{offset}];", [Int32], [addr], "=r,r", pure=False)


def lds64(addr, offset=0):
    """Two words at an 8-byte boundary."""
    return list(asm(f"ld.shared.v2.b32 {{$0,$1}}, [$2+{offset}];", [Int32] * 2, [addr], "=r,=r,r", pure=False))


def lds128(addr, offset=0):
    """Four words at a 16-byte boundary."""
    return list(
        asm(f"ld.shared.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Int32] * 4, [addr], "=r,=r,=r,=r,r", pure=False)
    )


def lds128_f32(addr, offset=0):
    """Four floats at a 16-byte boundary."""
    return list(
        asm(f"ld.shared.v4.f32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Float32] * 4, [addr], "=f,=f,=f,=f,r", pure=False)
    )


def lds_u16(addr, offset=0):
    """Two bytes, zero-extended."""
    return asm(
        f"{{ .reg .u16 h; ld.shared.u16 h, [$1+{offset}]; cvt.u32.u16 $0, h; }}", [Int32], [addr], "=r,r", pure=False
    )


def lds_u8(addr, offset=0):
    """A byte, zero-extended."""
    return asm(f"ld.shared.u8 $0, [$1+{offset}];", [Int32], [addr], "=r,r", pure=False)


def lds_s64(addr, offset=0):
    """An Int64."""
    return asm(f"ld.shared.b64 $0, [$1+{offset}];", [Int64], [addr], "=l,r", pure=False)


# ---- shared memory, stores
def sts32(addr, offset, value):
    """Store a word."""
    asm(f"st.shared.b32 [$0+{offset}], $1;", [], [addr, value], "r,r")


def sts64(addr, offset, value):
    """Store an Int64."""
    asm(f"st.shared.b64 [$0+{offset}], $1;", [], [addr, value], "r,l")


def sts_v4(addr, values, offset=0):
    """Store four words at a 16-byte boundary."""
    asm(f"st.shared.v4.b32 [$0+{offset}], {{$1,$2,$3,$4}};", [], [addr, *values], "r,r,r,r,r")


def sts128_f32(addr, values):
    """Store four floats at a 16-byte boundary."""
    asm("st.shared.v4.f32 [$0], {$1,$2,$3,$4};", [], [addr, *values], "r,f,f,f,f")


def sts_f32(addr, offset, value):
    """Store a float."""
    asm(f"st.shared.f32 [$0+{offset}], $1;", [], [addr, value], "r,f")


def sts_f32_if(flag, addr, value):
    """Where flag is not 0; predicated, so that the warp stays together."""
    asm("{ .reg .pred p; setp.ne.b32 p, $0, 0; @p st.shared.f32 [$1], $2; }", [], [flag, addr, value], "r,r,f")
