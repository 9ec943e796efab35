"""The wheel of this checkout, built once a session, and its files in a folder of their own."""

import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Built from this checkout in this environment; cubins that are up to date are taken as they are."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            folder,
            f"-Cbuild-dir={folder / 'build'}",
            ROOT,
        ],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
    """A folder that holds the wheel's files and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as z:
        z.extractall(folder)
    return folder
