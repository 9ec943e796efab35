// The typed FFI handler of `jax_fp4_indexer.block_scores.v1`; operands, results and attributes as in docs/architecture.md.
//
//   instantiate  once a call site: reads the attributes, refuses what no kernel serves
//   prepare      a device and run, before anything executes: finds the variants for the device and loads them
//   execute      checks every operand, launches; also under stream capture, so it allocates, loads and waits for nothing on the device
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "../check.h"
#include "../cubin_store.h"
#include "../export.h"
#include "../launcher.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace jfi {
namespace {

constexpr std::string_view kOp = "fp4_indexer_block_scores";
constexpr std::int64_t kPage = 128, kCodeBytes = 64;
// XLA:CPU aligns its buffers to 64 bytes; there only a stand-in driver runs.
constexpr std::uintptr_t kHostAlignment = 64;

// Times that XLA ran the execute stage: a program replayed from a captured graph does not. Tests and benchmarks tell the two apart by it.
std::atomic<std::int64_t> executions{0};

struct DevicePlan {
  std::atomic<bool> ready{false};
  DeviceInfo device;
  std::vector<const Variant*> candidates;
};

// One a call site and executable, shared by all its devices and threads.
struct BlockScoresState {
  static ffi::TypeId id;
  CubinStore* store = nullptr;
  Request request;
  std::int64_t groups = 0, mask = 0, max_seqlen_q = 0, pages_per_pass = 0;
  std::mutex mutex;  // guards the plans that are not ready
  std::array<DevicePlan, kMaxDevices> plans;
};
ffi::TypeId BlockScoresState::id = {};
auto kStateInfo = ffi::MakeTypeInfo<BlockScoresState>();

ffi::Error ToFfi(const Status& s) {
  switch (s.code()) {
    case Code::kOk: return ffi::Error::Success();
    case Code::kInvalidArgument: return ffi::Error(ffi::ErrorCode::kInvalidArgument, s.message());
    case Code::kFailedPrecondition: return ffi::Error(ffi::ErrorCode::kFailedPrecondition, s.message());
    case Code::kInternal: break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, s.message());
}

// XLA is C++ without exceptions: none may leave a handler.
template <class F>
Status NoThrow(F&& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    return Internal(std::string(kOp) + ": " + e.what());
  } catch (...) {
    return Internal(std::string(kOp) + ": unknown exception");
  }
}

Status OneOf(std::string_view attribute, std::string_view got, std::initializer_list<std::string_view> allowed) {
  std::string list;
  for (std::string_view a : allowed) {
    if (got == a) return {};
    list += (list.empty() ? "" : " or ") + std::string(a);
  }
  return BadArgument(kOp, attribute, "'" + std::string(got) + "'", list);
}

Status Fill(BlockScoresState& s, std::string_view path, std::string_view format, std::string_view scale_layout, std::int64_t mask,
            std::int64_t max_seqlen_q, std::int64_t pages_per_pass, std::string_view implementation) {
  JFI_RETURN_IF_ERROR(OneOf("path", path, {"decode", "prefill"}));
  JFI_RETURN_IF_ERROR(OneOf("format", format, {"nvfp4", "mxfp4"}));
  JFI_RETURN_IF_ERROR(OneOf("scale_layout", scale_layout, {"public", "preordered_mma"}));
  JFI_RETURN_IF_ERROR(OneOf("implementation", implementation, {"auto", "portable"}));
  if (mask < 0 || mask > 2) return BadArgument(kOp, "mask", std::to_string(mask), "0, 1 or 2");
  if (max_seqlen_q < 0) return BadArgument(kOp, "max_seqlen_q", std::to_string(max_seqlen_q), "at least 0");
  const bool prefill = path == "prefill";
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (pages_per_pass < (prefill ? 1 : 0) || pages_per_pass > kMax)
    return BadArgument(kOp, "pages_per_pass", std::to_string(pages_per_pass), std::to_string(prefill) + ".." + std::to_string(kMax));
  auto store = CubinStore::Process();
  if (!store.ok()) return store.status();
  s.store = store.value();
  s.request = {"block_scores", std::string(path), std::string(format), std::string(scale_layout), std::string(implementation)};
  if (!s.store->manifest().Serves(s.request))
    return InvalidArgument(std::string(kOp) + ": these cubins hold no " + s.request.implementation + " kernel for " + s.request.path + ", " + s.request.format + ", " +
                           s.request.scale_layout + "; rebuild them with `python -m jax_fp4_indexer.aot build`, or use implementation=\"reference\"");
  s.groups = format == "nvfp4" ? 8 : 4;
  s.mask = mask;
  s.max_seqlen_q = max_seqlen_q;
  s.pages_per_pass = pages_per_pass;
  return {};
}

ffi::ErrorOr<std::unique_ptr<BlockScoresState>> Instantiate(std::string_view path, std::string_view format, std::string_view scale_layout, std::int64_t mask,
                                                            std::int64_t max_seqlen_q, std::int64_t pages_per_pass, std::string_view implementation) {
  std::unique_ptr<BlockScoresState> state;
  Status s = NoThrow([&] {
    state = std::make_unique<BlockScoresState>();
    return Fill(*state, path, format, scale_layout, mask, max_seqlen_q, pages_per_pass, implementation);
  });
  if (!s.ok()) return ffi::Unexpected(ToFfi(s));
  return state;
}

Status PrepareDevice(BlockScoresState& s) {
  // The device of the current context: XLA names no ordinal to this stage on every version. The heads are not known here either, so
  // every variant that the call may pick is loaded.
  auto device = CurrentDevice(kOp);
  if (!device.ok()) return device.status();
  DevicePlan& plan = s.plans[device.value()];
  if (plan.ready.load(std::memory_order_acquire)) return {};
  std::lock_guard<std::mutex> lock(s.mutex);
  if (plan.ready.load(std::memory_order_relaxed)) return {};
  auto info = DescribeDevice(kOp, device.value());
  if (!info.ok()) return info.status();
  auto candidates = s.store->manifest().Candidates(s.request, info.value().capability);
  if (!candidates.ok()) return Status(candidates.status().code(), std::string(kOp) + ": " + candidates.status().message());
  for (const Variant* v : candidates.value())
    for (std::size_t kernel : v->launches) JFI_RETURN_IF_ERROR(s.store->Prepare(kernel, device.value(), kOp));
  plan.device = info.value();
  plan.candidates = std::move(candidates.value());
  plan.ready.store(true, std::memory_order_release);
  return {};
}

const char* TypeName(ffi::DataType t) { return t == ffi::DataType::U8 ? "uint8" : t == ffi::DataType::S32 ? "int32" : t == ffi::DataType::F32 ? "float32" : "another type"; }

struct Operand {
  const char* name;
  ffi::AnyBuffer buffer;
  ffi::DataType dtype;
  std::uintptr_t alignment;
};

Status CheckRank(const Operand& o, std::size_t rank) {
  const auto dims = o.buffer.dimensions();
  if (o.buffer.element_type() == o.dtype && dims.size() == rank) return {};
  return BadArgument(kOp, o.name, std::string(TypeName(o.buffer.element_type())) + ShapeText(dims), std::string(TypeName(o.dtype)) + " of rank " + std::to_string(rank));
}

Status CheckShape(const Operand& o, const std::vector<std::int64_t>& want) {
  JFI_RETURN_IF_ERROR(CheckRank(o, want.size()));
  const auto dims = o.buffer.dimensions();
  for (std::size_t i = 0; i < want.size(); ++i)
    if (dims[i] != want[i]) return BadArgument(kOp, o.name, std::string(TypeName(o.dtype)) + ShapeText(dims), std::string(TypeName(o.dtype)) + ShapeText(want));
  return {};
}

// Bytes of scratch that a prefill variant uses: configs/block_scores.py::Scratch, repeated here so that a program lowered by another version
// cannot make a kernel write past its end (a test compares the two). `staged`: with widened pages, `two_forms`: in int8 as well. -1 if the size overflows.
std::int64_t ScratchBytes(bool staged, bool two_forms, std::int64_t num_seqs, std::int64_t tokens, std::int64_t heads_kv, std::int64_t pages) {
  const auto align = [](std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; };
  const std::int64_t chunks = (tokens + 127) / 128;
  std::int64_t slots, all;
  // 2^18 bytes a slot are more than all of its tables and pages
  if (__builtin_mul_overflow(pages, heads_kv, &slots) || __builtin_mul_overflow(slots, std::int64_t{1} << 18, &all)) return -1;
  const std::int64_t entries = tokens / 16 + num_seqs;
  const std::int64_t head = 64 + entries * 64 + chunks * 512 + 2 * align(chunks * 4, 64);
  const std::int64_t plan = align(head + align(slots * 4, 64) + (tokens + 7) / 8 * 4, 1024);
  if (!staged) return plan;
  const std::int64_t wide = plan + slots * (128 * 128 * 2);
  if (!two_forms) return wide;
  const std::int64_t tables = align(slots * 4, 64) + align((slots + heads_kv) * 4, 64) + align(slots * 12, 64) + entries * heads_kv * 64;
  return align(wide + tables, 1024) + slots * (128 * 128);
}

enum { kQ, kK, kQScale, kKScale, kKvIndices, kCuSeqlensQ, kCuSeqlensK, kCuPageOffsets, kQoOffset, kHeadScale, kScores, kScratch, kNumBuffers };
using Operands = std::array<Operand, kNumBuffers>;

Status ExecuteDevice(cu::Stream stream, BlockScoresState& s, const Operands& b, std::uintptr_t alignment_limit) {
  for (auto [i, rank] : {std::pair{kQ, 3}, {kK, 4}, {kKvIndices, 1}, {kCuSeqlensQ, 1}, {kScores, 3}, {kScratch, 1}}) JFI_RETURN_IF_ERROR(CheckRank(b[i], rank));
  const auto dim = [&](int i, int d) { return b[i].buffer.dimensions()[d]; };
  const std::int64_t tokens = dim(kQ, 0), heads_q = dim(kQ, 1), num_pages = dim(kK, 0), heads_kv = dim(kK, 1), num_indices = dim(kKvIndices, 0);
  const std::int64_t num_seqs = dim(kCuSeqlensQ, 0) - 1, k_tiles = dim(kScores, 1), words = (s.groups + 3) / 4;
  if (num_seqs < 0) return BadArgument(kOp, "cu_seqlens_q", "int32[0]", "int32[B+1]");
  if (heads_kv < 1 || heads_q % heads_kv != 0)
    return BadArgument(kOp, "k", std::to_string(heads_kv) + " heads beside " + std::to_string(heads_q) + " of q", "a divisor of q's heads");
  const bool tiled = s.request.scale_layout == "preordered_mma";
  JFI_RETURN_IF_ERROR(CheckShape(b[kQ], {tokens, heads_q, kCodeBytes}));
  JFI_RETURN_IF_ERROR(CheckShape(b[kK], {num_pages, heads_kv, kPage, kCodeBytes}));
  JFI_RETURN_IF_ERROR(CheckShape(b[kQScale], tiled ? std::vector<std::int64_t>{heads_q, (tokens + 127) / 128, words, 32, 4, 4}
                                                   : std::vector<std::int64_t>{tokens, heads_q, s.groups}));
  JFI_RETURN_IF_ERROR(CheckShape(b[kKScale], tiled ? std::vector<std::int64_t>{num_pages * heads_kv, 1, words, 32, 4, 4}
                                                   : std::vector<std::int64_t>{num_pages, heads_kv, kPage, s.groups}));
  JFI_RETURN_IF_ERROR(CheckShape(b[kCuSeqlensK], {num_seqs + 1}));
  JFI_RETURN_IF_ERROR(CheckShape(b[kCuPageOffsets], {num_seqs + 1}));
  JFI_RETURN_IF_ERROR(CheckShape(b[kQoOffset], {num_seqs}));
  JFI_RETURN_IF_ERROR(CheckShape(b[kHeadScale], {heads_q}));
  JFI_RETURN_IF_ERROR(CheckShape(b[kScores], {heads_q, k_tiles, tokens}));
  if (heads_q == 0 || k_tiles == 0 || tokens == 0) return {};  // nothing to write; a grid of nothing is an error

  for (const Operand& o : b) JFI_RETURN_IF_ERROR(CheckAlignment(kOp, o.name, o.buffer.untyped_data(), std::min(o.alignment, alignment_limit)));

  auto device = CurrentDevice(kOp);
  if (!device.ok()) return device.status();
  const DevicePlan& plan = s.plans[device.value()];
  if (!plan.ready.load(std::memory_order_acquire))
    return FailedPrecondition(std::string(kOp) + ": no kernel is loaded on device " + std::to_string(device.value()) +
                              ": XLA ran no prepare stage there, and nothing is loaded while a program runs. Please report this with your jaxlib version");
  std::int64_t columns;
  if (__builtin_mul_overflow(s.max_seqlen_q, heads_q / heads_kv, &columns)) columns = std::numeric_limits<std::int64_t>::max();
  const Variant& variant = *PickVariant(plan.candidates, columns);
  // A prefill that works in passes widens the pages of one into scratch; any other takes the whole list at once.
  const bool prefill = s.request.path == "prefill";
  const std::int64_t pages = !prefill || variant.pages ? s.pages_per_pass : std::max(num_indices, std::int64_t{1});
  const std::int64_t need = prefill ? ScratchBytes(variant.pages, s.groups == 4, num_seqs, tokens, heads_kv, pages) : 16, have = dim(kScratch, 0);
  if (need < 0 || have < need)
    return BadArgument(kOp, "scratch", std::to_string(have) + " bytes", (need < 0 ? "more than 2^63" : std::to_string(need)) + " bytes for " + std::to_string(pages) + " pages a pass",
                       "lower the program again with this version of jax_fp4_indexer");
  Bindings call;
  for (const Operand& o : b) call.AddBuffer(o.name, o.buffer.untyped_data());
  call.SetScalar("num_seqs", num_seqs);
  call.SetScalar("num_pages", num_pages);
  call.SetScalar("num_indices", num_indices);
  call.SetScalar("tokens", tokens);
  call.SetScalar("k_tiles", k_tiles);
  call.SetScalar("heads_q", heads_q);
  call.SetScalar("heads_kv", heads_kv);
  call.SetScalar("mask", s.mask);
  call.SetScalar("max_seqlen_q", s.max_seqlen_q);
  call.SetScalar("first_page", 0);
  call.SetScalar("pages_per_pass", pages);
  return LaunchVariant(*s.store, variant, plan.device, std::move(call), stream, kOp);
}

#define JFI_BUFFERS(K)                                                                                                                            \
  K(q, U8, 128) K(k, U8, 128) K(q_scale, U8, 32) K(k_scale, U8, 32) K(kv_indices, S32, 4) K(cu_seqlens_q, S32, 4) K(cu_seqlens_k, S32, 4)         \
  K(cu_page_offsets, S32, 4) K(qo_offset, S32, 4) K(head_scale, F32, 4)
#define JFI_PARAMETER(name, dtype, alignment) ffi::AnyBuffer name,
#define JFI_OPERAND(name, dtype, alignment) Operand{#name, name, ffi::DataType::dtype, alignment},
#define JFI_BIND(name, dtype, alignment) .Arg<ffi::AnyBuffer>()

ffi::Error Prepare(BlockScoresState* s) {
  return ToFfi(NoThrow([&] { return PrepareDevice(*s); }));
}

ffi::Error Execute(cu::Stream stream, BlockScoresState* s, JFI_BUFFERS(JFI_PARAMETER) ffi::Result<ffi::AnyBuffer> scores, ffi::Result<ffi::AnyBuffer> scratch) {
  executions.fetch_add(1, std::memory_order_relaxed);
  return ToFfi(NoThrow([&] {
    return ExecuteDevice(stream, *s, {JFI_BUFFERS(JFI_OPERAND) Operand{"scores", *scores, ffi::DataType::F32, 16}, Operand{"scratch", *scratch, ffi::DataType::U8, 128}}, 4096);
  }));
}

// The same for XLA:CPU, which has no streams and no prepare stage: only with a stand-in driver, so that tests walk the whole path.
ffi::Error ExecuteOnHost(BlockScoresState* s, JFI_BUFFERS(JFI_PARAMETER) ffi::Result<ffi::AnyBuffer> scores, ffi::Result<ffi::AnyBuffer> scratch) {
  return ToFfi(NoThrow([&]() -> Status {
    if (!cu::Driver::IsStandIn()) return FailedPrecondition(std::string(kOp) + ": runs on a host only with a stand-in driver (JFI_LIBCUDA)");
    JFI_RETURN_IF_ERROR(PrepareDevice(*s));
    return ExecuteDevice(nullptr, *s, {JFI_BUFFERS(JFI_OPERAND) Operand{"scores", *scores, ffi::DataType::F32, 16}, Operand{"scratch", *scratch, ffi::DataType::U8, 128}},
                         kHostAlignment);
  }));
}

}  // namespace
}  // namespace jfi

JFI_EXPORT XLA_FFI_Error* jfi_block_scores_instantiate(XLA_FFI_CallFrame*);
JFI_EXPORT XLA_FFI_Error* jfi_block_scores_prepare(XLA_FFI_CallFrame*);
JFI_EXPORT XLA_FFI_Error* jfi_block_scores_execute(XLA_FFI_CallFrame*);
JFI_EXPORT XLA_FFI_Error* jfi_block_scores_execute_on_host(XLA_FFI_CallFrame*);

XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_block_scores_instantiate, jfi::Instantiate,
                              ffi::Ffi::BindInstantiate()
                                  .Attr<std::string_view>("path")
                                  .Attr<std::string_view>("format")
                                  .Attr<std::string_view>("scale_layout")
                                  .Attr<std::int64_t>("mask")
                                  .Attr<std::int64_t>("max_seqlen_q")
                                  .Attr<std::int64_t>("pages_per_pass")
                                  .Attr<std::string_view>("implementation"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_block_scores_prepare, jfi::Prepare, ffi::Ffi::BindPrepare().Ctx<ffi::State<jfi::BlockScoresState>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_block_scores_execute, jfi::Execute,
                              ffi::Ffi::Bind().Ctx<ffi::PlatformStream<jfi::cu::Stream>>().Ctx<ffi::State<jfi::BlockScoresState>>()
                                  JFI_BUFFERS(JFI_BIND).Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(jfi_block_scores_execute_on_host, jfi::ExecuteOnHost,
                              ffi::Ffi::Bind().Ctx<ffi::State<jfi::BlockScoresState>>() JFI_BUFFERS(JFI_BIND).Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

JFI_EXPORT XLA_FFI_TypeId* jfi_block_scores_state_type_id() { return &jfi::BlockScoresState::id; }
JFI_EXPORT const XLA_FFI_TypeInfo* jfi_block_scores_state_type_info() { return &jfi::kStateInfo; }
JFI_EXPORT std::int64_t jfi_block_scores_executions() { return jfi::executions.load(std::memory_order_relaxed); }
JFI_EXPORT std::int64_t jfi_block_scores_scratch_bytes(int staged, int two_forms, std::int64_t num_seqs, std::int64_t tokens, std::int64_t heads_kv, std::int64_t pages) {
  return jfi::ScratchBytes(staged != 0, two_forms != 0, num_seqs, tokens, heads_kv, pages);
}
