"""Ways through SASS: which one is taken, what it counts, what one warp alone takes for it."""

import re
import struct

import pytest

from jax_fp4_indexer.aot import manifest
from jax_fp4_indexer.aot.flow import NO_SCOREBOARD, Flow

SASS = """
        /*0000*/                   MOV R1, RZ ;
        /*0010*/              @!P0 EXIT ;
.L_x_1:
        /*0020*/                   LDS R2, [R1] ;
        /*0030*/               @P1 BRA `(.L_x_2) ;
        /*0040*/                   FFMA R3, R2, R2, R3 ;
        /*0050*/                   FFMA R3, R2, R2, R3 ;
        /*0060*/                   FFMA R3, R2, R2, R3 ;
        /*0070*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*0080*/                   BRA.DIV UR4, `(.L_x_4) ;
        /*0090*/                   FMUL R3, R2, R2 ;
.L_x_3:
        /*00a0*/                   STS [R1], R3 ;
        /*00b0*/               @P2 BRA P3, `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.L_x_4:
        /*00d0*/                   BRA `(.L_x_3) ;
"""


def word(stall=1, releases=NO_SCOREBOARD, waits=()):
    return stall << 41 | releases << 46 | sum(1 << 52 + b for b in waits)


WORDS = {2: word(2, releases=0), 4: word(4, waits=[0]), 5: word(4), 6: word(4), 9: word(5, waits=[0]), 10: word(3)}


@pytest.fixture
def flow():
    return Flow(SASS, b"".join(struct.pack("<QQ", 0, WORDS.get(i, word())) for i in range(14)))


def test_the_shortest_way_around(flow):
    short = flow.turn("FFMA", [])
    assert flow.instructions(short) == [2, 3, 8, 9, 10, 11]  # not over .L_x_4, which only diverged warps take
    long = flow.turn("FFMA", ["FFMA"])
    assert flow.instructions(long) == [2, 3, 4, 5, 6, 7, 10, 11]
    assert flow.mix_of(long)["fma"] == 3 and flow.mix_of(long).opcodes["STS"] == 1


def test_names_are_passed_in_order(flow):
    assert flow.instructions(flow.reach(["FMUL", "FFMA"])) == [0, 1, 2, 3, 8, 9, 10, 11, 2, 3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="no way from instruction 2 to 2 past STS, MOV"):
        flow.turn("FFMA", ["STS", "MOV"])
    assert flow.turn_of(["LDS", "STS"], ["FMUL"]) == flow.turn("FFMA", [])
    with pytest.raises(ValueError, match="no loop holds LDS, MOV"):
        flow.turn_of(["LDS", "MOV"], [])


def test_clocks_of_a_warp_alone(flow):
    latencies = {"lds": 30, "other": 20}
    # LDS issues at 0, its result is there at 30, where FFMA waits for it; 4 clocks each; branch 1, STS 3, branch 1
    assert flow.alone(flow.turn("FFMA", ["FFMA"]), latencies) == 30 + 3 * 4 + 1 + 3 + 1
    # The empty branch of diverged warps at 3; FMUL waits
    assert flow.alone(flow.turn("FFMA", []), latencies) == 30 + 5 + 3 + 1


def test_a_cubin_shorter_than_its_text_is_an_error():
    with pytest.raises(ValueError, match="1 instructions in the cubin, 14 in its disassembly"):
        Flow(SASS, bytes(16))


@pytest.mark.parametrize(
    "arch, name",
    [
        ("sm_90a", "decode.nvfp4.public.n16"),
        ("sm_90a", "prefill_direct.mxfp4.public"),
        ("sm_100a", "prefill.nvfp4.public"),
        ("sm_120a", "portable_decode.mxfp4.public.n8"),
    ],
)
def test_scheduling_fields_are_where_we_read_them(arch, name):
    """Whoever first mentions what a load brings waits for the load's scoreboard, then or before."""
    flow = Flow.read(manifest.DEFAULT_FOLDER / arch / f"block_scores.{name}.cubin")
    assert len(flow.words) >= len(flow.lines)
    uses = 0
    for first, end in flow.blocks.items():
        for i in range(first, end):
            match = re.search(r"\b(LDG|LDS)\S* (R\d+),", flow.lines[i])
            if not match:
                continue
            board = flow.words[i] >> 46 & 7
            if board == NO_SCOREBOARD:  # of loads of one kind in a row the last may stand for all: they come in order
                continue
            use = next((j for j in range(i + 1, end) if re.search(rf"\b{match[2]}\b", flow.lines[j])), None)
            if use is not None and not re.search(
                rf"LD\S+ {match[2]},", flow.lines[use]
            ):  # the same register, under the opposite predicate
                uses += 1
                assert any(flow.words[j] >> 52 + board & 1 for j in range(i + 1, use + 1)), (
                    flow.lines[i],
                    flow.lines[use],
                )
    assert uses >= 20


@pytest.mark.parametrize("fmt, mma, products", [("nvfp4", "HMMA", 32), ("mxfp4", "IMMA", 16)])
def test_a_slice_of_the_narrow_decode(fmt, mma, products):
    """32 keys in the fast form, whole and once; the other forms, which have such instructions too, lie elsewhere. Nothing couples a warp to another one after the start."""
    for layout in ("public", "preordered_mma"):
        flow = Flow.read(manifest.DEFAULT_FOLDER / "sm_90a" / f"block_scores.decode.{fmt}.{layout}.n16.cubin")
        keys = flow.mix_of(flow.turn(mma, [mma]))
        assert keys.opcodes[mma] == products < len(flow.find(mma)) + len(flow.find("HMMA"))
        assert not {"BAR", "UBLKCP", "STG", "STS", "SHFL"} & set(keys.opcodes) and keys.opcodes["LDS"] >= 8
        assert len(flow.find("BAR")) == 1


@pytest.mark.parametrize("width", (32, 64))
@pytest.mark.parametrize("fmt", ("nvfp4", "mxfp4"))
def test_a_page_of_the_wide_decode(fmt, width):
    flow = Flow.read(manifest.DEFAULT_FOLDER / "sm_90a" / f"block_scores.decode.{fmt}.public.n{width}.cubin")
    page = flow.mix_of(flow.turn("HGMMA", ["HGMMA", "STS.128", "HGMMA"]))
    assert page.opcodes["HGMMA"] == 16 and page.opcodes["STS"] == width // 16 and "HMMA" not in page.opcodes
