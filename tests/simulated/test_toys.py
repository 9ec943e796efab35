"""A kernel for sm_100a on the whole path: compiled, its tensor map encoded from a recipe, run; and what the checks say when an instruction of it is dropped."""

import pytest

from harness.ops.block_scores import wire
from ptxsim import kernels, mutate
from ptxsim.launch import SimError
from simulated import launches, stand_in
from support import oracle
from support.inputs import PAGE, batch

VARIANTS = {v.format: v for v in stand_in.TOYS}


def run(fmt, kernel=None, tokens=128, pages=9, **how):
    """All pages whole, all keys visible."""
    inp = batch(
        fmt, [tokens], [pages * PAGE], 1, 1, seed=tokens + pages, kind=how.pop("kind", "ordinary"), causal=False
    )
    compiled = kernel or kernels.load(VARIANTS[fmt].launches)[0]
    outcome = launches.run_variant([compiled], VARIANTS[fmt], wire(inp, "preordered_mma"), max_insts=10**6, **how)
    return outcome, inp


@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("tokens, pages", [(128, 9), (70, 1), (1, 4)])
def test_scores(fmt, tokens, pages, mode):
    outcome, inp = run(fmt, None, tokens, pages, mode=mode, seed=3)
    outcome.raise_if_wrong(f"{fmt} {tokens} {pages}", oracle.evaluate(inp))
    assert not outcome.notes


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_bits(fmt):
    outcome, inp = run(fmt, kind="exact", elect_last=True)
    outcome.raise_if_wrong(fmt, oracle.evaluate(inp), exact=True)


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_every_instruction_that_orders_or_moves_is_missed(fmt):
    """Dropped one at a time, and waits that answer at once. Not missed, because another instruction does the same: the fence behind
    mbarrier.init (the proxy fence covers it), and the first three of four tcgen05.wait::ld in a row (for others the last is what counts)."""
    kernel, truth = kernels.load(VARIANTS[fmt].launches)[0], None
    run(fmt, kernel, pages=7)
    survivors, count = [], 0
    for change in mutate.chosen(kernel, kernel.hits.copy(), ("drop", "no wait")):
        count += 1
        noticed = False
        for mode in ("eager", "lazy", "random"):
            try:
                outcome, inp = run(fmt, mutate.changed(kernel, change), pages=7, mode=mode, seed=1)
                truth = truth or oracle.evaluate(inp)
                noticed = noticed or bool(outcome.wrong(truth))
            except SimError:
                noticed = True
        survivors += [] if noticed else [kernel.program.code[change.pc].op]
    assert count > 30 and survivors == ["fence.mbarrier_init.release.cluster"] + 3 * ["tcgen05.wait::ld.sync.aligned"]
