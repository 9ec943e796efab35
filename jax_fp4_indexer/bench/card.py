"""What the GPU says of itself while it works: power, clock, why the clock is lower than it could be. Through the
driver's management library."""

import ctypes
import os
import statistics

import jax

SM_CLOCK = 1  # NVML_CLOCK_SM
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, milliwatts
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "hardware power brake",
    0x100: "display clocks",
}


def memory_bytes(backend):
    """Memory that arrays may take: of the first GPU, or of this host."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit") if backend == "gpu" else None
    return limit or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_int),
        ("status", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    ]


class Card:
    """Samples of JAX's first GPU; where there is no such library or GPU, samples are nothing and summaries empty."""

    def __init__(self):
        self.samples, self._nvml, self._handle = [], None, ctypes.c_void_p()
        if jax.default_backend() != "gpu":
            return
        try:
            nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
        except OSError:
            return
        bus = ctypes.create_string_buffer(32)  # the two libraries count devices differently
        if (
            cuda.cuDeviceGetPCIBusId(bus, len(bus), jax.local_devices()[0].local_hardware_id) == 0
            and nvml.nvmlInit_v2() == 0
            and nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(self._handle)) == 0
        ):
            self._nvml = nvml

    def identity(self) -> dict:
        """dict(uuid, power_limit_w): which card of its kind this is, and the power cap that is set; {} where nothing
        tells."""
        if self._nvml is None:
            return {}
        uuid, limit = ctypes.create_string_buffer(96), ctypes.c_uint()
        if self._nvml.nvmlDeviceGetUUID(self._handle, uuid, len(uuid)) or self._nvml.nvmlDeviceGetEnforcedPowerLimit(
            self._handle, ctypes.byref(limit)
        ):
            return {}
        return {"uuid": uuid.value.decode(), "power_limit_w": limit.value / 1e3}

    def sample(self):
        """Keeps (SM MHz, watts, bit mask of reasons) of this moment."""
        if self._nvml is None:
            return
        clock, reasons, power = ctypes.c_uint(), ctypes.c_ulonglong(), _FieldValue(field=POWER_INSTANT)
        failed = (
            self._nvml.nvmlDeviceGetClockInfo(self._handle, SM_CLOCK, ctypes.byref(clock))
            or self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle, ctypes.byref(reasons))
            or self._nvml.nvmlDeviceGetFieldValues(self._handle, 1, ctypes.byref(power))
            or power.status
        )
        if not failed:
            self.samples.append((clock.value, (power.value & 0xFFFFFFFF) / 1e3, reasons.value))

    def summary(self):
        """dict(sm_mhz: median, power_w: median, reasons: [names of everything seen]) of the samples since the last
        summary; {} if there are none."""
        taken, self.samples = self.samples, []
        if not taken:
            return {}
        clocks, power, masks = zip(*taken)
        seen = [name for bit, name in REASONS.items() if any(mask & bit for mask in masks)]
        return {"sm_mhz": statistics.median(clocks), "power_w": round(statistics.median(power), 1), "reasons": seen}
