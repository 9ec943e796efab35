#include "tensor_map.h"

namespace jfi {

Status EncodeTensorMap(const TensorMapRecipe& recipe, const Bindings& call, const Place& at, cu::TensorMap& out) {
  out = {};
  auto address = call.Buffer(recipe.buffer, at);
  if (!address.ok()) return address.status();
  const std::size_t rank = recipe.dims.size();
  std::uint64_t dims[5], strides[5];
  std::uint32_t ones[5] = {1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < rank; ++i) {
    auto d = call.Evaluate(recipe.dims[i], at);
    if (!d.ok()) return d.status();
    if (d.value() <= 0) return {};
    dims[i] = static_cast<std::uint64_t>(d.value());
    if (i == 0) continue;
    auto s = call.Evaluate(recipe.strides[i - 1], at);
    if (!s.ok()) return s.status();
    strides[i - 1] = static_cast<std::uint64_t>(s.value());
  }
  auto driver = cu::Driver::Get();
  if (!driver.ok()) return driver.status();
  return CheckCuda(driver.value()->TensorMapEncodeTiled(&out, recipe.dtype, static_cast<std::uint32_t>(rank), address.value(), dims, strides, recipe.box.data(), ones,
                                                        /*interleave=*/0, recipe.swizzle, recipe.l2, /*out_of_bounds_fill=*/0),
                   "cuTensorMapEncodeTiled of " + recipe.buffer, at);
}

}  // namespace jfi
