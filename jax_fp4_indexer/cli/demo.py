"""The main job on realistic input: a long context with planted passages, scored in FP4, and the best blocks chosen.

Keys are noise with a shared drift; in every sequence a few passages (runs of keys inside one block) point along the
direction of a query. bf16 keys are quantised to NVFP4 and MXFP4 into a shuffled page pool, a ragged batch is scored,
and the top-k blocks per head are taken. The same scores of the bf16 keys in plain JAX are what the FP4 ones are
compared with, in choice, error and time.
"""

import dataclasses
import os
import pathlib
import statistics

import jax
import jax.numpy as jnp
import numpy as np
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

import jax_fp4_indexer as jfi
from jax_fp4_indexer.bench import clock, host, timing
from jax_fp4_indexer.bench.cases.block_scores import prefix_sum
from jax_fp4_indexer.cli.doctor import kernel_for
from jax_fp4_indexer.cli.screen import console

HEADS_Q, HEADS_KV, QUERIES, D, PAGE = 8, 2, 4, 128, 128
PLANTED = 6  # passages a sequence and KV head
PASSAGE = 24  # keys of a passage
FORMATS = ("nvfp4", "mxfp4")
TIMED_CALLS = (1, 1, 1, 1)  # groups of one call: XLA would compute two calls of one group once
STRENGTH = 0.65  # of a passage key's length along the query's direction: well above noise, but not trivially


@dataclasses.dataclass(frozen=True)
class Context:
    """A ragged batch in bf16: q [Tq, Hq, D], k [pages, Hkv, PAGE, D] in logical order, lengths, planted block ids [B,
    Hkv, PLANTED]."""

    q: jax.Array
    k: jax.Array
    k_lens: tuple
    planted: np.ndarray

    @property
    def pages(self):
        return [-(-n // PAGE) for n in self.k_lens]


def make_context(longest, seed):
    rng = np.random.default_rng(seed)
    k_lens = (longest, longest * 3 // 8 + 77, longest // 6 + 5)
    pages = [-(-n // PAGE) for n in k_lens]
    ask = rng.standard_normal((len(k_lens), HEADS_KV, D)).astype(np.float32)
    ask /= np.linalg.norm(ask, axis=-1, keepdims=True)
    ratio = HEADS_Q // HEADS_KV
    q = np.repeat(ask, ratio, axis=1)[:, None] * np.sqrt(D) + 0.5 * rng.standard_normal(
        (len(k_lens), QUERIES, HEADS_Q, D)
    ).astype(np.float32)
    k = rng.standard_normal((sum(pages), HEADS_KV, PAGE, D), dtype=np.float32)
    k += 0.3 * rng.standard_normal((1, HEADS_KV, 1, D)).astype(np.float32)
    planted, first = np.zeros((len(k_lens), HEADS_KV, PLANTED), np.int32), 0
    for b, n in enumerate(pages):
        for h in range(HEADS_KV):
            planted[b, h] = np.sort(rng.choice(n - 1, PLANTED, replace=False))
            for block in planted[b, h]:
                at = rng.integers(0, PAGE - PASSAGE)
                rows = k[first + block, h, at : at + PASSAGE]
                rows *= np.sqrt(1 - STRENGTH**2)
                rows += STRENGTH * np.sqrt(D) * ask[b, h]
        first += n
    return Context(jnp.asarray(q.reshape(-1, HEADS_Q, D), jnp.bfloat16), jnp.asarray(k, jnp.bfloat16), k_lens, planted)


def plain_scores(q: jax.Array, k: jax.Array, k_lens: tuple) -> jax.Array:
    """Causal block maxima in plain JAX, [Hq, Ktiles, Tq]: what one writes without the op. q and k as in `Context`; may
    be traced."""
    parts, first, most = [], 0, -(-max(k_lens) // PAGE)
    for b, length in enumerate(k_lens):
        pages = -(-length // PAGE)
        queries = q[b * QUERIES : (b + 1) * QUERIES].reshape(QUERIES, HEADS_KV, HEADS_Q // HEADS_KV, D)
        s = jnp.einsum("qhrd,phkd->hrpqk", queries, k[first : first + pages], preferred_element_type=jnp.float32)
        visible = jnp.arange(pages * PAGE).reshape(pages, 1, PAGE) <= jnp.arange(QUERIES)[:, None] + (length - QUERIES)
        best = jnp.where(visible, s, -jnp.inf).max(-1).reshape(HEADS_Q, pages, QUERIES)
        parts.append(jnp.pad(best, ((0, 0), (0, most - pages), (0, 0)), constant_values=-jnp.inf))
        first += pages
    return jnp.concatenate(parts, -1)


def quantised(context: Context, fmt: str, seed: int) -> dict:
    """The op's arrays: q and k of a context in `fmt`, page p of the list at the place kv_indices[p] of a shuffled
    pool."""
    quantise = jax.jit(jfi.quantize_nvfp4 if fmt == "nvfp4" else jfi.quantize_mxfp4)
    kv_indices = jnp.asarray(np.random.default_rng(seed).permutation(context.k.shape[0]), jnp.int32)
    q, q_scale = quantise(context.q)[:2]
    k, k_scale = quantise(context.k[jnp.argsort(kv_indices)])[:2]
    return {
        "q_fp4": q,
        "k_fp4": k,
        "q_scale": q_scale,
        "k_scale": k_scale,
        "cu_seqlens_q": prefix_sum([QUERIES] * len(context.k_lens)),
        "cu_seqlens_k": prefix_sum(context.k_lens),
        "cu_page_offsets": prefix_sum(context.pages),
        "kv_indices": kv_indices,
    }


def op(arrays: dict, fmt: str, longest: int) -> jax.Array:
    """The op's scores of `quantised` arrays; may be traced."""
    return jfi.fp4_indexer_block_scores(
        **arrays, max_seqlen_q=QUERIES, max_seqlen_k=longest, fp4_format=fmt, causal=True
    )


@dataclasses.dataclass(frozen=True)
class Found:
    """What one way to score a context gave: scores [Hq, Ktiles, Tq], microseconds a call, which clock told them, bytes
    of the keys."""

    scores: np.ndarray
    us: float
    clock: str
    nbytes: int


def timed(call, arrays) -> tuple[float, str]:
    """(microseconds of call(arrays), the clock): on a GPU those between two stamps of the device itself, elsewhere of
    the host."""
    if clock.available():
        times = timing.measure(lambda arguments, i: call(arguments), arrays, TIMED_CALLS, repeats=5, seconds=0.02)
        return times.burst_us, times.method
    program = jax.jit(call)
    host.once(program, arrays)
    return statistics.median(host.once(program, arrays) for _ in range(3)) * 1e6, "host clock"


def score_bf16(context: Context) -> Found:
    """Plain JAX on the bf16 keys: what FP4 is compared with."""
    call = lambda arrays: plain_scores(*arrays, context.k_lens)
    arrays = (context.q, context.k)
    return Found(np.asarray(jax.jit(call)(arrays)), *timed(call, arrays), 2 * context.k.size)


def score(context: Context, fmt: str, seed: int) -> Found:
    """The op on the keys in `fmt`."""
    arrays, longest = quantised(context, fmt, seed), max(context.k_lens)
    call = lambda arrays: op(arrays, fmt, longest)
    return Found(np.asarray(jax.jit(call)(arrays)), *timed(call, arrays), arrays["k_fp4"].size + arrays["k_scale"].size)


def top_blocks(scores, top_k):
    """ids [Hq, Tq, k], best first; -1 where a row has fewer blocks."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k].transpose(0, 2, 1)
    chosen = np.take_along_axis(scores.transpose(0, 2, 1), order, -1)
    return np.where(np.isneginf(chosen), -1, order)


def recall(context, chosen, exact):
    """Share of planted blocks chosen, and share of the bf16 choice that FP4 makes too."""
    ratio, hits, total = HEADS_Q // HEADS_KV, 0, 0
    for t in range(chosen.shape[1]):
        for h in range(HEADS_Q):
            want = context.planted[t // QUERIES, h // ratio]
            hits, total = hits + np.isin(want, chosen[h, t]).sum(), total + want.size
    same = [
        len(np.intersect1d(a[a >= 0], b[b >= 0])) / max(1, (b >= 0).sum())
        for a, b in zip(chosen.reshape(-1, chosen.shape[-1]), exact.reshape(-1, exact.shape[-1]))
    ]
    return hits / total, float(np.mean(same))


def picture(path, context, scores, chosen, fmt):
    """Heat map of the longest sequence's block scores (rows: heads at the last query), chosen blocks ringed, planted
    ones ticked."""
    os.environ.pop("MPLBACKEND", None)  # a notebook's backend draws nothing into a file, and may be absent here
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    t, n, ratio = QUERIES - 1, context.pages[0], HEADS_Q // HEADS_KV
    fig = Figure(figsize=(13, 3.6), layout="constrained")
    FigureCanvasAgg(fig)
    ax = fig.subplots()
    image = ax.imshow(scores[:, :n, t], aspect="auto", cmap="viridis", interpolation="nearest")
    for h in range(HEADS_Q):
        ids = chosen[h, t][chosen[h, t] >= 0]
        ax.scatter(
            ids,
            np.full(ids.shape, h),
            s=34,
            facecolors="none",
            edgecolors="white",
            linewidths=1.0,
            label="chosen" if h == 0 else None,
        )
        ax.scatter(
            context.planted[0, h // ratio],
            np.full(PLANTED, h),
            s=14,
            marker="|",
            color="red",
            label="planted" if h == 0 else None,
        )
    ax.set(
        xlabel="key block (128 tokens)",
        ylabel="query head",
        title=f"{fmt} block scores, {context.k_lens[0]} tokens, last query",
    )
    fig.colorbar(image, ax=ax, label="max q.k")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)


def bytes_needed(longest):
    """Host memory that a context takes while it is made: keys of all three sequences in float32, twice, and in bf16."""
    return int(1.6 * longest) * HEADS_KV * D * (4 + 4 + 2)


def duration(us: float) -> str:
    """Three figures and a unit."""
    return f"{us:.3g} us" if us < 1e3 else f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def run(context: int | None = None, top_k: int = 16, seed: int = 0, out: str = "out") -> int:
    """Prints the table and writes the pictures; 0 if every planted block was found in both formats, else 1."""
    screen = console()
    longest = context or (262144 if jax.default_backend() == "gpu" else 32768)
    implementation = kernel_for(
        "block_scores", {"path": "decode", "format": "nvfp4", "scale_layout": "public"}, QUERIES * HEADS_Q // HEADS_KV
    )
    screen.print(escape(f"{jax.devices()[0].device_kind}: block scores run by {implementation}"))
    with Progress(console=screen, transient=True) as progress:
        task = progress.add_task("making the context", total=4)
        made = make_context(longest, seed)
        progress.update(task, advance=1, description="scoring bf16")
        bf16 = score_bf16(made)
        results = {}
        for fmt in FORMATS:
            progress.update(task, advance=1, description=f"scoring {fmt}")
            results[fmt] = score(made, fmt, seed)
    screen.print(
        f"{len(made.k_lens)} sequences of {', '.join(map(str, made.k_lens))} keys, {QUERIES} queries each, "
        f"heads {HEADS_Q}/{HEADS_KV}, {PLANTED} passages of {PASSAGE} keys planted per sequence and KV head; "
        f"top {top_k} blocks per head"
    )
    table = Table()
    for name in (
        "keys",
        f"a call, {bf16.clock}",
        "cache",
        "against bf16",
        "planted found",
        f"recall@{top_k} vs bf16",
        "rms error of scores",
    ):
        table.add_column(name, justify="left" if name == "keys" else "right")
    exact = top_blocks(bf16.scores, top_k)
    table.add_row(
        "bf16, plain XLA",
        duration(bf16.us),
        f"{bf16.nbytes / 2**20:.2f} MiB",
        "1.00x",
        f"{recall(made, exact, exact)[0]:.1%}",
        "",
        "",
    )
    planted, choices, visible = [], {}, np.isfinite(bf16.scores)
    for fmt, found in results.items():
        if not np.array_equal(np.isfinite(found.scores), visible):
            raise RuntimeError(f"demo: {fmt} scores and bf16 scores disagree about which blocks exist")
        choices[fmt] = top_blocks(found.scores, top_k)
        share, same = recall(made, choices[fmt], exact)
        planted.append(share)
        error = np.sqrt(
            np.mean((found.scores[visible] - bf16.scores[visible]) ** 2) / np.mean(bf16.scores[visible] ** 2)
        )
        table.add_row(
            fmt,
            duration(found.us),
            f"{found.nbytes / 2**20:.2f} MiB",
            f"{bf16.nbytes / found.nbytes:.2f}x less",
            f"{share:.1%}",
            f"{same:.1%}",
            f"{error:.2%}",
        )
    screen.print(table)
    paths = [pathlib.Path(out) / f"block_scores_{fmt}.png" for fmt in FORMATS]
    for fmt, path in zip(FORMATS, paths):
        picture(path, made, results[fmt].scores, choices[fmt], fmt)
    screen.print(escape(f"pictures: {', '.join(map(str, paths))}"), soft_wrap=True)
    if min(planted) < 1.0:
        screen.print(f"a planted passage was not among the top {top_k} blocks")
        return 1
    return 0
