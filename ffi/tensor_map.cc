#include "tensor_map.h"

namespace jfi {
namespace {

Status Overflow(const Formula& f, const Place& at) {
  return InvalidArgument(std::string(at.op) + ": a size of the tensor map of kernel " + std::string(at.kernel) + " overflows 64 bits: " + f.text());
}

}  // namespace

Status EncodeTensorMap(const BoundMap& map, void* address, const std::int64_t* slots, const Place& at, cu::TensorMap& out) {
  out = {};
  const TensorMapRecipe& recipe = *map.recipe;
  const std::size_t rank = map.dims.size();
  std::uint64_t dims[5], strides[5];
  std::uint32_t ones[5] = {1, 1, 1, 1, 1};
  std::int64_t n;
  for (std::size_t i = 0; i < rank; ++i) {
    if (map.dims[i].Value(slots, n) != Formula::Fault::kNone) return Overflow(map.dims[i], at);
    if (n <= 0) return {};
    dims[i] = static_cast<std::uint64_t>(n);
    if (i == 0) continue;
    if (map.strides[i - 1].Value(slots, n) != Formula::Fault::kNone) return Overflow(map.strides[i - 1], at);
    strides[i - 1] = static_cast<std::uint64_t>(n);
  }
  if (map.offset.Value(slots, n) != Formula::Fault::kNone) return Overflow(map.offset, at);
  auto driver = cu::Driver::Get();
  if (!driver.ok()) return driver.status();
  const cu::Error e = driver.value()->TensorMapEncodeTiled(&out, recipe.dtype, static_cast<std::uint32_t>(rank), static_cast<char*>(address) + n,
                                                           dims, strides, recipe.box.data(), ones, /*interleave=*/0, recipe.swizzle, recipe.l2,
                                                           /*out_of_bounds_fill=*/0);
  if (e == 0) return {};
  return CheckCuda(e, "cuTensorMapEncodeTiled of " + recipe.buffer, at);
}

}  // namespace jfi
