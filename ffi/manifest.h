// cubins/manifest.json as C++ values: which kernels exist, how each is launched, and which variant serves a call.
// The schema is stated in docs/architecture.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_api.h"
#include "json.h"
#include "status.h"

namespace jfi {

struct Capability {
  int major = 0, minor = 0;
};
std::string CapabilityText(Capability);

// "sm_90a": exactly 9.0. "sm_80": 8.0 and every later 8.x. "sm_100f": 10.0 and every later 10.x.
struct Arch {
  std::string name;
  int major = 0, minor = 0;
  bool exact = false;
  bool RunsOn(Capability) const;
};
Result<Arch> ParseArch(const std::string& name);

// A product of integers and scalars of the call, e.g. "heads_kv*8192".
struct Extent {
  std::int64_t constant = 1;
  std::vector<std::string> scalars;
};

// The arguments of cuTensorMapEncodeTiled. `strides` are bytes, of every dimension but the first (the contiguous one).
struct TensorMapRecipe {
  std::string buffer;
  cu::TensorMapDataType dtype = cu::kU8;
  std::vector<Extent> dims, strides;
  std::vector<std::uint32_t> box;
  cu::TensorMapSwizzle swizzle = cu::kSwizzleNone;
  cu::TensorMapL2 l2 = cu::kL2None;
};

struct Param {
  enum class Kind { kBuffer, kI32, kI64, kTensorMap } kind = Kind::kBuffer;
  std::string name;        // of the buffer or the scalar
  TensorMapRecipe recipe;  // kTensorMap only
};

struct Grid {
  int per_sm = 0;                        // CTAs a multiprocessor; 0 where `fixed` counts
  std::array<std::int64_t, 3> fixed = {1, 1, 1};
};

struct Kernel {
  std::string name, cubin, symbol;
  std::string sha256;  // of the cubin's bytes; empty: not stated
  Arch arch;
  std::array<std::int64_t, 3> block = {1, 1, 1}, cluster = {1, 1, 1};
  Grid grid;
  std::int64_t dynamic_shared_bytes = 0;
  std::vector<Param> params;
};

struct Variant {
  std::string op, path, format, scale_layout, implementation;
  Arch arch;
  std::int64_t max_columns = 0;     // 0: any
  bool pages = false;               // the launches are repeated for every pass over the page list
  std::vector<std::size_t> launches;  // indices into Manifest::kernels
};

// What a call asks for. An empty string asks for any; `implementation` is "auto" (native before portable) or "portable".
struct Request {
  std::string op, path, format, scale_layout, implementation = "auto";
};

struct Manifest {
  std::vector<Kernel> kernels;
  std::vector<Variant> variants;

  static Result<Manifest> Parse(std::string_view text);

  // True if some variant answers the request on some device.
  bool Serves(const Request&) const;
  // The variants of the best implementation and arch for a device, by rising column bound. Native comes before portable, a cubin made
  // for exactly this capability before a wider one. An error that names what is shipped where there are none.
  Result<std::vector<const Variant*>> Candidates(const Request&, Capability) const;
};

// The candidate with the smallest column bound that holds `columns`; the widest if none does (a kernel is right for any number of
// columns, the bound is about speed).
const Variant* PickVariant(const std::vector<const Variant*>& candidates, std::int64_t columns);

}  // namespace jfi
