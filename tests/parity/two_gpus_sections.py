"""The sections of two_gpus.py, each run in a process of its own: prints a line of JSON a finding, a check (`problem` is "" if it holds) or a row of the benchmark table."""

import datetime
import functools
import json
import re
import statistics
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fp4_indexer as jfi
from support import inputs

OPERANDS = ("q_fp4", "k_fp4", "q_scale", "k_scale", "cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets", "kv_indices")
COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast|reduce-scatter|ragged-all-to-all)(?:-start)?\("
)


def emit(**finding):
    print(json.dumps(finding), flush=True)


def check(name, problem="", **figures):
    emit(check=name, problem=problem, **figures)


def attempt(name, function, *args):
    """A check that raises is a finding, and the next one still runs. `function` returns a problem or "", and figures if it has any."""
    begin = time.perf_counter()
    try:
        result = function(*args)
    except Exception as error:
        traceback.print_exc()
        result = f"{type(error).__name__}: {str(error).strip()[:500]}"
    problem, figures = result if isinstance(result, tuple) else (result, {})
    check(name, problem, **figures, seconds=round(time.perf_counter() - begin, 2))


def two():
    """A mesh of the first two devices of this host."""
    return jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",), axis_types=(AxisType.Auto,))


def put(mesh, x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def call(static, *operands, **more):
    named = dict(zip(OPERANDS, operands, strict=True))
    return jfi.fp4_indexer_block_scores(**named, **static, **more)


def different(got, want):
    """ "" if both have the same bits (compared as int32, where NaN equals itself)."""
    got, want = (np.ascontiguousarray(x).view(np.int32) for x in (got, want))
    if got.shape != want.shape:
        return f"shape {got.shape}, on one GPU {want.shape}"
    wrong = np.argwhere(got != want)
    return f"{len(wrong)} of {got.size} slots differ, first {wrong[0].tolist()}" if len(wrong) else ""


def collectives(compiled):
    return sorted(set(COLLECTIVE.findall(compiled.as_text())))


def compiled_run(function, *args, allowed=()):
    """(result, "" or which communication the program has that it should not)."""
    compiled = jax.jit(function).lower(*args).compile()
    extra = [name for name in collectives(compiled) if name not in allowed]
    return compiled(*args), f"the program holds {extra}" if extra else ""


# ---- results


def batches(small):
    """Ragged batches whose sequences, heads, tokens and pages split over two."""
    long = 600 if small else 20_000
    for fmt in ("nvfp4", "mxfp4"):
        rng = np.random.RandomState(3)
        lengths = [int(x) for x in rng.randint(0, long, 7)] + [long]
        yield (
            f"decode {fmt}",
            inputs.batch(
                fmt, [1, 4, 0, 2, 4, 4, 3, 4], lengths, 8, 2, pad_tokens=2, max_seqlen_k=-(-long // 256) * 256
            ),
        )
        tokens = [9, 40, 0, 130, 64, 3, 77, 27] if small else [900, 40, 0, 1300, 64, 3, 777, 28]
        yield (
            f"prefill {fmt}",
            inputs.batch(fmt, tokens, lengths, 16, 4, pad_tokens=2, max_seqlen_k=-(-long // 256) * 256),
        )


def split_heads(mesh, arrays, static, want):
    """Queries, keys and their scales by heads; metadata on both."""
    specs = [P(None, "x"), P(None, "x"), P(None, "x"), P(None, "x"), *[P()] * 4]
    placed = [put(mesh, arrays[name], *spec) for name, spec in zip(OPERANDS, specs)]
    got, problem = compiled_run(
        jax.shard_map(functools.partial(call, static), mesh=mesh, in_specs=tuple(specs), out_specs=P("x")), *placed
    )
    return problem or different(got, want)


def batch_operands(mesh, arrays):
    m = jfi.ragged.shard(*(arrays[name] for name in OPERANDS[4:]), num_shards=2)
    parts = dict(
        arrays,
        q_fp4=arrays["q_fp4"][m.rows],
        q_scale=arrays["q_scale"][m.rows],
        **{name: getattr(m, name) for name in OPERANDS[4:]},
    )
    whole = ("k_fp4", "k_scale")
    return (
        m,
        [put(mesh, parts[name], *(() if name in whole else ("x",))) for name in OPERANDS],
        tuple(P() if name in whole else P("x") for name in OPERANDS),
    )


def split_batch(mesh, arrays, static, want):
    """Sequences by ragged.shard; the pool on both."""
    m, placed, specs = batch_operands(mesh, arrays)
    got, problem = compiled_run(
        jax.shard_map(functools.partial(call, static), mesh=mesh, in_specs=specs, out_specs=P(None, None, "x")), *placed
    )
    return problem or different(np.asarray(got)[..., m.columns], want[..., : m.columns.size])


def split_tokens(mesh, arrays, static, want):
    """Rows of q, cut in the middle of sequences."""

    def local(q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids):
        cu_q, offset = jfi.ragged.token_range(cu_q, cu_k, jax.lax.axis_index("x") * q.shape[0], q.shape[0])
        return call(static, q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids, qo_offset=offset)

    specs = (P("x"), P(), P("x"), *[P()] * 5)
    placed = [put(mesh, arrays[name], *spec) for name, spec in zip(OPERANDS, specs)]
    got, problem = compiled_run(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(None, None, "x")), *placed)
    return problem or different(got, want)


def split_blocks(mesh, arrays, static, want):
    """The context: each device half of the blocks of every sequence."""
    blocks = want.shape[1] // 2

    def local(q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids):
        cu_k, cu_p, offset = jfi.ragged.block_range(cu_q, cu_k, cu_p, jax.lax.axis_index("x") * blocks, blocks)
        return call(
            {**static, "max_seqlen_k": blocks * 128}, q, k, q_scale, k_scale, cu_q, cu_k, cu_p, ids, qo_offset=offset
        )

    placed = [put(mesh, arrays[name]) for name in OPERANDS]
    got, problem = compiled_run(jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(None, "x")), *placed)
    return problem or different(got, want)


def jit_alone(heads, kind, mesh, arrays, static, want):
    """No shard_map: plain jit over placed operands, heads or tokens split by XLA (Auto axes) or by the types (Explicit axes)."""
    mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=(kind,))
    at, keys = (P(None, "x"), P(None, "x")) if heads else (P("x"), P())
    placed = [put(mesh, arrays[name], *spec) for name, spec in zip(OPERANDS, [at, keys, at, keys, *[P()] * 4])]
    got, problem = compiled_run(functools.partial(call, static), *placed)
    spec = tuple(got.sharding.spec)[:3]
    if not problem and spec + (None,) * (3 - len(spec)) != (("x", None, None) if heads else (None, None, "x")):
        problem = f"the result is split as {got.sharding.spec}"
    return problem or different(got, want)


def pmap_equals(mesh, arrays, static, want):
    m, placed, _ = batch_operands(mesh, arrays)
    whole = ("k_fp4", "k_scale")
    stacked = [x if name in whole else x.reshape(2, -1, *x.shape[1:]) for name, x in zip(OPERANDS, placed)]
    got = jax.pmap(
        functools.partial(call, static),
        in_axes=tuple(None if name in whole else 0 for name in OPERANDS),
        devices=jax.devices()[:2],
    )(*stacked)
    got = np.concatenate(np.asarray(got), axis=-1)
    return different(got[..., m.columns], want[..., : m.columns.size])


def device_one(small):
    """First use of the op in this process: on arrays that live on device 1 alone."""
    device = jax.devices()[1]
    for name, inp in batches(small):
        arrays, static = inp.arrays(), inp.statics()
        placed = [jax.device_put(arrays[n], device) for n in OPERANDS]
        eager, jitted = call(static, *placed), jax.jit(functools.partial(call, static))(*placed)
        zero = jax.jit(functools.partial(call, static))(
            *(jax.device_put(arrays[n], jax.devices()[0]) for n in OPERANDS)
        )
        if eager.devices() != {device} or jitted.devices() != {device}:
            return f"{name}: results on {eager.devices()} and {jitted.devices()}, expected {device}"
        if problem := different(eager, jitted) or different(jitted, zero):
            return f"{name}: {problem}"
    return ""


def chain(mesh, small):
    """Eight steps, each with the page list that the step before made from its scores; the host waits for none of them. Beside it the same on one GPU, waiting each time."""
    steps = 8
    q_len, k_len = (8, 512) if small else (4096, 32768)
    inp = inputs.batch("nvfp4", [q_len] * 2, [k_len] * 2, *((8, 2) if small else (64, 4)), kind="normal", spare_pages=0)
    _, placed, specs = batch_operands(mesh, inp.arrays())

    def local(*operands):
        scores = call(inp.statics(), *operands)
        return jnp.roll(operands[-1], jnp.where(scores[0, 0, 0] > 0, 1, 3)), scores

    step = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(P("x"), P(None, None, "x"))))
    fixed, first_ids = placed[:-1], placed[-1]

    def issue():
        """All steps, asked for; nothing waited for."""
        ids, results = first_ids, []
        for _ in range(steps):
            ids, scores = step(*fixed, ids)
            results.append(scores)
        return results

    jax.block_until_ready(
        issue()
    )  # compiles, and makes the allocator ask the driver for the memory of all results, which waits
    begin = time.perf_counter()
    with jax.transfer_guard("disallow"):
        results = issue()
    issued = time.perf_counter() - begin
    jax.block_until_ready(results)
    total = time.perf_counter() - begin
    problem, alone = "", jax.jit(local)
    same = jax.jit(
        lambda a, b: jnp.all(jax.lax.bitcast_convert_type(a, jnp.int32) == jax.lax.bitcast_convert_type(b, jnp.int32))
    )
    for shard in range(2):
        own = [jax.device_put(x.addressable_shards[shard].data, jax.devices()[0]) for x in placed]
        ids = own[-1]
        for i in range(steps):
            ids, scores = jax.block_until_ready(alone(*own[:-1], ids))
            theirs = jax.device_put(results[i].addressable_shards[shard].data, jax.devices()[0])
            if theirs.shape != scores.shape or not same(theirs, scores):
                problem = problem or f"step {i} of shard {shard} differs from one GPU"
    if not problem and issued > total / 2 and not small:
        problem = (
            f"the host needed {issued * 1e3:.1f} of {total * 1e3:.1f} ms to issue {steps} steps: it waits for them"
        )
    return problem, {"issued_ms": round(issued * 1e3, 2), "finished_ms": round(total * 1e3, 2)}


def on_one_gpu(inp):
    """(arrays, static arguments, scores) of a batch."""
    arrays, static = inp.arrays(), inp.statics()
    return (
        arrays,
        static,
        np.asarray(
            jax.jit(functools.partial(call, static))(*(jax.device_put(arrays[n], jax.devices()[0]) for n in OPERANDS))
        ),
    )


def plain_jit(small):
    """In a process of its own: a partitioner that XLA cannot work with ends the process."""
    for name, inp in batches(small):
        expected = on_one_gpu(inp)
        for kind in (AxisType.Auto, AxisType.Explicit):
            for what in ("heads", "tokens"):
                if not (
                    small and what == "tokens" and kind == AxisType.Auto
                ):  # XLA gathers the tokens of the definition, which is what runs on CPU
                    attempt(
                        f"{what} split, plain jit, {kind.name} axes, {name}: bits of one GPU, no communication",
                        jit_alone,
                        what == "heads",
                        kind,
                        two(),
                        *expected,
                    )


def results(small):
    mesh = two()
    attempt("arrays of device 1 alone, first use of the process", device_one, small)
    for name, inp in batches(small):
        arrays, static, want = on_one_gpu(inp)
        for what, function in (
            ("heads split", split_heads),
            ("batch split", split_batch),
            ("tokens split", split_tokens),
            ("blocks split", split_blocks),
            ("pmap", pmap_equals),
        ):
            attempt(f"{what}, {name}: bits of one GPU, no communication", function, mesh, arrays, static, want)
    attempt("chain of 8 steps: no transfer, no waiting, bits of one GPU", chain, mesh, small)


# ---- time


def page_lists(case, pool, calls, seed=0):
    """Page lists [pages] of `calls` calls: call i reads set i % sets of the pool in an order of its own, and each half of the batch its half of the pool."""
    sets, half = pool // case.pages, case.pages // 2
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(pool // 2).reshape(sets, half) + s * (pool // 2) for s in range(2)]
    return [np.concatenate([rng.permutation(p[i % sets]) for p in parts]).astype(np.int32) for i in range(calls)]


def program(case, fmt, iters):
    """(operands, lists) -> one number that hangs on every one of `iters` calls; on one device."""
    static = dict(
        max_seqlen_q=max(case.q_lens),
        max_seqlen_k=max(case.k_lens),
        fp4_format=fmt,
        causal=case.causal,
        scale_layout="preordered_mma",
    )

    def run(operands, lists):
        return sum(jax.lax.optimization_barrier(call(static, *operands, ids))[:1, 0, 0] for ids in lists[:iters])

    return run, functools.partial(call, static)


def placed_case(mesh, case, fmt, split, calls):
    """((operands, lists) on one GPU, the same split over the mesh, in_specs, out_specs of scores)."""
    from jax_fp4_indexer.bench.cases import How

    made = case.make(How(fmt, "public"), 0)
    lists = page_lists(case, made.k.shape[0], calls)
    reorder = functools.partial(jfi.fp4_indexer_reorder_scales_for_mma, fp4_format=fmt)
    sums = [np.asarray(x) for x in (made.cu_seqlens_q, made.cu_seqlens_k, made.cu_page_offsets)]
    one = (
        [made.q, made.k, *jax.jit(reorder)(made.q_scale, made.k_scale), *map(jnp.asarray, sums)],
        [jnp.asarray(x) for x in lists],
    )
    if split == "heads":
        at, meta, scales, out, parts = P(None, "x"), P(), (P("x"), P("x")), P("x"), (sums, lists)
    else:
        shards = [jfi.ragged.shard(*sums, ids, num_shards=2, num_pages=made.k.shape[0]) for ids in lists]
        assert (shards[0].rows == np.arange(case.tokens)).all()
        at, meta, scales, out = P("x"), P("x"), (P(None, "x"), P("x")), P(None, None, "x")
        parts = (
            [shards[0].cu_seqlens_q, shards[0].cu_seqlens_k, shards[0].cu_page_offsets],
            [m.kv_indices for m in shards],
        )
    q, k, q_scale, k_scale = (put(mesh, x, *at) for x in (made.q, made.k, made.q_scale, made.k_scale))
    tiled = jax.jit(jax.shard_map(reorder, mesh=mesh, in_specs=(at, at), out_specs=scales))(q_scale, k_scale)
    both = ([q, k, *tiled, *(put(mesh, x, *meta) for x in parts[0])], [put(mesh, x, *meta) for x in parts[1]])
    return one, both, ([at, at, *scales, meta, meta, meta], [meta] * calls), out


def once(function, *args):
    begin = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - begin


def slope(short, long, args, iters, idle=0.06):
    """Burst: seconds a call, from a program of `iters` calls and one of twice as many, each right after a pause; the first run only wakes the card."""

    def after_pause(function):
        time.sleep(idle)
        return statistics.median([once(function, *args) for _ in range(4)][1:])

    return (after_pause(long) - after_pause(short)) / iters


def sustained(long, args, calls, seconds, card):
    """Seconds a call with programs queued back to back; the second half of the time counts."""
    queue = max(2, int(0.02 / max(once(long, *args), 1e-6)))
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 4:
        begin = time.perf_counter()
        running = [long(*args) for _ in range(queue)]
        card.sample()
        jax.block_until_ready(running)
        times.append((time.perf_counter() - begin) / (queue * calls))
    return statistics.median(times[len(times) // 2 :])


def timed(mesh, case, fmt, split, small, rates):
    """One row: both placements in turn, in one process, by the host's clock. Times in microseconds."""
    from jax_fp4_indexer.bench.card import Card
    from jax_fp4_indexer.bench.cases import How
    from jax_fp4_indexer.bench.figures import figures
    from jax_fp4_indexer.bench.run import commit

    out_bytes = 4 * case.heads_q * case.k_tiles * case.tokens
    iters = (
        2
        if small
        else max(
            2, min(20, int(3e4 / (case.bytes(How(fmt, "public")) / 4e6 + case.flops() / 7e8)), int(16e9 / out_bytes))
        )
    )
    one, both, specs, out = placed_case(mesh, case, fmt, split, 2 * iters)
    programs, first = {}, {}
    for count in (iters, 2 * iters):
        run, single = program(case, fmt, count)
        programs["one", count] = jax.jit(run)
        programs["two", count] = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=P("x")))
    problem = [f"the program holds {c}" for c in [collectives(programs["two", iters].lower(*both).compile())] if c]
    whole = jax.jit(single)(*one[0], one[1][0])
    parts = jax.jit(
        jax.shard_map(
            lambda operands, ids: single(*operands, ids), mesh=mesh, in_specs=(specs[0], specs[1][0]), out_specs=out
        )
    )(both[0], both[1][0])
    same = jax.jit(
        lambda a, b: jnp.all(jax.lax.bitcast_convert_type(a, jnp.int32) == jax.lax.bitcast_convert_type(b, jnp.int32))
    )(parts, put(mesh, whole, *out))
    problem += [] if same else ["scores differ from one GPU's"]
    check(f"{case.name} {fmt}, {split} split at full size: bits of one GPU, no communication", "; ".join(problem))
    del whole, parts
    arguments = {"one": one, "two": both}
    for where, args in arguments.items():
        first[where] = once(programs[where, iters], *args)
        for count in (2 * iters, iters, 2 * iters):
            once(programs[where, count], *args)
    card, bursts, steady, state = Card(), {"one": [], "two": []}, {"one": [], "two": []}, {}
    for _ in range(2 if small else 5):
        for where, args in arguments.items():
            bursts[where].append(slope(programs[where, iters], programs[where, 2 * iters], args, iters) * 1e6)
            card.sample()
    state["card_burst"] = card.summary()
    for _ in range(1 if small else 3):
        for where, args in arguments.items():
            steady[where].append(
                sustained(programs[where, 2 * iters], args, 2 * iters, 0.05 if small else 0.3, card) * 1e6
            )
    state["card_sustained"] = card.summary()
    middle = lambda times: {where: statistics.median(x) for where, x in times.items()}
    spread = lambda times: max(times["two"]) - min(times["two"])
    burst, long = middle(bursts), middle(steady)
    shares = figures(
        case,
        How(fmt, "preordered_mma"),
        burst_us=burst["two"],
        sustained_us=long["two"],
        rates={kind: {name: 2 * rate for name, rate in of.items()} for kind, of in rates.items()},
    )
    emit(
        op="block_scores",
        case=case.name,
        format=fmt,
        scale_layout="preordered_mma",
        implementation="auto",
        median_us=burst["two"],
        spread_us=spread(bursts),
        sustained_us=long["two"],
        sustained_spread_us=spread(steady),
        **shares,
        xla_us=None,
        published_us=None,
        **state,
        method="host clock",
        calls=iters,
        first_call_s=first["two"],
        card=f"2x {jax.devices()[0].device_kind}",
        jax=jax.__version__,
        commit=commit(),
        date=datetime.date.today().isoformat(),
        limits=rates,
        split=split,
        one_gpu_median_us=burst["one"],
        one_gpu_sustained_us=long["one"],
        speedup=burst["one"] / burst["two"],
        sustained_speedup=long["one"] / long["two"],
    )


def time_case(name, split, small):
    from jax_fp4_indexer.bench import limits
    from jax_fp4_indexer.bench.cases import all_cases
    from jax_fp4_indexer.bench.cases.block_scores import uniform

    case = all_cases()[name]
    if small:
        case = uniform(name, 1, 64, 512, 8, 4, True) if split == "heads" else uniform(name, 64, 4, 256, 4, 1, False)
    one = {"read_gbs": 1.0, "bf16_tflops": 1.0, "int8_tops": 1.0}
    rates = {"burst": one, "sustained": one} if small else limits.measure()  # of one GPU: two have twice as much
    for fmt in ("nvfp4", "mxfp4"):
        try:
            timed(two(), case, fmt, split, small, rates)
        except Exception as error:
            traceback.print_exc()
            check(f"{name} {fmt} timed", f"{type(error).__name__}: {str(error).strip()[:500]}")


# ---- first call


def first_call(small, variant):
    """The first call of this process is on both devices at once, with a psum in its program; variant 1: while psums of an earlier program still run."""
    begin, mesh = time.perf_counter(), two()
    pages = 64
    static = dict(max_seqlen_q=4, max_seqlen_k=pages * 128)
    byte = lambda value, *shape: np.full(shape, value, np.uint8)
    k_scale = np.concatenate(
        [byte(0x38, pages, 1, 128, 8), byte(0x40, pages, 1, 128, 8)]
    )  # 1 on device 0, 2 on device 1
    i32 = lambda *x: np.array(x * 2, np.int32)
    operands = [
        byte(0x22, 8, 4, 64),
        byte(0x22, 2 * pages, 1, 128, 64),
        byte(0x38, 8, 4, 8),
        k_scale,
        i32(0, 4),
        i32(0, pages * 128),
        i32(0, pages),
        np.tile(np.arange(pages, dtype=np.int32), 2),
    ]
    size = 1 << (12 if small else 24)

    def local(x, *operands):
        total = jax.lax.psum(x, "x")  # does not hang on the scores: it may run beside them
        scores = call(static, *operands)
        return scores, jax.lax.psum(jnp.where(jnp.isfinite(scores), scores, 0).sum(), "x"), total

    def busy(x):
        return jax.lax.fori_loop(0, 4 if small else 400, lambda _, x: jax.lax.psum(x, "x") / 2, x)

    sharded = functools.partial(jax.shard_map, mesh=mesh)
    step = jax.jit(sharded(local, in_specs=P("x"), out_specs=(P(None, None, "x"), P(), P())))
    placed = [put(mesh, x, "x") for x in (np.ones(2 * size, np.float32), *operands)]
    if variant:
        step = step.lower(
            *placed
        ).compile()  # so that the psums still run when the call's kernels are loaded, which is when it first runs
        chain = jax.jit(sharded(busy, in_specs=P("x"), out_specs=P("x"), check_vma=False))(placed[0])
    else:
        chain = placed[0]
    ready = time.perf_counter()
    scores, summed, total = jax.block_until_ready(step(*placed))
    done = time.perf_counter()
    want = np.where(np.arange(8) // 4 == 0, 128, 256).astype(np.float32)
    problem = "" if (np.asarray(scores) == want).all() else "wrong scores"
    problem = problem or (
        "" if float(summed) == float(np.asarray(scores, np.float64).sum()) else f"psum of the scores is {summed}"
    )
    problem = problem or ("" if (np.asarray(total) == 2).all() and (np.asarray(chain) == 1).all() else "wrong psum")
    check("first call", problem, start_s=round(ready - begin, 2), first_call_ms=round((done - ready) * 1e3, 1))


def run(section, small, variant):
    if not small and (len(jax.devices()) < 2 or jax.default_backend() != "gpu"):
        check(
            section,
            f"two_gpus: devices: got {jax.devices()}, expected two GPUs. Run it on a host with two, or pass --small.",
        )
        return 1
    if section in ("results", "plain_jit"):
        {"results": results, "plain_jit": plain_jit}[section](small)
    elif section == "first_call":
        first_call(small, variant)
    else:
        time_case(
            *{"time_prefill": ("prefill_q8k_k64k", "heads"), "time_decode": ("decode_64k", "batch")}[section], small
        )
    return 0
