"""The figures of a row: shares and rates worked out from measured times. Used for new rows and for recorded ones.

Sustained times are held against what was measured sustained, bursts against bursts.
"""

from jax_fp4_indexer.bench import limits
from jax_fp4_indexer.bench.cases import BenchCase, How

KEPT_BUSY = 0.95  # from this share of the time on the power cap, not the host, sets the clock


def figures(
    case: BenchCase,
    how: How,
    *,
    burst_us: float,
    sustained_us: float,
    burst_mhz: float | None = None,
    sustained_mhz: float | None = None,
    rates: dict | None = None,
    multiprocessors: int | None = None,
    capability=None,
) -> dict:
    """Columns of a row:

    tflops, gbs                           of the burst: useful operations and logical bytes a second
    read_share, sustained_read_share      a plain read of the logical bytes at the rate of the same run / the time. At
                                          most 100 %.
    tensor_share, sustained_tensor_share  clocks that whole tiles keep the tensor cores busy / clocks of all SMs in the
                                          time, at the clock rate that was held. At most 100 %. None for a case that
                                          they do not bind.
    gemm_share, sustained_gemm_share      XLA's GEMM for as many operations / the time. A peer: above 100 % the op is
                                          faster.
    limit, limit_us, sustained_limit_us   the larger of read and GEMM, and its name

    Shares are None where something they need was not measured.
    """
    nbytes, work, issued = case.bytes(how), case.work(how), case.issued(how)
    found = {"tflops": sum(work.values()) / burst_us / 1e6, "gbs": nbytes / burst_us / 1e3, "limit": None}
    clocks = None if issued is None else limits.tensor_clocks(issued, capability)
    for prefix, us, mhz in (("", burst_us, burst_mhz), ("sustained_", sustained_us, sustained_mhz)):
        measured = rates and rates[prefix.rstrip("_") or "burst"]
        found[f"{prefix}read_share"] = limits.read_us(nbytes, measured) / us if rates else None
        found[f"{prefix}gemm_share"] = limits.gemm_us(work, measured) / us if rates else None
        found[f"{prefix}tensor_share"] = (
            clocks / (us * mhz * multiprocessors) if clocks and mhz and multiprocessors else None
        )
        name, floor_us = limits.floor(nbytes, work, measured) if rates else (None, None)
        found[f"{prefix}limit_us"] = floor_us
        found["limit"] = found["limit"] or name
    return found


def kept_busy(row: dict) -> bool:
    """Whether the device worked without a pause while a row's sustained time was taken."""
    return row.get("busy") is not None and row["busy"] >= KEPT_BUSY
