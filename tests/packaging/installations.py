"""Installations, sound and broken, under several JAX versions: each situation ends in a result or in a one-line remedy.

    python tests/packaging/installations.py --jax 0.9.1,newest          # environments are made under build/environments
    python tests/packaging/installations.py --python /path/to/python    # interpreters that have JAX and flatbuffers

Prints a table (Markdown); exit status 1 if a cell is not what it should be.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REINSTALL = r"reinstall jax_fp4_indexer"

# situation of probe.py -> what its result says
RESULTS = {
    "import_before_the_backend": "score 128",
    "import_after_the_backend": "score 128",
    "handler_on_a_pretended_hopper": "1 launch on 9.0",
    "handler_on_a_pretended_ampere": "1 launch on 8.6",
    "gemv_on_a_pretended_hopper": "1 launch on 9.0",
    "gemv_on_a_pretended_ampere": "1 launch on 8.6",
    "both_ops_against_float64": "2 ops",
    "both_ops_lowered_for_cuda": "2 custom calls",
    "both_ops_exported_and_run_in_a_new_process": "2 ops",
    "another_fingerprint": "1 launch on 9.0",
    "the_same_copy_imported_twice": "score 128",
    "no_library_and_no_gpu": "score 128",
    "no_cubins_and_no_gpu": "score 128",
    "gpu_without_a_kernel_by_default": "score 128, product 256, one warning each",
}
# situation -> what its error says, the remedy last
BY_NAME = r"compute capability 7\.5; this build ships .*Pass implementation=None or \"reference\""
REMEDIES = {
    "gpu_without_a_kernel_by_name": BY_NAME,
    "gpu_without_a_gemv_by_name": BY_NAME,
    "handler_on_an_old_gpu": r"compute capability 7\.5; this build ships .*"
    r"use implementation=\"reference\" \(kernels need 8\.0 or newer\)",
    "no_cubins_for_this_gpu": r"compute capability 9\.0; this build ships .*"
    r"use implementation=\"reference\", or look for a newer jax_fp4_indexer",
    "damaged_cubin": r"\.cubin is damaged or of another build.*" + REINSTALL,
    "missing_cubin": r"cannot read .*\.cubin; " + REINSTALL,
    "missing_manifest": r"cubins/manifest\.json is not in this installation; build the cubins.*" + REINSTALL,
    "half_a_manifest": r"manifest\.json is not readable .*; " + REINSTALL,
    "manifest_of_another_schema": r"schema 3, this library reads schema 2.*" + REINSTALL,
    "kernels_that_want_other_arguments": r"needs a buffer \"block_table\" that the op has not; "
    r"cubins and library come from different builds.*" + REINSTALL,
    "missing_library": r"is not in this installation; " + REINSTALL,
    "library_that_does_not_load": r"does not load .*; " + REINSTALL,
    "library_newer_than_jaxlib": r"was built for XLA FFI API .*; upgrade jax and jaxlib",
    "two_copies_of_the_library": r"would be a second copy; keep one installation",
    "no_driver": r"cannot open the CUDA driver .*; install an NVIDIA driver, or use implementation=\"reference\"",
}


def stand_in_driver(folder):
    """ffi/tests/fake_libcuda.c, built."""
    path = pathlib.Path(folder, "libfake_cuda.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, ROOT / "ffi" / "tests" / "fake_libcuda.c"], check=True)
    return path


def probe(python, installed, driver, name):
    """The answer of probe.py for one situation, with whether it is as it should be under "right"."""
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="jfi_") as folder:
        package = pathlib.Path(folder, "first", "jax_fp4_indexer")
        shutil.copytree(pathlib.Path(installed, "jax_fp4_indexer"), package)
        # -S: no .pth file, so that an editable install stays out
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(package.parent), site]),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "",
        }
        done = subprocess.run(
            [python, "-S", HERE / "probe.py", name, package, driver],
            capture_output=True,
            text=True,
            env=environment,
            cwd=folder,
            timeout=300,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answer = (
        json.loads(lines[-1])
        if done.returncode == 0 and lines
        else {"died": f"exit status {done.returncode}: {done.stderr[-1500:]}"}
    )
    if name in RESULTS:
        answer["right"] = answer.get("result") == RESULTS[name]
    else:
        text = answer.get("remedy", "")
        answer["right"] = bool(re.search(REMEDIES[name], text)) and "\n" not in text.strip()
    return answer


def run_all(python, installed, driver, workers=2):
    names = [*RESULTS, *REMEDIES]
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return dict(zip(names, pool.map(lambda name: probe(python, installed, driver, name), names)))


def environment(version):
    """The interpreter of an environment with this JAX, made if it is not there. "newest": the newest that the package
    index has for this Python."""
    folder = ROOT / "build" / "environments" / f"jax-{version}"
    python = folder / "bin" / "python"
    if not python.exists() or version == "newest":
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run(
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--upgrade",
                "flatbuffers",
                "jax" if version == "newest" else f"jax=={version}",
            ],
            check=True,
        )
    return python


def unpacked(wheel, folder):
    if wheel is None:
        subprocess.run(
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
                f"-Cbuild-dir={folder}/build",
                ROOT,
            ],
            check=True,
            cwd=folder,
        )
        (wheel,) = pathlib.Path(folder).glob("*.whl")
    with zipfile.ZipFile(wheel) as z:
        z.extractall(pathlib.Path(folder, "installed"))
    return pathlib.Path(folder, "installed")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--jax", default="", help="versions, separated by commas; newest: the newest for this Python")
    p.add_argument(
        "--python", action="append", default=[], help="an interpreter that has JAX and flatbuffers (may be given again)"
    )
    p.add_argument("--wheel", help="default: build one from this checkout")
    args = p.parse_args()
    pythons = [*args.python, *(environment(v) for v in args.jax.split(",") if v)] or [sys.executable]
    with tempfile.TemporaryDirectory(prefix="jfi_installed_") as folder:
        installed, driver = unpacked(args.wheel, folder), stand_in_driver(folder)
        columns = [run_all(python, installed, driver) for python in pythons]
    heads = [next(f"jax {a['jax']}, Python {a['python']}" for a in column.values() if "jax" in a) for column in columns]
    print(f"| situation | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for name in [*RESULTS, *REMEDIES]:
        cells = [
            ("result: " + a["result"] if "result" in a else "remedy") if a["right"] else "**wrong**"
            for a in (column[name] for column in columns)
        ]
        print(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    wrong = [
        (heads[i], name, answer)
        for i, column in enumerate(columns)
        for name, answer in column.items()
        if not answer["right"]
    ]
    for where, name, answer in wrong:
        print(f"\n{where}: {name}: {json.dumps(answer)}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
