"""Gates and scans on made-up facts; what needs a compiler is in test_build.py."""
import dataclasses

import pytest

from jax_fp4_indexer.aot import inspect
from jax_fp4_indexer.configs.arch import ARCHS, runs_on

GOOD = inspect.Cubin("k", 168, 0, 1024, (8, 4), 1000, {"HGMMA": 32, "WARPGROUP.ARRIVE": 4, "WARPGROUP.DEPBAR": 4})
LAUNCH = {"block": [384, 1, 1], "cluster": [1, 1, 1], "grid": {"per_sm": 1}, "dynamic_shared_bytes": 200_000,
          "params": [{"buffer": "q"}, {"i32": "tokens"}], "expect": {"HGMMA": (32, 32)}}


def test_a_good_kernel_has_no_problems():
    assert inspect.problems(GOOD, LAUNCH, "sm_90a") == []


@pytest.mark.parametrize("facts, launch, word", [
    ({"stack_bytes": 16}, {}, "spills: 16 bytes"),
    ({"counts": {**GOOD.counts, "STL": 1}}, {}, "0 bytes of stack a thread, 0 LDL, 1 STL"),
    ({"registers": 176}, {}, "registers: 176 a thread for 384 threads"),
    ({}, {"block": [384, 3, 1]}, "1152 threads"),
    ({}, {"block": [100, 1, 1]}, "whole warps"),
    ({}, {"dynamic_shared_bytes": 227 * 1024 - 1023}, "1024 static + 231425 dynamic"),
    ({}, {"grid": {"per_sm": 2}}, "2 CTAs an SM requested, 1 fit"),
    ({"param_bytes": (8, 8)}, {}, "the cubin takes [8, 8] bytes, the manifest's list has [8, 4]"),
    ({"param_bytes": (8,)}, {}, "the cubin takes [8] bytes"),
    ({"counts": {}}, {}, "0 HGMMA; expected 32 to 32"),
    ({"counts": {**GOOD.counts, "WARPGROUP.ARRIVE": 32}}, {}, "WGMMA is serialised"),
    ({"counts": {**GOOD.counts, "WARPGROUP.DEPBAR": 33}}, {}, "WGMMA is serialised"),
])
def test_each_gate_closes(facts, launch, word):
    found = inspect.problems(dataclasses.replace(GOOD, **facts), {**LAUNCH, **launch}, "sm_90a")
    assert any(word in sentence for sentence in found), found


def test_the_limits_themselves_pass():
    assert inspect.problems(GOOD, {**LAUNCH, "dynamic_shared_bytes": 227 * 1024 - 1024}, "sm_90a") == []
    assert inspect.problems(dataclasses.replace(GOOD, registers=64), {**LAUNCH, "block": [1024, 1, 1]}, "sm_90a") == []


def test_not_a_cubin():
    with pytest.raises(ValueError, match="64-bit little-endian ELF"):
        inspect.read_cubin(b"not an elf file at all")


def test_tensor_maps_and_wide_scalars_are_sized():
    assert inspect.param_sizes([{"tensor_map": {"buffer": "k"}}, {"i64": "n"}, {"i32": "n"}, {"buffer": "q"}]) == (128, 8, 4, 8)


CHAIN = """
        /*0000*/                   WARPGROUP.ARRIVE ;
        /*0010*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR40], RZ, !UPT ;
        /*0020*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR36], R24, gsb0 ;
        /*0030*/                   {between} ;
        /*0040*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0050*/                   FMNMX R31, R24, R25, !PT ;
"""


@pytest.mark.parametrize("between, registers", [
    ("FADD R32, R24, R25", []), ("FADD R23, R1, R2", []), ("STG.E desc[UR4][R24.64], R5", []), ("@!P0 FADD R31, R1, R2", [31]),
    ("LDS.128 R20, [R4]", []), ("LDS.128 R21, [R4]", [24]), ("IMAD.WIDE R30, R1, 0x4, R2", [30, 31]),
])
def test_a_write_to_an_accumulator_in_flight_is_found(between, registers):
    """A 64x16 tile holds 8 registers a thread, R24 .. R31; the maximum after the wait may write them."""
    assert [r for _, r in inspect.clobbers(CHAIN.format(between=between))] == registers


def test_a_group_left_in_flight_by_the_wait_stays_watched():
    two = CHAIN.format(between="HGMMA.64x16x16.F32.BF16 R40, gdesc[UR36], R40, gsb0").replace("gsb0, 0x0", "gsb0, 0x1")
    assert inspect.clobbers(two) == []
    assert [r for _, r in inspect.clobbers(two + "        /*0060*/   MOV R41, RZ ;\n")] == [41]


def test_ptxas_is_asked_only_about_wgmma(monkeypatch):
    monkeypatch.setattr(inspect.shutil, "which", lambda name: "/bin/false")
    monkeypatch.setattr(inspect.subprocess, "run", lambda *a, **k: type("Done", (), {"stdout": "", "stderr": "ptxas info    : (C7514) Potential Performance Loss"})())
    assert inspect.ptxas_problems("wgmma.mma_async", "sm_90a") == ["ptxas C7514: WGMMA is serialised"]
    assert inspect.ptxas_problems("mma.sync", "sm_90a") == []
    monkeypatch.setattr(inspect.shutil, "which", lambda name: None)
    assert inspect.ptxas_problems("wgmma.mma_async", "sm_90a") == []


@pytest.mark.parametrize("arch, capability, expected", [
    ("sm_80", (8, 0), True), ("sm_80", (8, 6), True), ("sm_80", (8, 9), True), ("sm_80", (7, 5), False), ("sm_80", (9, 0), False),
    ("sm_90a", (9, 0), True), ("sm_90a", (10, 0), False), ("sm_100a", (10, 0), True), ("sm_100a", (10, 3), False),
    ("sm_103a", (10, 3), True), ("sm_103a", (10, 0), False), ("sm_120a", (12, 0), True), ("sm_120a", (12, 1), False),
])
def test_which_cubin_runs_where(arch, capability, expected):
    assert runs_on(arch, capability) is expected
    assert arch in ARCHS


def test_an_unknown_arch_is_named():
    with pytest.raises(ValueError, match="got 'gfx90a', expected sm_<major><minor>"):
        runs_on("gfx90a", (9, 0))


def test_resident_ctas():
    """An H200: 65536 registers and 228 KiB an SM, 1 KiB kept for every CTA."""
    h200 = ARCHS["sm_90a"]
    assert h200.ctas_per_sm(128, 64, 0) == 8
    assert h200.ctas_per_sm(128, 32, 0) == 16
    assert h200.ctas_per_sm(1024, 32, 0) == 2
    assert h200.ctas_per_sm(128, 32, 113 * 1024) == 2
    assert h200.ctas_per_sm(128, 32, 113 * 1024 + 1) == 1
