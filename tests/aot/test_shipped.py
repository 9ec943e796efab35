"""The real table and the cubins of this checkout (`make cubins` brings them up to date)."""

import dataclasses
import itertools
import random

import pytest

from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.aot.variants import KERNELS, VARIANTS
from jax_fp4_indexer.configs.arch import ARCHS
from jax_fp4_indexer.configs.block_scores import scratch_bytes
from jax_fp4_indexer.specs import OPS
from jax_fp4_indexer.specs.expr import parse, sizes


def test_the_cubins_are_what_the_sources_make():
    assert manifest.stale(manifest.DEFAULT_FOLDER, KERNELS, VARIANTS) == []


def test_no_shipped_kernel_spills_and_every_one_has_its_matrix_instruction():
    data = manifest.read(manifest.DEFAULT_FOLDER)
    assert len(data["kernels"]) == len(KERNELS)
    assert [k["name"] for k in data["kernels"] if k["spill_bytes"]] == []
    unguarded = {k.source for k in KERNELS if not k.expect} - {
        k.source
        for k in KERNELS
        if any(f":{name}(" in k.source for name in ("Prepare", "PortableSchedule", "ChoosePrecision"))
    }
    assert not unguarded, "kernels without a gate on their matrix instruction"


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.parametrize("arch", list(ARCHS))
def test_every_arch_serves_every_call(arch, op):
    """Any bound, every combination of choices, and a portable kernel in addition to every native one."""
    for values in itertools.product(*(op.choices()[key] for key in op.select)):
        of_call = [v for v in VARIANTS if (v.op, v.arch, v.select) == (op.name, arch, tuple(zip(op.select, values)))]
        assert "portable" in {v.implementation for v in of_call}, values
        for kind in {v.implementation for v in of_call}:
            bounds = [v.bound for v in of_call if v.implementation == kind]
            assert bounds.count(0) == 1 and len(set(bounds)) == len(bounds)


def test_every_parameter_is_one_of_the_op():
    """What a kernel's parameters and expressions name is what its op has; the handler would say so when a program is prepared."""
    data = manifest.read(manifest.DEFAULT_FOLDER)
    kernels = {(k["arch"], k["name"]): k for k in data["kernels"]}
    for v in data["variants"]:
        op = OPS[v["op"]]
        buffers = {b.name for b in op.buffers}
        assert parse(v["scratch"]).names() <= op.scalar_names()
        for name in v["launches"]:
            kernel = kernels[v["arch"], name]
            texts = list(kernel["grid"].get("expr", []))
            for param in kernel["params"]:
                ((kind, what),) = param.items()
                assert (what["buffer"] if kind == "tensor_map" else what) in (
                    op.scalar_names() if kind in ("i32", "i64") else buffers
                ), (name, param)
                texts += [*what["dims"], *what["strides"], what.get("offset", 0)] if kind == "tensor_map" else []
            for text in texts:
                assert parse(str(text)).names() <= op.scalar_names(), (name, text)


FAULTS = [
    (dict(op="none"), "op: got 'none', expected one of block_scores"),
    (dict(select=(("path", "decode"),)), "expected a value of each of path, format, scale_layout"),
    (dict(select=(("path", "both"), ("format", "nvfp4"), ("scale_layout", "public"))), "the op has no path 'both'"),
    (dict(scratch=sizes("rows")[0] * 2), "the op has no scratch of 'rows'"),
]


@pytest.mark.parametrize("change, told", FAULTS, ids=[told for _, told in FAULTS])
def test_a_variant_that_contradicts_its_op_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(next(v for v in VARIANTS if v.op == "block_scores"), **change)


def test_a_choice_is_an_attribute_of_a_variant():
    variant = next(v for v in VARIANTS if v.op == "block_scores")
    assert (variant.path, variant.format, variant.scale_layout) == tuple(variant.choices.values())
    with pytest.raises(AttributeError, match="a variant of block_scores has no 'colour'"):
        variant.colour


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_scratch_of_a_call_holds_what_every_variant_that_it_may_run_uses(fmt):
    """The bytes that the lowering requests (configs) against those that the handler checks (the manifest's expression), for every prefill."""
    rng = random.Random(0)
    of_format = [
        v
        for v in manifest.read(manifest.DEFAULT_FOLDER)["variants"]
        if v["op"] == "block_scores" and v["select"]["path"] == "prefill" and v["select"]["format"] == fmt
    ]
    formulas = {(v["repeat"], v["scratch"]) for v in of_format}
    assert {repeat for repeat, _ in formulas} == {False, True}
    for _ in range(200):
        seqs, tokens, heads, pages = (
            rng.randint(0, 600),
            rng.choice([0, 1, 127, 128, 129, rng.randint(0, 10**6)]),
            rng.randint(1, 64),
            rng.randint(1, 10**5),
        )
        values = {"num_seqs": seqs, "tokens": tokens, "heads_kv": heads, "pages_per_pass": pages}
        for repeat, text in formulas:
            need = parse(text).value(values)
            assert need == scratch_bytes(fmt, seqs, tokens, heads, pages if repeat else None, 0 if repeat else pages)


@pytest.mark.parametrize("warpgroups", (0, 5))
def test_a_decode_of_no_or_too_many_warps_is_refused(warpgroups):
    """Five warpgroups would fit shared memory, and write beside their tables."""
    from jax_fp4_indexer.kernels.block_scores.sm90_decode import DecodeKernel
    from jax_fp4_indexer.kernels.block_scores.sm90_decode_config import DecodeConfig
    from jax_fp4_indexer.kernels.block_scores.sm90_decode_wide_config import WideDecodeConfig

    with pytest.raises(ValueError, match=f"{4 * warpgroups} warps, of 1 to 16"):
        DecodeKernel(DecodeConfig(warpgroups=warpgroups))
    assert WideDecodeConfig(warpgroups=warpgroups).fits()
