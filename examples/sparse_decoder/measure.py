"""Runs the decoder sparse and dense, compares the two, and times their parts. Everything here is host code around `model.make_step`."""

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from . import planted
from .attention import block_scores, choose_blocks, dense_attention, sparse_attention
from .cache import HEAD_DIM, PAGE, empty_cache, index_bytes, kv_bytes, page_table, place
from .model import CACHE_SPEC, SPECS, Config, make_step, shard

NOISE_STEPS = 8  # steps on tokens without a planted answer, after the passage
HEADS = P(None, "heads")


@dataclasses.dataclass(frozen=True)
class Job:
    """What is run: prompts of `lengths`, prefilled `chunk` tokens of every sequence at a time, then decoded."""

    config: Config
    lengths: tuple
    chunk: int
    devices: int
    timed_steps: int  # decode steps per timing
    seed: int = 0
    dense_prefill: bool = True  # False: dense decode reads the cache of the sparse prefill (long contexts)


class Session:
    """Weights, prompts and page table of a job, on its devices."""

    def __init__(self, job):
        config = job.config
        for name, n in (("heads_kv", config.heads_kv), ("d_ff", config.d_ff)):
            if n % job.devices:
                raise ValueError(
                    f"sparse_decoder: --devices: got {job.devices}, expected a divisor of {name} = {n}. KV heads are what is split."
                )
        if len(jax.devices()) < job.devices:
            raise ValueError(
                f"sparse_decoder: --devices: got {job.devices}, expected at most the {len(jax.devices())} devices of {jax.default_backend()}."
            )
        self.job, self.config = job, config
        self.mesh = jax.sharding.Mesh(np.array(jax.devices()[: job.devices]), ("heads",))
        self.dtype = jnp.dtype(config.dtype)
        weights = {name: w.astype(self.dtype) for name, w in planted.make_weights(config, job.seed).items()}
        self.params = shard(self.mesh, weights, SPECS)
        self.prompts, self.answers = planted.make_prompts(config, job.lengths, job.seed)
        extra = planted.PASSAGE + NOISE_STEPS + 4 * job.timed_steps
        self.table = jnp.asarray(page_table(len(job.lengths), max(job.lengths) + extra, job.seed))
        self.steps = {}

    def step(self, kind, mode, probe=False):
        """The jitted step of `kind` "prefill" or "decode"."""
        key = kind, mode, probe
        if key not in self.steps:
            self.steps[key] = make_step(
                self.config, self.mesh, max_q=self.job.chunk if kind == "prefill" else 1, mode=mode, probe=probe
            )
        return functools.partial(self.steps[key], self.params)

    def cache(self):
        return shard(self.mesh, empty_cache(self.config, self.table.size, self.dtype), CACHE_SPEC)

    def chunks(self):
        """(tokens [T], q_lens [B], past [B]) of every prefill step; T = B * chunk."""
        for start in range(0, max(self.job.lengths), self.job.chunk):
            parts = [p[start : start + self.job.chunk] for p in self.prompts]
            tokens = np.zeros(len(parts) * self.job.chunk, np.int32)
            tokens[: sum(map(len, parts))] = np.concatenate(parts)
            yield tuple(
                jnp.asarray(np.asarray(x, np.int32))
                for x in (tokens, [len(p) for p in parts], [min(start, n) for n in self.job.lengths])
            )

    def prefill(self, mode):
        """-> (logits [B, vocab] after each prompt, cache, seconds without compilation)."""
        step, cache, logits = self.step("prefill", mode), self.cache(), None
        chunks = list(self.chunks())
        cache = jax.block_until_ready(
            step(cache, self.table, *(jnp.zeros_like(x) for x in chunks[0]))[1]
        )  # compiles; no token counts, so nothing is written
        start = time.perf_counter()
        for tokens, q_lens, past in chunks:
            new, cache, _ = step(cache, self.table, tokens, q_lens, past)
            logits = new if logits is None else jnp.where(q_lens[:, None] > 0, new, logits)
        jax.block_until_ready((logits, cache))
        return logits, cache, time.perf_counter() - start

    def decode(self, mode, cache, tokens, past, probe=False):
        """Feed tokens [B, steps] one after another -> (logits [steps, B, vocab], cache, coverages)."""
        step, ones, logits, seen = self.step("decode", mode, probe), jnp.ones(len(past), jnp.int32), [], []
        for i in range(tokens.shape[1]):
            new, cache, coverage = step(cache, self.table, jnp.asarray(tokens[:, i]), ones, past + i)
            logits.append(np.asarray(new))
            seen.append(jax.device_get(coverage))
        return np.stack(logits), cache, seen

    def time_decode(self, mode, cache, past):
        """Seconds of a decode step that feeds its own choice back: steps queued one after another, the host waits at the end. -> (seconds, cache, past)."""
        step, ones = self.step("decode", mode), jnp.ones(len(past), jnp.int32)
        tokens = jnp.zeros(len(past), jnp.int32)
        for _ in ("compile and warm up", "time"):
            start = time.perf_counter()
            for _ in range(self.job.timed_steps):
                logits, cache, _ = step(cache, self.table, tokens, ones, past)
                tokens, past = jnp.argmax(logits, -1).astype(jnp.int32), past + 1
            jax.block_until_ready((tokens, cache))
        return (time.perf_counter() - start) / self.job.timed_steps, cache, past


def compare(session, log=lambda text: None):
    """Prefill and decode in both modes, the same tokens fed to both. -> dict of figures, and the sparse run's cache and lengths for the timings."""
    job, config = session.job, session.config
    noise = (
        np.random.default_rng(job.seed + 1)
        .integers(planted.PASSAGE * 8, config.vocab, (len(job.lengths), NOISE_STEPS))
        .astype(np.int32)
    )
    fed = np.concatenate([session.answers, noise], 1)  # logits i (0: after the prefill) follow token i - 1 of these
    past = jnp.asarray(job.lengths, jnp.int32)
    runs, seconds, seen = {}, {}, None
    for mode in ("dense", "sparse"):  # sparse last: its cache is timed
        log(f"{mode}: prefill and decode")
        if mode == "dense" and not job.dense_prefill:
            continue
        first, cache, seconds[mode] = session.prefill(mode)
        logits, cache, coverage = session.decode(mode, cache, fed, past, probe=mode == "sparse")
        runs[mode] = np.concatenate([np.asarray(first)[None], logits])
        seen = coverage if mode == "sparse" else seen
    steps = planted.PASSAGE - 1
    want = session.answers.T
    right = {mode: float((x[:steps].argmax(-1) == want).mean()) for mode, x in runs.items()}
    figures = {"prefill_s": seconds, "answers_right": right, **_coverage(job, seen, steps)}
    if len(runs) == 2:
        for name, part in (("passage", slice(0, steps)), ("noise", slice(steps + 1, None))):
            dense, sparse = runs["dense"][part], runs["sparse"][part]
            figures[f"same_next_token_{name}"] = float((dense.argmax(-1) == sparse.argmax(-1)).mean())
            figures[f"logit_error_{name}"] = float(np.sqrt(((dense - sparse) ** 2).mean() / (dense**2).mean()))
    return figures, cache, past + fed.shape[1]


def _coverage(job, seen, steps):
    """Shares over the decode steps that were fed a passage token, by kind of head; "chance" is the share of visible blocks that is chosen."""
    mass, best, hits, counts = (np.stack([s[i] for s in seen[: steps - 1]]) for i in range(4))  # [steps, L, B, Hkv]
    planted_heads = planted.planted_heads(job.config)
    figures = {"chance": float(np.mean([min(1, job.config.top_k / -(-n // PAGE)) for n in job.lengths]))}
    for name, rows in (("planted", planted_heads), ("diffuse", ~planted_heads)):
        pick = lambda x, rows=rows: np.moveaxis(x, 2, -1)[:, rows]
        figures |= {
            f"mass_{name}": float(pick(mass).mean()),
            f"mass_least_{name}": float(pick(mass).min()),
            f"mass_best_{name}": float(pick(best).mean()),
            f"blocks_{name}": float(pick(hits).sum() / max(1, pick(counts).sum())),
        }
    return figures


def stage_programs(config, mesh, max_q, layers):
    """Jitted (q, index_q, cache, table, q_lens, past) -> results of one stage in `layers` layers; the capacity is that of q."""

    def shared(body, out_specs):
        def run(q, index_q, cache, table, q_lens, past):
            batch = place(table, q_lens, past, q.shape[0])
            return tuple(body(q, index_q, cache, batch, layer * table.size) for layer in range(layers))

        return jax.jit(
            jax.shard_map(
                run, mesh=mesh, in_specs=(HEADS, HEADS, CACHE_SPEC, P(), P(), P()), out_specs=(out_specs,) * layers
            )
        )

    def scores(q, index_q, cache, batch, first_page):
        return block_scores(index_q, cache, batch, first_page, max_q=max_q, fp4_format=config.fp4_format)

    def made_up_scores(index_q, batch, first_page):
        """Scores that cost next to nothing, different in every layer."""
        block = jnp.arange(batch.table.shape[1], dtype=jnp.float32)[:, None]
        return jnp.sin(block * (1 + first_page) + index_q[..., 0].T.astype(jnp.float32)[:, None] * 97)

    def select(q, index_q, cache, batch, first_page):
        return choose_blocks(made_up_scores(index_q, batch, first_page), batch.last_key, top_k=config.top_k)

    def made_up_choice(index_q, batch, first_page):
        """Spread over what is visible, different for every token, head and layer, without a search."""
        seen = (batch.last_key // PAGE + 1)[:, None, None]
        offset = jnp.abs(index_q[..., :1].astype(jnp.float32) * 1000).astype(jnp.int32) + first_page
        block = (offset + jnp.arange(config.top_k) * (seen // config.top_k + 1)) % jnp.maximum(seen, 1)
        return jnp.where(jnp.arange(config.top_k) < seen, block, -1)

    def sparse(q, index_q, cache, batch, first_page):
        return sparse_attention(q, made_up_choice(index_q, batch, first_page), cache, batch, first_page)

    def dense(q, index_q, cache, batch, first_page):
        return dense_attention(q, cache, batch, first_page, max_q=max_q)

    return {
        "indexer": shared(scores, P("heads")),
        "selection": shared(select, HEADS),
        "sparse attention": shared(sparse, HEADS),
        "dense attention": shared(dense, HEADS),
    }


def time_stages(session, kind, cache, past, repeats):
    """Seconds of a stage in all layers: of one decode step, or of the whole prefill (one layer timed, times the layers)."""
    config, job = session.config, session.job
    decode = kind == "decode"
    layers = config.layers if decode else 1
    tokens = len(job.lengths) * (1 if decode else job.chunk)
    key = jax.random.key(job.seed)
    q, index_q = (
        jax.random.normal(jax.random.fold_in(key, h), (tokens, h, HEAD_DIM), session.dtype)
        for h in (config.heads_q, config.heads_kv)
    )
    calls = [(jnp.ones_like(past), past)] if decode else [chunk[1:] for chunk in session.chunks()]
    result = {}
    for name, program in stage_programs(config, session.mesh, 1 if decode else job.chunk, layers).items():
        if not decode and name == "dense attention" and not job.dense_prefill:
            continue
        jax.block_until_ready(program(q, index_q, cache, session.table, *calls[0]))
        best = []
        for _ in range(3 if decode else 1):
            start = time.perf_counter()
            for _ in range(repeats if decode else 1):
                for call in calls:
                    out = program(q, index_q, cache, session.table, *call)
            jax.block_until_ready(out)
            best.append((time.perf_counter() - start) / (repeats if decode else 1))
        result[name] = min(best) * (1 if decode else config.layers)
    return result


def memory(session, cache):
    tokens = session.table.size * PAGE
    return {
        "index_bytes": index_bytes(cache),
        "kv_bytes": kv_bytes(cache),
        "index_bytes_per_token_and_layer": index_bytes(cache) / tokens / session.config.layers,
        "kv_bytes_per_token_and_layer": kv_bytes(cache) / tokens / session.config.layers,
    }
