"""Integer arithmetic that kernels share, on DSL integers and on Python ones alike unless said otherwise."""

import cutlass
from cutlass import Int32, Int64


def clamp(x, low, high):
    """x, or the nearer end of low .. high. Where low > high (which no caller allows) it is low."""
    return cutlass.max(cutlass.min(x, high), low)


def saturate(x: Int64) -> Int32:
    """The Int32 that is nearest."""
    return Int32(clamp(x, Int64(-(2**31)), Int64(2**31 - 1)))


def clamp_from_below(x, low, high):
    """As `clamp`, the lower end first: where low > high it is high. The prefill schedule is compiled with this order
    of the two instructions."""
    return cutlass.min(cutlass.max(x, low), high)


def saturate_from_below(x: Int64) -> Int32:
    """As `saturate`, with `clamp_from_below`."""
    return Int32(clamp_from_below(x, Int64(-(2**31)), Int64(2**31 - 1)))


def signed(word: int) -> int:
    """A 32-bit pattern (Python int, taken modulo 2^32) as the signed number that Int32 wants."""
    word &= 0xFFFFFFFF
    return word - 2**32 if word >= 2**31 else word
