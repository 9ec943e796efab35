"""tcgen05: tensor memory and the matrix instructions of sm_100a and sm_103a. cta_group::1 only."""

from ..parse import Mem, Vec
from .operands import Unsupported, form, items

_COUNT = r"x(1|2|4|8|16|32|64|128)"
_COLLECTOR = r"(?:\.collector::a::discard)?"
CP_SHAPES = [
    "32x128b.warpx4",
    "128x128b",
    "128x256b",
    "64x128b.warpx2::02_13",
    "64x128b.warpx2::01_23",
    "4x256b",
]  # core/umma.c::copy_to_tmem
KINDS = {"f16": 0, "f8f6f4": 1, "mxf8f6f4": 2, "mxf4": 3, "mxf4nvf4": 3}
# kind -> {suffix of block_scale: elements that share a scale}
_SCALES = {
    "mxf8f6f4": {"": 32, "scale_vec::1X": 32, "block32": 32},
    "mxf4": {"": 32, "scale_vec::2X": 32, "block32": 32},
    "mxf4nvf4": {"scale_vec::2X": 32, "block32": 32, "scale_vec::4X": 16, "block16": 16},
}


def _check(count, n, what):
    if count != n:
        raise Unsupported(f"{count} {what} instead of {n}")


# ---- allocation
@form(r"tcgen05\.alloc\.cta_group::1\.sync\.aligned(?:\.shared::cta)?\.b32")
def _alloc(d, ins, m):
    to, columns = ins.args
    return d.row("TMEM_ALLOC", (), [d.address(to, 32), d.source(columns, 32)], [to.offset])


@form(r"tcgen05\.dealloc\.cta_group::1\.sync\.aligned\.b32")
def _dealloc(d, ins, m):
    return d.row("TMEM_DEALLOC", (), [d.source(o, 32) for o in ins.args])


@form(r"tcgen05\.relinquish_alloc_permit\.cta_group::1\.sync\.aligned")
def _relinquish(d, ins, m):
    return d.row("TMEM_RELINQUISH")


# ---- loads and stores of a warp
@form(rf"tcgen05\.ld\.sync\.aligned\.32x32b\.{_COUNT}\.b32")
def _ld(d, ins, m):
    outs, mem = items(ins.args[0]), ins.args[1]
    _check(len(outs), int(m.group(1)), "registers")
    return d.row("TMEM_LD", [d.destination(o, 32) for o in outs], [d.address(mem, 32)], [len(outs), mem.offset])


@form(r"tcgen05\.ld\.red\.sync\.aligned\.32x32b\.x(2|4|8|16|32|64|128)\.(min|max)(\.abs)?(\.NaN)?\.f32")
def _ld_red(d, ins, m):
    outs, best, mem = items(ins.args[0]), ins.args[1], ins.args[2]
    _check(len(outs), int(m.group(1)), "registers")
    return d.row(
        "TMEM_LD",
        [d.destination(o, 32) for o in [*outs, best]],
        [d.address(mem, 32)],
        [len(outs), mem.offset, 1 + (m.group(2) == "max"), int(bool(m.group(3))), int(bool(m.group(4)))],
    )


@form(rf"tcgen05\.st\.sync\.aligned\.32x32b\.{_COUNT}\.b32")
def _st(d, ins, m):
    mem, values = ins.args[0], items(ins.args[1])
    _check(len(values), int(m.group(1)), "registers")
    return d.row("TMEM_ST", (), [d.address(mem, 32), *(d.source(o, 32) for o in values)], [len(values), mem.offset])


@form(r"tcgen05\.wait::(ld|st)\.sync\.aligned")
def _wait(d, ins, m):
    return d.row("TMEM_WAIT", im=[int(m.group(1) == "st")])


@form(r"tcgen05\.fence::(before|after)_thread_sync")
def _fence(d, ins, m):
    return d.row("TC_FENCE", im=[int(m.group(1) == "before")])


# ---- what one thread issues
@form(r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one(?:\.shared::cluster)?(\.multicast::cluster)?\.b64")
def _commit(d, ins, m):
    _check(len(ins.args), 1 + bool(m.group(1)), "operands")
    return d.row(
        "TC_COMMIT", (), [d.address(ins.args[0], 32), *(d.source(o, 16) for o in ins.args[1:])], [ins.args[0].offset]
    )


@form(r"tcgen05\.cp\.cta_group::1\.(" + "|".join(s.replace(".", r"\.") for s in CP_SHAPES) + ")")
def _cp(d, ins, m):
    to, of = ins.args
    return d.row("TC_CP", (), [d.address(to, 32), d.source(of, 64)], [CP_SHAPES.index(m.group(1)), to.offset])


@form(rf"tcgen05\.mma\.cta_group::1\.kind::(f16|f8f6f4){_COLLECTOR}")
def _mma(d, ins, m):
    to, a, b, shape, *lanes, accumulate = ins.args
    if isinstance(a, Mem):
        raise Unsupported("A in tensor memory")
    if len(lanes) > 1 or (lanes and not isinstance(lanes[0], Vec)):
        raise Unsupported("scale-input-d")
    left_out = [d.source(o, 32) for o in lanes[0].items] if lanes else []
    index, negated = d.predicate(accumulate)
    return d.row(
        "TC_MMA",
        (),
        [d.address(to, 32), d.source(a, 64), d.source(b, 64), d.source(shape, 32), *left_out],
        [KINDS[m.group(1)], 0, to.offset, 0, 0, index, negated, len(left_out)],
    )


@form(
    rf"tcgen05\.mma\.cta_group::1\.kind::(mxf8f6f4|mxf4|mxf4nvf4)\.block_scale(?:\.(scale_vec::[124]X|block16|block32))?{_COLLECTOR}"
)
def _mma_scaled(d, ins, m):
    kind, vector = m.group(1), m.group(2) or ""
    if vector not in _SCALES[kind]:
        raise Unsupported(f"kind::{kind} with {vector or 'no size of a scale vector'}")
    to, a, b, shape, scale_a, scale_b, accumulate = ins.args
    if isinstance(a, Mem):
        raise Unsupported("A in tensor memory")
    index, negated = d.predicate(accumulate)
    return d.row(
        "TC_MMA",
        (),
        [
            d.address(to, 32),
            d.source(a, 64),
            d.source(b, 64),
            d.source(shape, 32),
            d.address(scale_a, 32),
            d.address(scale_b, 32),
        ],
        [KINDS[kind], _SCALES[kind][vector], to.offset, scale_a.offset, scale_b.offset, index, negated],
    )
