"""The whole case table on the GPU: every implementation and layout against the oracle, 20 repeats, bytes that do not count, sequences alone."""
import harness
import pytest
from support import cases


@pytest.mark.parametrize("case", cases.table(), ids=lambda c: c.name)
def test_case(case):
    inp = case.build()
    truth = harness.make_oracle(case, inp)
    large = inp.shape[0] * inp.shape[1] * inp.shape[5] > 2**24
    report = harness.run_case(case, inp, harness.Program(inp, harness.IMPLEMENTATIONS), truth, repeats=5 if large else 20)
    assert not report.problems, "\n".join(f"{v}: {what}" for v, what in report.problems)


@pytest.mark.parametrize("case", cases.table("small", match="lie_"), ids=lambda c: c.name)
def test_next_call_is_right(case):
    """Contradictory metadata leaves nothing behind: an ordinary call right after it meets every bar."""
    lying, ordinary = case.build(), cases.table(match=f"ragged_1-{case.fmt}")[0]
    program = harness.Program(lying, harness.IMPLEMENTATIONS)
    program(program.put(lying))
    inp = ordinary.build()
    report = harness.run_case(ordinary, inp, harness.Program(inp, harness.IMPLEMENTATIONS), harness.make_oracle(ordinary, inp), repeats=1, scrambles=0)
    assert not report.problems, report.problems


@pytest.mark.parametrize("case", cases.table("small", match="ragged_,edge_"), ids=lambda c: c.name)
def test_default_is_one_of_the_kernels(case):
    """implementation=None gives the bits of the kernel that the dispatch rule names."""
    inp = case.build()
    program = harness.Program(inp, ("auto", "decode", "prefill"))
    outs, _ = program(program.put(inp))
    Tq, Hq, Hkv, *_ = inp.shape
    path = "decode" if inp.max_seqlen_q <= 8 and Hq // Hkv <= 16 else "prefill"
    for layout in harness.LAYOUTS:
        assert harness.check.same_bits(outs[f"auto.{layout}"], outs[f"{path}.{layout}"])
