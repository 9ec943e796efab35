"""Kernels that others wrote, in our simulator: right numbers, and exactly the reports that are theirs. Run by `make test-anchors`; pytest collects this file only by name.

A report is stated as its kind and the line of the wheel's Python that it names. Three modes of `fp4_logits` are wrong programs (README.md, Anchors): dropping its
early deallocation lets the rest be seen, and replacing two arrivals by commits shows what the first fault is.
"""

import json
import re

import numpy as np
import pytest

from ptxsim.anchors import problems, runs, scores
from ptxsim.decode import Program
from ptxsim.launch import SimError

MODES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
MODE_IDS = [f"{mode}{seed or ''}" for mode, seed in MODES]


def _logits(name, kind, page, next_n, epilogue, output, ctas):
    return dict(name=name, kind=kind, page=page, next_n=next_n, epilogue=epilogue, output=output, ctas=ctas)


def _gemm(name, group, n, cluster, codes, scales, output, ctas):
    return dict(
        name=name,
        kind="gemm",
        group=group,
        tile=[128, n],
        cluster=[cluster, 1],
        codes=codes,
        scales=scales,
        output=output,
        ctas=ctas,
    )


def _quantiser(name, width, group, dtype, swizzled):
    return dict(name=name, kind="quantiser", width=width, group=group, dtype=dtype, swizzled=swizzled)


def _scores(name, kind, **what):
    return dict(name=name, kind=kind, arch="sm_90a", **what)


E2M1, E4M3, E8M0 = "Float4E2M1FN", "Float8E4M3FN", "Float8E8M0FNU"
JOBS = {
    job["name"]: {"arch": "sm_100a", **job}
    for job in [
        dict(name="schedule_3", kind="schedule", bucket=32, ctas=3),
        dict(name="schedule_148", kind="schedule", bucket=96, ctas=148),
        _logits("fp4_64", "fp4_logits", 64, 1, "Float32", "Float32", 2),
        _logits("fp4_128_bf16", "fp4_logits", 128, 1, "BFloat16", "BFloat16", 2),
        _logits("fp4_32_two_f16", "fp4_logits", 32, 2, "Float16", "Float32", 2),
        _logits("fp4_64_three", "fp4_logits", 64, 3, "Float32", "Float32", 2),
        _logits("fp8_64", "fp8_logits", 64, 1, "Float32", "Float32", 2),
        _logits("fp8_128_two", "fp8_logits", 128, 2, "Float32", "Float32", 3),
        _quantiser("nvfp4_rows", 1024, 16, "BFloat16", True),
        _quantiser("mxfp4_rows", 1024, 32, "BFloat16", True),
        _quantiser("nvfp4_f16_plain", 4096, 16, "Float16", False),
        _quantiser("nvfp4_cluster", 65536, 16, "BFloat16", True),
        _gemm("nvfp4_128", 16, 128, 1, E2M1, E4M3, "Float32", 1),
        _gemm("nvfp4_256_f16", 16, 256, 1, E2M1, E4M3, "Float16", 2),
        _gemm("mxfp4_64_bf16", 32, 64, 1, E2M1, E8M0, "BFloat16", 1),
        _gemm("mxfp4_192", 32, 192, 1, E2M1, E8M0, "Float32", 2),
        _gemm("mxf8_128", 32, 128, 1, E4M3, E8M0, "Float32", 1),
        _gemm("nvfp4_cluster_2", 16, 128, 2, E2M1, E4M3, "Float32", 1),
        _scores("decode_bf16", "decode_scores", heads=8, kv_heads=2, tokens=3, sweep=1),
        _scores("decode_bf16_sweep", "decode_scores", heads=16, kv_heads=1, tokens=1, sweep=4),
        _scores("prefill_fp8", "prefill_scores", heads=2, tma_queries=False, fold=0, chunks=2),
        _scores("prefill_fp8_tma", "prefill_scores", heads=3, tma_queries=True, fold=1, chunks=1),
    ]
}
BARS = {
    "Float32": 1e-7,
    "BFloat16": 2.0**-8,
    "Float16": 2.0**-11,
}  # of an output, of the sum of magnitudes: one rounding
EPILOGUE_BARS = {**BARS, "BFloat16": 4e-3, "Float16": 5e-4}  # 64 weighted products added in that type


def of_kind(*kinds):
    return [pytest.param(job, id=name) for name, job in JOBS.items() if job["kind"] in kinds]


@pytest.fixture(scope="session")
def folder():
    return runs.compiled(json.dumps(list(JOBS.values())))


def reports(found):
    """{kind: lines of the wheel's Python; None where it names no instruction}."""
    result = {}
    for f in found:
        place = re.search(r"\.py:(\d+)\)$", f.at)
        result.setdefault(f.kind, set()).add(int(place.group(1)) if place else None)
    return result


def record(name, mode, worst, compared, bar):
    print(f"{name} {mode}: {compared} compared, worst {worst:.2e} (bar {bar:.1e})")
    assert worst <= bar, f"{name} {mode}: {worst}"


# ---- schedule: integers; the only fault is shared memory read across lanes with shfl.sync alone between
@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("job", of_kind("schedule"))
def test_schedule(folder, job, mode):
    rng, kernel = np.random.RandomState(5), runs.Kernel(folder, job["name"])
    for batch in (1, job["bucket"] - 5, job["bucket"]):
        lens = rng.randint(0, 4000, batch)
        problem = problems.schedule(job, lens)
        result = kernel(problem, mode=mode[0], seed=mode[1])
        np.testing.assert_array_equal(problem.array("meta"), problems.schedule_expected(job, lens))
        assert set(reports(result.faults)) <= {"lane-race"} and reports(result.faults).get("lane-race", set()) <= {
            162,
            173,
        }
    assert reports(result.faults) == {"lane-race": {162, 173}}


# ---- logits
FREED = "after their deallocation by warp 0"
FP4_LANES, FP8_LANES = (
    {2025, 2209, 2365, 2752, 2830, 3207},
    {1670, 1776, 2015, 2093, 2195, 2423},
)  # arrivals of one lane for what all 32 read
FP4_SCALES = {2200}  # a product of warp 11 reads scales that a copy of warp 10 wrote, with no commit between
FP4_STAGES = {1695, 1702, 1797, 1804}  # a TMA copy overwrites a stage that products and copies still read
FP4_RELEASES = ("2025", "2209")
SHORT, LONG = [300, 700, 513], [2000, 513, 4000]  # LONG: every ring of stages wraps


def without_deallocation(ptx):
    return re.sub(r"^.*tcgen05\.dealloc[^;]*;", "", ptx, flags=re.M)


def with_commits(ptx):
    """The two arrivals that release a stage of keys, replaced by commits."""
    lines, replaced = without_deallocation(ptx).split("\n"), 0
    for instruction in Program("\n".join(lines)).code:
        if instruction.op.startswith("mbarrier.arrive") and instruction.source.endswith(
            tuple(f"fp4_paged_mqa_logits.py:{n}" for n in FP4_RELEASES)
        ):
            at = instruction.line - 1
            lines[at] = re.sub(
                r"mbarrier\.arrive\.\S+\s+\S+,\s*(\[[^\]]*\]),[^;]*;",
                r"tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 \1;",
                lines[at],
            )
            replaced += 1
    assert replaced == 2
    return "\n".join(lines)


def logits(kernel, job, lens, mode):
    """(Result, worst difference, compared)."""
    problem = problems.logits(job, lens)
    result = kernel(problem, mode=mode[0], seed=mode[1])
    want, sums = problems.logits_expected(job, problem)
    inside = np.isfinite(want)
    off = np.abs(problems.values_of(problem.array("scores"), job["output"])[inside] - want[inside])
    return result, float(np.nan_to_num(off / sums[inside], nan=np.inf).max()), int(inside.sum())


def bar_of(job):
    return max(EPILOGUE_BARS[job["epilogue"]], BARS[job["output"]])


@pytest.mark.parametrize("job", of_kind("fp4_logits", "fp8_logits"))
def test_tensor_memory_is_freed_too_early(folder, job):
    """Warp 0 deallocates while other warps still read their columns: the kernels' third fault, and the end of a launch here."""
    with pytest.raises(SimError, match=FREED):
        logits(runs.Kernel(folder, job["name"]), job, SHORT, ("eager", 0))


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("lens", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("job", of_kind("fp8_logits"))
def test_fp8_logits(folder, job, lens, mode):
    result, worst, compared = logits(runs.Kernel(folder, job["name"], without_deallocation), job, lens, mode)
    record(f"{job['name']} {lens}", mode, worst, compared, bar_of(job))
    assert reports(result.faults) == {"lane-race": FP8_LANES, "tmem-left": {None}}


@pytest.mark.parametrize("mode", MODES[:2], ids=MODE_IDS[:2])
@pytest.mark.parametrize("job", of_kind("fp4_logits"))
def test_fp4_logits(folder, job, mode):
    result, worst, compared = logits(runs.Kernel(folder, job["name"], without_deallocation), job, SHORT, mode)
    record(f"{job['name']} {SHORT}", mode, worst, compared, bar_of(job))
    assert reports(result.faults) == {"lane-race": FP4_LANES, "tmem-left": {None}, "tmem-race": FP4_SCALES}


@pytest.mark.parametrize("job", of_kind("fp4_logits"))
def test_fp4_stages_are_released_too_early(folder, job):
    """The first fault: an arrival right after a product was issued releases the stage that it reads. Reported though the numbers are right; in lazy order they are wrong."""
    kernel = runs.Kernel(folder, job["name"], without_deallocation)
    result, worst, compared = logits(kernel, job, LONG, ("eager", 0))
    record(f"{job['name']} {LONG}", ("eager", 0), worst, compared, bar_of(job))
    assert reports(result.faults) == {
        "lane-race": FP4_LANES,
        "tmem-left": {None},
        "tmem-race": FP4_SCALES,
        "race": FP4_STAGES,
    }
    lazy, worst, _ = logits(kernel, job, LONG, ("lazy", 0))
    assert worst > 0.01 and "race" in reports(lazy.faults)


@pytest.mark.parametrize("mode", MODES[:2], ids=MODE_IDS[:2])
@pytest.mark.parametrize("job", of_kind("fp4_logits"))
def test_fp4_stages_released_by_commits(folder, job, mode):
    """With commits in place of these arrivals the numbers are right in lazy order as well; what is left says nothing of reads by products and copies."""
    result, worst, compared = logits(runs.Kernel(folder, job["name"], with_commits), job, LONG, mode)
    record(f"{job['name']} {LONG} repaired", mode, worst, compared, bar_of(job))
    assert not any("tcgen05" in f.text for f in result.faults if f.kind == "race"), str(result)
    assert reports(result.faults)["race"] == {
        1702,
        1804,
    }  # scales, which the warp transposed by ordinary accesses: a commit speaks of tensor operations only


def test_fp4_scales_of_another_warp(folder):
    """The second fault: in some random order the products of warp 11 come before the copy of warp 10 that their scales are from."""
    job = JOBS["fp4_32_two_f16"]
    kernel = runs.Kernel(folder, job["name"], with_commits)
    wrong = [seed for seed in range(1, 9) if logits(kernel, job, SHORT, ("random", seed))[1] > bar_of(job)]
    assert wrong, "no seed shows it"


# ---- RMSNorm and quantiser
@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("job", of_kind("quantiser"))
def test_quantiser(folder, job, mode):
    rows = 3 if job["width"] > 10000 else 37
    problem = problems.quantiser(job, rows)
    result = runs.Kernel(folder, job["name"])(problem, mode=mode[0], seed=mode[1])
    units, want, chosen = problems.quantiser_expected(job, problem)
    codes = problem.array("codes")
    values, table = problems.fp4_values(codes), problems.E2M1[:8]
    distance = np.abs(np.abs(units)[..., None] - table).min(-1)
    assert ((values == 0) | (np.sign(values) == np.sign(units))).all()
    other_codes = int((np.abs(values - units) > distance).sum())
    farther = float((np.abs(values - units) - distance).max())
    other_scales = int((want != chosen).sum())
    print(
        f"{job['name']} {mode}: {chosen.size} scales, {other_scales} others than float64's; {values.size} codes, {other_codes} not the nearest, by {farther:.1e} at most"
    )
    assert other_scales == 0 and farther <= 4e-6
    if job["swizzled"]:
        padded = problem.array("scales").copy()
        used = problems.row_major_scales(np.arange(padded.size), rows, job["width"] // job["group"], True)
        assert not np.delete(padded, used.reshape(-1)).any()  # the kernel's own promise: padding is zero
    # Both CTAs of a cluster write every code and scale of their row, the same bytes.
    assert set(reports(result.faults)) == ({"global-race"} if job["name"] == "nvfp4_cluster" else set())


# ---- block-scaled products
@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("shape", [(128, 128, 256), (256, 384, 1024), (200, 192, 576)], ids=str)
@pytest.mark.parametrize("job", of_kind("gemm"))
def test_gemm(folder, job, shape, mode):
    """Right in every order. The reports: no wait::ld at all, and copies of scales over columns that the products before them read, which the manual does not order
    and the kernel relies on (one queue of a thread here)."""
    problem, scales = problems.gemm(job, *shape)
    result = runs.Kernel(folder, job["name"])(problem, mode=mode[0], seed=mode[1])
    want, sums = problems.gemm_expected(job, problem, scales)
    got = problems.values_of(problem.array("c"), job["output"])
    record(f"{job['name']} {shape}", mode, float((np.abs(got - want) / sums).max()), got.size, BARS[job["output"]])
    assert set(reports(result.faults)) <= {"tmem-race"} and reports(result.faults).get("tmem-race", set()) <= {
        1308,
        1313,
        1340,
        1691,
    }, str(result)


# ---- block scores on sm_90a: mma.sync, and wgmma fed by tensor copies
WGMMA_E4M3 = 5e-4  # four instructions keep 13 bits each
MMA_BF16 = 2.0**-22  # eight instructions cut


def check_scores(folder, job, tokens, lens, mode, known, bar):
    """Returns the Problem."""
    problem = scores.problem(job, tokens, lens)
    result = runs.Kernel(folder, job["name"])(problem, mode=mode[0], seed=mode[1])
    (want, sums), got = scores.expected(job, problem, tokens, lens), problem.array("scores")
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
    seen = np.isfinite(want)
    record(
        f"{job['name']} {lens}", mode, float((np.abs(got[seen] - want[seen]) / sums[seen]).max()), int(seen.sum()), bar
    )
    assert reports(result.faults) == known, str(result)
    return problem


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("job", of_kind("decode_scores"))
def test_decode_scores(folder, job, mode):
    """The report: four lanes store one maximum, which each of them holds, to one place."""
    lens = [5, 128, 131, 700, 1024]
    check_scores(folder, job, [job["tokens"]] * len(lens), lens, mode, {"lane-race": {197, 198}}, MMA_BF16)


@pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
@pytest.mark.parametrize("job", of_kind("prefill_scores"))
def test_prefill_scores(folder, job, mode):
    """Queries by tensor copies: no report. By ordinary stores: no fence.proxy.async before the products that read them; and the last tile of a sequence is moved back over
    rows of the one before, so that two CTAs write the same scores."""
    tokens, lens = ([128, 128], [128, 1500]) if job["tma_queries"] else ([200, 1, 130], [1400, 300, 130])
    problem = check_scores(
        folder,
        job,
        tokens,
        lens,
        mode,
        {} if job["tma_queries"] else {"proxy-fence": {98}, "global-race": {158, 822}},
        WGMMA_E4M3,
    )
    if mode == MODES[0]:
        np.testing.assert_array_equal(problem.array("scores"), scores.as_the_card_rounds(problem, tokens, lens))
