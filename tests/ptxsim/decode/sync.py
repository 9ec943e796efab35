"""Barriers, fences, collectives of a warp, matrix instructions."""

from ..parse import Mem, Reg, Vec
from .operands import Unsupported, form, items

_SHARED = r"\.shared(?:::cta)?"


# ---- mbarriers
@form(rf"mbarrier\.init{_SHARED}\.b64")
def _init(d, ins, m):
    return d.row("MB_INIT", (), [d.address(ins.args[0], 32), d.source(ins.args[1], 32)], [ins.args[0].offset])


@form(rf"mbarrier\.inval{_SHARED}\.b64")
def _inval(d, ins, m):
    return d.row("MB_INVAL", (), [d.address(ins.args[0], 32)], [ins.args[0].offset])


@form(r"mbarrier\.(expect|complete)_tx(?:\.relaxed\.(?:cta|cluster))?\.shared(?:::cta|::cluster)?\.b64")
def _expect(d, ins, m):
    return d.row(
        f"MB_{m.group(1).upper()}", (), [d.address(ins.args[0], 32), d.source(ins.args[1], 32)], [ins.args[0].offset]
    )


@form(r"mbarrier\.arrive(\.expect_tx)?(?:\.(?:release|relaxed)\.(?:cta|cluster))?\.shared(?:::cta|::cluster)?\.b64")
def _arrive(d, ins, m):
    outs, args = ([], ins.args) if isinstance(ins.args[0], Mem) else ([d.destination(ins.args[0], 64)], ins.args[1:])
    if len(args) > 2 or (m.group(1) and len(args) != 2):
        raise Unsupported(f"{len(args)} operands")
    return d.row(
        "MB_ARRIVE",
        outs,
        [d.address(args[0], 32), *(d.source(o, 32) for o in args[1:])],
        [args[0].offset, int(bool(m.group(1)))],
    )


@form(rf"mbarrier\.(try_wait|test_wait)\.parity(?:\.(?:acquire|relaxed)\.(?:cta|cluster))?{_SHARED}\.b64")
def _wait(d, ins, m):
    done, bar, parity = ins.args[:3]  # a fourth is a hint of how long to wait
    return d.row(
        "MB_WAIT",
        (),
        [d.address(bar, 32), d.source(parity, 32)],
        [bar.offset, int(m.group(1) == "try_wait"), 0, 0, 0, 0, d.predicate(done)[0]],
    )


# ---- other barriers and fences
@form(r"(?:bar|barrier)(?:\.cta)?\.(sync|arrive)(?:\.aligned)?")
def _bar(d, ins, m):
    if m.group(1) == "arrive" and len(ins.args) != 2:
        raise Unsupported(f"{len(ins.args)} operands")
    return d.row("BAR", (), [d.source(o, 32) for o in ins.args], [int(m.group(1) == "arrive")])


@form(r"bar\.warp\.sync")
def _bar_warp(d, ins, m):
    return d.row("BARWARP", (), [d.source(ins.args[0], 32)])


@form(r"barrier\.cluster\.(arrive|wait)(?:\.(?:release|relaxed|acquire))?(?:\.aligned)?")
def _bar_cluster(d, ins, m):
    return d.row("CL_ARRIVE" if m.group(1) == "arrive" else "CL_WAIT")


@form(r"fence\.proxy\.async(?:\.shared::cta|\.shared::cluster|\.global)?")
def _fence_async(d, ins, m):
    return d.row("NOP" if ins.op.endswith(".global") else "FENCE_ASYNC")


@form(r"fence\.mbarrier_init\.release\.cluster")
def _fence_init(d, ins, m):
    return d.row("FENCE_MB")


@form(
    r"fence(?:\.(?:sc|acq_rel))?\.(?:cta|cluster|gpu|sys)",
    r"membar\.(?:cta|gl|sys)",
    r"fence\.proxy\.tensormap::generic\.(?:acquire|release)\.(?:cta|cluster|gpu|sys)",
)
def _fence(d, ins, m):
    """Fences of global memory are not modelled: nothing here is ordered by them."""
    return d.row("NOP")


# ---- lanes
@form(r"shfl\.sync\.(idx|up|down|bfly)\.b32")
def _shfl(d, ins, m):
    value, ok = d.pair(ins.args[0])
    return d.row(
        "SHFL",
        [d.destination(value, 32)],
        [d.source(o, 32) for o in ins.args[1:5]],
        [["idx", "up", "down", "bfly"].index(m.group(1)), 0, 0, 0, 0, 0, d.predicate_out(ok)],
    )


@form(r"vote\.sync\.(ballot)\.b32", r"vote\.sync\.(any|all|uni)\.pred")
def _vote(d, ins, m):
    mode = ["ballot", "any", "all", "uni"].index(m.group(1))
    index, negated = d.predicate(ins.args[1])
    return d.row(
        "VOTE",
        [d.destination(ins.args[0], 32)] if mode == 0 else [],
        [d.source(ins.args[2], 32)],
        [mode, index, negated, 0, 0, 0, 0 if mode == 0 else d.predicate(ins.args[0])[0]],
    )


@form(r"redux\.sync\.(add|min|max)\.([us])32", r"redux\.sync\.(and|or|xor)\.(b)32")
def _redux(d, ins, m):
    code = {"add": 0, "min": 1, "max": 2, "and": 5, "or": 6, "xor": 7}[m.group(1)] + 2 * (
        m.group(2) == "s" and m.group(1) != "add"
    )
    return d.row("REDUX", [d.destination(ins.args[0], 32)], [d.source(o, 32) for o in ins.args[1:3]], [code])


@form(r"redux\.sync\.(min|max)(\.abs)?(\.NaN)?\.f32")
def _redux_f32(d, ins, m):
    return d.row(
        "REDUX",
        [d.destination(ins.args[0], 32)],
        [d.source(o, 32) for o in ins.args[1:3]],
        [8 + (m.group(1) == "max"), int(bool(m.group(2))), int(bool(m.group(3)))],
    )


@form(r"elect\.sync")
def _elect(d, ins, m):
    lane, is_it = d.pair(ins.args[0])
    return d.row(
        "ELECT", [d.destination(lane, 32)], [d.source(ins.args[1], 32)], [0, 0, 0, 0, 0, 0, d.predicate(is_it)[0]]
    )


@form(r"activemask\.b32")
def _activemask(d, ins, m):
    return d.row("ACTIVEMASK", [d.destination(ins.args[0], 32)], simple=1)


# ---- matrix
TYPES = {"f16": 0, "bf16": 1, "s8": 2, "u8": 3, "e4m3": 4}
_SHAPES = {(0, 8): (2, 1), (0, 16): (4, 2), (1, 16): (2, 1), (1, 32): (4, 2)}  # (8-bit, K) -> registers of A, of B


@form(
    r"mma\.sync\.aligned\.m16n8k(8|16|32)\.row\.col\.f32\.(f16|bf16|e4m3)\.\2\.f32",
    r"mma\.sync\.aligned\.m16n8k(16|32)\.row\.col\.s32\.(s8|u8)\.\2\.s32",
)
def _mma(d, ins, m):
    k, t = int(m.group(1)), TYPES[m.group(2)]
    to, a, b, c = (items(x) for x in ins.args)
    if _SHAPES.get((int(t > 1), k)) != (len(a), len(b)):
        raise Unsupported(f"{len(a)} registers of A, {len(b)} of B")
    return d.row(
        "MMA", [d.destination(o, 32) for o in to], [d.source(o, 32) for o in a + b + c], [t, k, len(a), len(b)]
    )


@form(r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16")
def _ldmatrix(d, ins, m):
    outs = items(ins.args[0])
    if len(outs) != int(m.group(1)):
        raise Unsupported(f"{len(outs)} registers")
    return d.row(
        "LDMATRIX",
        [d.destination(o, 32) for o in outs],
        [d.address(ins.args[1], 32)],
        [len(outs), int(bool(m.group(2))), ins.args[1].offset],
    )


@form(r"stmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16")
def _stmatrix(d, ins, m):
    mem, values = ins.args[0], items(ins.args[1])
    if len(values) != int(m.group(1)):
        raise Unsupported(f"{len(values)} registers")
    return d.row(
        "STMATRIX",
        (),
        [d.address(mem, 32), *(d.source(o, 32) for o in values)],
        [len(values), int(bool(m.group(2))), mem.offset],
    )


@form(r"wgmma\.(fence|commit_group)\.sync\.aligned")
def _wgmma_fence(d, ins, m):
    return d.row("WG_FENCE" if m.group(1) == "fence" else "WG_COMMIT")


@form(r"wgmma\.wait_group\.sync\.aligned")
def _wgmma_wait(d, ins, m):
    return d.row("WG_WAIT", im=[ins.args[0].value])


@form(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(f16|bf16)\.\2",
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k32\.f32\.(e4m3)\.\2",
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k32(\.satfinite)?\.s32\.(s8|u8)\.\3",
)
def _wgmma(d, ins, m):
    n, t = int(m.group(1)), TYPES[m.group(m.lastindex)]
    to, a, b, scale_d, *flags = ins.args
    flags = [f.value for f in flags]
    shared = not isinstance(a, Vec)
    if not shared and m.group(m.lastindex) == "e4m3":
        raise Unsupported("E4M3 in registers")
    if t <= 1 and (flags[:2] != [1, 1] or any(flags[2:])):
        raise Unsupported("negated or MN-major operands")
    if len(to.items) != n // 2:
        raise Unsupported(f"{len(to.items)} accumulators for N = {n}")
    if isinstance(scale_d, Reg) and scale_d.name not in d.predicates:
        raise Unsupported("scale-d that is no predicate")
    index, negated = d.predicate(scale_d)
    sources = [d.source(a, 64)] if shared else [d.source(o, 32) for o in a.items]
    return d.row(
        "WGMMA",
        [d.destination(o, 32) for o in to.items],
        [*sources, d.source(b, 64)],
        [n, 32, t, int(shared), index, negated, int("satfinite" in ins.op)],
    )
