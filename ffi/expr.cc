#include "expr.h"

#include <algorithm>
#include <cctype>
#include <limits>

namespace jfi {

int Names::Find(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  return found == names_.end() ? -1 : static_cast<int>(found - names_.begin());
}

int Names::Add(const std::string& name) {
  const int found = Find(name);
  if (found >= 0) return found;
  names_.push_back(name);
  return static_cast<int>(names_.size()) - 1;
}

class ExprParser {
 public:
  explicit ExprParser(std::string_view text) : text_(text) {
    out_.formula_.text_ = text;
    out_.formula_.steps_.clear();
  }

  Result<Expr> Whole() {
    Sum(0);
    Space();
    if (error_.empty() && at_ != text_.size()) error_ = "there is more after its end";
    if (!error_.empty()) return InvalidArgument("\"" + std::string(text_) + "\" is no expression of sizes: " + error_);
    return std::move(out_);
  }

 private:
  using Op = Formula::Op;

  bool Fail(const char* why) {
    if (error_.empty()) error_ = why;
    return false;
  }

  void Space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool Eat(char c) {
    Space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool Emit(Op op, std::int64_t value = 0) {
    depth_ += op == Op::kInt || op == Op::kSlot ? 1 : -1;
    out_.formula_.steps_.push_back({op, value});
    return depth_ <= kMaxExprDepth || Fail("it is nested too deeply");
  }

  bool Sum(int nesting) {
    if (!Product(nesting)) return false;
    while (true) {
      const Op op = Eat('+') ? Op::kAdd : Eat('-') ? Op::kSub : Op::kInt;
      if (op == Op::kInt) return true;
      if (!Product(nesting) || !Emit(op)) return false;
    }
  }

  bool Product(int nesting) {
    if (!Factor(nesting)) return false;
    while (true) {
      const Op op = Eat('*') ? Op::kMul : Eat('/') ? Op::kDiv : Eat('%') ? Op::kMod : Op::kInt;
      if (op == Op::kInt) return true;
      if (!Factor(nesting) || !Emit(op)) return false;
    }
  }

  bool Factor(int nesting) {
    if (nesting > 4 * kMaxExprDepth) return Fail("it is nested too deeply");
    if (Eat('(')) return Sum(nesting + 1) && (Eat(')') || Fail("a ) is missing"));
    Space();
    const std::size_t start = at_;
    const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    while (at_ < text_.size() && word(text_[at_])) ++at_;
    const std::string token(text_.substr(start, at_ - start));
    if (token.empty()) return Fail("an integer, a name or a ( is missing");
    if (std::isdigit(static_cast<unsigned char>(token[0]))) return Integer(token);
    if (!Eat('(')) return Name(token);
    const Op op = token == "min" ? Op::kMin : Op::kMax;
    if (token != "min" && token != "max") return Fail("it calls something other than min or max");
    return Sum(nesting + 1) && (Eat(',') || Fail("min and max take two arguments")) && Sum(nesting + 1) &&
           (Eat(')') || Fail("a ) is missing")) && Emit(op);
  }

  bool Integer(const std::string& token) {
    std::int64_t n = 0;
    for (char c : token) {
      if (!std::isdigit(static_cast<unsigned char>(c))) return Fail("a number holds a letter");
      if (__builtin_mul_overflow(n, std::int64_t{10}, &n) || __builtin_add_overflow(n, std::int64_t{c - '0'}, &n))
        return Fail("a number overflows 64 bits");
    }
    return Emit(Op::kInt, n);
  }

  bool Name(const std::string& token) {
    auto& names = out_.names_;
    const auto found = std::find(names.begin(), names.end(), token);
    const std::int64_t index = found - names.begin();
    if (found == names.end()) names.push_back(token);
    return Emit(Op::kSlot, index);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string error_;
  Expr out_;
};

Result<Expr> Expr::Parse(std::string_view text) { return ExprParser(text).Whole(); }

Result<Formula> Expr::Bind(const Names& known) const {
  for (const std::string& name : names_)
    if (known.Find(name) < 0) return InvalidArgument("\"" + text() + "\" reads \"" + name + "\", which nothing sets");
  Names copy = known;
  return BindAdding(copy);
}

Formula Expr::BindAdding(Names& known) const {
  Formula out = formula_;
  for (Formula::Step& step : out.steps_)
    if (step.op == Formula::Op::kSlot) step.value = known.Add(names_[static_cast<std::size_t>(step.value)]);
  return out;
}

Formula::Fault Formula::Value(const std::int64_t* slots, std::int64_t& out) const {
  std::int64_t stack[kMaxExprDepth];
  std::int64_t* top = stack;  // one past the last value
  for (const Step& step : steps_) {
    if (step.op == Op::kInt || step.op == Op::kSlot) {
      *top++ = step.op == Op::kInt ? step.value : slots[step.value];
      continue;
    }
    const std::int64_t b = *--top;
    std::int64_t& a = top[-1];
    bool overflow = false;
    switch (step.op) {
      case Op::kAdd: overflow = __builtin_add_overflow(a, b, &a); break;
      case Op::kSub: overflow = __builtin_sub_overflow(a, b, &a); break;
      case Op::kMul: overflow = __builtin_mul_overflow(a, b, &a); break;
      case Op::kMin: a = std::min(a, b); break;
      case Op::kMax: a = std::max(a, b); break;
      default: {
        if (b == 0) return Fault::kDivisionByZero;
        if (b == -1 && a == std::numeric_limits<std::int64_t>::min()) return Fault::kOverflow;
        const std::int64_t remainder = a % b;
        const bool down = remainder != 0 && (remainder < 0) != (b < 0);  // C++ rounds towards zero
        a = step.op == Op::kDiv ? a / b - down : remainder + (down ? b : 0);
      }
    }
    if (overflow) return Fault::kOverflow;
  }
  out = stack[0];
  return Fault::kNone;
}

bool Formula::Solve(int& slot, std::int64_t& constant) const {
  const bool alone = steps_.size() == 1, sum = steps_.size() == 3 && steps_[1].op == Op::kInt && steps_[2].op == Op::kAdd;
  if (steps_[0].op != Op::kSlot || !(alone || sum)) return false;
  slot = static_cast<int>(steps_[0].value);
  constant = alone ? 0 : steps_[1].value;
  return true;
}

}  // namespace jfi
