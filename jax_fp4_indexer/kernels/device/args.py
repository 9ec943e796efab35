"""The parameters of every block-score kernel, in order: the one statement of the launch ABI (the manifest is written from it)."""
import dataclasses

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.runtime import make_ptr

# name -> (element type, alignment in bytes that the FFI handler guarantees)
_BUFFERS = {
    "q": (cutlass.Uint8, 128), "k": (cutlass.Uint8, 128), "q_scale": (cutlass.Uint8, 32), "k_scale": (cutlass.Uint8, 32),
    "kv_indices": (cutlass.Int32, 4), "cu_seqlens_q": (cutlass.Int32, 4), "cu_seqlens_k": (cutlass.Int32, 4),
    "cu_page_offsets": (cutlass.Int32, 4), "qo_offset": (cutlass.Int32, 4), "head_scale": (cutlass.Float32, 4),
    "scores": (cutlass.Float32, 16), "scratch": (cutlass.Uint8, 128),
}


@dataclasses.dataclass(frozen=True)
class BlockScoresArgs:
    """Pointers to global memory, then sizes. See docs/architecture.md for shapes and meaning."""
    q: cute.Pointer
    k: cute.Pointer
    q_scale: cute.Pointer
    k_scale: cute.Pointer
    kv_indices: cute.Pointer
    cu_seqlens_q: cute.Pointer
    cu_seqlens_k: cute.Pointer
    cu_page_offsets: cute.Pointer
    qo_offset: cute.Pointer
    head_scale: cute.Pointer
    scores: cute.Pointer
    scratch: cute.Pointer
    num_seqs: Int32
    num_pages: Int32
    num_indices: Int32
    tokens: Int32
    k_tiles: Int32
    heads_q: Int32
    heads_kv: Int32
    mask: Int32
    first_page: Int32
    pages_per_pass: Int32

    @classmethod
    def example(cls):
        """Arguments to compile with (types only; no memory behind them)."""
        values = {}
        for field in dataclasses.fields(cls):
            if field.name in _BUFFERS:
                dtype, align = _BUFFERS[field.name]
                values[field.name] = make_ptr(dtype, 0, cute.AddressSpace.gmem, assumed_align=align)
            else:
                values[field.name] = Int32(1)
        return cls(**values)

    @classmethod
    def manifest_params(cls):
        """The manifest's `params` list."""
        return [{"buffer": f.name} if f.name in _BUFFERS else {"i32": f.name} for f in dataclasses.fields(cls)]
