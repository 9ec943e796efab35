// An op as manifest.json describes it (jax_fp4_indexer/specs/spec.py writes the entry), and the checks of its calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "expr.h"
#include "json.h"
#include "status.h"

namespace jfi {

inline constexpr std::size_t kMaxSlots = 64, kMaxBuffers = 32;

enum class DType : std::uint8_t { kU8, kS32, kF32, kF16, kBf16, kF8E4M3FN, kOther };
const char* DTypeName(DType);  // as NumPy spells it

// An operand or result of a call, as the caller has it.
struct BufferView {
  DType dtype = DType::kOther;
  const std::int64_t* dims = nullptr;
  std::size_t rank = 0;
  void* address = nullptr;
};

// An attribute of the call: a choice where it has values, else an integer.
struct Attribute {
  std::string name;
  std::vector<std::string> values;
  std::int64_t low = 0, high = 0;
  int slot = 0;  // a choice's holds the number of its value
};

// A value, or one for each value of an attribute.
template <class T>
struct ByChoice {
  int attribute = -1;
  std::vector<T> cases = std::vector<T>(1);

  // choices: for each attribute of the op, the number of its value.
  const T& Of(const std::vector<std::size_t>& choices) const {
    return cases[attribute < 0 ? 0 : choices[static_cast<std::size_t>(attribute)]];
  }
};

struct BufferSpec {
  std::string name;
  ByChoice<DType> dtype;
  ByChoice<std::vector<Formula>> shape;
  std::uintptr_t align = 1;
};

struct Condition {
  std::string argument, expected;
  Formula zero;
};

struct Loop {
  int scalar = 0, step = 0;  // slots
  std::string step_name;
  Formula stop;
};

struct DerivedSize {
  int slot = 0;
  ByChoice<std::int64_t> value;
};

struct OpSpec {
  std::string name, api;
  std::int64_t version = 1;
  std::vector<std::string> select;
  bool scratch = false;
  Names names;  // sizes, attributes and the loop's scalar: what expressions and kernel parameters may name
  std::vector<Attribute> attributes;
  std::vector<DerivedSize> derived;
  std::vector<BufferSpec> buffers;  // operands, results, and `scratch` as uint8[scratch_bytes]: what kernels have addresses of
  std::size_t num_operands = 0, num_results = 0;  // num_results does not count scratch
  std::vector<Condition> conditions;
  Formula bound;
  std::optional<Loop> loop;

  static Result<OpSpec> Parse(const Json& entry, const std::string& where);
  int FindBuffer(std::string_view name) const;  // or -1
};

// An attribute of a call, as the program has it.
struct Given {
  std::string name, text;
  std::int64_t number = 0;
  bool is_text = false;
};

// What a call site has fixed: the op with its choices made.
class Signature {
 public:
  // Checks that the attributes are those of the op, no more and no fewer, and in range. `implementation` and `op` are not among them.
  static Result<Signature> Make(const OpSpec& op, const std::vector<Given>& attributes);

  const OpSpec& op() const { return *op_; }
  // The value of every attribute of `op.select`.
  std::vector<std::pair<std::string, std::string>> Select() const;

  // Checks dtype and shape of all buffers and the op's conditions, and writes every size to `slots` (kMaxSlots values). Sets `empty` where
  // no result has an element, so that there is nothing to do. Allocates nothing unless there is an error.
  Status Bind(const BufferView* operands, std::size_t num_operands, const BufferView* results, std::size_t num_results,
              std::int64_t* slots, bool& empty) const;
  // Addresses: multiples of what kernels rely on, or of `limit`, whichever is less.
  Status CheckAddresses(const BufferView* operands, const BufferView* results, std::uintptr_t limit) const;

 private:
  struct Dim {
    const Formula* formula;
    int slot = -1;  // that this dimension gives its value; -1: it is compared
    std::int64_t constant = 0;
  };
  struct Buffer {
    const BufferSpec* spec;
    DType dtype;
    std::vector<Dim> dims;
  };

  const BufferView& View(std::size_t i, const BufferView* operands, const BufferView* results) const {
    return i < op_->num_operands ? operands[i] : results[i - op_->num_operands];
  }
  Status Mismatch(const Buffer& b, const BufferView& got, const std::int64_t* slots) const;
  Status CheckCondition(const Condition& c, const BufferView* operands, const BufferView* results, const std::int64_t* slots) const;

  const OpSpec* op_ = nullptr;
  std::vector<std::size_t> choices_;  // for each attribute the number of its value; 0 for an integer
  std::vector<std::int64_t> fixed_;   // for each slot: attributes and derived sizes, else 0
  std::vector<Buffer> buffers_;
};

}  // namespace jfi
