#include "launcher.h"

#include <algorithm>
#include <limits>

#include "tensor_map.h"

namespace jfi {
namespace {

// One kernel parameter, wherever its kind wants it aligned. The driver copies as many bytes as the kernel declares.
union Value {
  void* address;
  std::int32_t i32;
  std::int64_t i64;
  cu::TensorMap tensor_map;
  Value() : tensor_map{} {}
};

Status Pack(const Param& p, const Bindings& call, const Place& at, Value& out) {
  if (p.kind == Param::Kind::kTensorMap) return EncodeTensorMap(p.recipe, call, at, out.tensor_map);
  if (p.kind == Param::Kind::kBuffer) {
    auto address = call.Buffer(p.name, at);
    if (!address.ok()) return address.status();
    out.address = address.value();
    return {};
  }
  auto scalar = call.Scalar(p.name, at);
  if (!scalar.ok()) return scalar.status();
  if (p.kind == Param::Kind::kI64) {
    out.i64 = scalar.value();
    return {};
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (scalar.value() > kMax || scalar.value() < -kMax - 1)
    return BadArgument(at.op, p.name, std::to_string(scalar.value()), "a value of 32 bits (at most " + std::to_string(kMax) + ")", "split the call");
  out.i32 = static_cast<std::int32_t>(scalar.value());
  return {};
}

}  // namespace

void Bindings::SetScalar(std::string_view name, std::int64_t value) {
  for (auto& [n, v] : scalars_)
    if (n == name) {
      v = value;
      return;
    }
  scalars_.emplace_back(name, value);
}

Result<void*> Bindings::Buffer(std::string_view name, const Place& at) const {
  for (const auto& [n, a] : buffers_)
    if (n == name) return a;
  return FailedPrecondition(std::string(at.op) + ": kernel " + std::string(at.kernel) + " asks for a buffer \"" + std::string(name) +
                            "\" that the op has not; cubins and library come from different builds; reinstall jax_fp4_indexer or rebuild both");
}

Result<std::int64_t> Bindings::Scalar(std::string_view name, const Place& at) const {
  for (const auto& [n, v] : scalars_)
    if (n == name) return v;
  return FailedPrecondition(std::string(at.op) + ": kernel " + std::string(at.kernel) + " asks for a scalar \"" + std::string(name) +
                            "\" that the op has not; cubins and library come from different builds; reinstall jax_fp4_indexer or rebuild both");
}

Result<std::int64_t> Bindings::Evaluate(const Extent& e, const Place& at) const {
  std::int64_t product = e.constant;
  for (const std::string& name : e.scalars) {
    auto v = Scalar(name, at);
    if (!v.ok()) return v;
    if (__builtin_mul_overflow(product, v.value(), &product)) return InvalidArgument(std::string(at.op) + ": a size of the tensor map of kernel " + std::string(at.kernel) + " overflows 64 bits");
  }
  return product;
}

Status LaunchKernel(const Kernel& kernel, cu::Kernel handle, const DeviceInfo& device, const Bindings& call, cu::Stream stream, std::string_view op) {
  const Place at{op, kernel.name, kernel.arch.name, device.ordinal};
  std::vector<Value> values(kernel.params.size());
  std::vector<void*> addresses(kernel.params.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    JFI_RETURN_IF_ERROR(Pack(kernel.params[i], call, at, values[i]));
    addresses[i] = &values[i];
  }

  cu::LaunchConfig config = {};
  const std::int64_t ctas_of_cluster = kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2];
  if (kernel.grid.per_sm) {
    // Whole clusters only. Clusters of a one-dimensional grid lie along x.
    const std::int64_t ctas = std::int64_t{kernel.grid.per_sm} * device.multiprocessors;
    config.grid_x = static_cast<unsigned>(std::max(ctas / ctas_of_cluster, std::int64_t{1}) * kernel.cluster[0]);
    config.grid_y = static_cast<unsigned>(kernel.cluster[1]);
    config.grid_z = static_cast<unsigned>(kernel.cluster[2]);
  } else {
    config.grid_x = static_cast<unsigned>(kernel.grid.fixed[0]);
    config.grid_y = static_cast<unsigned>(kernel.grid.fixed[1]);
    config.grid_z = static_cast<unsigned>(kernel.grid.fixed[2]);
  }
  config.block_x = static_cast<unsigned>(kernel.block[0]);
  config.block_y = static_cast<unsigned>(kernel.block[1]);
  config.block_z = static_cast<unsigned>(kernel.block[2]);
  config.shared_bytes = static_cast<unsigned>(kernel.dynamic_shared_bytes);
  config.stream = stream;
  cu::LaunchAttribute cluster = {};
  if (ctas_of_cluster > 1) {
    cluster.id = cu::kClusterDimension;
    cluster.value.cluster = {static_cast<unsigned>(kernel.cluster[0]), static_cast<unsigned>(kernel.cluster[1]), static_cast<unsigned>(kernel.cluster[2])};
    config.attributes = &cluster;
    config.num_attributes = 1;
  }
  auto driver = cu::Driver::Get();
  if (!driver.ok()) return driver.status();
  // A CUkernel stands for the CUfunction of the current context.
  return CheckCuda(driver.value()->LaunchKernelEx(&config, reinterpret_cast<cu::Function>(handle), addresses.data(), nullptr), "cuLaunchKernelEx", at);
}

Status LaunchVariant(const CubinStore& store, const Variant& variant, const DeviceInfo& device, Bindings call, cu::Stream stream, std::string_view op) {
  const Place at{op, variant.path, variant.arch.name, device.ordinal};
  std::int64_t pages = 1, step = 1;
  if (variant.pages) {
    auto n = call.Scalar("num_indices", at), s = call.Scalar("pages_per_pass", at);
    if (!n.ok()) return n.status();
    if (!s.ok()) return s.status();
    pages = std::max(n.value(), std::int64_t{1});
    step = s.value();
    if (step < 1) return BadArgument(op, "pages_per_pass", std::to_string(step), "at least 1", "lower the program again with this version of jax_fp4_indexer");
  }
  std::vector<cu::Kernel> handles;
  for (std::size_t index : variant.launches) {
    auto handle = store.Find(index, device.ordinal, op);
    if (!handle.ok()) return handle.status();
    handles.push_back(handle.value());
  }
  for (std::int64_t first = 0; first < pages; first += step) {
    call.SetScalar("first_page", first);
    for (std::size_t i = 0; i < handles.size(); ++i)
      JFI_RETURN_IF_ERROR(LaunchKernel(store.manifest().kernels[variant.launches[i]], handles[i], device, call, stream, op));
  }
  return {};
}

}  // namespace jfi
