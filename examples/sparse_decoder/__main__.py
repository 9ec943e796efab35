"""python -m examples.sparse_decoder: prefill and decode sparse and dense, compare, time. Tables; --json keeps the figures."""

import dataclasses
import json
import os
import pathlib
import time

import click


def _lengths(context, batch):
    """Ragged: from `context` down to about half of it, none a whole number of pages."""
    return tuple(context - i * context // (2 * batch) - 37 * i - 5 for i in range(batch))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--context",
    type=click.IntRange(min=512, max=2**22),
    default=None,
    help="Tokens of the longest prompt. [default: 4608 on a CPU, 32768 on a GPU]",
)
@click.option("--batch", type=click.IntRange(min=1), default=None, help="Sequences. [default: 2 on a CPU, 8 on a GPU]")
@click.option("--layers", type=click.IntRange(min=2), default=None, help="[default: 2 on a CPU, 4 on a GPU]")
@click.option(
    "--heads", default=None, metavar="Q/KV", help="Query and KV heads. [default: 4/2 on a CPU, 64/4 on a GPU]"
)
@click.option("--d-model", type=click.IntRange(min=257), default=None, help="[default: 384 on a CPU, 2048 on a GPU]")
@click.option(
    "--top-k", type=click.IntRange(min=2), default=16, help="Blocks of 128 keys that a token and KV head reads."
)
@click.option(
    "--format", "fp4_format", type=click.Choice(("nvfp4", "mxfp4")), default="nvfp4", help="Of the index cache."
)
@click.option(
    "--chunk",
    type=click.IntRange(min=16),
    default=None,
    help="Tokens of a sequence in a prefill step. [default: 512 on a CPU, 4096 on a GPU]",
)
@click.option("--timed-steps", type=click.IntRange(min=1), default=16, help="Decode steps per timing.")
@click.option(
    "--dense-prefill/--no-dense-prefill",
    default=True,
    help="Also prefill with dense attention; it grows with the square of the context.",
)
@click.option(
    "--stages",
    type=click.Choice(("none", "decode", "all")),
    default=None,
    help="Time indexer, selection and attention apart. [default: decode on a CPU, all on a GPU]",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    default=1,
    help="Split the heads over this many devices; on a CPU they are made up.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False), default=None, help="Write the figures to this file."
)
def main(
    context,
    batch,
    layers,
    heads,
    d_model,
    top_k,
    fp4_format,
    chunk,
    timed_steps,
    dense_prefill,
    stages,
    devices,
    seed,
    json_path,
):
    """A small decoder with MiniMax-M3's sparse attention: answers look-ups in a long context, sparse against dense."""
    if json_path is not None:  # before the work, not after it
        try:
            pathlib.Path(json_path).parent.mkdir(parents=True, exist_ok=True)
            open(json_path, "a").close()
        except OSError as error:
            raise click.UsageError(
                f"--json: got {json_path!r}, expected a file that can be made and written ({error.strerror}). Name another one."
            ) from None
    if devices > 1:  # read when JAX starts; says nothing to GPUs
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    import jax

    from .measure import Job, Session, compare, memory, time_stages
    from .model import Config

    gpu = jax.default_backend() == "gpu"
    pick = lambda value, cpu_default, gpu_default: value if value is not None else gpu_default if gpu else cpu_default
    try:
        heads_q, heads_kv = map(int, pick(heads, "4/2", "64/4").split("/"))
    except ValueError:
        raise click.UsageError(f"--heads: got {heads}, expected Q/KV, e.g. 64/4") from None
    if heads_kv < 1 or heads_q % heads_kv:
        raise click.UsageError(f"--heads: got {heads}, expected query heads a multiple of KV heads, e.g. 64/4")
    width = pick(d_model, 384, 2048)
    config = Config(
        layers=pick(layers, 2, 4),
        d_model=width,
        heads_q=heads_q,
        heads_kv=heads_kv,
        d_ff=2 * width,
        top_k=top_k,
        fp4_format=fp4_format,
        dtype="bfloat16" if gpu else "float32",
    )
    job = Job(
        config,
        _lengths(pick(context, 4608, 32768), pick(batch, 2, 8)),
        pick(chunk, 512, 4096),
        devices,
        timed_steps,
        seed,
        dense_prefill,
    )

    from jax_fp4_indexer.cli import screen

    console = screen.console()
    start = time.perf_counter()
    with console.status("weights") as status:
        try:
            session = Session(job)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        figures, cache, past = compare(session, status.update)
        times = {}
        for mode in ("sparse", "dense"):
            status.update(f"timing: {mode} decode")
            times[mode], cache, past = session.time_decode(mode, cache, past)
        figures |= {"decode_s": times, "stages_s": {}, **memory(session, cache)}
        for kind in {"none": (), "decode": ("decode",), "all": ("decode", "prefill")}[pick(stages, "decode", "all")]:
            status.update(f"timing: stages of {kind}")
            figures["stages_s"][kind] = time_stages(session, kind, cache, past, timed_steps)
    figures |= {
        "device": f"{devices} x {jax.devices()[0].device_kind}",
        "jax": jax.__version__,
        "lengths": job.lengths,
        "config": dataclasses.asdict(config),
        "wall_s": time.perf_counter() - start,
    }
    _report(console, figures, job)
    if json_path:
        pathlib.Path(json_path).write_text(json.dumps(figures, indent=1) + "\n")
    raise SystemExit(0 if figures["answers_right"]["sparse"] >= figures["answers_right"].get("dense", 1.0) else 1)


def _report(console, f, job):
    from rich.table import Table

    c = job.config
    console.print(
        f"{f['device']}, jax {f['jax']}: {c.layers} layers, heads {c.heads_q}/{c.heads_kv}, d_model {c.d_model}, {c.dtype}; index heads {c.heads_kv}/1 in {c.fp4_format}; "
        f"top {c.top_k} blocks; prompts of {', '.join(map(str, job.lengths))} tokens"
    )
    share = lambda x: f"{x:.1%}"
    table = Table(title="does it give the same answers?")
    table.add_column("", no_wrap=True)
    for name in ("look-up", "other tokens"):
        table.add_column(name, justify="right")
    for mode, right in f["answers_right"].items():
        table.add_row(f"answers right, {mode}", share(right), "")
    if "same_next_token_noise" in f:
        table.add_row(
            "same next token, sparse and dense", share(f["same_next_token_passage"]), share(f["same_next_token_noise"])
        )
        table.add_row(
            "rms of logit difference / rms of logits",
            *(f"{f['logit_error_' + name]:.1e}" for name in ("passage", "noise")),
        )
    console.print(table)
    table = Table(title=f"what {c.top_k} blocks, {share(f['chance'])} of all, hold of dense attention (decode)")
    for name in ("heads", "chosen: mass", "least", "best possible: mass", "chosen, of blocks with 1% or more"):
        table.add_column(name, justify="left" if name == "heads" else "right")
    for kind in ("planted", "diffuse"):
        table.add_row(kind, *(share(f[f"{what}_{kind}"]) for what in ("mass", "mass_least", "mass_best", "blocks")))
    console.print(table)
    table = Table(title=f"time, ms ({c.layers} layers)")
    for name in ("", "one decode step", "whole prefill"):
        table.add_column(name, justify="left" if not name else "right")
    ms = lambda x: "-" if x is None else f"{x * 1e3:,.2f}"
    for mode in ("sparse", "dense"):
        table.add_row(
            f"{mode}, everything", ms(f["decode_s"][mode]), ms(f["prefill_s"].get(mode)), end_section=mode == "dense"
        )
    for stage in f["stages_s"].get("decode", ()):
        table.add_row(stage, *(ms(f["stages_s"].get(kind, {}).get(stage)) for kind in ("decode", "prefill")))
    console.print(table)
    console.print(
        f"index cache {f['index_bytes'] / 2**20:,.1f} MiB ({f['index_bytes_per_token_and_layer']:.0f} bytes a token and layer) beside K and V {f['kv_bytes'] / 2**20:,.1f} MiB "
        f"({f['kv_bytes_per_token_and_layer']:.0f}); {f['wall_s']:.0f} s in all"
    )


if __name__ == "__main__":
    main()
