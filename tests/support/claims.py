"""Records of what ran on a card, next to the benchmark's: benchmarks/results/<card>/{parity,memcheck,synccheck,racecheck,fuzz,fuzz_memcheck}.json.

Written by the program that ran (`--record`), so that a claim names what it is of: the commit, the date, the card, and the text of every kernel that
the card may have run. A run in which something failed is recorded as such.
"""

import datetime
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

from jax_fp4_indexer.aot import inspect, manifest
from jax_fp4_indexer.configs.arch import runs_on

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def commit():
    """Of the checkout; JFI_COMMIT where the files came without git."""
    if given := os.environ.get("JFI_COMMIT"):
        return given
    git = lambda *words: subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        return git("rev-parse", "HEAD") + (
            " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown: set JFI_COMMIT"


def texts(capability, cubins=None):
    """{"arch/name": 16 hex digits of the instructions} of the kernels that a device of `capability` ((major, minor)) may run."""
    folder = pathlib.Path(cubins or manifest.DEFAULT_FOLDER)
    entries = [e for e in manifest.read(folder)["kernels"] if runs_on(e["arch"], capability)]
    return {
        f"{e['arch']}/{e['name']}": hashlib.sha256(inspect.text_of((folder / e["cubin"]).read_bytes())).hexdigest()[:16]
        for e in entries
    }


def card():
    """(name, (major, minor)) of the first GPU, asked of nvidia-smi: JAX, which would keep the device, is not needed."""
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    name, capability = done.stdout.splitlines()[0].rsplit(", ", 1)
    return name, tuple(int(x) for x in capability.split("."))


def slug(name):
    """ "NVIDIA H200" -> "h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia").strip())


def record(what, counts, failures, *, name, capability, cubins=None, folder=None, command=None):
    """Write the record and return its path. counts: what ran; failures: a list, empty if all was right; folder: default benchmarks/results/<card>."""
    value = {
        "what": what,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "card": name,
        "capability": ".".join(map(str, capability)),
        "jax": importlib.metadata.version("jax"),
        "python": platform.python_version(),
        "command": command or " ".join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]),
        "counts": counts,
        "failures": failures[:20],
        "failed": len(failures),
        "kernels": texts(capability, cubins),
    }
    path = pathlib.Path(folder or RESULTS / slug(name)) / f"{what}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    return path


def stale(path, cubins=None):
    """Sentences: which kernels of a record are others in the build. Empty if it speaks of the build's kernels."""
    value = json.loads(pathlib.Path(path).read_text())
    now = texts(tuple(int(x) for x in value["capability"].split(".")), cubins)
    return [
        f"{name}: {'no longer built' if name not in now else 'other instructions'}"
        for name, text in value["kernels"].items()
        if now.get(name) != text
    ]


def add_option(parser):
    parser.add_argument(
        "--record",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="write the claim to FOLDER; default: benchmarks/results/<card>",
    )
