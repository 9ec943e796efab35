"""Whether two builds hold the same kernels: instructions and launch facts, compared kernel by kernel.

    python tools/invariants.py write FOLDER FILE                       # digests of the cubins in FOLDER (with its manifest.json), as JSON
    python tools/invariants.py compare BEFORE AFTER                    # each a folder of cubins or a file that `write` made
        [--renamed OLD=NEW ...]     a kernel that has another name in AFTER, on every arch that has it
        [--subset]                  AFTER holds only some of the kernels: those that it lacks are no difference

A move or a renaming of Python code changes the symbol of a kernel, hence the bytes of its cubin and its fingerprint. What the GPU executes must stay:
the instructions (section .text), the constants that they read, registers, stack, shared memory, block, cluster, grid, parameters, tensor memory.
Kernels that only AFTER has are listed; they are no difference. `compare` exits with 1 where there is one.

Keep the file of digests outside the tree: it describes a build, not the sources.
"""

import argparse
import hashlib
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from jax_fp4_indexer.aot import inspect  # noqa: E402

LAUNCH_FACTS = ("block", "cluster", "grid", "dynamic_shared_bytes", "tmem_columns", "params")


def facts_of(entry: dict, cubin: bytes) -> dict:
    """What must stay of one kernel. entry: its entry in the manifest; cubin: bytes of the file."""
    found = inspect.read_cubin(cubin)
    constants = hashlib.sha256()
    for name, _, data in inspect._sections(cubin):
        bank = re.match(r"\.nv\.constant(\d+)", name)
        if bank and bank[1] != "0":  # bank 0 holds the parameters
            constants.update(bank[1].encode() + b"\0" + data)
    return {
        "text": hashlib.sha256(inspect.text_of(cubin)).hexdigest(),
        "constants": constants.hexdigest(),
        "instructions": found.instructions,
        "registers": found.registers,
        "spill_bytes": found.stack_bytes,
        "static_shared_bytes": found.static_shared_bytes,
        "param_bytes": list(found.param_bytes),
        **{key: entry[key] for key in LAUNCH_FACTS},
    }


def read(path: pathlib.Path) -> dict[str, dict]:
    """{"arch name": facts} of a folder of cubins, or of a file that `write` made."""
    if not path.is_dir():
        return json.loads(path.read_text())["kernels"]
    manifest = json.loads((path / "manifest.json").read_text())
    return {
        f"{entry['arch']} {entry['name']}": facts_of(entry, (path / entry["cubin"]).read_bytes())
        for entry in manifest["kernels"]
    }


def write(folder: pathlib.Path, file: pathlib.Path) -> int:
    """Write the facts of `folder` to `file`. Returns the number of kernels."""
    kernels = read(folder)
    file.write_text(json.dumps({"kernels": kernels}, indent=1, sort_keys=True) + "\n")
    return len(kernels)


def differences(
    before: dict[str, dict], after: dict[str, dict], renamed: dict[str, str] = {}, subset: bool = False
) -> list[str]:
    """One sentence for every kernel of `before` that `after` lacks (unless `subset`) or holds otherwise. renamed: {old name: new name}."""
    found = []
    for key, old in sorted(before.items()):
        arch, name = key.split(" ", 1)
        new = after.get(f"{arch} {renamed.get(name, name)}")
        if new is None:
            if not subset:
                found.append(f"{key}: absent")
            continue
        changed = [fact for fact in sorted(old.keys() | new.keys()) if old.get(fact) != new.get(fact)]
        if changed:
            found.append(f"{key}: " + "; ".join(_change(fact, old.get(fact), new.get(fact)) for fact in changed))
    return found


def _change(fact: str, old, new) -> str:
    if fact in ("text", "constants"):
        return f"other {'instructions' if fact == 'text' else fact}"
    return f"{fact} {json.dumps(old)} -> {json.dumps(new)}"


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected OLD=NEW, two names of a kernel")
    return old, new


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write the digests of a folder of cubins")
    writing.add_argument("folder", type=pathlib.Path)
    writing.add_argument("file", type=pathlib.Path)
    comparing = commands.add_parser("compare", help="compare two folders of cubins, or files of digests")
    comparing.add_argument("before", type=pathlib.Path)
    comparing.add_argument("after", type=pathlib.Path)
    comparing.add_argument("--renamed", type=_renaming, action="append", default=[], metavar="OLD=NEW")
    comparing.add_argument("--subset", action="store_true")
    given = parser.parse_args(arguments)
    if given.command == "write":
        print(f"{given.file}: {write(given.folder, given.file)} kernels")
        return 0
    before, after, renamed = read(given.before), read(given.after), dict(given.renamed)
    found = differences(before, after, renamed, given.subset)
    expected = {f"{arch} {renamed.get(name, name)}" for arch, name in (key.split(" ", 1) for key in before)}
    for key in sorted(after.keys() - expected):
        print(f"{key}: new")
    for sentence in found:
        print(sentence)
    compared = len(expected & after.keys())
    if not compared:
        print("no kernel is in both")
        return 1
    print(f"{compared} of {len(before)} kernels compared, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
