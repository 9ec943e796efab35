// Integer expressions over named sizes: the texts of manifest.json that jax_fp4_indexer/specs/expr.py writes.
//
//   integers, names, + - * / %, min(a, b), max(a, b) and parentheses, with the usual precedence; / rounds down, % has the sign of the divisor
//
// A text is parsed once, its names are resolved to slots once; what remains is a flat list of steps whose evaluation allocates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "status.h"

namespace jfi {

// Names in the order of their slots.
class Names {
 public:
  // The slot of a name, or -1.
  int Find(std::string_view name) const;
  // The slot of a name, which is new at the end if the name is.
  int Add(const std::string& name);
  const std::string& Name(int slot) const { return names_[static_cast<std::size_t>(slot)]; }
  std::size_t size() const { return names_.size(); }

 private:
  std::vector<std::string> names_;
};

// An expression whose names are slots of an array of values.
class Formula {
 public:
  enum class Fault { kNone, kOverflow, kDivisionByZero };

  // Writes the value to `out`, unless there is a fault.
  Fault Value(const std::int64_t* slots, std::int64_t& out) const;
  // True if this is a slot alone or a slot plus a constant: what a dimension n must be to give the slot its value, n - constant.
  bool Solve(int& slot, std::int64_t& constant) const;
  const std::string& text() const { return text_; }

 private:
  friend class Expr;
  friend class ExprParser;
  enum class Op : std::uint8_t { kInt, kSlot, kAdd, kSub, kMul, kDiv, kMod, kMin, kMax };
  struct Step {
    Op op;
    std::int64_t value;  // of kInt; the slot of kSlot
  };
  std::string text_ = "0";
  std::vector<Step> steps_ = {{Op::kInt, 0}};  // in the order of evaluation, operands before operators
};

// An expression whose names have no slots yet. Default: 0.
class Expr {
 public:
  static Result<Expr> Parse(std::string_view text);

  const std::string& text() const { return formula_.text_; }
  const std::vector<std::string>& names() const { return names_; }
  // With slots for the names. A name that `known` lacks is an error.
  Result<Formula> Bind(const Names& known) const;
  // The same; what `known` lacks is added to it.
  Formula BindAdding(Names& known) const;

 private:
  friend class ExprParser;
  Formula formula_;  // its slots are indices into names_
  std::vector<std::string> names_;
};

// Values that an evaluation holds at a time at most; a text that needs more is refused when it is parsed.
inline constexpr int kMaxExprDepth = 16;

}  // namespace jfi
