// From a variant and the buffers and sizes of a call to kernel launches.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "check.h"
#include "cubin_store.h"
#include "manifest.h"
#include "spec.h"

namespace jfi {

// A tensor map whose expressions read the slots of an op.
struct BoundMap {
  const TensorMapRecipe* recipe = nullptr;
  std::vector<Formula> dims, strides;
  Formula offset;
};

// A kernel parameter by number: of the op's buffer, of the slot, or of BoundKernel::maps.
struct BoundParam {
  Param::Kind kind = Param::Kind::kBuffer;
  int index = 0;  // the buffer of a tensor map
  int map = 0;    // of a tensor map
};

// A kernel that is loaded on a device, with the names of its parameters resolved to slots and buffers of an op.
struct BoundKernel {
  const Kernel* kernel = nullptr;
  cu::Kernel handle = nullptr;
  std::vector<BoundParam> params;
  std::vector<BoundMap> maps;
  std::vector<Formula> grid;  // three, where the grid follows the sizes
};

struct BoundVariant {
  const Variant* variant = nullptr;
  std::vector<BoundKernel> launches;
};

// An error if the kernel names what the op has not.
Result<BoundKernel> BindKernel(const Kernel& kernel, cu::Kernel handle, const OpSpec& op);

// What a launch reads: values of the op's slots, addresses of its buffers.
struct CallValues {
  std::int64_t* slots;
  void* const* buffers;
};

// One launch of one kernel. The device's context is current. Allocates nothing.
Status LaunchKernel(const BoundKernel& kernel, const DeviceInfo& device, const CallValues& call, cu::Stream stream, std::string_view op);

// Checks that `have` bytes of scratch are enough, then does every launch of a variant, in order. A variant that repeats does so once for
// each value of the loop's scalar; any other gets one pass over everything: the scalar is 0, the step is the loop's stop. Sets both in
// `call`. Launches only: safe inside a captured graph.
Status LaunchVariant(const BoundVariant& variant, const OpSpec& op, const DeviceInfo& device, const CallValues& call, std::int64_t have,
                     cu::Stream stream);

}  // namespace jfi
