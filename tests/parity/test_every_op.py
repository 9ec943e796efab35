"""every_op.py: on a GPU the quick rows of every op; anywhere, that it finds a fault."""

import every_op
import numpy as np
import pytest

from harness import registry


@pytest.mark.gpu
@pytest.mark.parametrize("op", [tests.spec.name for tests in registry.chosen()])
def test_quick_rows_on_the_gpu(op, monkeypatch):
    monkeypatch.setenv("JFI_OP", op)
    assert every_op.main(["--tag", "quick"]) == 0


def test_the_program_on_the_definition(monkeypatch, capsys):
    monkeypatch.delenv("JFI_OP", raising=False)
    words = [
        "--op",
        "block_scores",
        "--cases",
        "k_len_0_beside_5-nvfp4,k_lengths_causal-nvfp4",
        "--tag",
        "quick",
        "--implementations",
        "reference",
        "--repeats",
        "1",
    ]
    monkeypatch.setenv("JFI_OP", "block_scores")
    assert every_op.main(words) == 0
    assert "0 failures" in capsys.readouterr().out
    call = every_op.Programs.__call__

    def other(self, tests, case, implementation, choices):
        found = call(self, tests, case, implementation, choices)
        return {name: x + np.float32("~" in case.name) for name, x in found.items()}

    monkeypatch.setattr(every_op.Programs, "__call__", other)
    assert every_op.main(words) == 1
    out = capsys.readouterr().out
    assert "bytes that do not count" in out and "alone" in out
