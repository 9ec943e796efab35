"""One launch of a probe, and the frame of its PTX."""

import dataclasses

import numpy as np

UNTOUCHED = 0xDEADBEEF

_FRAME = """.version 8.6
.target sm_90a
.address_size 64
.shared .align 1024 .b8 smem[{shared}];
.visible .entry probe(.param .u64 in, .param .u64 out{map_parameter}) {directives}
{{
  .reg .pred %p<8>;
  .reg .b16 %h<8>;
  .reg .b32 %r<64>;
  .reg .f32 %f<32>;
  .reg .b64 %rd<24>;
  ld.param.u64 %rd0, [in];
  ld.param.u64 %rd1, [out];
  {map_address}
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, %ctaid.x;
  and.b32 %r2, %r0, 31;           // lane
  mov.u32 %r3, smem;
{body}
  ret;
}}
"""


@dataclasses.dataclass
class Launch:
    """`out` is uint32 [words], filled with `fill` before; `data` what `in` points to. `body` uses %r0 tid, %r1 CTA, %r2 lane, %r3 smem, %rd0 in,
    %rd1 out, %rd2 the tensor map (a recipe of ptxsim.tensor_map whose "buffer" is in or out).

    alone   nobody knows what the card does: it runs in a process of its own there
    """

    name: str
    body: str
    data: np.ndarray
    words: int
    threads: int = 32
    grid: int = 1
    cluster: int = 0
    shared: int = 16384
    map: dict = None
    fill: int = UNTOUCHED
    alone: bool = False

    @property
    def ptx(self):
        cluster = f".explicitcluster .reqnctapercluster {self.cluster}, 1, 1" if self.cluster else ""
        return _FRAME.format(
            body=self.body,
            shared=self.shared,
            directives=f".reqntid {self.threads}, 1, 1 {cluster}",
            map_parameter=", .param .align 64 .b8 map[128]" if self.map else "",
            map_address="mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2;" if self.map else "",
        )


def lines(*parts):
    return "\n".join(f"  {part}" for part in parts)


NOTHING = np.zeros(4, np.uint32)
