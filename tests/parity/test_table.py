"""The whole case table on the GPU: every implementation and layout against the oracle, 20 repeats, bytes that do not count, sequences alone."""

import runner
import pytest
from support import cases


@pytest.mark.parametrize("case", cases.table(), ids=lambda c: c.name)
def test_case(case):
    inp = case.build()
    truth = runner.make_oracle(case, inp)
    large = inp.shape[0] * inp.shape[1] * inp.shape[5] > 2**24
    report = runner.run_case(case, inp, runner.Program(inp, runner.IMPLEMENTATIONS), truth, repeats=5 if large else 20)
    assert not report.problems, "\n".join(f"{v}: {what}" for v, what in report.problems)


@pytest.mark.parametrize("case", cases.table("small", match="lie_"), ids=lambda c: c.name)
def test_next_call_is_right(case):
    """Contradictory metadata leaves nothing behind: an ordinary call right after it meets every bar."""
    lying, ordinary = case.build(), cases.table(match=f"ragged_1-{case.fmt}")[0]
    program = runner.Program(lying, runner.IMPLEMENTATIONS)
    program(program.put(lying))
    inp = ordinary.build()
    report = runner.run_case(
        ordinary,
        inp,
        runner.Program(inp, runner.IMPLEMENTATIONS),
        runner.make_oracle(ordinary, inp),
        repeats=1,
        scrambles=0,
    )
    assert not report.problems, report.problems


@pytest.mark.parametrize("case", cases.table("small", match="ragged_,edge_"), ids=lambda c: c.name)
def test_default_is_one_of_the_kernels(case):
    """implementation=None gives the bits of the kernel that the dispatch rule names."""
    inp = case.build()
    program = runner.Program(inp, ("auto", "decode", "prefill"))
    outs, _ = program(program.put(inp))
    Tq, Hq, Hkv, *_ = inp.shape
    path = "decode" if inp.max_seqlen_q <= 8 and Hq // Hkv <= 16 else "prefill"
    for layout in runner.LAYOUTS:
        assert runner.check.same_bits(outs[f"auto.{layout}"], outs[f"{path}.{layout}"])
