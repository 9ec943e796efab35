#include "check_test.h"
#include "json.h"

using jfi::Json;

namespace {

std::string Error(std::string_view text) {
  auto r = Json::Parse(text);
  return r.ok() ? "accepted" : r.status().message();
}

void Values() {
  auto r = Json::Parse(" {\"a\": [1, -2, 3.5e1, true, false, null], \"b\": {\"c\": \"x\"}, \"a\": 9} \n");
  CHECK(r.ok());
  const Json& v = r.value();
  CHECK_EQ(v.object().size(), 3u);
  const Json* a = v.find("a");  // the first of equal names
  CHECK(a && a->is(Json::Kind::kArray) && a->array().size() == 6);
  CHECK_EQ(a->array()[0].integer(), 1);
  CHECK_EQ(a->array()[1].integer(), -2);
  CHECK(a->array()[2].is(Json::Kind::kReal) && a->array()[2].real() == 35.0);
  CHECK(a->array()[3].boolean() && a->array()[3].is(Json::Kind::kBool) && !a->array()[4].boolean());
  CHECK(a->array()[5].is(Json::Kind::kNull));
  CHECK_EQ(v.find("b")->find("c")->string(), "x");
  CHECK(!v.find("z") && !a->find("z"));
  CHECK(Json::Parse("[]").ok() && Json::Parse("{}").ok() && Json::Parse("\"\"").ok() && Json::Parse("0").ok());
}

void Strings() {
  auto r = Json::Parse(R"("q\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00")");
  CHECK(r.ok());
  CHECK_EQ(r.value().string(), "q\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

void Numbers() {
  CHECK_EQ(Json::Parse("9223372036854775807").value().integer(), INT64_MAX);
  CHECK_EQ(Json::Parse("-9223372036854775808").value().integer(), INT64_MIN);
  CHECK(Contains(Error("9223372036854775808"), "beyond 64 bits"));
  for (const char* bad : {"-", "+1", ".5", "1.", "1e", "0x10", "NaN", "tru"}) CHECK(!Json::Parse(bad).ok());
}

void Faults() {
  CHECK(Contains(Error("{\n \"a\": 1,\n \"b\" 2}"), "line 3, column 6: expected ':'"));
  CHECK(Contains(Error(""), "ends where a value is expected"));
  CHECK(Contains(Error("[1,]"), "not a value"));
  CHECK(Contains(Error("[1 2]"), "expected ',' or ']'"));
  CHECK(Contains(Error("{1: 2}"), "member's name"));
  CHECK(Contains(Error("1 1"), "text after the value"));
  CHECK(Contains(Error("\"abc"), "ends inside a string"));
  CHECK(Contains(Error("\"\\"), "ends inside a string"));
  CHECK(Contains(Error("\"\\u12\""), "bad \\u escape"));
  CHECK(Contains(Error("\"\\x\""), "unknown escape"));
  CHECK(Contains(Error("\"a\nb\""), "control character"));
  CHECK(Contains(Error(std::string(100000, '[')), "nested too deeply"));
}

// Every proper prefix of a document is refused, and nothing is read past its end.
void Prefixes() {
  const std::string whole = R"({"k": [{"x": "\u00e9\n", "y": [1, -2.5e3, true, null]}], "z": {}})";
  CHECK(Json::Parse(whole).ok());
  for (std::size_t n = 0; n < whole.size(); ++n) CHECK(!Json::Parse(std::string(whole, 0, n)).ok());
}

}  // namespace

int main() {
  Values();
  Strings();
  Numbers();
  Faults();
  Prefixes();
  return Finish("json");
}
