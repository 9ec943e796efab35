// A manifest's tensor-map recipe and the sizes of a call -> a TMA descriptor.
#pragma once

#include "check.h"
#include "launcher.h"

namespace jfi {

// Encodes the descriptor of the buffer at `address`. A tensor with an empty dimension gets an all-zero descriptor: the kernel may not use it.
Status EncodeTensorMap(const BoundMap& map, void* address, const std::int64_t* slots, const Place& at, cu::TensorMap& out);

}  // namespace jfi
