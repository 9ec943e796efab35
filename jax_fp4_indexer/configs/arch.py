"""Hardware facts of the architectures that cubins are built for, and which cubin runs on which device.

Sources: CUDA C++ Programming Guide 13, "Compute Capabilities", table "Technical Specifications per Compute Capability" (registers, threads, shared
memory) and "Binary Compatibility"; SM counts from NVIDIA's architecture white papers (A100, H100 SXM5/H200, B200, B300, RTX PRO 6000/RTX 5090).
SM counts are for explanation only: the launcher asks the device.
"""

import dataclasses
import re

KIB = 1024
RESERVED_SHARED_PER_CTA = (
    1 * KIB
)  # taken by the system from the SM's share for every resident CTA, on every arch since 8.0
REGISTERS_PER_SM = 64 * KIB  # 32-bit registers, every arch since 8.0
REGISTER_UNIT_PER_WARP = 256  # a warp's registers are handed out in units of this many
MAX_THREADS_PER_CTA = 1024
MAX_REGISTERS_PER_THREAD = 255


@dataclasses.dataclass(frozen=True)
class Arch:
    """One compile target.

    name            as the compiler spells it, "sm_90a"
    card            a card of this architecture, for messages
    sms             SMs of that card
    shared_per_cta  bytes of shared memory one CTA may use, static and dynamic together, on every device that the cubin runs on
    shared_per_sm   bytes an SM has, on `card`
    threads_per_sm  resident threads, on `card`
    """

    name: str
    card: str
    sms: int
    shared_per_cta: int
    shared_per_sm: int
    threads_per_sm: int

    @property
    def exact(self):
        """True: runs on its own compute capability only ("a" targets). False: on every minor version from its own upwards."""
        return self.name.endswith("a")

    @property
    def capability(self):
        """(major, minor) that the target is compiled for."""
        return capability_of(self.name)

    def ctas_per_sm(self, threads, registers, shared_bytes):
        """Resident CTAs an SM of `card` holds: the least of what threads, registers (a thread) and shared memory (bytes a CTA) allow."""
        warps = -(-threads // 32)
        warp_registers = -(-registers * 32 // REGISTER_UNIT_PER_WARP) * REGISTER_UNIT_PER_WARP
        limits = [self.threads_per_sm // (warps * 32), self.shared_per_sm // (shared_bytes + RESERVED_SHARED_PER_CTA)]
        if registers:
            limits.append(REGISTERS_PER_SM // (warp_registers * warps))
        return min(limits)


ARCHS = {
    a.name: a
    for a in (
        # sm_80 cubins also run on 8.6 and 8.9, whose CTAs may use 99 KiB only: that is the limit to keep.
        Arch("sm_80", "A100", 108, 99 * KIB, 164 * KIB, 2048),
        Arch("sm_90a", "H100/H200", 132, 227 * KIB, 228 * KIB, 2048),
        Arch("sm_100a", "B200", 148, 227 * KIB, 228 * KIB, 2048),
        Arch("sm_103a", "B300", 148, 227 * KIB, 228 * KIB, 2048),
        Arch("sm_120a", "RTX PRO 6000 Blackwell", 188, 99 * KIB, 100 * KIB, 1536),
    )
}


def capability_of(arch):
    """ "sm_103a" -> (10, 3)."""
    match = re.fullmatch(r"sm_(\d+)(\d)a?", arch)
    if not match:
        raise ValueError(f"arch: got {arch!r}, expected sm_<major><minor>[a], e.g. one of {', '.join(ARCHS)}")
    return int(match[1]), int(match[2])


def runs_on(arch, capability):
    """Whether a cubin for `arch` ("sm_90a") runs on a device of compute capability `capability` ((major, minor)).

    "a" targets run on exactly their capability; the others on the same major version from their own minor version upwards.
    """
    major, minor = capability_of(arch)
    if arch.endswith("a"):
        return (major, minor) == tuple(capability)
    return major == capability[0] and minor <= capability[1]


def archs_for(capability: str) -> list[str]:
    """The arch, in a list, whose cubins a GPU of compute capability "9.0" takes; an empty list where none is built for it."""
    numbers = tuple(int(part) for part in capability.split("."))
    return [name for name in ARCHS if runs_on(name, numbers)]
