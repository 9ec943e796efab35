// A manifest's tensor-map recipe and the sizes of a call -> a TMA descriptor.
#pragma once

#include "check.h"
#include "launcher.h"
#include "manifest.h"

namespace jfi {

// Encodes the descriptor. A tensor with an empty dimension gets an all-zero descriptor: the kernel may not use it.
Status EncodeTensorMap(const TensorMapRecipe& recipe, const Bindings& call, const Place& at, cu::TensorMap& out);

}  // namespace jfi
