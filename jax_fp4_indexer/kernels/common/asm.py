"""Single PTX instructions as functions. All 32-bit registers are Int32; shifts are spelled in PTX, so signedness never matters.

`pure` functions may be moved and merged by the compiler; the others stay where they are written.
"""
from cutlass import Float32, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm


def asm(text, outs, ins, constraints, pure=True):
    """Inline PTX. `outs` is a list of DSL types; returns nothing, one value, or a tuple."""
    values = [v.ir_value() if hasattr(v, "ir_value") else v for v in ins]
    flags = dict(is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT)
    if not outs:
        llvm.inline_asm(None, values, text, constraints, has_side_effects=True, **flags)
        return None
    if len(outs) == 1:
        return outs[0](llvm.inline_asm(outs[0].mlir_type, values, text, constraints, has_side_effects=not pure, **flags))
    struct = ir.Type.parse("!llvm.struct<(" + ", ".join(str(o.mlir_type) for o in outs) + ")>")
    packed = llvm.inline_asm(struct, values, text, constraints, has_side_effects=not pure, **flags)
    return tuple(o(llvm.extractvalue(o.mlir_type, packed, [i])) for i, o in enumerate(outs))


# ---- bits
def shl(a, n):
    return asm(f"shl.b32 $0, $1, {n};", [Int32], [a], "=r,r")


def shr(a, n):
    return asm(f"shr.u32 $0, $1, {n};", [Int32], [a], "=r,r")


def and_(a, mask):
    return asm(f"and.b32 $0, $1, {mask:#x};", [Int32], [a], "=r,r")


def mux(a, b, mask):
    """Bits of a where the mask is 1, of b where it is 0."""
    return asm(f"lop3.b32 $0, $1, $2, {mask:#x}, 0xE4;", [Int32], [a, b], "=r,r,r")


def mux_bits(a, b, mask):
    """mux with the mask in a register."""
    return asm("lop3.b32 $0, $1, $2, $3, 0xE4;", [Int32], [a, b, mask], "=r,r,r,r")


def prmt(a, b, selector):
    """Four bytes of the eight in (a, b), a's first, chosen by the low four nibbles of `selector` (0 .. 7)."""
    return asm("prmt.b32 $0, $1, $2, $3;", [Int32], [a, b, selector], "=r,r,r,r")


def shl_by(a, n):
    """a << n, 0 for n above 31 (n unsigned)."""
    return asm("shl.b32 $0, $1, $2;", [Int32], [a, n], "=r,r,r")


def shr_by(a, n):
    """a >> n, 0 for n above 31 (both unsigned)."""
    return asm("shr.u32 $0, $1, $2;", [Int32], [a, n], "=r,r,r")


def popc(a):
    return asm("popc.b32 $0, $1;", [Int32], [a], "=r,r")


def imad(a, factor, c):
    """a * factor + c, low 32 bits."""
    return asm(f"mad.lo.u32 $0, $1, {factor:#x}, $2;", [Int32], [a, c], "=r,r,r")


def mad(a, b, c):
    """a * b + c, low 32 bits. c: a constant."""
    return asm(f"mad.lo.u32 $0, $1, $2, {c:#x};", [Int32], [a, b], "=r,r,r")


def udiv(a, b):
    """a / b, both unsigned: no correction for signs, half the instructions."""
    return asm("div.u32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def mad_wide(a, factor, c):
    """a * factor + c in 64 bits; a and factor are unsigned 32-bit, c is an Int64."""
    return asm("mad.wide.u32 $0, $1, $2, $3;", [Int64], [a, factor, c], "=l,r,r,l")


def add_sat(a, b):
    """a + b, clamped to the range of int32."""
    return asm("add.sat.s32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def sub_sat(a, b):
    """a - b, clamped to the range of int32."""
    return asm("sub.sat.s32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def opaque(a):
    """The same value, but nothing computed from it is moved out of a loop (which would hold registers all through it)."""
    return asm("mov.b32 $0, $1;", [Int32], [a], "=r,r", pure=False)


def unseen(value, count):
    """`value` as the compilers cannot know it: of a multiplication by a constant power of two they make shifts and additions, in the pipe that has more to do.
    count: a kernel argument that is never negative."""
    return shr(count, 31) + value


# ---- packed halves
def hmul2(a, b):
    return asm("mul.rn.f16x2 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def bcast_half(a, high):
    """One half of an f16x2 in both places."""
    h = "h" if high else "l"
    return asm("{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {" + f"{h}, {h}" + "}; }", [Int32], [a], "=r,r")


def e4m3x2_to_f16x2(a):
    """Two E4M3 bytes in the low half -> f16x2 of their magnitudes; NaN (0x7F, 0xFF) stays NaN, bit 7 plays no part (sm_89 and later)."""
    return asm("{ .reg .b16 l, h; .reg .b32 x; mov.b32 {l, h}, $1; cvt.rn.f16x2.e4m3x2 x, l; abs.f16x2 $0, x; }", [Int32], [a], "=r,r")


# ---- floats
def fmax_nan(a, b):
    """Maximum in which a NaN wins."""
    return asm("max.NaN.f32 $0, $1, $2;", [Float32], [a, b], "=f,f,f")


def select_f32(a, b, flag):
    """flag (Int32) != 0 ? a : b"""
    return asm("{ .reg .pred q; setp.ne.b32 q, $3, 0; selp.f32 $0, $1, $2, q; }", [Float32], [a, b, flag], "=f,f,f,r")


def pack64(low, high):
    return asm("mov.b64 $0, {$1, $2};", [Int64], [low, high], "=l,r,r")


def unpack64(a):
    """(low, high) words."""
    return asm("mov.b64 {$0, $1}, $2;", [Int32] * 2, [a], "=r,=r,l")


def bits_f32(a):
    return asm("mov.b32 $0, $1;", [Float32], [a], "=f,r")


def pow2_f32(e):
    """2^e for e in -126 .. 127."""
    return asm("{ .reg .b32 x; add.s32 x, $1, 127; shl.b32 x, x, 23; mov.b32 $0, x; }", [Float32], [e], "=f,r")


def fmul(a, b):
    """a * b, rounded by itself (never fused with an addition that follows)."""
    return asm("mul.rn.f32 $0, $1, $2;", [Float32], [a, b], "=f,f,f")


# ---- warp
def lane_here():
    """Lane of the warp, read where it is written: no register holds it until then."""
    return asm("mov.u32 $0, %laneid;", [Int32], [], "=r", pure=False)


def cta_here():
    """(CTA, CTAs of the grid), first dimension, read where they are written."""
    return [asm(f"mov.u32 $0, %{name}.x;", [Int32], [], "=r", pure=False) for name in ("ctaid", "nctaid")]


def thread_here():
    """Thread of the CTA, first dimension, likewise."""
    return asm("mov.u32 $0, %tid.x;", [Int32], [], "=r", pure=False)


def shfl_xor_f32(a, mask):
    return asm(f"shfl.sync.bfly.b32 $0, $1, {mask}, 0x1f, 0xffffffff;", [Float32], [a], "=f,f", pure=False)


def shfl_xor(a, mask):
    return asm(f"shfl.sync.bfly.b32 $0, $1, {mask}, 0x1f, 0xffffffff;", [Int32], [a], "=r,r", pure=False)


def shfl_idx(a, source):
    """The register of lane `source` of the warp."""
    return asm("shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;", [Int32], [a, source], "=r,r,r", pure=False)


def count_le(a, b):
    """Lanes of the warp with a <= b (signed)."""
    return asm("{ .reg .pred p; .reg .b32 m; setp.le.s32 p, $1, $2; vote.sync.ballot.b32 m, p, 0xffffffff; popc.b32 $0, m; }",
               [Int32], [a, b], "=r,r,r", pure=False)


def redux(op, a):
    """Warp-wide integer reduction, op in min max (unsigned) or and or xor add."""
    ty = {"min": "u32", "max": "u32", "add": "u32"}.get(op, "b32")
    return asm(f"redux.sync.{op}.{ty} $0, $1, 0xffffffff;", [Int32], [a], "=r,r", pure=False)


# ---- global memory (addresses are Int64)
def evict_first():
    return asm("createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", [Int64], [], "=l", pure=False)


def ldg128(addr, offset, policy):
    return list(asm(f"ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}], $5;", [Int32] * 4,
                    [addr, policy], "=r,=r,=r,=r,l,l", pure=False))


def ldg32(addr, offset=0):
    return asm(f"ld.global.nc.b32 $0, [$1+{offset}];", [Int32], [addr], "=r,l", pure=False)


def ldg32_if(flag, addr):
    """0 where flag is 0; predicated, so that the warp stays together."""
    return asm("{ .reg .pred p; mov.b32 $0, 0; setp.ne.b32 p, $1, 0; @p ld.global.nc.b32 $0, [$2]; }", [Int32], [flag, addr], "=&r,r,l", pure=False)


def ldg_u16(addr, offset=0):
    return asm(f"{{ .reg .u16 h; ld.global.nc.u16 h, [$1+{offset}]; cvt.u32.u16 $0, h; }}", [Int32], [addr], "=r,l", pure=False)


def ldg_u8(addr, offset=0):
    return asm(f"ld.global.nc.u8 $0, [$1+{offset}];", [Int32], [addr], "=r,l", pure=False)


def stg_f32(addr, value):
    asm("st.global.f32 [$0], $1;", [], [addr, value], "l,f")


def stg_f32_if(flag, addr, value):
    """Where flag is not 0; predicated, so that the warp stays together."""
    asm("{ .reg .pred p; setp.ne.b32 p, $0, 0; @p st.global.f32 [$1], $2; }", [], [flag, addr, value], "r,l,f")


# ---- shared memory (addresses are Int32)
def lds32(addr, offset=0):
    return asm(f"ld.shared.b32 $0, [$1+{offset}];", [Int32], [addr], "=r,r", pure=False)


def lds64(addr, offset=0):
    return list(asm(f"ld.shared.v2.b32 {{$0,$1}}, [$2+{offset}];", [Int32] * 2, [addr], "=r,=r,r", pure=False))


def lds128(addr, offset=0):
    return list(asm(f"ld.shared.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Int32] * 4, [addr], "=r,=r,=r,=r,r", pure=False))


def lds128_f32(addr, offset=0):
    return list(asm(f"ld.shared.v4.f32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Float32] * 4, [addr], "=f,=f,=f,=f,r", pure=False))


def lds_u16(addr, offset=0):
    return asm(f"{{ .reg .u16 h; ld.shared.u16 h, [$1+{offset}]; cvt.u32.u16 $0, h; }}", [Int32], [addr], "=r,r", pure=False)


def lds_u8(addr, offset=0):
    return asm(f"ld.shared.u8 $0, [$1+{offset}];", [Int32], [addr], "=r,r", pure=False)


def sts32(addr, offset, value):
    asm(f"st.shared.b32 [$0+{offset}], $1;", [], [addr, value], "r,r")


def sts128_f32(addr, values):
    asm("st.shared.v4.f32 [$0], {$1,$2,$3,$4};", [], [addr, *values], "r,f,f,f,f")


def sts_f32(addr, offset, value):
    asm(f"st.shared.f32 [$0+{offset}], $1;", [], [addr, value], "r,f")


def sts_f32_if(flag, addr, value):
    """Where flag is not 0; predicated, so that the warp stays together."""
    asm("{ .reg .pred p; setp.ne.b32 p, $0, 0; @p st.shared.f32 [$1], $2; }", [], [flag, addr, value], "r,r,f")


# ---- barriers and bulk copies
def mbarrier_init(bar, arrivals):
    asm(f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", [], [bar], "r")


def mbarrier_expect_tx(bar, nbytes):
    """Arrive once and announce nbytes."""
    asm(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {nbytes};", [], [bar], "r")


def mbarrier_arrive(bar):
    asm("mbarrier.arrive.shared::cta.b64 _, [$0];", [], [bar], "r")


def mbarrier_wait(bar, phase):
    asm("{ .reg .pred p; L${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @!p bra L${:uid}; }", [], [bar, phase], "r,r")


def mbarrier_passed(bar, phase):
    """1 if a wait for that phase would return at once, else 0."""
    return asm("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2; selp.b32 $0, 1, 0, p; }", [Int32], [bar, phase], "=r,r,r", pure=False)


def bulk_store(dst, src, nbytes):
    """Copy engine: nbytes (a multiple of 16) from shared src to global dst; part of the thread's open group."""
    asm("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", [], [dst, src, nbytes], "l,r,r")


def bulk_stores_commit():
    asm("cp.async.bulk.commit_group;", [], [], "")


def bulk_stores_have_read():
    """Until all of this thread's bulk stores are done with shared memory."""
    asm("cp.async.bulk.wait_group.read 0;", [], [], "")


def copy16(dst, src):
    """16 bytes from global src to shared dst, in flight until `copies_arrive`."""
    asm("cp.async.cg.shared.global [$0], [$1], 16;", [], [dst, src], "r,l")


def copy4(dst, src):
    """The same with four bytes."""
    asm("cp.async.ca.shared.global [$0], [$1], 4;", [], [dst, src], "r,l")


def copies_arrive(bar):
    """Every lane arrives once its copies so far have landed; the barrier counts lanes."""
    asm("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", [], [bar], "r")


def fence_mbarrier_init():
    asm("fence.mbarrier_init.release.cluster;", [], [], "")


def fence_async_shared():
    """Orders this thread's ordinary shared-memory accesses before later ones of the copy engine and the tensor cores."""
    asm("fence.proxy.async.shared::cta;", [], [], "")


def bulk_load(dst, src, nbytes, bar, policy):
    """Copy engine: nbytes from global src to shared dst, completing on bar."""
    asm(f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], {nbytes}, [$2], $3;",
        [], [dst, src, bar, policy], "r,l,r,l")


def bulk_prefetch(src, nbytes):
    """Copy engine: nbytes from global src on their way to L2."""
    asm(f"cp.async.bulk.prefetch.L2.global [$0], {nbytes};", [], [src], "l")


# By one lane, chosen in the same piece of assembly: ptxas then issues the instruction once a warp, where behind a branch on the lane it writes a loop over the lanes that take it
def expect_elected(bar, nbytes):
    """mbarrier_expect_tx by one lane."""
    asm(f"{{ .reg .pred p; elect.sync _|p, 0xffffffff; @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {nbytes}; }}", [], [bar], "r")


def bulk_load_elected(dst, src, nbytes, bar, policy):
    """bulk_load by one lane."""
    asm(f"{{ .reg .pred p; elect.sync _|p, 0xffffffff; @p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], {nbytes}, [$2], $3; }}",
        [], [dst, src, bar, policy], "r,l,r,l")


def bar_sync(index, threads):
    asm(f"bar.sync $0, {threads};", [], [index], "r")


def bar_arrive(index, threads):
    asm(f"bar.arrive $0, {threads};", [], [index], "r")


# ---- matrix instructions
def mma_m16n8k16(a, b0, b1, c):
    """c (4 f32) + a (16x16 f16, 4 registers) * b (16x8 f16, 2 registers)."""
    return list(asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
                    [Float32] * 4, [*a, b0, b1, *c], "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"))


# ---- tables in global and shared memory, warp scans (plan, walk, fill)
def clz(a):
    """Leading zeros, 32 for 0."""
    return asm("clz.b32 $0, $1;", [Int32], [a], "=r,r")


def lowest_bit(a):
    """Index of the lowest bit that is set (a != 0)."""
    return asm("{ .reg .b32 x; brev.b32 x, $1; clz.b32 $0, x; }", [Int32], [a], "=r,r")


def ballot_le(a, b):
    """Mask of the lanes with a <= b (signed)."""
    return asm("{ .reg .pred p; setp.le.s32 p, $1, $2; vote.sync.ballot.b32 $0, p, 0xffffffff; }", [Int32], [a, b], "=r,r,r", pure=False)


def any_negative(a):
    """1 if a lane of the warp has a negative a, else 0."""
    return asm("{ .reg .pred p; setp.lt.s32 p, $1, 0; vote.sync.any.pred p, p, 0xffffffff; selp.b32 $0, 1, 0, p; }", [Int32], [a], "=r,r", pure=False)


def scan_add_s64(x, lane):
    """Inclusive prefix sum over the lanes of a warp."""
    for d in (1, 2, 4, 8, 16):
        x = asm("{ .reg .pred p; .reg .b32 l, h; .reg .b64 y; mov.b64 {l, h}, $1; "
                f"shfl.sync.up.b32 l, l, {d}, 0, 0xffffffff; shfl.sync.up.b32 h, h, {d}, 0, 0xffffffff; "
                f"mov.b64 y, {{l, h}}; add.s64 y, y, $1; setp.ge.s32 p, $2, {d}; selp.b64 $0, y, $1, p; }}",
                [Int64], [x, lane], "=l,l,r", pure=False)
    return x


def ldg64(addr, offset=0):
    return asm(f"ld.global.nc.b64 $0, [$1+{offset}];", [Int64], [addr], "=l,l", pure=False)


def ldg_v4(addr, offset=0):
    """Four words at a 16-byte boundary."""
    return list(asm(f"ld.global.nc.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Int32] * 4, [addr], "=r,=r,=r,=r,l", pure=False))


def stg32(addr, value):
    asm("st.global.b32 [$0], $1;", [], [addr, value], "l,r")


def stg32_streaming(addr, value):
    """What nobody reads again in this launch: the first to leave the L2 cache."""
    asm("st.global.cs.b32 [$0], $1;", [], [addr, value], "l,r")


def stg64(addr, value):
    asm("st.global.b64 [$0], $1;", [], [addr, value], "l,l")


def stg_v4(addr, values):
    """Four words to a 16-byte boundary."""
    asm("st.global.v4.b32 [$0], {$1,$2,$3,$4};", [], [addr, *values], "l,r,r,r,r")


def red_max(addr, value):
    """Word at a global address = the larger of it and `value` (signed)."""
    asm("red.global.max.s32 [$0], $1;", [], [addr, value], "l,r")


def red_or(addr, value):
    asm("red.global.or.b32 [$0], $1;", [], [addr, value], "l,r")


def sts64(addr, offset, value):
    asm(f"st.shared.b64 [$0+{offset}], $1;", [], [addr, value], "r,l")


def lds_s64(addr, offset=0):
    return asm(f"ld.shared.b64 $0, [$1+{offset}];", [Int64], [addr], "=l,r", pure=False)


# ---- bf16 operands, bulk copies that stay in L2
def bmul2(a, b):
    return asm("mul.rn.bf16x2 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def select(a, b, x, y):
    """a == b ? x : y"""
    return asm("{ .reg .pred p; setp.eq.b32 p, $1, $2; selp.b32 $0, $3, $4, p; }", [Int32], [a, b, x, y], "=r,r,r,r,r")


def if_negative(a, x, y):
    """a < 0 ? x : y"""
    return asm("{ .reg .pred p; setp.lt.s32 p, $1, 0; selp.b32 $0, $2, $3, p; }", [Int32], [a, x, y], "=r,r,r,r")


def outside(x, low, span):
    """1 where the unsigned x - low is above span, else 0."""
    return asm("{ .reg .pred p; .reg .b32 d; sub.s32 d, $1, $2; setp.gt.u32 p, d, $3; selp.b32 $0, 1, 0, p; }", [Int32], [x, low, span], "=r,r,r,r")


def sts_v4(addr, values, offset=0):
    asm(f"st.shared.v4.b32 [$0+{offset}], {{$1,$2,$3,$4}};", [], [addr, *values], "r,r,r,r,r")


def bulk_load_shared_often(dst, src, nbytes, bar):
    """Copy engine: nbytes from global src to shared dst, completing on bar; no cache hint, for what other CTAs read too."""
    asm(f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], {nbytes}, [$2];", [], [dst, src, bar], "r,l,r")


def ldg_f32(addr, offset=0):
    return asm(f"ld.global.nc.f32 $0, [$1+{offset}];", [Float32], [addr], "=f,l", pure=False)


# ---- loads that stay before the next barrier (the read-only ones above are sunk to their use, whatever stands between)
def ld_v4(addr, offset=0):
    return list(asm(f"ld.global.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Int32] * 4, [addr], "=r,=r,=r,=r,l", pure=False))


def ld_v4_passing(addr, offset=0):
    """As ld_v4, of what this SM does not read again soon: it takes no place in the L1 cache."""
    return list(asm(f"ld.global.L1::no_allocate.v4.b32 {{$0,$1,$2,$3}}, [$4+{offset}];", [Int32] * 4, [addr], "=r,=r,=r,=r,l", pure=False))


def ld32(addr, offset=0):
    return asm(f"ld.global.b32 $0, [$1+{offset}];", [Int32], [addr], "=r,l", pure=False)


def _load_if(kind, registers, flag, addr):
    names = ",".join(f"${i}" for i in range(registers))
    zero = " ".join(f"mov.b32 ${i}, 0;" for i in range(registers))
    value = f"{{{names}}}" if registers > 1 else names
    out = asm("{ .reg .pred p; " + zero + f" setp.ne.b32 p, ${registers}, 0; @p ld.global.{kind} {value}, [${registers + 1}]; }}", [Int32] * registers,
              [flag, addr], ",".join(["=&r"] * registers) + ",r,l", pure=False)
    return list(out) if registers > 1 else out


def ld_v4_if(flag, addr):
    """These three: 0 where flag is 0; predicated, so that the warp stays together."""
    return _load_if("v4.b32", 4, flag, addr)


def ld_u16_if(flag, addr):
    return _load_if("u16", 1, flag, addr)


def ld_u8_if(flag, addr):
    return _load_if("u8", 1, flag, addr)


def ld_u16(addr, offset=0):
    return asm(f"{{ .reg .u16 h; ld.global.u16 h, [$1+{offset}]; cvt.u32.u16 $0, h; }}", [Int32], [addr], "=r,l", pure=False)


def ld_u8(addr, offset=0):
    return asm(f"ld.global.u8 $0, [$1+{offset}];", [Int32], [addr], "=r,l", pure=False)


# ---- 8-bit integers
def xor(a, mask):
    return asm(f"xor.b32 $0, $1, {mask:#x};", [Int32], [a], "=r,r")


def max_s32(a, b):
    return asm("max.s32 $0, $1, $2;", [Int32], [a, b], "=r,r,r")


def s32_to_f32(a):
    return asm("cvt.rn.f32.s32 $0, $1;", [Float32], [a], "=f,r")


def mma_m16n8k32_s8(a, b0, b1, c):
    """c (4 s32) + a (16x32 s8, 4 registers) * b (32x8 s8, 2 registers)."""
    return list(asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
                    [Int32] * 4, [*a, b0, b1, *c], "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r"))
