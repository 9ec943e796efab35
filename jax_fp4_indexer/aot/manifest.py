"""`cubins/manifest.json` (schema: docs/architecture.md): writing, reading, fingerprints, what is stale, which variant a device gets.

Imports neither the DSL nor JAX: a manifest can be read, listed and verified wherever the package is installed.
"""

import ast
import functools
import hashlib
import importlib.machinery
import importlib.metadata
import json
import os
import pathlib
import sys

from ..configs.arch import ARCHS, runs_on
from ..specs import OPS

SCHEMA = 2
ENTRY_FORMAT = 1  # of the entries of "kernels"; another one makes every cubin stale
FILE_NAME = "manifest.json"
DEFAULT_FOLDER = pathlib.Path(__file__).resolve().parent.parent / "cubins"
DSL = "nvidia-cutlass-dsl"
# What the readers here rely on; ffi/manifest.cc checks what launches rely on
KERNEL_TYPES = {
    **dict.fromkeys(("name", "arch", "cubin", "sha256", "symbol", "source", "fingerprint"), str),
    "block": list,
    "params": list,
    **dict.fromkeys(("registers", "spill_bytes", "static_shared_bytes", "dynamic_shared_bytes", "instructions"), int),
}
VARIANT_TYPES = {
    **dict.fromkeys(("op", "implementation", "arch", "scratch"), str),
    "select": dict,
    "bound": int,
    "repeat": bool,
    "launches": list,
}
OP_TYPES = {
    **dict.fromkeys(("op", "api", "bound"), str),
    **dict.fromkeys(("select", "attributes", "operands", "results"), list),
    "derived": dict,
}


class ManifestError(Exception):
    """The manifest is absent or cannot be read."""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def canonical(value):
    """JSON bytes that depend on the value alone."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def dsl_version():
    """Version of the installed DSL, or None."""
    try:
        return importlib.metadata.version(DSL)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---- fingerprints
def _module_file(module):
    """Source file of a module, found without importing it; None for what is not plain Python source."""
    parts = module.split(".")
    top = sys.modules.get(parts[0])
    if top is not None and hasattr(top, "__path__"):  # also where an editable install hides it from the path finder
        search, first, origin = list(top.__path__), 2, top.__file__
    else:
        search, first, origin = None, 1, None
    for depth in range(first, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:depth]), search)
        if (
            spec is None or depth < len(parts) and spec.submodule_search_locations is None
        ):  # nothing lies below a plain module: `None` would search sys.path
            return None
        search, origin = spec.submodule_search_locations, spec.origin
    return origin if origin and origin.endswith(".py") else None


@functools.lru_cache(maxsize=None)
def _scan(module, file, _changed):
    """(sha256 of `file`, modules of its own top-level package that it may import); `_changed` (mtime, size) is there for the cache alone."""
    top, data = module.split(".")[0], pathlib.Path(file).read_bytes()
    package = module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]
    imports = set()
    for node in ast.walk(ast.parse(data, file)):
        if isinstance(node, ast.Import):
            imports |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                base = ".".join(above[: len(above) - node.level + 1] + ([node.module] if node.module else []))
            imports |= {base} | {f"{base}.{a.name}" for a in node.names}
    return sha256(data), sorted(n for n in imports if n.split(".")[0] == top)


def sources(module):
    """{module name: sha256 of its source} of `module` and everything it imports, directly or not, from its own top-level package."""
    found, todo = {}, [module]
    while todo:
        name = todo.pop()
        file = None if name in found else _module_file(name)
        if file is not None:
            stat = os.stat(file)
            found[name], more = _scan(name, file, (stat.st_mtime_ns, stat.st_size))
            todo += more
    if module not in found:
        raise ManifestError(f"{module}: no source file found for this kernel module; check its line in aot/variants/")
    return dict(sorted(found.items()))


@functools.lru_cache(maxsize=None)
def _builder_sources():
    """The build's own part in an entry: what is read from a cubin and which gates it passed."""
    here = pathlib.Path(__file__).parent
    return {name: sha256((here / name).read_bytes()) for name in ("compile.py", "inspect.py")}


def fingerprint(kernel, dsl):
    """sha256 of all that the cubin and the entry of `kernel` (variants.Kernel) depend on, with DSL version `dsl`."""
    return sha256(
        canonical(
            {
                "schema": ENTRY_FORMAT,
                "source": kernel.source,
                "arch": kernel.arch,
                "dsl": dsl,
                "expect": dict(kernel.expect),
                "modules": sources(kernel.module),
                "builder": _builder_sources(),
            }
        )
    )


# ---- composing, writing, reading
def compose(entries, variants, dsl):
    """Manifest of the kernel entries {(arch, source): entry}; variants with a launch that is not among them are left out, as are ops without a variant."""
    listed = []
    for variant in variants:
        try:
            launches = [entries[k.arch, k.source]["name"] for k in variant.launches]
        except KeyError:
            continue
        listed.append(
            {
                "op": variant.op,
                "select": variant.choices,
                "implementation": variant.implementation,
                "arch": variant.arch,
                "bound": variant.bound,
                "repeat": variant.repeat,
                "scratch": str(variant.scratch),
                "launches": launches,
            }
        )
    kernels = sorted(entries.values(), key=lambda e: (e["arch"], e["name"]))
    listed.sort(key=_key)
    ops = [OPS[name].to_json() for name in sorted({v["op"] for v in listed})]
    whole = sha256(canonical({"ops": ops, "kernels": [e["fingerprint"] for e in kernels], "variants": listed}))
    return {"schema": SCHEMA, "fingerprint": whole, "dsl": dsl, "ops": ops, "kernels": kernels, "variants": listed}


def _key(variant):
    """Of a variant of the manifest: op, choices in the order of the op's spec, implementation, arch, bound."""
    return (variant["op"], *choices_of(variant).values(), variant["implementation"], variant["arch"], variant["bound"])


def choices_of(variant):
    """`select` of a variant of the manifest, in the order of the op's spec."""
    select = variant["select"]
    order = OPS[variant["op"]].select if variant["op"] in OPS else sorted(select)
    return {key: select[key] for key in order if key in select}


def write_atomically(path, data):
    """A reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def write(folder, manifest):
    write_atomically(pathlib.Path(folder) / FILE_NAME, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())


def read(folder):
    """The manifest in `folder`. Raises ManifestError, with a remedy, if it is absent, broken or of another schema."""
    path = pathlib.Path(folder) / FILE_NAME
    remedy = "run: python -m jax_fp4_indexer.aot build"
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ManifestError(f"{path}: absent; {remedy}") from None
    except ValueError as e:
        raise ManifestError(f"{path}: not JSON ({e}); {remedy}") from None
    except OSError as e:
        raise ManifestError(f"{path}: cannot be read ({e.strerror}); {remedy}") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise ManifestError(f"{path}: schema {schema!r}, this version reads {SCHEMA}; {remedy}")
    if fault := _fault(manifest):
        raise ManifestError(f"{path}: {fault}; {remedy}")
    return manifest


def _fault(manifest):
    """The first place where `manifest` is not of the schema, or None."""
    for where, entry, types in (
        ("the file", manifest, {"dsl": str, "ops": list, "kernels": list, "variants": list}),
        *((f"ops[{i}]", e, OP_TYPES) for i, e in enumerate(_list(manifest, "ops"))),
        *((f"kernels[{i}]", e, KERNEL_TYPES) for i, e in enumerate(_list(manifest, "kernels"))),
        *((f"variants[{i}]", e, VARIANT_TYPES) for i, e in enumerate(_list(manifest, "variants"))),
    ):
        wrong = [
            key for key, kind in types.items() if not isinstance(entry, dict) or not isinstance(entry.get(key), kind)
        ]
        if wrong:
            return f"{where} has no {wrong[0]!r} of the right type"
        if "arch" in types and entry["arch"] not in ARCHS:
            return f"{where} is for {entry['arch']!r}, which is none of {', '.join(ARCHS)}"
        if "cubin" in types and (".." in entry["cubin"] or entry["cubin"].startswith("/")):
            return f"{where} names a cubin outside of the folder, {entry['cubin']!r}"
    known = {(e["arch"], e["name"]) for e in manifest["kernels"]}
    ops = {op["op"] for op in manifest["ops"]}
    if strangers := sorted({v["op"] for v in manifest["variants"]} - ops):
        return f"a variant is of {strangers[0]!r}, which is no op of the file"
    lost = [(v["arch"], name) for v in manifest["variants"] for name in v["launches"] if (v["arch"], name) not in known]
    return f"a variant launches {lost[0][1]!r}, which is no kernel of {lost[0][0]}" if lost else None


def _list(manifest, key):
    return manifest[key] if isinstance(manifest.get(key), list) else []


# ---- staleness
def stale(folder, kernels, variants):
    """Sentences that say where `folder` differs from what a build of `kernels` and `variants` would hold; empty if nowhere.

    Without an installed DSL the version in the manifest is taken as right: sources and files are still compared.
    """
    manifest = read(folder)
    dsl, found = dsl_version() or manifest["dsl"], []
    if dsl != manifest["dsl"]:
        found.append(f"built with {DSL} {manifest['dsl']}, installed is {dsl}")
    entries = {(e["arch"], e["source"]): e for e in manifest["kernels"]}
    for kernel in kernels:
        entry = entries.get((kernel.arch, kernel.source))
        if entry is None:
            found.append(f"{kernel.arch} {kernel.source}: not built")
        elif entry["fingerprint"] != fingerprint(kernel, manifest["dsl"]):
            found.append(f"{kernel.arch} {entry['name']}: its sources changed since it was built")
    wanted = {(k.arch, k.source) for k in kernels}
    found += [
        f"{e['arch']} {e['name']}: no longer in the list of kernels" for key, e in entries.items() if key not in wanted
    ]
    found += damaged(folder, manifest)
    here = {key: e for key, e in entries.items() if key in wanted}
    if not found and compose(here, variants, manifest["dsl"]) != manifest:
        found.append("the list of variants, or a fingerprint, differs from what this version writes")
    return found


def altered(folder, manifest):
    """Cubins of `manifest` that are absent or not what was built."""
    folder, found = pathlib.Path(folder), []
    for entry in manifest["kernels"]:
        path = folder / entry["cubin"]
        if not path.is_file():
            found.append(f"{entry['arch']} {entry['name']}: {entry['cubin']} is absent")
        elif sha256(path.read_bytes()) != entry["sha256"]:
            found.append(f"{entry['arch']} {entry['name']}: {entry['cubin']} is not the file that was built")
    return found


def damaged(folder, manifest):
    """The same, and cubins that `manifest` does not know."""
    folder = pathlib.Path(folder)
    known = {entry["cubin"] for entry in manifest["kernels"]}
    strangers = sorted({p.relative_to(folder).as_posix() for p in folder.glob("*/*.cubin")} - known)
    return altered(folder, manifest) + [f"{name}: not in the manifest" for name in strangers]


# ---- selection: the handler's rule, for people
def variant_name(variant):
    """ "block_scores/decode/nvfp4/public/native/sm_90a/16"."""
    return "/".join(map(str, _key(variant)))


def choose(manifest, capability, *, op, select, bound=1, implementation="auto"):
    """Which variant a device of `capability` ((major, minor)) runs: (variant or None, sentences that say why).

    select: {choice: value}; a choice that it lacks may have any value. bound: the value of the op's `bound` for the call.
    """
    fits = [
        v for v in manifest["variants"] if v["op"] == op and all(v["select"].get(k) == x for k, x in select.items())
    ]
    why = [f"{len(fits)} variants for {' '.join((op, *select.values()))}"]
    fits = [v for v in fits if runs_on(v["arch"], capability)]
    dotted = ".".join(map(str, capability))
    why.append(
        f"{len(fits)} run on compute capability {dotted}: {', '.join(sorted({v['arch'] for v in fits})) or 'none'}"
    )
    for kind in ("portable",) if implementation == "portable" else ("native", "portable"):
        # 0 is no bound: wider than any
        of_kind = sorted((v for v in fits if v["implementation"] == kind), key=lambda v: v["bound"] or float("inf"))
        if of_kind:
            holds = [v for v in of_kind if not v["bound"] or bound <= v["bound"]]
            chosen = (holds or of_kind[-1:])[0]
            limit = f"<= {chosen['bound']}" if chosen["bound"] else "any"
            why.append(
                f"{kind}: of the bounds {', '.join(str(v['bound'] or 'any') for v in of_kind)}, "
                f"{'the smallest that holds' if holds else 'the widest, none holds'} {bound}: {limit}"
            )
            return chosen, why
        why.append(f"{kind}: none")
    return None, why
