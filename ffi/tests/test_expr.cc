#include "check_test.h"
#include "expr.h"

using namespace jfi;

namespace {

// The value for a = 7, b = 3, c = -2, or the fault.
std::string Value(const std::string& text) {
  auto e = Expr::Parse(text);
  if (!e.ok()) return e.status().message();
  Names names;
  for (const char* n : {"a", "b", "c", "big", "least"}) names.Add(n);
  auto f = e.value().Bind(names);
  if (!f.ok()) return f.status().message();
  const std::int64_t slots[] = {7, 3, -2, INT64_MAX, INT64_MIN};
  std::int64_t out = 0;
  switch (f.value().Value(slots, out)) {
    case Formula::Fault::kNone: return std::to_string(out);
    case Formula::Fault::kOverflow: return "overflow";
    case Formula::Fault::kDivisionByZero: return "division by zero";
  }
  return "";
}

void Values() {
  for (auto [text, value] : {std::pair{"12", "12"}, {"a", "7"}, {"a + b * 2", "13"}, {"(a + b) * 2", "20"}, {"a - b - 1", "3"}, {"a - (b - 1)", "5"},
                             {"a / b", "2"}, {"a % b", "1"}, {"a * b / 4 % 3", "2"}, {"min(a, b)", "3"}, {"max(a, b)+1", "8"}, {"max(min(a, b), 4)", "4"},
                             {" a+b ", "10"}, {"(a + 127) / 128 * 64", "64"}, {"9223372036854775807", "9223372036854775807"},
                             // As Python: / rounds down, % has the sign of the divisor
                             {"c / b", "-1"}, {"c % b", "1"}, {"a / c", "-4"}, {"a % c", "-1"}, {"(b - 9) / b", "-2"}, {"(b - 9) % b", "0"}})
    CHECK_EQ(Value(text), std::string(value));
}

void Faults() {
  for (const char* text : {"big + 1", "least - 1", "big * 2", "least / (b - 4)", "big * a / a"}) CHECK_EQ(Value(text), std::string("overflow"));
  for (const char* text : {"a / (b - 3)", "a % 0"}) CHECK_EQ(Value(text), std::string("division by zero"));
  for (const char* text : {"", "a +", "a b", "f(a, b)", "min(a)", "min(a, b", "(a", "a)", "1x", "a ** b", "-a", "a.b", "99999999999999999999", "a < b", "1.5"})
    CHECK(Contains(Value(text), "is no expression of sizes"));
  CHECK_EQ(Value("a + other"), std::string("\"a + other\" reads \"other\", which nothing sets"));
  std::string deep, nested;
  for (int i = 0; i < 20; ++i) deep += "a + (", nested += "(";
  CHECK(Contains(Value(deep + "a" + std::string(20, ')')), "nested too deeply"));
  for (int i = 0; i < 100; ++i) nested += "(";
  CHECK(Contains(Value(nested + "a" + std::string(120, ')')), "nested too deeply"));
  CHECK_EQ(Value("((((((a))))))"), std::string("7"));
}

// What a dimension says of a size: its name alone, or plus a constant.
void Solving() {
  Names names;
  const auto solve = [&](const char* text) {
    int slot = -1;
    std::int64_t constant = -1;
    return Expr::Parse(text).value().BindAdding(names).Solve(slot, constant) ? std::to_string(slot) + "+" + std::to_string(constant) : std::string("no");
  };
  CHECK_EQ(solve("x"), std::string("0+0"));
  CHECK_EQ(solve("y + 1"), std::string("1+1"));
  for (const char* text : {"1 + y", "x - 1", "x * 2", "x + y", "64", "x + 1 + 1"}) CHECK_EQ(solve(text), std::string("no"));
  CHECK(names.size() == 2 && names.Find("y") == 1 && names.Find("z") == -1);
}

}  // namespace

int main() {
  Values();
  Faults();
  Solving();
  return Finish("expr");
}
