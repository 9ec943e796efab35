"""Variants times cases times schedules: what the tests and the command line run."""

import itertools

from jax_fp4_indexer.aot import variants
from ptxsim import kernels, stats
from ptxsim.launch import SimError
from harness import registry
from harness.protocol import Verdict

from . import launches

OWN_FORMS = (
    "sm_90a",
    "sm_80",
)  # archs whose portable kernels are all in the quick list; those of the others come from the same source
SCHEDULES = ("eager", "lazy", "random:1", "random:2", "random:3")


FIRST = "block_scores"  # the op that labels do not name


def label(variant):
    """ "sm_90a.native.decode.mxfp4.public.n16": arch, implementation, choices, bound (n0 serves any number). Those of other ops than block_scores begin with the op's name."""
    v = variant
    return ".".join(
        [*([] if v.op == FIRST else [v.op]), v.arch, v.implementation, *(value for _, value in v.select), f"n{v.bound}"]
    )


def all_variants(op=None):
    """Of one op, or of all."""
    return [v for v in variants.VARIANTS if op in (None, v.op)]


def narrow_decodes(*layouts):
    """The sm_90a decodes for up to 16 packed rows of these (format, scale layout)."""
    return [
        v
        for v in all_variants(FIRST)
        if (v.arch, v.implementation, v.path, v.bound) == ("sm_90a", "native", "decode", 16)
        and (v.format, v.scale_layout) in layouts
    ]


def compile_all(some):
    """{launch: compiled kernel} of some variants."""
    wanted = [k for v in some for k in v.launches]
    return dict(zip(wanted, kernels.load(wanted)))


def quick_variants(*ops):
    """Of these ops (default: all that are chosen) every kind of kernel with one value of the choice that is last in its op's spec, by turns; of the portable kernels of
    most archs one for each of the other choices that the op's tests name in `apart` (none: of each arch)."""
    groups = {}
    for tests in ops or registry.chosen():
        for v in (v for v in all_variants() if v.op == tests.spec.name):
            fine = v.arch in OWN_FORMS or v.implementation == "native"
            values = tuple(
                v.choices[name] for name in (tests.spec.select[:-1] if fine else getattr(tests, "apart", ()))
            )
            groups.setdefault((v.op, v.arch, v.implementation, *values, v.bound if fine else 0), []).append(v)
    return [group[i % len(group)] for i, group in enumerate(groups.values())]


def combinations(spec, without=()):
    """[{choice: value}] of everything that the op's variants are made for; without: choices that the op makes itself."""
    names = [name for name in spec.select if name not in without]
    return [dict(zip(names, values)) for values in itertools.product(*(spec.choices()[name] for name in names))]


def rows(variant, *tags, match=""):
    """The cases that a variant runs, with all of these tags. match: parts of names, separated by commas."""
    return [
        c
        for c in registry.op(variant.op).cases(*tags, **variant.choices)
        if any(part in c.name for part in match.split(","))
    ]


def run(kernels, variant, case, schedule, **how):
    """(Outcome or None, problems) of one run; schedule: "eager", "lazy", "random:<seed>"."""
    outcome, verdict = judged(kernels, variant, case, schedule, **how)
    return outcome, (outcome.problems() if outcome else []) + verdict.problems


def judged(kernels, variant, case, schedule, **how):
    """(Outcome or None, Verdict on its results)."""
    mode, _, seed = schedule.partition(":")
    tests = registry.op(variant.op)
    try:
        outcome = launches.run_variant(
            kernels, variant, tests.operands(case, variant.choices), mode=mode, seed=int(seed or 0), **how
        )
    except SimError as e:
        return None, Verdict([f"{type(e).__name__}: {e}"])
    return outcome, tests.compare(case, outcome.results)


def sweep(kernels, variant, schedule, match="", **how):
    """Every case of the variant that `match` names. Yields (case, outcome, problems)."""
    for case in rows(variant, match=match):
        yield case, *run(kernels, variant, case, schedule, **how)


def statistics(compiled, variant, cases, schedule, **how):
    """Yields (name of the row, kernel, stats.Report, problems) for every row and kernel. cases: rows of the variant's op; the row has run when its first kernel is yielded."""
    for case in cases:
        for kernel in compiled:
            kernel.statistics = None
        _, problems = run(compiled, variant, case, schedule, statistics=True, **how)
        for kernel in compiled:
            if kernel.statistics is not None:
                yield case.name, kernel, stats.Report(kernel.program, kernel.statistics), problems
