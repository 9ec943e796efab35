// One call site of an op, whichever op it is: what instantiate, prepare and execute of the handler do, without the XLA headers.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cubin_store.h"
#include "launcher.h"
#include "spec.h"

namespace jfi {

// Shared by all devices and threads of an executable.
class OpCall {
 public:
  // Refuses attributes that the op has not, and choices that no kernel of the store serves.
  static Result<std::unique_ptr<OpCall>> Make(CubinStore& store, const std::string& op, const std::string& implementation,
                                              const std::vector<Given>& attributes);

  // Loads every variant that the call may pick on the device of the current context, and resolves its parameters. Idempotent, thread-safe.
  Status Prepare();

  // Checks every buffer and launches. Loads nothing, waits for nothing and allocates nothing unless there is an error.
  // address_limit: the alignment that the host can promise; more is not required of an address.
  Status Execute(cu::Stream stream, const BufferView* operands, std::size_t num_operands, const BufferView* results, std::size_t num_results,
                 std::uintptr_t address_limit) const;

  const std::string& api() const { return signature_.op().api; }

 private:
  struct DevicePlan {
    std::atomic<bool> ready{false};
    DeviceInfo device;
    std::vector<const Variant*> candidates;
    std::vector<BoundVariant> bound;  // in the order of candidates
  };

  CubinStore* store_ = nullptr;
  Request request_;
  Signature signature_;
  std::mutex mutex_;  // guards the plans that are not ready
  std::array<DevicePlan, kMaxDevices> plans_;
};

}  // namespace jfi
