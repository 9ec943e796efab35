"""The report of a card, with steps of our own: what fails, hangs or is missing stops nothing and is told; nothing that a step started outlives it."""

import json
import os
import pathlib
import sys
import tarfile
import time

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "parity"))
import card_report  # noqa: E402


def says(text, status=0):
    return [sys.executable, "-c", f"print({text!r}); raise SystemExit({status})"]


def test_every_step_is_reported(tmp_path, capsys):
    child = tmp_path / "child"
    hangs = f"import subprocess, sys, time, pathlib; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); pathlib.Path({str(child)!r}).write_text(str(p.pid)); time.sleep(60)"
    table = {
        "doctor": (says("sm_90a"), 20),
        "parity": (says("17 failures", 1), 20),
        "portable": (says("0 failures"), 20),
        "benchmark": ([sys.executable, "-c", hangs], 2),
        "memcheck": (["no-such-program"], 20),
    }
    out = tmp_path / "report"
    assert card_report.main(["--out", str(out)], table) == 1
    assert {name: found["status"] for name, found in json.loads((out / "summary.json").read_text()).items()} == {
        "doctor": 0,
        "parity": 1,
        "portable": 0,
        "benchmark": "time",
        "memcheck": "missing",
    }
    text = (out / "report.txt").read_text()
    for expected in (
        "doctor: passed",
        "parity: failed, exit status 1",
        "benchmark: out of time",
        "memcheck: a program is missing",
        "17 failures",
        "no-such-program",
    ):
        assert expected in text
    with tarfile.open(tmp_path / "report.tar.gz") as tar:
        assert {"report/report.txt", "report/summary.json", "report/parity.log"} <= set(tar.getnames())
    for _ in range(50):
        if not _runs(int(child.read_text())):
            break
        time.sleep(0.1)
    assert not _runs(int(child.read_text()))
    assert f"send {tmp_path / 'report.tar.gz'}" in capsys.readouterr().out


def _runs(pid):
    """Whether a process works still: what was killed may wait for its parent to ask for its status."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_portable_kernels_are_tried_only_where_parity_fails(tmp_path):
    table = {
        "parity": (says("0 failures, 3 cases not run", card_report.LEFT_OUT), 20),
        "portable": (says("unused"), 20),
    }
    assert card_report.main(["--quick", "--out", str(tmp_path / "a")], table) == 0
    assert "portable" not in json.loads((tmp_path / "a" / "summary.json").read_text())
    assert "nothing failed, cases left out" in (tmp_path / "a" / "report.txt").read_text()
    assert card_report.main(["--out", str(tmp_path / "b")], table) == 1  # of the whole report nothing may be left out


def test_a_report_begins_with_an_empty_folder(tmp_path):
    table = {"doctor": (says("first"), 20)}
    card_report.main(["--out", str(tmp_path / "a")], table)
    (tmp_path / "a" / "block_scores.json").write_text("[]")
    card_report.main(["--out", str(tmp_path / "a")], table)
    assert not (tmp_path / "a" / "block_scores.json").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    with pytest.raises(SystemExit):
        card_report.main(["--out", str(tmp_path / "mine")], table)
    assert os.listdir(tmp_path / "mine") == ["file"]


@pytest.mark.parametrize("quick", (False, True))
def test_commands_name_files_that_exist_and_options_they_have(quick, tmp_path):
    for name, (command, limit) in card_report.commands(tmp_path, quick).items():
        script = next((str(c) for c in command[1:] if str(c).endswith(".py")), None)
        assert limit > 0 and (script is None or pathlib.Path(script).is_file()), name
        if script:
            text = pathlib.Path(script).read_text() + (pathlib.Path(script).parent / "run.py").read_text()
            for option in (str(c) for c in command if str(c).startswith("--")):
                assert f'"{option}"' in text, (name, option)
