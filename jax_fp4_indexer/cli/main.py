"""`jax-fp4-indexer demo | doctor | bench`: the command line. Each command imports what it needs when it runs."""
import os
import pathlib
import tempfile

import click

from ..version import __version__

FORMATS = ("nvfp4", "mxfp4")
LAYOUTS = ("public", "preordered_mma")
MAX_KEYS = 2**31 - 1


def _folder(option, path):
    """Makes the folder of an output, and a file in it, before the work, not after it."""
    try:
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path or ".").close()
    except OSError as error:
        raise click.UsageError(f"{option}: got {path}, expected a folder that can be made and written ({error.strerror}). Name another one.") from None


def _backend():
    """JAX's backend, or an error of one line where it has none."""
    import jax
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:             # jax 0.10 asserts where a plugin was found and its platform was not
        raise click.ClickException(f"JAX has no device to run on ({str(error).partition(chr(10))[0] or 'no backend'}; JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r}). "
                                   "Unset JAX_PLATFORMS, or see what is missing: jax-fp4-indexer doctor") from None


def _fits(option, what, needed, backend):
    from jax_fp4_indexer.bench.card import memory_bytes
    have = memory_bytes(backend)
    if needed > have:
        raise click.UsageError(f"{option}: got {what}, which takes {needed / 2**30:,.1f} GiB, expected what fits into the {have / 2**30:,.1f} GiB here. Name a smaller one.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="jax-fp4-indexer")
def main():
    """FP4 block scores for sparse attention in JAX."""


@main.command()
@click.option("--context", type=click.IntRange(min=8192), default=None, help="Tokens of the longest sequence. [default: 32768 on a CPU, 262144 on a GPU]")
@click.option("--top-k", type=click.IntRange(min=1), default=16, help="Blocks chosen per head.")
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option("--out", type=click.Path(dir_okay=True, file_okay=False), default="out", help="Folder for the picture.")
def demo(context, top_k, seed, out):
    """Score a long context in FP4 and choose blocks: planted passages must be found."""
    _folder("--out", out)
    _backend()
    from jax_fp4_indexer.cli.demo import bytes_needed, run
    if context:
        _fits("--context", context, bytes_needed(context), "cpu")
    raise SystemExit(run(context=context, top_k=top_k, seed=seed, out=out))


@main.command()
def doctor():
    """Say what this machine is, which kernel each op would use, and what is missing."""
    from jax_fp4_indexer.cli.doctor import run
    raise SystemExit(run())


@main.command()
@click.option("--list-cases", is_flag=True, help="Print the named cases and leave.")
@click.option("--case", "cases", multiple=True, help="Named case, may be repeated; 'all' for every one. [default: the five headline cases; without a GPU a small one]")
@click.option("--format", "fmt", type=click.Choice((*FORMATS, "both")), default="nvfp4")
@click.option("--scale-layout", type=click.Choice((*LAYOUTS, "both")), default="preordered_mma")
@click.option("--implementation", type=click.Choice(("auto", "portable", "reference", "decode", "prefill")), default="auto")
@click.option("--warmup", type=click.IntRange(min=0), default=5, help="Calls before timing.")
@click.option("--iters", type=click.IntRange(min=1), default=20, help="Calls timed in one program, at most.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Bursts per figure; the median is reported.")
@click.option("--xla/--no-xla", default=True, help="Also time plain XLA (dequantise, einsum, max).")
@click.option("--limits/--no-limits", default=True, help="Also measure read and GEMM rates.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), default=None, help="Write the rows to this file.")
@click.option("--b", type=click.IntRange(min=1, max=2**20), default=None, help="Own shape: batch.")
@click.option("--sq", type=click.IntRange(min=1, max=MAX_KEYS), default=None, help="Own shape: queries of a sequence.")
@click.option("--skv", type=click.IntRange(min=1, max=MAX_KEYS), default=None, help="Own shape: keys of a sequence.")
@click.option("--head-kv", type=click.IntRange(min=1), default=4, help="Own shape: KV heads.")
@click.option("--qhead-per-kv", type=click.IntRange(min=1), default=16, help="Own shape: query heads per KV head.")
@click.option("--causal/--non-causal", default=True, help="Own shape: mask.")
@click.pass_context
def bench(context, list_cases, cases, fmt, scale_layout, implementation, warmup, iters, repeats, xla, limits, json_path, b, sq, skv, head_kv, qhead_per_kv, causal):
    """Time the op beside plain XLA and the limits of this device, all in one run."""
    from jax_fp4_indexer.bench import limits as ceilings
    from jax_fp4_indexer.bench import run, shapes
    if list_cases:
        for case in shapes.CASES.values():
            click.echo(f"{case.name:20s} {case.describe()}")
        return
    own = (b, sq, skv)
    given = [name for name in ("head_kv", "qhead_per_kv", "causal") if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE]
    if any(x is not None for x in own) or given:
        if any(x is None for x in own):
            raise click.UsageError("an own shape needs --b, --sq and --skv together")
        if cases:
            raise click.UsageError("got --case and an own shape, expected one of them: leave out --case, or --b, --sq, --skv and what belongs to them")
        if b * max(sq, skv) > MAX_KEYS:
            raise click.UsageError(f"--b: got {b} sequences of {sq} queries and {skv} keys, expected at most 2^31 - 1 of either together: prefix sums are int32. Name a smaller one.")
    backend = _backend()
    if b is not None:
        chosen = [shapes.uniform("custom", b, sq, skv, head_kv * qhead_per_kv, head_kv, causal)]
    elif not cases and backend != "gpu":
        click.echo("no GPU: one small case on the jnp reference; --case names another", err=True)
        chosen = [shapes.CPU]
    else:
        try:
            chosen = shapes.select(cases)
        except KeyError as error:
            raise click.UsageError(f"no case named {error}; --list-cases prints them") from None
    if json_path == "":
        raise click.UsageError("--json: got an empty name, expected a file to write. Name one, or leave it out.")
    if json_path:
        _folder("--json", pathlib.Path(json_path).parent)
    formats = FORMATS if fmt == "both" else (fmt,)
    layouts = LAYOUTS if scale_layout == "both" else (scale_layout,)
    for case in chosen:
        _fits("--case" if b is None else "--b", case.describe(), case.bytes_at_least(), backend)
    run.run(chosen, formats, layouts, None if implementation == "auto" else implementation,
            warmup=warmup, iters=iters, repeats=repeats, xla=xla, rates=ceilings.measure() if limits else None, json_path=json_path)
