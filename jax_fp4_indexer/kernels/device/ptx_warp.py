"""What the lanes of a warp tell one another, and where a warp is: shuffles, votes, reductions, special registers.

None of them is moved by the compiler: all lanes of the warp have to meet in each.
"""

from cutlass import Float32, Int32, Int64

from .ptx import asm


# ---- places
def lane_here():
    """Lane of the warp, read where it is written: no register holds it until then."""
    return asm("mov.u32 $0, %laneid;", [Int32], [], "=r", pure=False)


def cta_here():
    """(CTA, CTAs of the grid), first dimension, read where they are written."""
    return [asm(f"mov.u32 $0, %{name}.x;", [Int32], [], "=r", pure=False) for name in ("ctaid", "nctaid")]


def thread_here():
    """Thread of the CTA, first dimension, likewise."""
    return asm("mov.u32 $0, %tid.x;", [Int32], [], "=r", pure=False)


# ---- shuffles
def shfl_xor_f32(a, mask):
    """The float of lane (own ^ mask)."""
    return asm(f"shfl.sync.bfly.b32 $0, $1, {mask}, 0x1f, 0xffffffff;", [Float32], [a], "=f,f", pure=False)


def shfl_xor(a, mask):
    """The word of lane (own ^ mask)."""
    return asm(f"shfl.sync.bfly.b32 $0, $1, {mask}, 0x1f, 0xffffffff;", [Int32], [a], "=r,r", pure=False)


def shfl_idx(a, source):
    """The register of lane `source` of the warp."""
    return asm("shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;", [Int32], [a, source], "=r,r,r", pure=False)


# ---- votes and reductions
def count_le(a, b):
    """Lanes of the warp with a <= b (signed)."""
    return asm(
        "{ .reg .pred p; .reg .b32 m; setp.le.s32 p, $1, $2; vote.sync.ballot.b32 m, p, 0xffffffff; popc.b32 $0, m; }",
        [Int32],
        [a, b],
        "=r,r,r",
        pure=False,
    )


def ballot_le(a, b):
    """Mask of the lanes with a <= b (signed)."""
    return asm(
        "{ .reg .pred p; setp.le.s32 p, $1, $2; vote.sync.ballot.b32 $0, p, 0xffffffff; }",
        [Int32],
        [a, b],
        "=r,r,r",
        pure=False,
    )


def any_negative(a):
    """1 if a lane of the warp has a negative a, else 0."""
    return asm(
        "{ .reg .pred p; setp.lt.s32 p, $1, 0; vote.sync.any.pred p, p, 0xffffffff; selp.b32 $0, 1, 0, p; }",
        [Int32],
        [a],
        "=r,r",
        pure=False,
    )


def redux(op, a):
    """Warp-wide integer reduction, op in min max (unsigned) or and or xor add."""
    ty = {"min": "u32", "max": "u32", "add": "u32"}.get(op, "b32")
    return asm(f"redux.sync.{op}.{ty} $0, $1, 0xffffffff;", [Int32], [a], "=r,r", pure=False)


def scan_add_s64(x, lane):
    """Inclusive prefix sum over the lanes of a warp."""
    for d in (1, 2, 4, 8, 16):
        x = asm(
            "{ .reg .pred p; .reg .b32 l, h; .reg .b64 y; mov.b64 {l, h}, $1; "
            f"shfl.sync.up.b32 l, l, {d}, 0, 0xffffffff; shfl.sync.up.b32 h, h, {d}, 0, 0xffffffff; "
            f"mov.b64 y, {{l, h}}; add.s64 y, y, $1; setp.ge.s32 p, $2, {d}; selp.b64 $0, y, $1, p; }}",
            [Int64],
            [x, lane],
            "=l,l,r",
            pure=False,
        )
    return x
