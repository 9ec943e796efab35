"""The main job on realistic input: a long context with planted passages, scored in FP4, and the best blocks chosen.

Keys are noise with a shared drift; in every sequence a few passages (runs of keys inside one block) point along the direction that a query asks for.
bf16 keys are quantised to NVFP4 and MXFP4 into a shuffled page pool, a ragged batch is scored, and the top-k blocks per head are taken.
"""
import dataclasses
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

import jax_fp4_indexer as jfi
from jax_fp4_indexer.bench.data import prefix_sum
from jax_fp4_indexer.doctor import kernel_for

HEADS_Q, HEADS_KV, QUERIES, D, PAGE = 8, 2, 4, 128, 128
PLANTED = 6                     # passages a sequence and KV head
PASSAGE = 24                    # keys of a passage
STRENGTH = 0.65                 # of a passage key's length along the asked direction: well above noise, not trivially so


@dataclasses.dataclass(frozen=True)
class Context:
    """A ragged batch in bf16: q [Tq, Hq, D], k [pages, Hkv, PAGE, D] in logical order, lengths, planted block ids [B, Hkv, PLANTED]."""
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
    q = np.repeat(ask, ratio, axis=1)[:, None] * np.sqrt(D) + 0.5 * rng.standard_normal((len(k_lens), QUERIES, HEADS_Q, D)).astype(np.float32)
    k = rng.standard_normal((sum(pages), HEADS_KV, PAGE, D), dtype=np.float32)
    k += 0.3 * rng.standard_normal((1, HEADS_KV, 1, D)).astype(np.float32)
    planted, first = np.zeros((len(k_lens), HEADS_KV, PLANTED), np.int32), 0
    for b, n in enumerate(pages):
        for h in range(HEADS_KV):
            planted[b, h] = np.sort(rng.choice(n - 1, PLANTED, replace=False))
            for block in planted[b, h]:
                at = rng.integers(0, PAGE - PASSAGE)
                rows = k[first + block, h, at:at + PASSAGE]
                rows *= np.sqrt(1 - STRENGTH ** 2)
                rows += STRENGTH * np.sqrt(D) * ask[b, h]
        first += n
    return Context(jnp.asarray(q.reshape(-1, HEADS_Q, D), jnp.bfloat16), jnp.asarray(k, jnp.bfloat16), k_lens, planted)


def bf16_scores(context):
    """Causal block maxima from the bf16 keys, [Hq, Ktiles, Tq]; page by page, so that nothing large is made."""
    ratio = HEADS_Q // HEADS_KV
    cu_pages = np.concatenate([[0], np.cumsum(context.pages)])
    batch_of = np.repeat(np.arange(len(context.k_lens)), context.pages)
    kb = np.arange(cu_pages[-1]) - cu_pages[batch_of]
    left = np.asarray(context.k_lens)[batch_of] - kb * PAGE

    def page(x):
        k, b, left = x
        q = jax.lax.dynamic_slice_in_dim(context.q, b * QUERIES, QUERIES).reshape(QUERIES, HEADS_KV, ratio, D)
        s = jnp.einsum("qhrd,hkd->hrqk", q, k, preferred_element_type=jnp.float32)
        seen = left - QUERIES + 1 + jnp.arange(QUERIES)[:, None]           # keys of the page that query i sees
        return jnp.where(jnp.arange(PAGE) < seen, s, -jnp.inf).max(-1).reshape(HEADS_Q, QUERIES)
    best = np.asarray(jax.jit(lambda *x: jax.lax.map(page, x))(context.k, jnp.asarray(batch_of), jnp.asarray(left)))
    out = np.full((HEADS_Q, max(context.pages), len(context.k_lens) * QUERIES), -np.inf, np.float32)
    for p, (b, block) in enumerate(zip(batch_of, kb)):
        out[:, block, b * QUERIES:(b + 1) * QUERIES] = best[p]
    return out


def score(context, fmt, seed):
    """Quantise into a shuffled pool and score. -> scores, seconds of the second call, bytes of the cache."""
    quantise = jax.jit(jfi.quantize_nvfp4 if fmt == "nvfp4" else jfi.quantize_mxfp4)
    pool_ids = jnp.asarray(np.random.default_rng(seed).permutation(context.k.shape[0]), jnp.int32)
    q, q_scale = quantise(context.q)[:2]
    k, k_scale = quantise(context.k[jnp.argsort(pool_ids)])[:2]        # page p of the list lies at pool_ids[p]

    def call():
        return jax.block_until_ready(jfi.fp4_indexer_block_scores(
            q, k, q_scale, k_scale, prefix_sum([QUERIES] * len(context.k_lens)), prefix_sum(context.k_lens), prefix_sum(context.pages),
            max_seqlen_q=QUERIES, max_seqlen_k=max(context.k_lens), kv_indices=pool_ids, fp4_format=fmt, causal=True))
    call()
    start = time.perf_counter()
    scores = call()
    return np.asarray(scores), time.perf_counter() - start, k.size + k_scale.size


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
    same = [len(np.intersect1d(a[a >= 0], b[b >= 0])) / max(1, (b >= 0).sum()) for a, b in zip(chosen.reshape(-1, chosen.shape[-1]), exact.reshape(-1, exact.shape[-1]))]
    return hits / total, float(np.mean(same))


def picture(path, context, scores, chosen, fmt):
    """Heat map of the longest sequence's block scores (rows: heads at the last query), chosen blocks ringed, planted ones ticked."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    t, n, ratio = QUERIES - 1, context.pages[0], HEADS_Q // HEADS_KV
    fig, ax = plt.subplots(figsize=(13, 3.6), constrained_layout=True)
    image = ax.imshow(scores[:, :n, t], aspect="auto", cmap="viridis", interpolation="nearest")
    for h in range(HEADS_Q):
        ids = chosen[h, t][chosen[h, t] >= 0]
        ax.scatter(ids, np.full(ids.shape, h), s=34, facecolors="none", edgecolors="white", linewidths=1.0, label="chosen" if h == 0 else None)
        ax.scatter(context.planted[0, h // ratio], np.full(PLANTED, h), s=14, marker="|", color="red", label="planted" if h == 0 else None)
    ax.set(xlabel="key block (128 tokens)", ylabel="query head", title=f"{fmt} block scores, {context.k_lens[0]} tokens, last query")
    fig.colorbar(image, ax=ax, label="max q.k")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def bytes_needed(longest):
    """Host memory that a context takes while it is made: keys of all three sequences in float32, twice, and in bf16."""
    return int(1.6 * longest) * HEADS_KV * D * (4 + 4 + 2)


def run(context=None, top_k=16, seed=0, out="out"):
    """Print the table and write the pictures; 0 if every planted block was found in both formats."""
    console = Console(width=130)
    gpu = jax.default_backend() == "gpu"
    longest = context or (262144 if gpu else 32768)
    implementation = kernel_for("decode", "nvfp4", QUERIES * HEADS_Q // HEADS_KV, "public")
    console.print(f"{jax.devices()[0].device_kind}: block scores run by {implementation}")
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("making the context", total=4)
        made = make_context(longest, seed)
        progress.update(task, advance=1, description="scoring bf16")
        exact_scores = bf16_scores(made)
        exact = top_blocks(exact_scores, top_k)
        results = {}
        for fmt in ("nvfp4", "mxfp4"):
            progress.update(task, advance=1, description=f"scoring {fmt}")
            results[fmt] = score(made, fmt, seed)
    console.print(f"{len(made.k_lens)} sequences of {', '.join(map(str, made.k_lens))} keys, {QUERIES} queries each, heads {HEADS_Q}/{HEADS_KV}, "
                  f"{PLANTED} passages of {PASSAGE} keys planted per sequence and KV head; top {top_k} blocks per head")
    table = Table()
    for name in ("keys", "time of a call", "cache", "against bf16", "planted found", f"recall@{top_k} vs bf16", "rms error of scores"):
        table.add_column(name, justify="left" if name == "keys" else "right")
    bf16_bytes = made.k.size * 2
    table.add_row("bf16", "", f"{bf16_bytes / 2**20:.2f} MiB", "1.00x", f"{recall(made, exact, exact)[0]:.1%}", "", "")
    found, visible = [], np.isfinite(exact_scores)
    for fmt, (scores, seconds, nbytes) in results.items():
        if not np.array_equal(np.isfinite(scores), visible):
            raise RuntimeError(f"demo: {fmt} scores and bf16 scores disagree about which blocks exist")
        chosen = top_blocks(scores, top_k)
        planted, same = recall(made, chosen, exact)
        found.append(planted)
        error = np.sqrt(np.mean((scores[visible] - exact_scores[visible]) ** 2) / np.mean(exact_scores[visible] ** 2))
        table.add_row(fmt, f"{seconds * 1e3:.2f} ms", f"{nbytes / 2**20:.2f} MiB", f"{bf16_bytes / nbytes:.2f}x less", f"{planted:.1%}", f"{same:.1%}", f"{error:.2%}")
        picture(pathlib.Path(out) / f"block_scores_{fmt}.png", made, scores, chosen, fmt)
    console.print(table)
    console.print(escape(f"pictures: {pathlib.Path(out) / 'block_scores_nvfp4.png'}, {pathlib.Path(out) / 'block_scores_mxfp4.png'}"), soft_wrap=True)
    if min(found) < 1.0:
        console.print(f"a planted passage was not among the top {top_k} blocks")
        return 1
    return 0
