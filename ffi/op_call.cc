#include "op_call.h"

#include <algorithm>
#include <limits>

namespace jfi {

Result<std::unique_ptr<OpCall>> OpCall::Make(CubinStore& store, const std::string& op, const std::string& implementation,
                                             const std::vector<Given>& attributes) {
  const Manifest& manifest = store.manifest();
  const OpSpec* spec = manifest.FindOp(op);
  if (!spec) {
    std::string known;
    for (const OpSpec& o : manifest.ops) known += (known.empty() ? "" : " or ") + o.name;
    return BadArgument("jax_fp4_indexer", "op", "'" + op + "'", known.empty() ? "an op of the cubins, which hold none" : known);
  }
  if (implementation != "auto" && implementation != "portable")
    return BadArgument(spec->api, "implementation", "'" + implementation + "'", "auto or portable");
  auto signature = Signature::Make(*spec, attributes);
  if (!signature.ok()) return signature.status();
  auto call = std::make_unique<OpCall>();
  call->store_ = &store;
  call->signature_ = std::move(signature.value());
  call->request_ = {op, call->signature_.Select(), implementation};
  if (!manifest.Serves(call->request_))
    return InvalidArgument(spec->api + ": these cubins hold no " + RequestText(call->request_) +
                           "; rebuild them with `python -m jax_fp4_indexer.aot build`, or use implementation=\"reference\"");
  return call;
}

Status OpCall::Prepare() {
  // The device of the current context: XLA names no ordinal to this stage on every version. The sizes are not known here either, so
  // every variant that the call may pick is loaded.
  const OpSpec& op = signature_.op();
  auto device = CurrentDevice(op.api);
  if (!device.ok()) return device.status();
  DevicePlan& plan = plans_[static_cast<std::size_t>(device.value())];
  if (plan.ready.load(std::memory_order_acquire)) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  if (plan.ready.load(std::memory_order_relaxed)) return {};
  auto info = DescribeDevice(op.api, device.value());
  if (!info.ok()) return info.status();
  const Manifest& manifest = store_->manifest();
  auto candidates = manifest.Candidates(request_, info.value().capability);
  if (!candidates.ok()) return Status(candidates.status().code(), op.api + ": " + candidates.status().message());
  std::vector<BoundVariant> bound;
  for (const Variant* v : candidates.value()) {
    BoundVariant& variant = bound.emplace_back();
    variant.variant = v;
    for (std::size_t index : v->launches) {
      auto handle = store_->Prepare(index, device.value(), op.api);
      if (!handle.ok()) return handle.status();
      auto kernel = BindKernel(manifest.kernels[index], handle.value(), op);
      if (!kernel.ok()) return kernel.status();
      variant.launches.push_back(std::move(kernel.value()));
    }
  }
  plan.device = info.value();
  plan.candidates = std::move(candidates.value());
  plan.bound = std::move(bound);
  plan.ready.store(true, std::memory_order_release);
  return {};
}

Status OpCall::Execute(cu::Stream stream, const BufferView* operands, std::size_t num_operands, const BufferView* results,
                       std::size_t num_results, std::uintptr_t address_limit) const {
  const OpSpec& op = signature_.op();
  std::int64_t slots[kMaxSlots];
  bool empty = false;
  JFI_RETURN_IF_ERROR(signature_.Bind(operands, num_operands, results, num_results, slots, empty));
  if (empty) return {};  // nothing to write; a grid of nothing is an error
  JFI_RETURN_IF_ERROR(signature_.CheckAddresses(operands, results, address_limit));
  auto device = CurrentDevice(op.api);
  if (!device.ok()) return device.status();
  const DevicePlan& plan = plans_[static_cast<std::size_t>(device.value())];
  if (!plan.ready.load(std::memory_order_acquire))
    return FailedPrecondition(op.api + ": no kernel is loaded on device " + std::to_string(device.value()) +
                              ": XLA ran no prepare stage there, and nothing is loaded while a program runs. Please report this with your jaxlib version");
  std::int64_t bound;
  if (op.bound.Value(slots, bound) != Formula::Fault::kNone) bound = std::numeric_limits<std::int64_t>::max();
  void* addresses[kMaxBuffers];
  for (std::size_t i = 0; i < num_operands; ++i) addresses[i] = operands[i].address;
  for (std::size_t i = 0; i < num_results; ++i) addresses[num_operands + i] = results[i].address;
  const std::int64_t have = op.scratch ? results[num_results - 1].dims[0] : 0;
  return LaunchVariant(plan.bound[PickVariant(plan.candidates, bound)], op, plan.device, {slots, addresses}, have, stream);
}

}  // namespace jfi
