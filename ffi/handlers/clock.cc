// The typed FFI handler of `jax_fp4_indexer.clock.v1`: the device's clocks at a point of a program. For benchmarks.
//
//   operands  x, of any type, which leaves unchanged (its result shares its memory); whatever else must be finished before
//   results   x; ticks u32[n, 6]: n CTAs of one thread each wrote three little-endian u64: SM number, SM clock, nanoseconds of the device's timer
//
// A kernel rather than an event of the driver, so that it can stand inside a captured graph, between the launches that it times.
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "../check.h"
#include "../cubin_store.h"
#include "../export.h"
#include "errors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jfi {
namespace {

constexpr std::string_view kClockOp = "jax_fp4_indexer.clock";

// One of a dozen lines, and no product kernel: the driver translates it when the first program that holds it is prepared.
constexpr char kClockPtx[] = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry jfi_clock(.param .u64 ticks)
{
  .reg .u32 %r<3>;
  .reg .u64 %d<6>;
  ld.param.u64 %d1, [ticks];
  cvta.to.global.u64 %d1, %d1;
  mov.u32 %r1, %ctaid.x;
  mad.wide.u32 %d1, %r1, 24, %d1;
  mov.u32 %r2, %smid;
  cvt.u64.u32 %d2, %r2;
  mov.u64 %d3, %clock64;
  mov.u64 %d4, %globaltimer;
  st.global.u64 [%d1], %d2;
  st.global.u64 [%d1+8], %d3;
  st.global.u64 [%d1+16], %d4;
  ret;
}
)";

struct ClockKernel {
  std::mutex mutex;  // guards loading
  std::atomic<cu::Kernel> kernel{nullptr};
  std::array<std::atomic<bool>, kMaxDevices> ready{};
};

ClockKernel& TheClock() {
  static ClockKernel* k = new ClockKernel;  // never destroyed: executables may outlive static destruction
  return *k;
}

Status PrepareClock() {
  auto device = CurrentDevice(kClockOp);
  if (!device.ok()) return device.status();
  ClockKernel& clock = TheClock();
  if (clock.ready[device.value()].load(std::memory_order_acquire)) return {};
  const cu::Driver& driver = *cu::Driver::Get().value();  // CurrentDevice asked it already
  const Place at{kClockOp, "jfi_clock", "PTX", device.value()};
  std::lock_guard<std::mutex> lock(clock.mutex);
  cu::Kernel handle = clock.kernel.load(std::memory_order_relaxed);
  if (!handle) {
    cu::Library library = nullptr;
    JFI_RETURN_IF_ERROR(CheckCuda(driver.LibraryLoadData(&library, kClockPtx, nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData", at));
    JFI_RETURN_IF_ERROR(CheckCuda(driver.LibraryGetKernel(&handle, library, "jfi_clock"), "cuLibraryGetKernel", at));
    clock.kernel.store(handle, std::memory_order_release);
  }
  cu::Function function = nullptr;
  JFI_RETURN_IF_ERROR(CheckCuda(driver.KernelGetFunction(&function, handle), "cuKernelGetFunction", at));
  clock.ready[device.value()].store(true, std::memory_order_release);
  return {};
}

Status LaunchClock(cu::Stream stream, ffi::RemainingArgs operands, ffi::AnyBuffer x, ffi::AnyBuffer ticks) {
  auto first = operands.get<ffi::AnyBuffer>(0);
  if (!first.has_value()) return BadArgument(kClockOp, "x", "no operand", "an array to pass on");
  if (first->untyped_data() != x.untyped_data())
    return BadArgument(kClockOp, "x", "a result with memory of its own", "a result that shares the memory of operand 0", "lower with input_output_aliases={0: 0}");
  const auto dims = ticks.dimensions();
  if (ticks.element_type() != ffi::DataType::U32 || dims.size() != 2 || dims[1] != 6 || dims[0] < 1 || dims[0] > 65535)
    return BadArgument(kClockOp, "ticks", ShapeText(dims), "uint32[n,6] with n in 1..65535");
  auto device = CurrentDevice(kClockOp);
  if (!device.ok()) return device.status();
  if (!TheClock().ready[device.value()].load(std::memory_order_acquire))
    return FailedPrecondition(std::string(kClockOp) + ": the kernel is not loaded on device " + std::to_string(device.value()) + ": XLA ran no prepare stage there");
  void* address = ticks.untyped_data();
  void* params[] = {&address};
  cu::LaunchConfig config = {};
  config.grid_x = static_cast<unsigned>(dims[0]);
  config.grid_y = config.grid_z = config.block_x = config.block_y = config.block_z = 1;
  config.stream = stream;
  return CheckCuda(cu::Driver::Get().value()->LaunchKernelEx(&config, reinterpret_cast<cu::Function>(TheClock().kernel.load(std::memory_order_acquire)), params, nullptr),
                   "cuLaunchKernelEx", Place{kClockOp, "jfi_clock", "PTX", device.value()});
}

template <class F>
ffi::Error Guarded(F&& body) {
  return ToFfi(NoThrow(kClockOp, body));
}

ffi::Error PrepareStage() { return Guarded(PrepareClock); }

ffi::Error Execute(cu::Stream stream, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> x, ffi::Result<ffi::AnyBuffer> ticks) {
  return Guarded([&] { return LaunchClock(stream, operands, *x, *ticks); });
}

// The same for XLA:CPU, which has no streams and no prepare stage: only with a stand-in driver.
ffi::Error ExecuteOnHost(ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> x, ffi::Result<ffi::AnyBuffer> ticks) {
  return Guarded([&]() -> Status {
    if (!cu::Driver::IsStandIn()) return FailedPrecondition(std::string(kClockOp) + ": runs on a host only with a stand-in driver (JFI_LIBCUDA)");
    JFI_RETURN_IF_ERROR(PrepareClock());
    return LaunchClock(nullptr, operands, *x, *ticks);
  });
}

}  // namespace
}  // namespace jfi

JFI_EXPORT XLA_FFI_Error* jfi_clock_prepare(XLA_FFI_CallFrame*);
JFI_EXPORT XLA_FFI_Error* jfi_clock_execute(XLA_FFI_CallFrame*);
JFI_EXPORT XLA_FFI_Error* jfi_clock_execute_on_host(XLA_FFI_CallFrame*);

XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_clock_prepare, jfi::PrepareStage, ffi::Ffi::BindPrepare());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_clock_execute, jfi::Execute,
                              ffi::Ffi::Bind().Ctx<ffi::PlatformStream<jfi::cu::Stream>>().RemainingArgs().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_clock_execute_on_host, jfi::ExecuteOnHost, ffi::Ffi::Bind().RemainingArgs().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
