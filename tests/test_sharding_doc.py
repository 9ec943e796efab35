"""docs/sharding.md: every test its table names exists, in the file it says, with the parameters it says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_of_the_table_exists():
    named = re.findall(r"`(test_\w+\.py::test_[^`]+)`", (ROOT / "docs" / "sharding.md").read_text())
    assert len(set(named)) > 40
    files = {name.split("::")[0] for name in named}
    paths = {name: path for name in files for path in (ROOT / "tests").rglob(name)}
    assert set(paths) == files
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *map(str, paths.values())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    collected = {re.sub(r"^.*/", "", line) for line in done.stdout.splitlines() if "::" in line}
    missing = sorted(set(named) - collected)
    assert not missing, f"{missing}; there are e.g. {sorted(collected)[:3]}"


def test_no_transformation_is_without_a_test():
    """Every row but the last two has a test in its first and third column, or says how it is done there."""
    table = (ROOT / "docs" / "sharding.md").read_text().split("## Transformations over meshes")[1].split("\n1. ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| ") and not line.startswith("| |")
    ]
    assert len(rows) >= 14
    for what, *cells in rows:
        assert len(cells) == 5, what
        assert any("::test_" in cell for cell in cells), what
        assert all(cells) or what == "two processes", what
