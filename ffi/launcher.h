// From a variant and the buffers and sizes of a call to kernel launches.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "check.h"
#include "cubin_store.h"
#include "manifest.h"

namespace jfi {

// What a manifest's parameter list may refer to by name: addresses of operands and results, and sizes.
class Bindings {
 public:
  void AddBuffer(std::string_view name, void* address) { buffers_.emplace_back(name, address); }
  void SetScalar(std::string_view name, std::int64_t value);

  Result<void*> Buffer(std::string_view name, const Place& at) const;
  Result<std::int64_t> Scalar(std::string_view name, const Place& at) const;
  Result<std::int64_t> Evaluate(const Extent&, const Place& at) const;

 private:
  std::vector<std::pair<std::string_view, void*>> buffers_;  // names are literals of the handlers
  std::vector<std::pair<std::string_view, std::int64_t>> scalars_;
};

// One launch of one kernel. The device's context is current.
Status LaunchKernel(const Kernel& kernel, cu::Kernel handle, const DeviceInfo& device, const Bindings& call, cu::Stream stream, std::string_view op);

// Every launch of a variant, in order; where it works in passes, once for each `first_page`. Reads the scalars num_indices and
// pages_per_pass, sets first_page. Launches only: safe inside a captured graph.
Status LaunchVariant(const CubinStore& store, const Variant& variant, const DeviceInfo& device, Bindings call, cu::Stream stream, std::string_view op);

}  // namespace jfi
