"""Constants of a card that the time model (model.py) takes: latencies, launch times, rates. Measured by kernels of a few lines that share nothing with the op's.

    python benchmarks/probe.py [--out FILE]         about ten seconds on an NVIDIA GPU of compute capability 9.0 or newer; default results/<card>/probe.json

| key | unit | what is timed |
|---|---|---|
| `launch_us` | us | a kernel in a captured graph that does nothing, start to start, by `<CTAs per SM>x<threads>+<KB of shared memory>`: differences of graphs of 20 and 60; of one, every warp ends with a store |
| `dram`, `l2` | clk | dependent 4-byte loads of one thread, 1 MB apart in 512 MB; the same again |
| `copy` | clk | cp.async.bulk of 8192 + 1024 bytes to one mbarrier, from before the first copy's issue to the barrier's completion: `[first, last]` of 1 or 16 pages a CTA on one SM, and on all |
| `code` | clk | 2,048 instructions without a branch: the first time after 512 MB of other data, the first time right after another launch of the same, the second time in a launch |
| `lds, shfl, redux, mma_f16, mma_s8, barrier` | clk | one in a chain of 64 of one warp; m16n8k16, m16n8k32; `bar.sync` of 128 threads |
| `wgmma_s8, wgmma_bf16` | clk | of an SM for one m64n128k32, m64n128k16, operands in shared memory, in chains of four as in the prefill kernels, by warpgroups and data (capability 9.0 only) |
| `wgmma_turns` | clk | the same in s8, with a chain of 80 multiplications after every chain of four: from one chain of a warpgroup to its next |
| `scattered_sectors_us` | 1/us | 4-byte stores of neighbouring threads 16 bytes apart, all SMs: 32-byte sectors written (a sector written four times counts four times) |
| `write_gbs, read_gbs` | GB/s | 16-byte stores and loads of neighbouring threads, 1 GB |
"""

import argparse
import ctypes
import json
import pathlib
import statistics

BIG = 1 << 30  # bytes of the buffer that all probes read and write
CHAIN = 64
TURNS = 2000  # chains of four wgmma: 0.3 ms of a card at its full clock
_HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 128 .b8 smem[];\n"
_REGISTERS = "{ .reg .pred p; .reg .b32 r<64>; .reg .b64 d<64>; .reg .f32 f<64>;"
_TID = "mov.u32 r1, %tid.x; mov.u32 r2, %ctaid.x; mov.u32 r3, %ntid.x; mov.u32 r4, %nctaid.x; mad.lo.u32 r5, r2, r3, r1; mul.lo.u32 r6, r3, r4;"


def entry(name, body):
    """A kernel of (out: u64, data: u64, n: u32, m: u32), which are d1, d2, r60, r61."""
    return (
        f".visible .entry {name}(.param .u64 a, .param .u64 b, .param .u32 n, .param .u32 m) {_REGISTERS}\n"
        f"ld.param.u64 d1, [a]; ld.param.u64 d2, [b]; ld.param.u32 r60, [n]; ld.param.u32 r61, [m];\n{body}\nEXIT: ret; }}\n"
    )


def timed(body, start="d10", end="d11", store=0):
    """Clocks around `body` to out[store]."""
    return f"mov.u64 {start}, %clock64;\n{body}\nmov.u64 {end}, %clock64; sub.u64 d12, {end}, {start}; st.global.u64 [d1+{8 * store}], d12;\n"


def chain(name, setup, link, used):
    """One warp (or more), `link` CHAIN times, each with the result of the one before."""
    return entry(name, setup + timed("\n".join([link] * CHAIN)) + f"st.global.b32 [d1+64], {used};")


def _kernels():
    loads = "mov.b64 d4, d2;" + "".join(
        "ld.volatile.global.b32 r10, [d4]; cvt.u64.u32 d5, r10; add.s64 d4, d4, d5; add.s64 d4, d4, 1048576;\n"
        for _ in range(CHAIN)
    )
    mads = "".join(
        f"mad.lo.u32 r{10 + i % 8}, r{10 + i % 8}, {2 * i + 12345}, r{10 + (i + 3) % 8};\n" for i in range(2048)
    )
    page = "setp.ge.u32 p, r10, r60; @p bra DONE;"
    copy = (
        """
mov.u32 r1, %tid.x; mov.u32 r2, %ctaid.x; setp.ne.u32 p, r1, 0; @p bra EXIT;
mov.u32 r7, smem; mov.u32 r10, 0;
INIT: shl.b32 r11, r10, 3; add.u32 r12, r7, r11; mbarrier.init.shared.b64 [r12], 1;
add.u32 r10, r10, 1; setp.lt.u32 p, r10, r60; @p bra INIT;
fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;
mov.u64 d10, %clock64; mov.u32 r10, 0;
ISSUE: """
        + page.replace("DONE", "ISSUED")
        + """
shl.b32 r11, r10, 3; add.u32 r12, r7, r11; mad.lo.u32 r13, r10, 9216, r7; add.u32 r13, r13, 1024;
mad.lo.u32 r14, r10, r61, r2; mul.wide.u32 d4, r14, 409600; add.s64 d4, d4, d2; add.s64 d5, d4, 204800; add.u32 r15, r13, 8192;
mbarrier.arrive.expect_tx.shared.b64 _, [r12], 9216;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r13], [d4], 8192, [r12];
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r15], [d5], 1024, [r12];
add.u32 r10, r10, 1; bra ISSUE;
ISSUED: mov.u32 r10, 0; mad.lo.u32 r16, r2, 16, 0; mul.wide.u32 d6, r16, 8; add.s64 d6, d6, d1;
WAIT: """
        + page
        + """
shl.b32 r11, r10, 3; add.u32 r12, r7, r11; mul.wide.u32 d7, r10, 8; add.s64 d7, d7, d6;
TRY: mbarrier.try_wait.parity.shared.b64 p, [r12], 0; @!p bra TRY;
mov.u64 d11, %clock64; sub.u64 d12, d11, d10; st.global.u64 [d7], d12; add.u32 r10, r10, 1; bra WAIT;
DONE:"""
    )
    store = (
        _TID
        + """mul.wide.u32 d4, r5, 16; add.s64 d4, d4, d2; mul.wide.u32 d5, r6, 16; mov.u32 r10, 0; mov.u32 r11, 0xFF800000;
LOOP: """
        + "".join(f"st.global.b32 [d4+{4 * j + 268435456 * h}], r11;\n" for j in range(4) for h in range(4))
        + """
add.s64 d4, d4, d5; add.u32 r10, r10, 1; setp.lt.u32 p, r10, r60; @p bra LOOP;"""
    )
    write = (
        _TID
        + """mul.wide.u32 d4, r5, 16; add.s64 d4, d4, d2; mul.wide.u32 d5, r6, 16; mov.u32 r10, 0;
LOOP: st.global.v4.b32 [d4], {r10, r10, r10, r10}; add.s64 d4, d4, d5; add.u32 r10, r10, 1; setp.lt.u32 p, r10, r60; @p bra LOOP;"""
    )
    read = (
        _TID
        + "mul.wide.u32 d4, r5, 16; add.s64 d4, d4, d2; mul.wide.u32 d5, r6, 16; mov.u32 r10, 0; mov.u32 r50, 0;\nLOOP:"
        + "".join(
            f"ld.global.v4.b32 {{r{12 + 4 * i}, r{13 + 4 * i}, r{14 + 4 * i}, r{15 + 4 * i}}}, [d4]; add.s64 d4, d4, d5;\n"
            for i in range(8)
        )
        + "".join(f"xor.b32 r50, r50, r{12 + i};\n" for i in range(32))
        + "add.u32 r10, r10, 8; setp.lt.u32 p, r10, r60; @p bra LOOP;\nsetp.ne.u32 p, r50, 77; @p bra EXIT; st.global.b32 [d1], r50;"
    )
    bars = (
        "mov.u32 r1, %tid.x;"
        + "mov.u64 d10, %clock64;\n"
        + "bar.sync 1, 128;\n" * CHAIN
        + "mov.u64 d11, %clock64; sub.u64 d12, d11, d10; setp.ne.u32 p, r1, 0; @p bra EXIT; st.global.u64 [d1], d12;"
    )
    zero = "mov.u32 r10, %tid.x; and.b32 r10, r10, 0; mov.u32 r11, r10; mov.u32 r12, r10; mov.u32 r13, r10; mov.b32 f0, r10; mov.b32 f1, r10; mov.b32 f2, r10; mov.b32 f3, r10;"
    operands = "{r10, r11, r12, r13}, {r10, r11}, "
    return {
        "empty": entry("empty", ""),
        "stores": entry(
            "stores",
            _TID
            + "and.b32 r7, r1, 31; setp.ne.u32 p, r7, 0; @p bra EXIT; mul.wide.u32 d4, r5, 128; add.s64 d4, d4, d2; st.global.b32 [d4], r1;",
        ),
        "loads": entry("loads", timed(loads) + timed(loads, store=1) + "st.global.b64 [d1+64], d4;"),
        "copy": entry("copy", copy),
        "code": entry(
            "code",
            "mov.u32 r10, %tid.x;"
            + "".join(f"add.u32 r{10 + i}, r10, {i};" for i in range(1, 8))
            + "mov.u32 r59, 0; LOOP: mov.u64 d10, %clock64;\n"
            + mads
            + "mov.u64 d11, %clock64; sub.u64 d12, d11, d10; mul.wide.u32 d7, r59, 8; add.s64 d7, d7, d1; st.global.u64 [d7], d12;\n"
            + "add.u32 r59, r59, 1; setp.lt.u32 p, r59, 2; @p bra LOOP;\n"
            + "".join(f"st.global.b32 [d1+{64 + 4 * i}], r{10 + i};" for i in range(8)),
        ),
        "lds": chain("lds", "mov.u32 r10, smem; st.shared.b32 [r10], r10;", "ld.shared.b32 r10, [r10];", "r10"),
        "shfl": chain("shfl", "mov.u32 r10, %tid.x;", "shfl.sync.bfly.b32 r10, r10, 1, 31, -1;", "r10"),
        "redux": chain("redux", "mov.u32 r10, %tid.x;", "redux.sync.max.s32 r10, r10, -1; xor.b32 r10, r10, 5;", "r10"),
        "mma_f16": chain(
            "mma_f16",
            zero,
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {f0, f1, f2, f3}, " + operands + "{f0, f1, f2, f3};",
            "f0",
        ),
        "mma_s8": chain(
            "mma_s8",
            zero + "mov.u32 r20, r10; mov.u32 r21, r10; mov.u32 r22, r10; mov.u32 r23, r10;",
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {r20, r21, r22, r23}, "
            + operands
            + "{r20, r21, r22, r23};",
            "r20",
        ),
        "barrier": entry("barrier", bars),
        "scattered": entry("scattered", store),
        "write": entry("write", write),
        "read": entry("read", read),
    }


S8, BF16 = ("m64n128k32", "s32", "s8", ""), ("m64n128k16", "f32", "bf16", ", 1, 1, 0, 0")
WGMMA = {"wgmma_s8": (*S8, 0), "wgmma_bf16": (*BF16, 0), "wgmma_turns": (*S8, 80)}


def wgmma(name, shape, result, operand, tail, between):
    """Every warpgroup of a CTA: r61 chains of four instructions, A (a tile of its own) and B (one for all) from 128 KB of shared memory filled from the seed r60; between
    the chains as many other instructions, each with the result of the one before."""
    letter = "r" if result == "s32" else "f"
    numbers = range(100, 164)
    accumulators = "{" + ", ".join(f"{letter}{i}" for i in numbers) + "}"
    chain_of_four = (
        "wgmma.fence.sync.aligned;\n"
        + "".join(
            f"add.s64 d6, d4, {2 * k}; add.s64 d7, d5, {2 * k}; wgmma.mma_async.sync.aligned.{shape}.{result}.{operand}.{operand} {accumulators}, d6, d7, 1{tail};\n"
            for k in range(4)
        )
        + (
            "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"
            + "".join(f"mad.lo.u32 r17, r17, {2 * i + 12345}, r10;\n" for i in range(between))
        )
    )
    body = (
        _TID
        + """
mov.u32 r7, smem; add.u32 r7, r7, 1023; and.b32 r7, r7, 0xFFFFFC00; mov.u32 r10, r1;
FILL: mad.lo.u32 r11, r10, 0x9E3779B1, r60; xor.b32 r12, r11, r60; shr.u32 r13, r12, 15; xor.b32 r12, r12, r13; mul.lo.u32 r12, r12, r60; and.b32 r12, r12, 0xBF7FBF7F;
shl.b32 r13, r10, 2; add.u32 r13, r13, r7; st.shared.b32 [r13], r12; add.u32 r10, r10, r3; setp.lt.u32 p, r10, 32768; @p bra FILL;
fence.proxy.async.shared::cta; bar.sync 0;
shr.u32 r14, r1, 7; shl.b32 r14, r14, 13; add.u32 r14, r14, r7; shr.u32 r14, r14, 4; cvt.u64.u32 d4, r14; or.b64 d4, d4, 0x4000004000010000;
add.u32 r15, r7, 65536; shr.u32 r15, r15, 4; cvt.u64.u32 d5, r15; or.b64 d5, d5, 0x4000004000010000;
"""
        + "".join(f"mov.b32 {letter}{i}, 0{'f00000000' if letter == 'f' else ''};" for i in numbers)
        + """
mov.u32 r10, 0; mov.u32 r17, r1; mov.u64 d10, %clock64;
LOOP: """
        + chain_of_four
        + """add.u32 r10, r10, 1; setp.lt.u32 p, r10, r61; @p bra LOOP;
bar.sync 0; mov.u64 d11, %clock64; sub.u64 d12, d11, d10;
"""
        + f"mov.b32 r20, {letter}100; xor.b32 r20, r20, r17; "
        + "".join(f"mov.b32 r21, {letter}{i}; xor.b32 r20, r20, r21;" for i in numbers)
        + """
setp.eq.u32 p, r20, 12345; @p st.global.b32 [d1+2048], r20; or.b32 r16, r1, r2; setp.ne.u32 p, r16, 0; @p bra EXIT; st.global.u64 [d1], d12;"""
    )
    return (
        entry(name, body)
        .replace(".reg .b32 r<64>;", ".reg .b32 r<164>;")
        .replace(".reg .f32 f<64>;", ".reg .f32 f<164>;")
    )


class Driver:
    """The driver's library, a context on device 0, and the probes' kernels. Raises RuntimeError where a call fails."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)
        self.sms = self.attribute(device, 16)
        self.clock_mhz = self.attribute(device, 13) / 1e3
        name = ctypes.create_string_buffer(96)
        self("cuDeviceGetName", name, len(name), device)
        self.name = name.value.decode()
        self.out, self.data, self.stream = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_void_p()
        self("cuMemAlloc_v2", ctypes.byref(self.out), ctypes.c_size_t(1 << 16))
        self("cuMemAlloc_v2", ctypes.byref(self.data), ctypes.c_size_t(BIG))
        self("cuMemsetD8_v2", self.data, ctypes.c_ubyte(0), ctypes.c_size_t(BIG))
        self("cuCtxSynchronize")
        self("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.kernels = {}
        self.capability = self.attribute(device, 75), self.attribute(device, 76)
        if self.capability < (9, 0):
            raise RuntimeError(
                f"probe: got {self.name} of compute capability {'.'.join(map(str, self.capability))}, expected 9.0 or newer (bulk copies, mbarriers)"
            )
        self.hopper = self.capability == (9, 0)
        texts = {kernel: _HEAD + text for kernel, text in _kernels().items()}
        if self.hopper:
            texts |= {kernel: _HEAD.replace("sm_90", "sm_90a") + wgmma(kernel, *form) for kernel, form in WGMMA.items()}
        for kernel, text in texts.items():
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self("cuModuleLoadData", ctypes.byref(module), text.encode())
            self("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
            self("cuFuncSetAttribute", function, 8, 200 * 1024)
            self.kernels[kernel] = function

    def __call__(self, name, *args):
        status = getattr(self.cuda, name)(*args)
        if status:
            raise RuntimeError(f"{name}: the driver returned {status}")

    def attribute(self, device, which):
        value = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    def launch(self, kernel, ctas, threads, n=0, m=0, shared=0, at=0):
        args = (
            ctypes.c_uint64(self.out.value),
            ctypes.c_uint64(self.data.value + at),
            ctypes.c_uint32(n),
            ctypes.c_uint32(m),
        )
        params = (ctypes.c_void_p * 4)(*(ctypes.cast(ctypes.byref(x), ctypes.c_void_p) for x in args))
        self("cuLaunchKernel", self.kernels[kernel], ctas, 1, 1, threads, 1, 1, shared, self.stream, params, None)

    def clocks(self, count):
        """The first `count` 64-bit words of `out`, once the device is idle."""
        words = (ctypes.c_uint64 * count)()
        self("cuStreamSynchronize", self.stream)
        self("cuMemcpyDtoH_v2", words, self.out, ctypes.c_size_t(8 * count))
        return list(words)

    def flush(self):
        """Read half of the buffer's upper half: nothing of earlier work stays in L2."""
        n = BIG // 2 // (self.sms * 1024 * 16) // 8 * 8
        self.launch("read", self.sms, 1024, n, at=BIG // 2)

    def graph_us(self, count, kernel, *launch, repeats=7, **more):
        """Median time of a graph of `count` times the same launch."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuStreamBeginCapture_v2", self.stream, 0)
        for _ in range(count):
            self.launch(kernel, *launch, **more)
        self("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        events = [ctypes.c_void_p() for _ in range(2)]
        for event in events:
            self("cuEventCreate", ctypes.byref(event), 0)
        times = []
        for _ in range(repeats + 2):
            self("cuEventRecord", events[0], self.stream)
            self("cuGraphLaunch", executable, self.stream)
            self("cuEventRecord", events[1], self.stream)
            self("cuStreamSynchronize", self.stream)
            ms = ctypes.c_float()
            self("cuEventElapsedTime", ctypes.byref(ms), *events)
            times.append(ms.value * 1e3)
        return statistics.median(times[2:])


def measure(result):
    """Fills `result`, probe by probe."""
    driver = Driver()
    sms = driver.sms
    result |= {
        "card": driver.name,
        "sms": sms,
        "mhz": driver.clock_mhz,
        "capability": driver.capability,
        "launch_us": {},
    }
    for per_sm, threads, kb in ((1, 32, 0), (1, 256, 8), (2, 256, 8), (1, 512, 190), (1, 384, 200)):
        few, many = (driver.graph_us(n, "empty", per_sm * sms, threads, shared=kb * 1024) for n in (20, 60))
        result["launch_us"][f"{per_sm}x{threads}+{kb}"] = (many - few) / 40
    few, many = (driver.graph_us(n, "stores", sms, 512, shared=190 * 1024) for n in (20, 60))
    result["launch_us"]["1x512+190, a store a warp"] = (many - few) / 40
    driver.launch("loads", 1, 1)
    driver.clocks(2)
    driver.flush()
    driver.launch("loads", 1, 1)
    result["dram"], result["l2"] = (c / CHAIN for c in driver.clocks(2))
    result["copy"] = {}
    for ctas in (1, sms):
        for pages in (1, 16):
            driver.launch("copy", ctas, 32, pages, ctas, shared=1024 + 16 * 9216)
            driver.clocks(1)
            runs = []
            for _ in range(5):
                driver.flush()
                driver.launch("copy", ctas, 32, pages, ctas, shared=1024 + 16 * 9216)
                words = driver.clocks(16 * ctas)
                runs.append([statistics.median(words[16 * c + i] for c in range(ctas)) for i in (0, pages - 1)])
            result["copy"][f"{pages} on {'one' if ctas == 1 else 'all'}"] = [statistics.median(x) for x in zip(*runs)]
    driver.launch("code", 1, 32)
    driver.clocks(2)
    driver.flush()
    driver.launch("code", 1, 32)
    cold, warm = driver.clocks(2)
    driver.launch("code", 1, 32)
    result["code"] = {"cold": cold, "again": driver.clocks(2)[0], "warm": warm}
    for kernel in ("lds", "shfl", "redux", "mma_f16", "mma_s8", "barrier"):
        for _ in range(2):
            driver.launch(kernel, 1, 128 if kernel == "barrier" else 32, shared=1024)
            result[kernel] = driver.clocks(1)[0] / CHAIN
    threads = sms * 512
    turns = (1 << 28) // (threads * 16)
    us = driver.graph_us(1, "scattered", sms, 512, turns)
    result["scattered_sectors_us"] = threads * turns * 16 / 2 / us  # a sector holds the store of two threads
    turns = BIG // (sms * 1024 * 16 * 2) // 8 * 8
    moved = turns * sms * 2 * 1024 * 16 / 1e3
    for kernel in ("write", "read"):
        result[f"{kernel}_gbs"] = moved / driver.graph_us(1, kernel, 2 * sms, 1024, turns)
    for kernel in WGMMA if driver.hopper else ():
        result[kernel] = {}
        for groups in (1, 2, 4):
            for seed in (0, 0x12345677):
                clocks = []
                for _ in range(3):
                    driver.launch(kernel, sms, 128 * groups, seed, TURNS, shared=132 * 1024)
                    clocks.append(driver.clocks(1)[0])
                result[kernel][f"{groups}, {'any' if seed else 'zeros'}"] = (
                    statistics.median(clocks) / TURNS / (1 if kernel == "wgmma_turns" else 4 * groups)
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=None)
    args = parser.parse_args()
    result = {}
    try:
        measure(result)
    finally:  # what was measured before a driver's error is kept
        folder = result.get("card", "unknown").lower().replace("nvidia", "").strip().replace(" ", "-")
        out = args.out or pathlib.Path(__file__).parent / "results" / folder / "probe.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
