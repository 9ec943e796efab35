"""Inline PTX: the one function that all others of `device/ptx_*.py` and of the tensor cores are made with."""

from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm


def asm(text, outs, ins, constraints, pure=True):
    """Inline PTX. `outs` is a list of DSL types; returns nothing, one value, or a tuple."""
    values = [v.ir_value() if hasattr(v, "ir_value") else v for v in ins]
    flags = dict(is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT)
    if not outs:
        llvm.inline_asm(None, values, text, constraints, has_side_effects=True, **flags)
        return None
    if len(outs) == 1:
        return outs[0](
            llvm.inline_asm(outs[0].mlir_type, values, text, constraints, has_side_effects=not pure, **flags)
        )
    struct = ir.Type.parse("!llvm.struct<(" + ", ".join(str(o.mlir_type) for o in outs) + ")>")
    packed = llvm.inline_asm(struct, values, text, constraints, has_side_effects=not pure, **flags)
    return tuple(o(llvm.extractvalue(o.mlir_type, packed, [i])) for i, o in enumerate(outs))
