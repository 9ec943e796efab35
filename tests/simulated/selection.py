"""Variants times cases times schedules: what the tests and the command line run."""
from jax_fp4_indexer.aot import variants
from ptxsim import kernels, stats
from ptxsim.launch import SimError
from support import oracle

from . import cases, launches

OWN_FORMS = ("sm_90a", "sm_80")         # archs whose portable kernels are all in the quick list; those of the others come from the same source
SCHEDULES = ("eager", "lazy", "random:1", "random:2", "random:3")


def label(variant):
    """"sm_90a.native.decode.mxfp4.public.n16"; n0 serves any number of columns."""
    v = variant
    return f"{v.arch}.{v.implementation}.{v.path}.{v.format}.{v.scale_layout}.n{v.bound}"


def all_variants():
    return list(variants.VARIANTS)


def narrow_decodes(*layouts):
    """The sm_90a decodes for up to 16 packed rows of these (format, scale layout)."""
    return [v for v in all_variants() if (v.arch, v.implementation, v.path, v.bound) == ("sm_90a", "native", "decode", 16) and (v.format, v.scale_layout) in layouts]


def compile_all(some):
    """{launch: compiled kernel} of some variants."""
    wanted = [k for v in some for k in v.launches]
    return dict(zip(wanted, kernels.load(wanted)))


def quick_variants():
    """Every kernel form in one of the two scale layouts, by turns; of the portable kernels of most archs a decode and a prefill."""
    groups = {}
    for v in all_variants():
        form = (v.format, v.bound) if v.arch in OWN_FORMS or v.implementation == "native" else ()
        groups.setdefault((v.arch, v.path, v.implementation, *form), []).append(v)
    return [group[i % len(group)] for i, group in enumerate(groups.values())]


_kept = {}


def built(row):
    """(inputs, oracle) of a row of the table, made once; names are unique."""
    if row.name not in _kept:
        inp = row.build()
        _kept[row.name] = inp, oracle.evaluate(inp)
    return _kept[row.name]


def run(kernels, variant, case, schedule, **how):
    """(Outcome or None, problems) of one run; schedule: "eager", "lazy", "random:<seed>"."""
    mode, _, seed = schedule.partition(":")
    inp, truth = built(case.table)
    try:
        outcome = launches.run_variant(kernels, variant, inp, mode=mode, seed=int(seed or 0), passes_of=case.passes_of, **how)
    except SimError as e:
        return None, [f"{type(e).__name__}: {e}"]
    return outcome, outcome.problems(truth, case.table.exact)


def sweep(kernels, variant, schedule, match="", **how):
    """Every case of the variant that `match` names. Yields (case, outcome, problems)."""
    for case in cases.of(variant.path, variant.format, match):
        yield case, *run(kernels, variant, case, schedule, **how)


def statistics(compiled, variant, cases, schedule, **how):
    """Yields (name of the row, kernel, stats.Report, problems) for every row and kernel. cases: those of cases.py; the row has run when its first kernel is yielded."""
    for case in cases:
        for kernel in compiled:
            kernel.statistics = None
        _, problems = run(compiled, variant, case, schedule, statistics=True, **how)
        for kernel in compiled:
            if kernel.statistics is not None:
                yield case.name, kernel, stats.Report(kernel.program, kernel.statistics), problems
