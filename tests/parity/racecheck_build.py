"""The sm_90a kernels with every lane of a warp arriving on mbarriers where one arrives for it, in a folder of their own: what racecheck can follow.

    python tests/parity/racecheck_build.py FOLDER [--arch sm_90a]

racecheck lets an arrival speak for the lane that arrives and not for its warp (docs/facts.md): it reports what the other lanes read or wrote before. Here the guard around the
arrival is gone, and the barrier expects 32 times as many. Nothing else is changed; no wait and no barrier is gone. `PATCHES` is all of it, made in a copy of the package's sources, which the ahead-of-time build then compiles; kernels that nothing of it touches, those of
other archs among them, are in the folder as they are. For tests alone: what the arrivals cost was not measured.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax_fp4_indexer

KERNELS = "kernels/block_scores"
# (file, as it is, with every lane). Each stands there once.
PATCHES = (
    # prefill: pages and queries. What one lane alone announces (of the staged form k_full and an item's description) stays one arrival, and what each lane's copies do
    # is one a lane as it is.
    (
        "sm90_prefill_maxima.py",
        "    with cute.arch.elect_one():\n        mbarrier_arrive(bar)\n",
        "    mbarrier_arrive(bar)\n",
    ),
    (
        "sm90_prefill.py",
        "(f.k_full + 8 * s), self.producer.k_arrivals)",
        "(f.k_full + 8 * s), self.producer.k_arrivals if self.producer.k_arrivals == 1 else 32 * self.producer.k_arrivals)",
    ),
    ("sm90_prefill.py", "(f.k_empty + 8 * s), f.consumer_warps)", "(f.k_empty + 8 * s), 32 * f.consumer_warps)"),
    (
        "sm90_prefill.py",
        "(f.q_full + 8 * s), f.q_arrivals)",
        "(f.q_full + 8 * s), f.q_arrivals if self.producer.q_in_registers else 32 * f.q_arrivals)",
    ),
    ("sm90_prefill.py", "(f.q_empty + 8 * s), f.consumer_warps)", "(f.q_empty + 8 * s), 32 * f.consumer_warps)"),
)
# One lane arrives there as before: for a page that does not exist, on a barrier that one lane announces the others on. racecheck has no word on it.
KEPT = {"sm90_decode_ring.py": "                if w.lane == 0:\n                    mbarrier_arrive(bar)\n"}


def patched(sources):
    """{file: text} with PATCHES made. LookupError where a text is not there once, or an arrival stays behind a guard."""
    sources = dict(sources)
    for file, before, after in PATCHES:
        if sources[file].count(before) != 1:
            raise LookupError(
                f"racecheck_build: {KERNELS}/{file} has {sources[file].count(before)} times, expected once: {before!r}. Arrivals are written in another way now; change PATCHES with them."
            )
        sources[file] = sources[file].replace(before, after)
    for file, text in sources.items():
        text = text.replace(KEPT[file], "") if file in KEPT else text
        guarded = re.search(r"(elect_one\(\)|lane == 0)[^\n]*:\n\s+mbarrier_arrive\(", text)
        if guarded:
            raise LookupError(
                f"racecheck_build: in {KERNELS}/{file} one lane arrives for its warp, and no patch says otherwise: {guarded[0]!r}"
            )
    return sources


def snapshot(folder):
    """A copy of the package in `folder`, patched."""
    package = Path(jax_fp4_indexer.__file__).parent
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__", "cubins", "_lib"))
    kernels = folder / package.name / KERNELS
    for file, text in patched({p.name: p.read_text() for p in kernels.glob("sm90_*.py")}).items():
        (kernels / file).write_text(text)
    cubins = folder / package.name / "cubins"
    cubins.mkdir()
    (cubins / "__init__.py").touch()
    # An editable installation's finder comes before every path; Python runs this file after it has put the finder there
    (folder / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
    )


def build(folder, archs):
    """Writes <folder>/<arch>/*.cubin and manifest.json; what is there and of the same sources stays."""
    folder = Path(folder).resolve()
    if not (folder / "manifest.json").exists():  # what no patch touches is there already
        shutil.copytree(Path(jax_fp4_indexer.__file__).parent / "cubins", folder, dirs_exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jfi-every-lane-") as scratch:
        snapshot(Path(scratch))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([scratch, *(p for p in sys.path if p)])}
        command = [
            sys.executable,
            "-m",
            "jax_fp4_indexer.aot",
            "build",
            "--quiet",
            "--out",
            folder,
            "--arch",
            ",".join(archs),
        ]
        code = subprocess.run(command, cwd=scratch, env=environment).returncode
    if code == 0 and all(unaltered(folder, arch) for arch in archs):
        print(
            f"racecheck_build: {folder} holds the package's own kernels: {sys.executable} imports an installed jax_fp4_indexer, whatever its path. "
            "Use a Python in which it is not installed.",
            file=sys.stderr,
        )
        return 1
    return code


def unaltered(folder, arch):
    """Whether every kernel of an arch is the package's."""
    own = Path(jax_fp4_indexer.__file__).parent / "cubins" / arch
    return all(p.read_bytes() == (folder / arch / p.name).read_bytes() for p in own.glob("*.cubin"))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder")
    p.add_argument("--arch", default="sm_90a", help="comma-separated")
    args = p.parse_args()
    return build(args.folder, args.arch.split(","))


if __name__ == "__main__":
    sys.exit(main())
