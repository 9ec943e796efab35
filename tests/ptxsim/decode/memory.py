"""Loads, stores, atomics, copies."""

from ..parse import Sink
from .operands import Unsupported, form, items, width

SPACES = {"global": 0, "shared": 1, "local": 3}  # 2: generic
_SPACE = r"(?:\.(global|local|shared|shared::cta|shared::cluster))?"
_VALUE = r"(?:\.v([24]))?\.([busf](?:8|16|32|64))"
# What only tells caches or other CTAs something.
_CACHE = (
    r"(?:\.nc)?(?:\.(?:ca|cg|cs|lu|cv|wb|wt))?(?:\.L1::(?:evict_normal|evict_unchanged|evict_first|evict_last|no_allocate))?"
    r"(?:\.L2::(?:64B|128B|256B))?(\.L2::cache_hint)?(?:\.L2::(?:64B|128B|256B))?"
)
_ORDER = r"(?:\.volatile|\.(?:relaxed|acquire|release|acq_rel)\.(?:cta|cluster|gpu|sys))?"


def _space(name):
    return 2 if name is None else SPACES[name.partition("::")[0]]


def _bits(space):
    return 32 if space == 1 else 64


def _check_count(ins, n, hint):
    if len(ins.args) != n + bool(hint):
        raise Unsupported(f"{len(ins.args)} operands")


@form(rf"ld\.param{_VALUE}")
def _ld_param(d, ins, m):
    outs, mem, size = items(ins.args[0]), ins.args[1], width(m.group(2)) // 8
    param = d.params.get(getattr(mem.base, "name", None))
    if param is None:
        raise Unsupported(f"operand {mem}")
    if len(outs) == 1:
        return d.row(
            "MOV",
            [d.destination(outs[0], 8 * size, wider=True)],
            [d.constant("param", (param, mem.offset, size, m.group(2)[0] == "s"))],
            simple=1,
        )
    values = [
        d.constant("param", (param, mem.offset + at, min(8, size * len(outs)), False))
        for at in range(0, size * len(outs), 8)
    ]
    return d.row("UNPACK", [d.destination(o, 8 * size) for o in outs], values, [8 * size])


@form(rf"ldu?{_ORDER}{_SPACE}{_CACHE}{_VALUE}")
def _ld(d, ins, m):
    space, hint, n, t = _space(m.group(1)), m.group(2), int(m.group(3) or 1), m.group(4)
    _check_count(ins, 2, hint)
    outs, mem = items(ins.args[0]), ins.args[1]
    if len(outs) != n:
        raise Unsupported(f"{len(outs)} registers for {n} values")
    bits = max([d.bits[o.name] for o in outs if not isinstance(o, Sink)], default=32)
    return d.row(
        "LD",
        [d.destination(o, width(t), wider=True) for o in outs],
        [d.address(mem, _bits(space))],
        [space, width(t) // 8, n, int(t[0] == "s"), mem.offset, bits],
    )


@form(rf"st{_ORDER}{_SPACE}{_CACHE}{_VALUE}")
def _st(d, ins, m):
    space, hint, n, t = _space(m.group(1)), m.group(2), int(m.group(3) or 1), m.group(4)
    _check_count(ins, 2, hint)
    mem, values = ins.args[0], items(ins.args[1])
    if len(values) != n:
        raise Unsupported(f"{len(values)} registers for {n} values")
    return d.row(
        "ST",
        (),
        [d.address(mem, _bits(space)), *(d.source(o, width(t), wider=True) for o in values)],
        [space, width(t) // 8, n, 0, mem.offset],
    )


ATOMS = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"]


@form(rf"(atom|red){_ORDER}{_SPACE}\.(add|min|max|and|or|xor|exch|cas|inc|dec)\.([bus](?:32|64)|f32)")
def _atom(d, ins, m):
    kind, space, op, t = m.group(1), _space(m.group(2)), m.group(3), m.group(4)
    if t == "f32" and op not in ("add", "exch"):
        raise Unsupported(f"{op} of {t}")
    args = ins.args if kind == "red" else ins.args[1:]
    outs = [] if kind == "red" else [d.destination(ins.args[0], width(t))]
    return d.row(
        "ATOM",
        outs,
        [d.address(args[0], _bits(space)), *(d.source(o, width(t)) for o in args[1:])],
        [space, width(t) // 8, ATOMS.index(op), {"s": 1, "f": 2}.get(t[0], 0), args[0].offset],
    )


# ---- cp.async
@form(r"cp\.async\.(?:ca|cg)\.shared(?:::cta)?\.global(\.L2::cache_hint)?(?:\.L2::(?:64B|128B|256B))?")
def _cp_async(d, ins, m):
    to, of, size, *rest = ins.args
    rest = rest[: len(rest) - bool(m.group(1))]
    return d.row(
        "CPASYNC",
        (),
        [d.address(to, 32), d.address(of, 64), *(d.source(o, 32) for o in rest)],
        [to.offset, of.offset, size.value],
    )


@form(r"cp\.async\.commit_group")
def _cp_commit(d, ins, m):
    return d.row("CPCOMMIT")


@form(r"cp\.async\.wait_group")
def _cp_wait(d, ins, m):
    return d.row("CPWAIT", im=[ins.args[0].value])


@form(r"cp\.async\.wait_all")
def _cp_wait_all(d, ins, m):
    return d.row("CPWAIT", im=[-1])


@form(r"cp\.async\.mbarrier\.arrive\.noinc\.shared(?:::cta)?\.b64")
def _cp_mbarrier(d, ins, m):
    return d.row("CPMBAR", (), [d.address(ins.args[0], 32)], [ins.args[0].offset])


# ---- bulk and tensor copies
_HINT = r"(?:\.L2::cache_hint)?"


@form(rf"cp\.async\.bulk\.shared::(?:cta|cluster)\.global\.mbarrier::complete_tx::bytes(\.multicast::cluster)?{_HINT}")
def _bulk_load(d, ins, m):
    to, of, size, bar, *rest = ins.args
    mask = [d.source(rest[0], 16)] if m.group(1) else []
    return d.row(
        "BULK_G2S",
        (),
        [d.address(to, 32), d.address(of, 64), d.source(size, 32), d.address(bar, 32), *mask],
        [to.offset, of.offset, bar.offset, len(mask)],
    )


@form(r"st\.async(?:\.weak)?\.shared::cluster\.mbarrier::complete_tx::bytes(?:\.v([24]))?\.([busf](?:32|64))")
def _st_async(d, ins, m):
    (to, values, bar), size = ins.args, width(m.group(2)) // 8
    values = items(values)
    if len(values) != int(m.group(1) or 1):
        raise Unsupported(f"{len(values)} values")
    return d.row(
        "ST_ASYNC",
        (),
        [d.address(to, 32), d.address(bar, 32), *(d.source(o, 8 * size) for o in values)],
        [to.offset, bar.offset, size, len(values)],
    )


@form(
    rf"cp\.async\.bulk\.global\.shared::cta\.bulk_group{_HINT}",
    rf"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group{_HINT}\.add\.[us]32",
)
def _bulk_store(d, ins, m):
    to, of, size = ins.args[:3]
    return d.row(
        "BULK_S2G",
        (),
        [d.address(to, 64), d.address(of, 32), d.source(size, 32)],
        [to.offset, of.offset, int("reduce" in ins.op)],
    )


@form(
    rf"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cta|cluster)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes(\.multicast::cluster)?{_HINT}"
)
def _tensor_load(d, ins, m):
    to, of, bar, *rest = ins.args
    at, mask = of.coords.items, [d.source(rest[0], 16)] if m.group(2) else []
    if len(at) != int(m.group(1)):
        raise Unsupported(f"{len(at)} coordinates")
    return d.row(
        "TMA_LOAD",
        (),
        [d.address(to, 32), d.address(of, 64), d.address(bar, 32), *(d.source(c, 32) for c in at), *mask],
        [to.offset, bar.offset, len(at), len(mask)],
    )


@form(
    rf"cp\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group{_HINT}",
    rf"cp\.reduce\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta\.add(?:\.tile)?\.bulk_group{_HINT}",
)
def _tensor_store(d, ins, m):
    to, of = ins.args[:2]
    at = to.coords.items
    if len(at) != int(m.group(1)) or to.offset:
        raise Unsupported(f"{len(at)} coordinates, or an offset of the map")
    return d.row(
        "TMA_STORE",
        (),
        [d.address(to, 64), d.address(of, 32), *(d.source(c, 32) for c in at)],
        [of.offset, 0, len(at), int("reduce" in ins.op)],
    )


@form(
    r"cp\.async\.bulk\.commit_group",
    r"cp\.async\.bulk\.wait_group(?:\.read)?",
    rf"cp\.async\.bulk\.prefetch\.L2\.global{_HINT}",
    r"prefetch(?:\.global)?\.L[12]",
    r"prefetch\.tensormap",
    r"prefetch\.(?:param|const)\.tensormap",
)
def _nothing(d, ins, m):
    return d.row("NOP")


@form(r"createpolicy\.fractional\.L2::evict_(?:first|last|normal|unchanged)\.b64")
def _policy(d, ins, m):
    return d.row("MOV", [d.destination(ins.args[0], 64)], [d.constant("value", 0)], simple=1)
