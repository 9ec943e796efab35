"""Reading loops from SASS."""

import re

import pytest

from jax_fp4_indexer.aot import inspect, manifest
from jax_fp4_indexer.aot.loops import Code

SASS = """
        /*0000*/                   MOV R1, RZ ;
.L_x_1:
        /*0010*/                   IADD3 R1, PT, PT, R1, 0x1, RZ ;
.L_x_2:
        /*0020*/              @!P0 FFMA R2, R3, R4, R2 ;
        /*0030*/                   NOP ;
        /*0040*/               @P1 BRA `(.L_x_2) ;
        /*0050*/                   BRA.U UP0, `(.L_x_3) ;
        /*0060*/                   LDTM.x32 R4, tmem[UR8] ;
.L_x_3:
        /*0070*/                   FMNMX3.NAN R4, R4, R8, R9, !PT ;
        /*0080*/              @!P2 BRA `(.L_x_1) ;
        /*0090*/                   EXIT ;
"""


def test_nested_loops_are_counted_apart():
    code = Code(SASS)
    assert code.loops == [(1, 8), (2, 4)]
    assert code.loop("FFMA") == (2, 4) and code.loop("LDTM") == (1, 8)
    outer = code.mix(code.loop("LDTM"))
    assert outer.total == 5 and outer["alu"] == 2 and outer["tmem"] == 1 and outer["fma"] == 0
    assert code.mix(code.loop("FFMA")).opcodes == {"FFMA": 1, "BRA": 1}


def test_no_loop_is_an_error():
    with pytest.raises(ValueError, match="no loop around EXIT number 0; there are 1 of it and 2 loops"):
        Code(SASS).loop("EXIT")


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_counts_of_tensor_instructions_agree_with_the_disassembler(arch):
    cubin = manifest.DEFAULT_FOLDER / arch / "block_scores.prefill.nvfp4.public.cubin"
    counts = inspect.read_cubin(cubin.read_bytes()).counts
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", inspect.disassemble(cubin), re.M)
    for name in ("UTCOMMA", "UTCCP", "UTMALDG"):
        assert counts[name] == sum(n.split(".")[0] == name for n in names) > 0
    assert counts.get("LDTM.STAT", 0) == sum(n.startswith("LDTM.STAT") for n in names) == (arch == "sm_103a")
    assert counts["LDTM"] == sum(n.startswith("LDTM") and "STAT" not in n for n in names) > 0
