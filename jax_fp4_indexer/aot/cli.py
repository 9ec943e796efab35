"""`python -m jax_fp4_indexer.aot {build,list,verify,explain,sass}`."""

import importlib
import pathlib
import re
import subprocess
import sys
import tempfile

import click

from ..configs.arch import ARCHS
from . import compile as compiler
from . import inspect, manifest

_folder = click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default=manifest.DEFAULT_FOLDER,
    show_default="cubins/ of the package",
    help="Folder with the cubins and manifest.json.",
)
_table = click.option(
    "--table", default="jax_fp4_indexer.aot.variants", show_default=True, help="Module with KERNELS and VARIANTS."
)


def _split(ctx, param, value):
    return [part for item in value for part in item.split(",") if part]


def _archs(ctx, param, value):
    names = _split(ctx, param, value)
    for name in names:
        if name not in ARCHS:
            raise click.BadParameter(f"got {name!r}, expected one of {', '.join(ARCHS)}")
    return names


def _load(table):
    try:
        module = importlib.import_module(table)
        return module.KERNELS, module.VARIANTS
    except (ImportError, AttributeError) as e:
        raise click.ClickException(
            f"--table: got {table}, expected a module with KERNELS and VARIANTS ({e}). Leave it out for the kernels of this package."
        ) from None


def _read(folder):
    try:
        return manifest.read(folder)
    except manifest.ManifestError as e:
        raise click.ClickException(str(e)) from None


@click.group()
def main():
    """Compile the kernels ahead of time, and look at what was compiled."""


@main.command()
@_folder
@_table
@click.option(
    "--arch", "archs", multiple=True, callback=_archs, help="Only these (comma-separated, repeatable). Default: all."
)
@click.option(
    "--only",
    multiple=True,
    callback=_split,
    help="Only kernels whose source expression holds this, e.g. decode or format='nvfp4'.",
)
@click.option("--quiet", is_flag=True, help="One line at the end.")
def build(folder, table, archs, only, quiet):
    """Compile what is not up to date; write cubins and manifest.json."""
    kernels, variants = _load(table)
    if only and not any(part in kernel.source for kernel in kernels for part in only):
        raise click.UsageError(
            f"--only: got {', '.join(only)}, expected a part of a kernel's source expression, e.g. of {kernels[0].source}"
        )
    try:  # before the work, not after it
        manifest.write_atomically(folder / ".writable", b"")
        (folder / ".writable").unlink()
    except OSError as e:
        raise click.UsageError(
            f"--out: got {folder}, expected a folder that can be made and written ({e.strerror}). Name another one."
        ) from None
    try:
        result = compiler.build(
            folder, kernels, variants, archs=archs, only=only, log=(lambda line: None) if quiet else click.echo
        )
    except compiler.BuildError as e:
        for problem in e.problems:
            click.echo(problem, err=True)
        raise click.ClickException(f"{len(e.problems)} problems; the manifest holds the kernels that passed") from None
    for sentence in result.unchecked:
        click.echo(f"not checked: {sentence}", err=True)
    click.echo(
        f"{len(result.compiled)} compiled, {len(result.skipped)} up to date; {len(result.manifest['kernels'])} kernels, "
        f"{len(result.manifest['variants'])} variants in {folder}"
    )


@main.command("list")
@_folder
@click.option("--arch", "archs", multiple=True, callback=_archs, help="Only these.")
def list_(folder, archs):
    """A table of the variants: registers, spills, shared memory, instructions of every launch."""
    data = _read(folder)
    kernels = {(k["arch"], k["name"]): k for k in data["kernels"]}
    rows = [("variant", "bound", "launch", "threads", "registers", "spills", "shared", "tmem", "instructions")]
    for v in data["variants"]:
        if archs and v["arch"] not in archs:
            continue
        label = " ".join((v["arch"], *manifest.variant_name(v).split("/")[:-2]))
        bound = f"<= {v['bound']}" if v["bound"] else "any"
        for i, name in enumerate(v["launches"]):
            k = kernels[v["arch"], name]
            threads = k["block"][0] * k["block"][1] * k["block"][2]
            numbers = (
                threads,
                k["registers"],
                k["spill_bytes"],
                k["static_shared_bytes"] + k["dynamic_shared_bytes"],
                k.get("tmem_columns", 0),
                k["instructions"],
            )
            rows.append((label if i == 0 else "", bound if i == 0 else "", name, *map(str, numbers)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(c.rjust(w) if i > 2 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip())
    click.echo(f"{len(data['variants'])} variants, {len(kernels)} kernels, DSL {data['dsl']}, {folder}")


@main.command()
@_folder
@_table
@click.option("--rebuild", is_flag=True, help="Also compile everything twice into empty folders and compare the bytes.")
def verify(folder, table, rebuild):
    """Exit 1, saying what to run, if the cubins are not what the sources make."""
    kernels, variants = _load(table)
    try:
        found = manifest.stale(folder, kernels, variants)
    except manifest.ManifestError as e:
        raise click.ClickException(str(e)) from None
    found += _other_than_the_cubins(folder)
    if rebuild and not found:
        found = _rebuild(folder, kernels, variants)
    for problem in found:
        click.echo(problem, err=True)
    if found:
        raise click.ClickException(f"{len(found)} differences; run: python -m jax_fp4_indexer.aot build --out {folder}")
    click.echo(
        f"{folder}: up to date, {len(kernels)} kernels" + (", two rebuilds gave the same bytes" if rebuild else "")
    )


def _other_than_the_cubins(folder):
    """Entries of the manifest that say something else than their cubins. What no cubin says (block, grid, dynamic shared memory, names of parameters) only --rebuild compares."""
    found = []
    for entry in manifest.read(folder)["kernels"]:
        data = (folder / entry["cubin"]).read_bytes() if (folder / entry["cubin"]).is_file() else b""
        if manifest.sha256(data) != entry["sha256"]:
            continue  # told already
        cubin = inspect.read_cubin(data)
        says = {
            "symbol": cubin.symbol,
            "registers": cubin.registers,
            "spill_bytes": cubin.stack_bytes,
            "static_shared_bytes": cubin.static_shared_bytes,
            "instructions": cubin.instructions,
        }
        found += [
            f"{entry['arch']} {entry['name']}: the manifest says {key} {entry[key]}, the cubin {value}"
            for key, value in says.items()
            if entry[key] != value
        ]
        sizes = inspect.param_sizes(entry["params"])
        if sizes != cubin.param_bytes:
            found.append(
                f"{entry['arch']} {entry['name']}: the manifest lists parameters of {list(sizes)} bytes, the cubin takes {list(cubin.param_bytes)}"
            )
    return found


def _rebuild(folder, kernels, variants):
    first = _files(folder)
    for turn in ("first", "second"):
        with tempfile.TemporaryDirectory() as fresh:
            try:
                compiler.build(fresh, kernels, variants)
            except compiler.BuildError as e:
                return e.problems
            again = _files(fresh)
        different = sorted(name for name in first.keys() | again.keys() if first.get(name) != again.get(name))
        if different:
            return [f"{name}: other bytes in the {turn} rebuild" for name in different]
    return []


def _files(folder):
    folder = pathlib.Path(folder)
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in [folder / manifest.FILE_NAME, *folder.glob("*/*.cubin")]
    }


def _find(data, name):
    """(kernels, variants) of the manifest whose name holds `name`; an exact name wins."""
    kernels = [k for k in data["kernels"] if name == k["name"]] or [k for k in data["kernels"] if name in k["name"]]
    variants = [v for v in data["variants"] if name in manifest.variant_name(v)]
    if not kernels and not variants:
        some = ", ".join(sorted({k["name"] for k in data["kernels"]})[:6])
        raise click.ClickException(f"{name}: no such kernel or variant; there are {some}, ... (see: list)")
    return kernels, variants


def _capability(ctx, param, value):
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,3}\.\d", value):
        raise click.BadParameter(f"got {value!r}, expected e.g. 9.0")
    major, minor = value.split(".")
    return int(major), int(minor)


def _settings(ctx, param, value):
    pairs = [item.partition("=") for item in value]
    for item, (key, equals, choice) in zip(value, pairs):
        if not (key and equals and choice):
            raise click.BadParameter(f"got {item!r}, expected KEY=VALUE, e.g. path=decode")
    return {key: choice for key, _, choice in pairs}


@main.command()
@click.argument("name")
@_folder
@click.option("--capability", callback=_capability, help="Also say which variant such a device runs, e.g. 9.0.")
@click.option(
    "--bound",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="With --capability: the value of the op's bound for the call, e.g. max_seqlen_q * Hq/Hkv of block_scores.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_settings,
    metavar="KEY=VALUE",
    help="With --capability: only calls with this choice, e.g. path=decode (repeatable).",
)
@click.option("--implementation", type=click.Choice(["auto", "portable"]), default="auto", show_default=True)
def explain(name, folder, capability, bound, settings, implementation):
    """Everything about a kernel or variant: launches, parameters, config, and why a device gets it."""
    data = _read(folder)
    kernels, variants = _find(data, name)
    used = {(v["arch"], launch) for v in variants for launch in v["launches"]}
    kernels += [k for k in data["kernels"] if (k["arch"], k["name"]) in used and k not in kernels]
    for v in variants:
        op = next(o for o in data["ops"] if o["op"] == v["op"])
        loop = op.get("loop")
        repeated = (
            f", repeated for {loop['scalar']} = 0, {loop['step']}, ... < {loop['stop']}" if v["repeat"] and loop else ""
        )
        bound_text = f"up to {v['bound']}" if v["bound"] else "any"
        arch = ARCHS[v["arch"]]
        where = f"exactly {'.'.join(map(str, arch.capability))}" if arch.exact else f"every {arch.capability[0]}.x"
        click.echo(
            f"variant {manifest.variant_name(v)}\n  for a bound ({op['bound']}) of {bound_text}; runs on compute capability {where}\n"
            f"  launches{repeated}: {', '.join(v['launches'])}\n  scratch: {v['scratch']} bytes"
        )
    for k in kernels:
        click.echo(f"kernel {k['name']} ({k['arch']})")
        for key in (
            "source",
            "cubin",
            "sha256",
            "symbol",
            "block",
            "cluster",
            "grid",
            "dynamic_shared_bytes",
            "static_shared_bytes",
            "tmem_columns",
            "registers",
            "spill_bytes",
            "instructions",
            "fingerprint",
        ):
            click.echo(f"  {key:20} {k.get(key)}")
        params = ", ".join(
            f"{value if isinstance(value, str) else value['buffer']}:{kind}"
            for p in k["params"]
            for kind, value in p.items()
        )
        click.echo(f"  {'params':20} {params}")
    if capability:
        for op, select in _calls(variants or data["variants"], settings):
            chosen, why = manifest.choose(
                data, capability, op=op, select=select, bound=bound, implementation=implementation
            )
            result = manifest.variant_name(chosen) if chosen else "no variant"
            click.echo(f"{' '.join((op, *select.values()))} on {'.'.join(map(str, capability))}: {result}")
            for reason in why:
                click.echo(f"  {reason}")


def _calls(variants, settings):
    """(op, select) of every kind of call that `variants` serve and `settings` ({choice: value}) allow, once each."""
    found = {}
    for v in sorted(variants, key=manifest.variant_name):
        if all(v["select"].get(key) == value for key, value in settings.items()):
            select = manifest.choices_of(v)
            found.setdefault((v["op"], *select.values()), (v["op"], select))
    if settings and not found:
        wanted = ", ".join(f"{key}={value}" for key, value in settings.items())
        choices = sorted({f"{key}={value}" for v in variants for key, value in v["select"].items()})
        raise click.ClickException(
            f"--set: got {wanted}, expected choices that some variant has, of {', '.join(choices) or 'none'}"
        )
    return list(found.values())


@main.command()
@click.argument("name")
@_folder
@click.option("--arch", "archs", multiple=True, callback=_archs, help="Only these.")
@click.option(
    "--hazards", is_flag=True, help="Instead of the code: registers that are written while a WGMMA in flight uses them."
)
def sass(name, folder, archs, hazards):
    """Disassemble the kernels whose name holds NAME (needs nvdisasm)."""
    kernels = [k for k in _find(_read(folder), name)[0] if not archs or k["arch"] in archs]
    if not kernels:
        raise click.ClickException(f"{name}: no such kernel for {', '.join(archs) or 'any arch'} (see: list)")
    bad = 0
    for k in kernels:
        try:
            text = inspect.disassemble(folder / k["cubin"])
        except FileNotFoundError as e:
            raise click.ClickException(str(e)) from None
        except subprocess.CalledProcessError as e:
            words = " ".join((e.stderr or e.stdout or "").split())[:200]
            raise click.ClickException(
                f"{folder / k['cubin']}: nvdisasm cannot read it ({words}); run: python -m jax_fp4_indexer.aot build --out {folder}"
            ) from None
        if not hazards:
            click.echo(f"// {k['arch']} {k['name']}\n{text}")
            continue
        found = inspect.clobbers(text)
        bad += len(found)
        click.echo(
            f"{k['arch']} {k['name']}: {len(found)} hazards" + "".join(f"\n  R{r}: {line}" for line, r in found[:20])
        )
    sys.exit(1 if bad else 0)
