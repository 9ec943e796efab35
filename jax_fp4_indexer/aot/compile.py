"""Compiles kernels to cubins: one process an arch (the DSL reads its target when it is imported), two at a time, only what is not up to date.

The worker (`python -m jax_fp4_indexer.aot.compile`, jobs on stdin) needs the DSL; everything else here does not.
"""

import concurrent.futures
import dataclasses
import importlib
import json
import operator
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import traceback

from . import inspect, manifest

JOBS = 2


class BuildError(Exception):
    """`problems`: one sentence for every kernel that was not accepted."""

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclasses.dataclass
class Result:
    """`unchecked`: sentences about gates that could not be asked, because a program is missing."""

    compiled: list
    skipped: list
    manifest: dict
    unchecked: list = dataclasses.field(default_factory=list)


# ---- the worker: one arch
def launch_facts(kernel):
    """Launch facts of a kernel instance, as the manifest carries them, and `expect`."""
    return {
        "name": kernel.name,
        "block": list(kernel.block),
        "cluster": list(kernel.cluster),
        "grid": kernel.grid,
        "dynamic_shared_bytes": int(kernel.dynamic_shared_bytes),
        "tmem_columns": int(kernel.tmem_columns),
        "params": kernel.params,
        "expect": dict(getattr(kernel, "expect", {})),
    }


def instantiate(job):
    module_name, class_name = job["target"].split(":")
    module = importlib.import_module(module_name)
    config = dict(job["config"])
    if job["config_class"]:
        return getattr(module, class_name)(operator.attrgetter(job["config_class"])(module)(**config))
    return getattr(module, class_name)(**config)


def compile_one(job, folder):
    """Compile one job, write `folder`/<arch>/<name>.cubin, and <name>.ptx for the tests, if it passes the gates. Returns {"entry": ...} or {"problems": [...]}."""
    kernel = instantiate(job)
    facts = launch_facts(kernel)
    if not facts["name"]:
        return {"problems": ["the class sets no name"]}
    expect = {**facts.pop("expect"), **dict(job["expect"])}
    artifacts = kernel.compile().artifacts
    ptx, cubin = artifacts.PTX, artifacts.CUBIN
    if not cubin:
        return {"problems": ["the compiler kept no cubin (is CUTE_DSL_KEEP_CUBIN set?)"]}
    ptx = ptx if isinstance(ptx, str) else ptx.decode()
    if ".entry" not in ptx:
        return {"problems": [f"the compiler kept no PTX, but {ptx[:80]!r} (does CUTE_DSL_DUMP_DIR exist?)"]}
    found = inspect.read_cubin(cubin)
    problems, unchecked = inspect.problems(found, {**facts, "expect": expect}, job["arch"]), []
    if inspect.matrix_kernel(found):
        for more, not_asked in (inspect.ptxas_problems(ptx, job["arch"]), inspect.hazard_problems(cubin)):
            problems, unchecked = problems + more, unchecked + not_asked
    path = f"{job['arch']}/{facts['name']}.cubin"
    entry = {
        **facts,
        "arch": job["arch"],
        "cubin": path,
        "sha256": manifest.sha256(cubin),
        "symbol": found.symbol,
        "registers": found.registers,
        "spill_bytes": found.stack_bytes,
        "static_shared_bytes": found.static_shared_bytes,
        "instructions": found.instructions,
        "source": job["source"],
        "fingerprint": job["fingerprint"],
    }
    if not problems:
        manifest.write_atomically(pathlib.Path(folder) / path, cubin)
        manifest.write_atomically((pathlib.Path(folder) / path).with_suffix(".ptx"), ptx.encode())
    return {"entry": entry, "problems": problems, "unchecked": unchecked}


def worker():
    """Read {"folder", "jobs"} from stdin, answer one JSON line a job. What the compiler itself prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.load(sys.stdin)
    for index, job in enumerate(task["jobs"]):
        try:
            answer = compile_one(job, task["folder"])
        except Exception as e:  # a kernel that does not compile must not hide the state of the others
            answer = {"problems": [f"{type(e).__name__}: {e}"], "traceback": traceback.format_exc()}
        answers.write(json.dumps({"index": index, **answer}) + "\n")
        answers.flush()


# ---- the driver
def _run_worker(arch, jobs, folder, log):
    """Compile `jobs` of one arch in a process of its own. Yields (job, answer)."""
    with tempfile.TemporaryDirectory(prefix="jax_fp4_indexer_aot_") as dump, tempfile.TemporaryFile("w+") as errors:
        environment = {
            **os.environ,
            "CUTE_DSL_ARCH": arch,
            "CUTE_DSL_KEEP_CUBIN": "1",
            "CUTE_DSL_KEEP_PTX": "1",
            "CUTE_DSL_DUMP_DIR": dump,
            "CUTE_DSL_DISABLE_FILE_CACHING": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "JAX_PLATFORMS": "cpu",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "jax_fp4_indexer.aot.compile"],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        process.stdin.write(json.dumps({"folder": str(folder), "jobs": jobs}))
        process.stdin.close()
        answered = 0
        for line in process.stdout:
            answer = json.loads(line)
            answered += 1
            job = jobs[answer["index"]]
            log(
                f"{arch} {answer.get('entry', job)['name' if 'entry' in answer else 'source']}"
                + (": FAILED" if answer["problems"] else "")
            )
            yield job, answer
        code = process.wait()
        if answered < len(jobs):
            errors.seek(0)
            end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            tail = "\n".join(errors.read().splitlines()[-15:])
            yield jobs[answered], {"problems": [f"the compiler process ended with {end}; its last words:\n{tail}"]}
            for job in jobs[answered + 1 :]:
                yield job, {"problems": [f"not tried: the process ended at {jobs[answered]['source']}"]}


def _up_to_date(folder, kernels, dsl):
    """Entries {(arch, source): entry} in `folder` that a build would make again as they are."""
    try:
        old = manifest.read(folder)
    except manifest.ManifestError:
        return {}
    entries, kept = {(e["arch"], e["source"]): e for e in old["kernels"]}, {}
    for kernel in kernels:
        key = kernel.arch, kernel.source
        entry = entries.get(key)
        if entry and entry["fingerprint"] == manifest.fingerprint(kernel, dsl):
            path = pathlib.Path(folder) / entry["cubin"]
            if path.is_file() and manifest.sha256(path.read_bytes()) == entry["sha256"]:
                kept[key] = entry
    return kept


def build(folder, kernels, variants, *, archs=None, only=None, log=lambda line: None):
    """Bring `folder` up to date: cubins and manifest.json. Returns Result.

    kernels, variants   lists of variants.Kernel and variants.Variant
    archs               compile for these only (default: all); entries of other archs stay while they are up to date
    only                compile only kernels whose source expression or name holds one of these strings

    Raises BuildError after everything was tried, if a kernel did not compile or did not pass a gate: the manifest then holds the good ones.
    The bytes written depend on the sources, the configs and the DSL version alone.
    """
    folder = pathlib.Path(folder)
    dsl = manifest.dsl_version()
    if dsl is None:
        raise BuildError([f"{manifest.DSL} is not installed; pip install 'jax-fp4-indexer[dev]' (build time only)"])
    entries = _up_to_date(folder, kernels, dsl)
    skipped, jobs = sorted(e["name"] for e in entries.values()), {}
    for kernel in kernels:
        selected = (not archs or kernel.arch in archs) and (not only or any(o in kernel.source for o in only))
        if selected and (kernel.arch, kernel.source) not in entries:
            job = {
                **dataclasses.asdict(kernel),
                "source": kernel.source,
                "fingerprint": manifest.fingerprint(kernel, dsl),
            }
            jobs.setdefault(kernel.arch, []).append(job)
    compiled, problems, shown, unchecked = [], [], {""}, {}

    def one_arch(arch):
        return list(_run_worker(arch, jobs[arch], folder, log))

    order = sorted(jobs, key=lambda arch: (-len(jobs[arch]), arch))  # the longest first
    with concurrent.futures.ThreadPoolExecutor(max_workers=JOBS) as pool:
        for arch, answers in zip(order, pool.map(one_arch, order)):
            for job, answer in answers:
                name = answer.get("entry", {}).get("name", job["source"])
                for sentence in answer.get("unchecked", ()):
                    unchecked.setdefault(sentence, []).append(name)
                if answer["problems"]:
                    where = answer.get("traceback", "")
                    problems += [
                        f"{arch} {name}: {p}" + (f"\n{where}" if where not in shown else "") for p in answer["problems"]
                    ]
                    shown |= {where}
                else:
                    entries[arch, job["source"]] = answer["entry"]
                    compiled.append(f"{arch} {name}")
    problems += _double_names(entries)
    whole = manifest.compose(entries, variants, dsl)
    manifest.write(folder, whole)
    known = {folder / e["cubin"] for e in whole["kernels"]}
    for path in [*folder.glob("*/*.cubin"), *folder.glob("*/*.ptx")]:
        if path.with_suffix(".cubin") not in known:
            path.unlink()
    if problems:
        raise BuildError(problems)
    return Result(
        compiled,
        skipped,
        whole,
        [f"{sentence} ({len(names)} kernels)" for sentence, names in sorted(unchecked.items())],
    )


def _double_names(entries):
    seen, found = {}, []
    for (arch, source), entry in sorted(entries.items()):
        other = seen.setdefault((arch, entry["name"]), source)
        if other != source:
            found.append(f"{arch} {entry['name']}: made by both {other} and {source}; a name is unique within an arch")
    return found


if __name__ == "__main__":
    worker()
