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
  Value() {}
};

Status Missing(const Kernel& kernel, const OpSpec& op, const std::string& what) {
  return FailedPrecondition(op.api + ": kernel " + kernel.name + " needs " + what +
                            " that the op has not; cubins and library come from different builds; reinstall jax_fp4_indexer or rebuild both");
}

Status BindAll(const std::vector<Expr>& from, const Kernel& kernel, const OpSpec& op, std::vector<Formula>& to) {
  for (const Expr& e : from) {
    auto bound = e.Bind(op.names);
    if (!bound.ok()) return Missing(kernel, op, "a size of the expression \"" + e.text() + "\"");
    to.push_back(std::move(bound.value()));
  }
  return {};
}

Status Pack(const BoundKernel& k, std::size_t i, const CallValues& call, const Place& at, Value& out) {
  const BoundParam& p = k.params[i];
  switch (p.kind) {
    case Param::Kind::kTensorMap:
      return EncodeTensorMap(k.maps[static_cast<std::size_t>(p.map)], call.buffers[p.index], call.slots, at, out.tensor_map);
    case Param::Kind::kBuffer: out.address = call.buffers[p.index]; return {};
    case Param::Kind::kI64: out.i64 = call.slots[p.index]; return {};
    case Param::Kind::kI32: break;
  }
  const std::int64_t value = call.slots[p.index];
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (value > kMax || value < -kMax - 1)
    return BadArgument(at.op, k.kernel->params[i].name, std::to_string(value), "a value of 32 bits (at most " + std::to_string(kMax) + ")",
                       "split the call");
  out.i32 = static_cast<std::int32_t>(value);
  return {};
}

// A grid by expression: at least 1, whole clusters, within the driver's limits.
Status GridOf(const BoundKernel& k, const std::int64_t* slots, const Place& at, std::array<std::int64_t, 3>& out) {
  constexpr std::int64_t kLimits[] = {std::numeric_limits<std::int32_t>::max(), 65535, 65535};
  for (std::size_t i = 0; i < 3; ++i) {
    std::int64_t n = 0;
    const std::int64_t cluster = k.kernel->cluster[i];
    const bool fault = k.grid[i].Value(slots, n) != Formula::Fault::kNone || n > kLimits[i] - (cluster - 1);
    if (fault)
      return BadArgument(at.op, "grid", "a launch of " + k.grid[i].text() + " CTAs along axis " + std::to_string(i),
                         "at most " + std::to_string(kLimits[i]), "split the call");
    out[i] = (std::max(n, std::int64_t{1}) + cluster - 1) / cluster * cluster;
  }
  return {};
}

}  // namespace

Result<BoundKernel> BindKernel(const Kernel& kernel, cu::Kernel handle, const OpSpec& op) {
  BoundKernel out;
  out.kernel = &kernel;
  out.handle = handle;
  for (const Param& p : kernel.params) {
    BoundParam& b = out.params.emplace_back();
    b.kind = p.kind;
    const bool scalar = p.kind == Param::Kind::kI32 || p.kind == Param::Kind::kI64;
    b.index = scalar ? op.names.Find(p.name) : op.FindBuffer(p.name);
    if (b.index < 0) return Missing(kernel, op, std::string("a ") + (scalar ? "scalar" : "buffer") + " \"" + p.name + "\"");
    if (p.kind != Param::Kind::kTensorMap) continue;
    b.map = static_cast<int>(out.maps.size());
    BoundMap& m = out.maps.emplace_back();
    m.recipe = &p.recipe;
    JFI_RETURN_IF_ERROR(BindAll(p.recipe.dims, kernel, op, m.dims));
    JFI_RETURN_IF_ERROR(BindAll(p.recipe.strides, kernel, op, m.strides));
    std::vector<Formula> offset;
    JFI_RETURN_IF_ERROR(BindAll({p.recipe.offset}, kernel, op, offset));
    m.offset = std::move(offset[0]);
  }
  JFI_RETURN_IF_ERROR(BindAll(kernel.grid.expr, kernel, op, out.grid));
  return out;
}

Status LaunchKernel(const BoundKernel& k, const DeviceInfo& device, const CallValues& call, cu::Stream stream, std::string_view op) {
  const Kernel& kernel = *k.kernel;
  const Place at{op, kernel.name, kernel.arch.name, device.ordinal};
  Value values[kMaxParams];
  void* addresses[kMaxParams];
  for (std::size_t i = 0; i < k.params.size(); ++i) {
    JFI_RETURN_IF_ERROR(Pack(k, i, call, at, values[i]));
    addresses[i] = &values[i];
  }

  cu::LaunchConfig config = {};
  const std::int64_t ctas_of_cluster = kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2];
  std::array<std::int64_t, 3> grid = kernel.grid.fixed;
  if (kernel.grid.per_sm) {
    // Whole clusters only. Clusters of a one-dimensional grid lie along x.
    const std::int64_t ctas = std::int64_t{kernel.grid.per_sm} * device.multiprocessors;
    grid = {std::max(ctas / ctas_of_cluster, std::int64_t{1}) * kernel.cluster[0], kernel.cluster[1], kernel.cluster[2]};
  } else if (!k.grid.empty()) {
    JFI_RETURN_IF_ERROR(GridOf(k, call.slots, at, grid));
  }
  config.grid_x = static_cast<unsigned>(grid[0]);
  config.grid_y = static_cast<unsigned>(grid[1]);
  config.grid_z = static_cast<unsigned>(grid[2]);
  config.block_x = static_cast<unsigned>(kernel.block[0]);
  config.block_y = static_cast<unsigned>(kernel.block[1]);
  config.block_z = static_cast<unsigned>(kernel.block[2]);
  config.shared_bytes = static_cast<unsigned>(kernel.dynamic_shared_bytes);
  config.stream = stream;
  cu::LaunchAttribute cluster;
  if (ctas_of_cluster > 1) {
    cluster = {};
    cluster.id = cu::kClusterDimension;
    cluster.value.cluster = {static_cast<unsigned>(kernel.cluster[0]), static_cast<unsigned>(kernel.cluster[1]),
                             static_cast<unsigned>(kernel.cluster[2])};
    config.attributes = &cluster;
    config.num_attributes = 1;
  }
  auto driver = cu::Driver::Get();
  if (!driver.ok()) return driver.status();
  // A CUkernel stands for the CUfunction of the current context.
  const cu::Error e = driver.value()->LaunchKernelEx(&config, reinterpret_cast<cu::Function>(k.handle), addresses, nullptr);
  return CheckCuda(e, "cuLaunchKernelEx", at);
}

Status LaunchVariant(const BoundVariant& v, const OpSpec& op, const DeviceInfo& device, const CallValues& call, std::int64_t have,
                     cu::Stream stream) {
  std::int64_t stop = 1, step = 1;
  if (op.loop) {
    if (op.loop->stop.Value(call.slots, stop) != Formula::Fault::kNone)
      return BadArgument(op.api, op.loop->step_name, "a loop to " + op.loop->stop.text(), "an end of 64 bits", "split the call");
    std::int64_t& size = call.slots[op.loop->step];
    if (!v.variant->repeat) size = stop;
    step = size;
    if (step < 1)
      return BadArgument(op.api, op.loop->step_name, std::to_string(step), "at least 1", "lower the program again with this version of jax_fp4_indexer");
    call.slots[op.loop->scalar] = 0;
  }
  std::int64_t need;
  const bool known = v.variant->scratch.Value(call.slots, need) == Formula::Fault::kNone;
  if (!known || have < need) {
    const std::string pass = op.loop ? " for " + op.loop->step_name + " = " + std::to_string(step) : "";
    return BadArgument(op.api, "scratch", std::to_string(have) + " bytes", (known ? std::to_string(need) : "more than 2^63") + " bytes" + pass,
                       "lower the program again with this version of jax_fp4_indexer");
  }
  for (std::int64_t first = 0; first < stop; first += step) {
    if (op.loop) call.slots[op.loop->scalar] = first;
    for (const BoundKernel& kernel : v.launches) JFI_RETURN_IF_ERROR(LaunchKernel(kernel, device, call, stream, op.api));
    if (!v.variant->repeat) break;
  }
  return {};
}

}  // namespace jfi
