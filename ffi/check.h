// How an error of this library reads: op, argument, got, expected, next step; for the driver's errors also kernel, cubin arch and device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cuda_api.h"
#include "status.h"

namespace jfi {

inline Status BadArgument(std::string_view op, std::string_view argument, const std::string& got, const std::string& expected,
                          const std::string& next_step = "lower the program with the version of jax_fp4_indexer that runs it") {
  return InvalidArgument(std::string(op) + ": " + std::string(argument) + ": got " + got + ", expected " + expected + "; " + next_step);
}

// Where a driver call happened.
struct Place {
  std::string_view op, kernel, arch;
  int device = -1;
};

inline Status CheckCuda(cu::Error e, std::string_view call, const Place& at) {
  if (e == 0) return {};
  auto driver = cu::Driver::Get();
  std::string m = std::string(at.op) + ": " + std::string(call) + " failed: ";
  m += driver.ok() ? driver.value()->Describe(e) : "CUDA error " + std::to_string(e);
  if (!at.kernel.empty()) m += " [kernel " + std::string(at.kernel) + ", cubin " + std::string(at.arch) + ", device " + std::to_string(at.device) + "]";
  return Internal(std::move(m));
}

// Kernels are compiled for this alignment of an operand's address; an unaligned one would fault on the device.
inline Status CheckAlignment(std::string_view op, std::string_view argument, const void* address, std::uintptr_t bytes) {
  const std::uintptr_t off = reinterpret_cast<std::uintptr_t>(address) % bytes;
  if (off == 0) return {};
  return BadArgument(op, argument, "an address " + std::to_string(off) + " bytes past a multiple of " + std::to_string(bytes),
                     "an address that is a multiple of " + std::to_string(bytes), "copy the array first (jnp.copy), e.g. where it was imported by dlpack");
}

template <class Dims>
std::string ShapeText(const Dims& dims) {
  std::string s = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) s += (i ? "," : "") + std::to_string(dims[i]);
  return s + "]";
}

}  // namespace jfi
