"""PTX of the kernels of the tree: what the ahead-of-time build has kept next to its cubins, or compiled here and kept by fingerprint.

    kernel = kernels.load([variants.KERNELS[0]])[0]      # Kernel: name, arch, program, launch facts

A fingerprint holds all that the PTX depends on: the sources of the kernel's modules, its configuration and the DSL's version. `JFI_PTXSIM_LINES=1` compiles
here in any case, with the lines of the Python sources that instructions come from: reports then name them.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

import jax_fp4_indexer
from jax_fp4_indexer import specs
from jax_fp4_indexer.aot import manifest, variants

from . import cache
from .decode import Program

KEEP = 400  # records; the oldest are removed


@dataclasses.dataclass(eq=False)
class Kernel:
    """One compiled kernel: what the manifest says of it, its PTX, and which instructions have run so far."""

    name: str
    arch: str
    source: str
    block: tuple
    cluster: tuple
    dynamic_shared_bytes: int
    params: list  # as in the manifest: {"buffer": name} or {"i32": name}
    alignments: dict  # buffer -> bytes
    ptx: str
    grid: dict = None
    tmem_columns: int = 0

    @property
    def text(self):
        """What is executed: the PTX without the lines that name the target, positions in the Python sources and blank lines.

        The entry is called "kernel": its own name holds the module and class that made it, and a kernel that moves keeps its text.
        Portable kernels of several archs have one text.
        """
        code = self.ptx[self.ptx.index(".entry") :]
        entry = re.match(r"\.entry\s+([\w$]+)", code).group(1)
        return re.sub(r"^\s*(?:\.(?:loc|file)\b[^\n]*)?\n", "", code.replace(entry, "kernel"), flags=re.M)

    @functools.cached_property
    def program(self):
        program = Program(self.ptx)
        if len(program.params) != len(self.params):
            raise ValueError(
                f"{self.name}: the PTX has {len(program.params)} parameters, the kernel class states {len(self.params)}"
            )
        return program

    @functools.cached_property
    def hits(self):
        """How often each instruction ran, over all launches of this process."""
        return np.zeros(len(self.program.code), np.int64)

    @property
    def coverage(self):
        """Share of the static instructions that some launch of this process has executed."""
        return float((self.hits > 0).mean())

    @functools.cached_property
    def phases(self):
        """{shared offset of an mbarrier: phases it has completed in one CTA, at most}, over all launches of this process."""
        return {}

    statistics = None  # launch.Statistics of the launches that had them, added up

    def count(self, result):
        self.hits[:] += result.hits
        if result.statistics is not None:
            self.statistics = result.statistics if self.statistics is None else self.statistics + result.statistics
        for offset, n in result.phases.items():
            self.phases[offset] = max(n, self.phases.get(offset, 0))

    def not_executed(self):
        return [self.program.at(pc) for pc in np.nonzero(self.hits == 0)[0]]

    def with_ptx(self, ptx):
        """The same launch facts over another text."""
        return dataclasses.replace(self, ptx=ptx)


def fingerprint(kernel):
    """32 hex digits of all that the PTX and the launch facts depend on, as the tree is now."""
    return manifest.fingerprint(kernel, manifest.dsl_version())[:32]


def _record_path(kernel):
    return cache.folder() / "ptx" / f"{fingerprint(kernel)}.lines.json"


def _alignments(kernel):
    """{buffer: bytes that its address is a multiple of}: what the op's handler checks before it launches the kernel. A kernel of no variant (toys) has the buffers of block scores."""
    op = next((v.op for v in variants.VARIANTS if kernel in v.launches), "block_scores")
    return {b.name: b.align for b in specs.OPS[op].buffers}


@functools.cache
def _built_entries():
    """{(arch, source): entry} of the manifest of the ahead-of-time build, empty if there is none."""
    try:
        return {(e["arch"], e["source"]): e for e in manifest.read(manifest.DEFAULT_FOLDER)["kernels"]}
    except manifest.ManifestError:
        return {}


def _built(kernel):
    """The Kernel that the ahead-of-time build made of the sources as they are now, or None."""
    entry = None if os.environ.get("JFI_PTXSIM_LINES") == "1" else _built_entries().get((kernel.arch, kernel.source))
    if entry is None or entry["fingerprint"] != manifest.fingerprint(kernel, manifest.dsl_version()):
        return None
    path = (manifest.DEFAULT_FOLDER / entry["cubin"]).with_suffix(".ptx")
    if not path.is_file():
        return None
    return Kernel(
        entry["name"],
        kernel.arch,
        kernel.source,
        tuple(entry["block"]),
        tuple(entry["cluster"]),
        entry["dynamic_shared_bytes"],
        entry["params"],
        _alignments(kernel),
        path.read_text(),
        entry["grid"],
        entry["tmem_columns"],
    )


def _compile(arch, jobs):
    """Compile `jobs` of one arch from a snapshot of the package."""
    with tempfile.TemporaryDirectory(prefix="ptxsim_") as scratch:
        package = pathlib.Path(jax_fp4_indexer.__file__).parent
        shutil.copytree(
            package,
            pathlib.Path(scratch) / package.name,
            ignore=shutil.ignore_patterns("__pycache__", "cubins", "_lib"),
        )
        cubins = pathlib.Path(scratch) / package.name / "cubins"
        cubins.mkdir()
        (cubins / "__init__.py").touch()
        dump = pathlib.Path(scratch) / "dump"
        dump.mkdir()
        environment = {
            **os.environ,
            "CUTE_DSL_ARCH": arch,
            "CUTE_DSL_KEEP_PTX": "1",
            "CUTE_DSL_LINEINFO": "1",
            "CUTE_DSL_DUMP_DIR": str(dump),
            "CUTE_DSL_DISABLE_FILE_CACHING": "1",
            "PYTHONPATH": os.pathsep.join([scratch, *(p for p in sys.path if p)]),
            "JAX_PLATFORMS": "cpu",
        }
        done = subprocess.run(
            [sys.executable, cache.HERE / "ptx_worker.py"],
            env=environment,
            text=True,
            input=json.dumps(jobs),
            capture_output=True,
        )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    problems = [f"{arch} {a['source']}: {a['problem']}" for a in answers if "problem" in a]
    if len(answers) < len(jobs):
        problems.append(
            f"{arch} {jobs[len(answers)]['source']}: the compiler process ended with exit code {done.returncode}:\n{done.stderr[-2000:]}"
        )
    if problems:
        raise RuntimeError("\n".join(problems))


def _forget_old(folder):
    records = sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
    for path in records[:-KEEP]:
        path.unlink(missing_ok=True)


_loaded = {}


def _missing(kernels):
    """{arch: jobs} of the kernels that neither the build nor the cache holds."""
    jobs = {}
    for kernel in (k for k in kernels if k not in _loaded and not _record_path(k).is_file()):
        jobs.setdefault(kernel.arch, []).append(
            {**dataclasses.asdict(kernel), "source": kernel.source, "path": str(_record_path(kernel))}
        )
    return jobs


def load(kernels):
    """[variants.Kernel] -> [Kernel] in order; what neither the build nor the cache holds is compiled first, one process an arch.

    One object a kernel and process, so that counts of executed instructions add up. RuntimeError with the compiler's words if one does not compile.
    """
    if manifest.dsl_version() is None:
        raise RuntimeError(f"{manifest.DSL} is not installed; pip install 'jax-fp4-indexer[dev]'")
    for kernel in (k for k in kernels if k not in _loaded):
        if found := _built(kernel):
            _loaded[kernel] = found
    if _missing(kernels):
        with cache.locked("ptx"):  # of two test processes the second finds what the first has compiled
            for arch, jobs in _missing(kernels).items():
                _compile(arch, jobs)
            _forget_old(cache.folder() / "ptx")
    for kernel in (k for k in kernels if k not in _loaded):
        record = json.loads(_record_path(kernel).read_text())
        _loaded[kernel] = Kernel(
            **{
                **record,
                "block": tuple(record["block"]),
                "cluster": tuple(record["cluster"]),
                "alignments": _alignments(kernel),
            }
        )
    return [_loaded[k] for k in kernels]
