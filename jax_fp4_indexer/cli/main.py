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
        raise click.UsageError(
            f"{option}: got {path}, expected a folder that can be made and written ({error.strerror}). "
            "Name another one."
        ) from None


def _backend():
    """JAX's backend, or an error of one line where it has none."""
    import jax

    try:
        return jax.default_backend()
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # jax 0.10 asserts where a plugin was found and its platform was not
        raise click.ClickException(
            f"JAX has no device to run on ({str(error).partition(chr(10))[0] or 'no backend'}; "
            f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r}). "
            "Unset JAX_PLATFORMS, or see what is missing: jax-fp4-indexer doctor"
        ) from None


def _fits(option, what, needed, backend):
    from jax_fp4_indexer.bench.card import memory_bytes

    have = memory_bytes(backend)
    if needed > have:
        raise click.UsageError(
            f"{option}: got {what}, which takes {needed / 2**30:,.1f} GiB, expected what fits into the "
            f"{have / 2**30:,.1f} GiB here. Name a smaller one."
        )


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="jax-fp4-indexer")
def main():
    """FP4 block scores for sparse attention in JAX."""


@main.command()
@click.option(
    "--context",
    type=click.IntRange(min=8192),
    default=None,
    help="Tokens of the longest sequence. [default: 32768 on a CPU, 262144 on a GPU]",
)
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
@click.option("--op", default=None, help="Only cases of this op. [default: all ops]")
@click.option(
    "--case",
    "names",
    multiple=True,
    help="Named case, may be repeated; 'all' for every one. [default: the headline cases; without a GPU small ones]",
)
@click.option("--format", "fmt", type=click.Choice((*FORMATS, "both")), default="nvfp4")
@click.option("--scale-layout", type=click.Choice((*LAYOUTS, "both")), default="preordered_mma")
@click.option("--implementation", default="auto", help="As the op's argument of this name: portable, reference, ...")
@click.option("--warmup", type=click.IntRange(min=0), default=5, help="Calls before timing.")
@click.option("--iters", type=click.IntRange(min=1), default=20, help="Calls timed in one program, at most.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Bursts per figure; the median is reported.")
@click.option("--xla/--no-xla", default=True, help="Also time plain XLA and the definition under jit.")
@click.option("--limits/--no-limits", default=True, help="Also measure read and GEMM rates.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), default=None, help="Write the rows to this file.")
@click.option("--b", type=click.IntRange(min=1, max=2**20), default=None, help="Own shape of block scores: batch.")
@click.option("--sq", type=click.IntRange(min=1, max=MAX_KEYS), default=None, help="Own shape: queries of a sequence.")
@click.option("--skv", type=click.IntRange(min=1, max=MAX_KEYS), default=None, help="Own shape: keys of a sequence.")
@click.option("--head-kv", type=click.IntRange(min=1), default=4, help="Own shape: KV heads.")
@click.option("--qhead-per-kv", type=click.IntRange(min=1), default=16, help="Own shape: query heads per KV head.")
@click.option("--causal/--non-causal", default=True, help="Own shape: mask.")
@click.pass_context
def bench(
    context,
    list_cases,
    op,
    names,
    fmt,
    scale_layout,
    implementation,
    json_path,
    b,
    sq,
    skv,
    head_kv,
    qhead_per_kv,
    causal,
    limits,
    **how,
):
    """Time ops and plain XLA, with the rates of this device measured in the same run."""
    from jax_fp4_indexer.bench import cases
    from jax_fp4_indexer.cli import bench as command

    if op is not None and op not in cases.ops():
        raise click.UsageError(
            f"--op: got {op}, expected one of {', '.join(cases.ops())}. Leave it out for all of them."
        )
    if list_cases:
        for case in cases.select(("all",), op):
            click.echo(f"{case.name:24s} {case.describe()}")
        return
    own = (b, sq, skv)
    given = [
        name
        for name in ("head_kv", "qhead_per_kv", "causal")
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]
    if any(x is not None for x in own) or given:
        if any(x is None for x in own):
            raise click.UsageError("an own shape needs --b, --sq and --skv together")
        if names or op not in (None, "block_scores"):
            raise click.UsageError(
                "got --case or --op and an own shape, expected one of them: leave out --case and --op, "
                "or --b, --sq, --skv and what belongs to them"
            )
        if b * max(sq, skv) > MAX_KEYS:
            raise click.UsageError(
                f"--b: got {b} sequences of {sq} queries and {skv} keys, expected at most 2^31 - 1 of either together: "
                "prefix sums are int32. Name a smaller one."
            )
    backend = _backend()
    if b is not None:
        from jax_fp4_indexer.bench.cases.block_scores import uniform

        chosen = [uniform("custom", b, sq, skv, head_kv * qhead_per_kv, head_kv, causal)]
    else:
        if not names and backend != "gpu":
            click.echo("no GPU: small cases on the jnp reference; --case names others", err=True)
        try:
            chosen = cases.select(names, op, "headline" if backend == "gpu" else "cpu")
        except KeyError as error:
            raise click.UsageError(f"no case named {error}; --list-cases prints them") from None
    formats = FORMATS if fmt == "both" else (fmt,)
    layouts = LAYOUTS if scale_layout == "both" else (scale_layout,)
    todo = [
        (case, cases.How(form, layout, None if implementation == "auto" else implementation))
        for case in chosen
        for form in formats
        if form in case.formats
        for layout in layouts
        if layout in case.scale_layouts
    ]
    if not todo:
        raise click.UsageError(
            f"--format, --scale-layout: got {fmt} and {scale_layout}, expected what a chosen case has; "
            + "; ".join(f"{case.name}: {', '.join(case.formats)}, {', '.join(case.scale_layouts)}" for case in chosen)
        )
    if json_path == "":
        raise click.UsageError("--json: got an empty name, expected a file to write. Name one, or leave it out.")
    if json_path:
        _folder("--json", pathlib.Path(json_path).parent)
    for case in chosen:
        _fits("--case" if b is None else "--b", case.describe(), case.bytes_at_least(), backend)
    command.run(todo, limits=limits, json_path=json_path, baselines=how.pop("xla"), **how)
