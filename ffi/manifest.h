// cubins/manifest.json as C++ values: which kernels exist, how each is launched, and which variant serves a call.
// The schema is stated in docs/architecture.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_api.h"
#include "expr.h"
#include "spec.h"
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

// The arguments of cuTensorMapEncodeTiled. `strides` are bytes, of every dimension but the first (the contiguous one); `offset` is the
// tensor's first byte within the buffer.
struct TensorMapRecipe {
  std::string buffer;
  cu::TensorMapDataType dtype = cu::kU8;
  std::vector<Expr> dims, strides;
  Expr offset;
  std::vector<std::uint32_t> box;
  cu::TensorMapSwizzle swizzle = cu::kSwizzleNone;
  cu::TensorMapL2 l2 = cu::kL2None;
};

inline constexpr std::size_t kMaxParams = 48;

struct Param {
  enum class Kind { kBuffer, kI32, kI64, kTensorMap } kind = Kind::kBuffer;
  std::string name;        // of the buffer or the scalar
  TensorMapRecipe recipe;  // kTensorMap only
};

struct Grid {
  int per_sm = 0;                                // CTAs a multiprocessor; 0 where `fixed` or `expr` counts
  std::array<std::int64_t, 3> fixed = {1, 1, 1};
  std::vector<Expr> expr;                        // three, or none where `fixed` counts
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

// Values of the choices that variants are made for: ((name, value), ...).
using Select = std::vector<std::pair<std::string, std::string>>;

struct Variant {
  std::string op, implementation;
  Select select;
  Arch arch;
  std::int64_t bound = 0;             // 0: any
  bool repeat = false;                // the launches are repeated as the op's loop says
  Formula scratch;                    // bytes that the launches use, over the names of the op
  std::vector<std::size_t> launches;  // indices into Manifest::kernels
};

// What a call needs. A key that `select` lacks may have any value; `implementation` is "auto" (native before portable) or "portable".
struct Request {
  std::string op;
  Select select;
  std::string implementation = "auto";
};

struct Manifest {
  std::vector<OpSpec> ops;
  std::vector<Kernel> kernels;
  std::vector<Variant> variants;

  static Result<Manifest> Parse(std::string_view text);

  const OpSpec* FindOp(std::string_view name) const;  // or null
  // True if some variant answers the request on some device.
  bool Serves(const Request&) const;
  // The variants of the best implementation and arch for a device, by increasing bound. Native comes before portable, a cubin made
  // for exactly this capability before a wider one. An error that names what is shipped where there are none.
  Result<std::vector<const Variant*>> Candidates(const Request&, Capability) const;
};

// "decode nvfp4 public kernel", for messages.
std::string RequestText(const Request&);

// The number of the candidate with the smallest bound that holds `value`; the last if none does (a kernel is right for any value, the
// bound is about speed). `candidates` are not empty.
std::size_t PickVariant(const std::vector<const Variant*>& candidates, std::int64_t value);

}  // namespace jfi
