"""Gates and scans, on made-up facts and on the kernels that are built; what needs a compiler is in test_build.py."""

import dataclasses
import re

import pytest

from jax_fp4_indexer.aot import inspect, manifest
from jax_fp4_indexer.configs.arch import ARCHS, runs_on

GOOD = inspect.Cubin("k", 168, 0, 1024, (8, 4), 1000, {"HGMMA": 32, "WARPGROUP.ARRIVE": 4, "WARPGROUP.DEPBAR": 4})
LAUNCH = {
    "block": [384, 1, 1],
    "cluster": [1, 1, 1],
    "grid": {"per_sm": 1},
    "dynamic_shared_bytes": 200_000,
    "params": [{"buffer": "q"}, {"i32": "tokens"}],
    "expect": {"HGMMA": (32, 32)},
}


def test_a_good_kernel_has_no_problems():
    assert inspect.problems(GOOD, LAUNCH, "sm_90a") == []


@pytest.mark.parametrize(
    "facts, launch, word",
    [
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
    ],
)
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
    assert inspect.param_sizes([{"tensor_map": {"buffer": "k"}}, {"i64": "n"}, {"i32": "n"}, {"buffer": "q"}]) == (
        128,
        8,
        4,
        8,
    )


CHAIN = """
        /*0000*/                   WARPGROUP.ARRIVE ;
        /*0010*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR40], RZ, !UPT ;
        /*0020*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR36], R24, gsb0 ;
        /*0030*/                   {between} ;
        /*0040*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0050*/                   FMNMX R31, R24, R25, !PT ;
"""


@pytest.mark.parametrize(
    "between, registers",
    [
        ("FADD R32, R24, R25", []),
        ("FADD R23, R1, R2", []),
        ("STG.E desc[UR4][R24.64], R5", []),
        ("@!P0 FADD R31, R1, R2", [31]),
        ("LDS.128 R20, [R4]", []),
        ("LDS.128 R21, [R4]", [24]),
        ("IMAD.WIDE R30, R1, 0x4, R2", [30, 31]),
    ],
)
def test_a_write_to_an_accumulator_in_flight_is_found(between, registers):
    """A 64x16 tile holds 8 registers a thread, R24 .. R31; the maximum after the wait may write them."""
    assert [r for _, r in inspect.clobbers(CHAIN.format(between=between))] == registers


def test_a_group_left_in_flight_by_the_wait_stays_watched():
    two = CHAIN.format(between="HGMMA.64x16x16.F32.BF16 R40, gdesc[UR36], R40, gsb0").replace("gsb0, 0x0", "gsb0, 0x1")
    assert inspect.clobbers(two) == []
    assert [r for _, r in inspect.clobbers(two + "        /*0060*/   MOV R41, RZ ;\n")] == [41]


@pytest.mark.parametrize(
    "between, registers",
    [
        ("MOV R18, RZ", [18]),
        ("LDS.128 R12, [R4]", []),
        ("LDS.128 R13, [R4]", [16]),
        ("LDSM.16.M88.4 R16, [R4]", [16, 17, 18, 19]),
        ("LDSM.16.M88.2 R14, [R4]", []),
        ("SHFL.BFLY PT, R19, R1, 0x1, 0x1f", [19]),
        ("LOP3.LUT P0, R17, R1, R2, RZ, 0xc0, !PT", [17]),
        ("ISETP.NE.AND P0, PT, R16, RZ, PT", []),
        ("MOV R20, R16", []),
    ],
)
def test_a_write_to_operand_a_in_flight_is_found(between, registers):
    """A in registers takes four of them: R16 .. R19."""
    chain = CHAIN.replace("R24, gdesc[UR40]", "R24, R16, gdesc[UR40]").format(between=between)
    assert [r for _, r in inspect.clobbers(chain)] == registers


# Two WGMMAs of one accumulator; {between} and {after} stand where it must be left alone.
PTX = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 tile)
{{
  .reg .f32 %f<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [tile];
  mov.f32 %f0, 0f00000000; mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f00000000;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, %rd2, %rd2, 1, 1, 1, 0, 0;
  {between}
  wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, %rd2, %rd2, 1, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  {after}
  st.global.f32 [%rd1], %f0; st.global.f32 [%rd1+4], %f1; st.global.f32 [%rd1+8], %f2; st.global.f32 [%rd1+12], %f3;
  ret;
}}
"""
WAIT = "wgmma.wait_group.sync.aligned 0;"


def test_ptxas_of_the_package_says_where_it_serialises():
    assert inspect.ptxas_problems(PTX.format(between="", after=WAIT), "sm_90a") == ([], [])
    for between, after in (("add.f32 %f0, %f0, %f0;", WAIT), ("", "")):
        problems, unchecked = inspect.ptxas_problems(PTX.format(between=between, after=after), "sm_90a")
        assert (
            unchecked == []
            and len(problems) == 1
            and "C7517" in problems[0]
            and "wait_group is injected" in problems[0]
        )


@pytest.mark.parametrize(
    "line",
    [
        "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
        "insufficient register resources in function 'k'",
        "ptxas info    : (C7514) Potential Performance Loss",
        "ptxas info    : (C7517) wgmma.wait_group is injected in around line 13",
        "ptxas info    : Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
        "ill formed pipeline stage in the function 'k'",
    ],
)
def test_each_word_for_serialised_is_known(monkeypatch, line):
    says = lambda text, status=0: (
        lambda *a, **k: type(
            "Done", (), {"stdout": "", "stderr": f"ptxas info    : 0 bytes gmem\n{text}\n", "returncode": status}
        )()
    )
    monkeypatch.setattr(inspect.subprocess, "run", says(line))
    assert inspect.ptxas_problems("", "sm_90a") == ([f"ptxas: {line.partition(':')[2].strip()}"], [])
    monkeypatch.setattr(inspect.subprocess, "run", says("ptxas fatal : Unsupported .version 99.0", 1))
    problems, (unchecked,) = inspect.ptxas_problems("", "sm_90a")
    assert (
        problems == []
        and "Unsupported .version 99.0" in unchecked
        and "pip install --upgrade nvidia-cuda-nvcc" in unchecked
    )


def test_gates_without_their_program_say_so(monkeypatch):
    """Not from PATH: what lies there may be older than the compiler."""
    monkeypatch.setattr(inspect.sys, "path", [])
    monkeypatch.setattr(inspect.shutil, "which", lambda name: "/usr/bin/true" if name == "ptxas" else None)
    assert inspect.package_tool("ptxas") is None
    assert inspect.ptxas_problems("", "sm_90a") == (
        [],
        ["ptxas was not asked whether it serialises WGMMA: it is not in this Python; pip install nvidia-cuda-nvcc"],
    )
    problems, (unchecked,) = inspect.hazard_problems(b"")
    assert problems == [] and "pip install nvidia-cuda-nvdisasm" in unchecked


@pytest.fixture(scope="module")
def matrix_cubins():
    """{name: bytes} of every kernel built for sm_90a that uses WGMMA."""
    folder = manifest.DEFAULT_FOLDER
    found = {
        entry["name"]: (folder / entry["cubin"]).read_bytes()
        for entry in manifest.read(folder)["kernels"]
        if entry["arch"] == "sm_90a"
    }
    return {name: data for name, data in found.items() if inspect.matrix_kernel(inspect.read_cubin(data))}


def test_no_register_of_a_built_kernel_is_written_in_flight(matrix_cubins):
    assert len(matrix_cubins) >= 18
    for name, data in matrix_cubins.items():
        assert inspect.hazard_problems(data) == ([], []), name


def test_a_fault_in_a_built_kernel_is_found(matrix_cubins, monkeypatch):
    """A move is put between a matrix instruction and the wait, with a register of the accumulator or of A as its
    result."""
    data = next(data for name, data in matrix_cubins.items() if ".prefill.nvfp4" in name)
    sound = inspect.disassemble
    chain = re.compile(r"( +/\*\w+\*/ +HGMMA\.64x128x16\S* R(\d+), R(\d+), [^\n]*gsb0[^\n]*\n)")

    def with_a_write_to(offset, operand):
        def disassemble(path):
            text = sound(path)
            found = chain.search(text)
            register = int(found[operand]) + offset
            return (
                text[: found.end()]
                + f"        /*ffff0*/                   MOV R{register}, RZ ;\n"
                + text[found.end() :]
            )

        return disassemble

    for operand, offset in ((2, 0), (2, 63), (3, 0), (3, 3)):
        monkeypatch.setattr(inspect, "disassemble", with_a_write_to(offset, operand))
        (problem,), unchecked = inspect.hazard_problems(data)
        assert (
            re.match(r"WGMMA in flight: R\d+ is written before the wait, by 'MOV R\d+, RZ'", problem)
            and unchecked == []
        )


@pytest.mark.parametrize(
    "arch, capability, expected",
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_80", (8, 9), True),
        ("sm_80", (7, 5), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_100a", (10, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_103a", (10, 3), True),
        ("sm_103a", (10, 0), False),
        ("sm_120a", (12, 0), True),
        ("sm_120a", (12, 1), False),
    ],
)
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
