// The FFI handler of every op: its four stages are registered under the target of each op of the manifest.
//
//   instantiate  once a call site: reads the attributes (`op`, `implementation` and those of the op), refuses what no kernel serves
//   prepare      a device and run, before anything executes: finds the variants for the device and loads them
//   execute      checks every operand, launches; also under stream capture, so it allocates, loads and waits for nothing on the device
//
// What the operands, results and attributes of an op are is data: the manifest's "ops" (docs/architecture.md).
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "../export.h"
#include "../op_call.h"
#include "errors.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jfi {
namespace {

constexpr std::string_view kLibrary = "jax_fp4_indexer";
// XLA:CPU aligns its buffers to 64 bytes; there only a stand-in driver runs.
constexpr std::uintptr_t kHostAlignment = 64, kDeviceAlignment = 4096;

// Times that XLA ran the execute stage of an op: a program replayed from a captured graph does not. Tests and benchmarks tell the two
// apart by it. The counter lives as long as the process.
std::atomic<std::int64_t>& Executions(const std::string& op) {
  static auto* mutex = new std::mutex;
  static auto* counters = new std::map<std::string, std::atomic<std::int64_t>>;
  std::lock_guard<std::mutex> lock(*mutex);
  return (*counters)[op];
}

// One a call site and executable, shared by all its devices and threads.
struct OpState {
  static ffi::TypeId id;
  std::unique_ptr<OpCall> call;
  std::atomic<std::int64_t>* executions = nullptr;
};
ffi::TypeId OpState::id = {};
auto kStateInfo = ffi::MakeTypeInfo<OpState>();

Status ReadAttributes(const ffi::Dictionary& attributes, std::vector<Given>& out) {
  for (std::string_view name : attributes) {
    Given& g = out.emplace_back();
    g.name = name;
    g.is_text = attributes.contains<std::string_view>(name);
    if (!g.is_text && !attributes.contains<std::int64_t>(name))
      return BadArgument(kLibrary, name, "an attribute of another type", "a string or a 64-bit integer");
    if (g.is_text) g.text = attributes.get<std::string_view>(name).value();
    else g.number = attributes.get<std::int64_t>(name).value();
  }
  return {};
}

// Removes the string attribute `name` from `given`.
Status Take(std::vector<Given>& given, const char* name, std::string& out) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i].name != name || !given[i].is_text) continue;
    out = given[i].text;
    given.erase(given.begin() + static_cast<std::ptrdiff_t>(i));
    return {};
  }
  return BadArgument(kLibrary, name, "no string attribute of this name", "one");
}

ffi::ErrorOr<std::unique_ptr<OpState>> Instantiate(ffi::Dictionary attributes) {
  auto state = std::make_unique<OpState>();
  const Status s = NoThrow(kLibrary, [&]() -> Status {
    std::vector<Given> given;
    std::string op, implementation;
    JFI_RETURN_IF_ERROR(ReadAttributes(attributes, given));
    JFI_RETURN_IF_ERROR(Take(given, "op", op));
    JFI_RETURN_IF_ERROR(Take(given, "implementation", implementation));
    auto store = CubinStore::Process();
    if (!store.ok()) return store.status();
    auto call = OpCall::Make(*store.value(), op, implementation, given);
    if (!call.ok()) return call.status();
    state->call = std::move(call.value());
    state->executions = &Executions(op);
    return {};
  });
  if (!s.ok()) return ffi::Unexpected(ToFfi(s));
  return state;
}

DType DTypeOf(ffi::DataType t) {
  switch (t) {
    case ffi::DataType::U8: return DType::kU8;
    case ffi::DataType::S32: return DType::kS32;
    case ffi::DataType::F32: return DType::kF32;
    case ffi::DataType::F16: return DType::kF16;
    case ffi::DataType::BF16: return DType::kBf16;
    case ffi::DataType::F8E4M3FN: return DType::kF8E4M3FN;
    default: return DType::kOther;
  }
}

BufferView ViewOf(const ffi::AnyBuffer& b) {
  const auto dims = b.dimensions();
  return {DTypeOf(b.element_type()), dims.begin(), dims.size(), b.untyped_data()};
}

Status ExecuteCall(cu::Stream stream, const OpCall& call, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, std::uintptr_t limit) {
  BufferView operands[kMaxBuffers], results[kMaxBuffers];
  if (args.size() > kMaxBuffers || rets.size() > kMaxBuffers)
    return BadArgument(call.api(), "operands", std::to_string(args.size() + rets.size()) + " operands and results", "fewer");
  for (std::size_t i = 0; i < args.size(); ++i) {
    auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return BadArgument(call.api(), "operand " + std::to_string(i), "no array", "an array");
    operands[i] = ViewOf(*buffer);
  }
  for (std::size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return BadArgument(call.api(), "result " + std::to_string(i), "no array", "an array");
    results[i] = ViewOf(**buffer);
  }
  return call.Execute(stream, operands, args.size(), results, rets.size(), limit);
}

ffi::Error Prepare(OpState* s) {
  return ToFfi(NoThrow(s->call->api(), [&] { return s->call->Prepare(); }));
}

ffi::Error Execute(cu::Stream stream, OpState* s, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  s->executions->fetch_add(1, std::memory_order_relaxed);
  return ToFfi(NoThrow(s->call->api(), [&] { return ExecuteCall(stream, *s->call, args, rets, kDeviceAlignment); }));
}

// The same for XLA:CPU, which has no streams and no prepare stage: only with a stand-in driver, so that tests run the whole path.
ffi::Error ExecuteOnHost(OpState* s, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  s->executions->fetch_add(1, std::memory_order_relaxed);
  return ToFfi(NoThrow(s->call->api(), [&]() -> Status {
    if (!cu::Driver::IsStandIn())
      return FailedPrecondition(s->call->api() + ": runs on a host only with a stand-in driver (JFI_LIBCUDA)");
    JFI_RETURN_IF_ERROR(s->call->Prepare());
    return ExecuteCall(nullptr, *s->call, args, rets, kHostAlignment);
  }));
}

}  // namespace
}  // namespace jfi

JFI_EXPORT XLA_FFI_Error* jfi_instantiate(XLA_FFI_CallFrame*);
JFI_EXPORT XLA_FFI_Error* jfi_prepare(XLA_FFI_CallFrame*);
JFI_EXPORT XLA_FFI_Error* jfi_execute(XLA_FFI_CallFrame*);
JFI_EXPORT XLA_FFI_Error* jfi_execute_on_host(XLA_FFI_CallFrame*);

XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_instantiate, jfi::Instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_prepare, jfi::Prepare, ffi::Ffi::BindPrepare().Ctx<ffi::State<jfi::OpState>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jfi_execute, jfi::Execute,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<jfi::cu::Stream>>().Ctx<ffi::State<jfi::OpState>>().RemainingArgs().RemainingRets(),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_execute_on_host, jfi::ExecuteOnHost,
                              ffi::Ffi::Bind().Ctx<ffi::State<jfi::OpState>>().RemainingArgs().RemainingRets());

JFI_EXPORT XLA_FFI_TypeId* jfi_state_type_id() { return &jfi::OpState::id; }
JFI_EXPORT const XLA_FFI_TypeInfo* jfi_state_type_info() { return &jfi::kStateInfo; }
// Times that the execute stage of an op ran in this process.
JFI_EXPORT std::int64_t jfi_executions(const char* op) {
  try {
    return jfi::Executions(op ? op : "").load(std::memory_order_relaxed);
  } catch (const std::exception&) {
    return -1;
  }
}
