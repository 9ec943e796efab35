// Reads the members of one JSON object of the manifest; the first fault is kept, with the object's place in the file.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "expr.h"
#include "json.h"
#include "status.h"

namespace jfi {

class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is(Json::Kind::kObject)) Fault(std::string("is ") + Json::Name(object.kind()) + ", expected an object");
  }

  void Fault(const std::string& what) {
    if (status_.ok()) status_ = FailedPrecondition("manifest.json: " + where_ + " " + what);
  }
  const Status& status() const { return status_; }
  const std::string& where() const { return where_; }
  bool Has(const char* key) const { return object_.find(key) != nullptr; }

  // The member, of whatever kind.
  const Json& Any(const char* key) {
    static const Json* const kNothing = new Json;
    const Json* v = object_.find(key);
    if (!v) Fault(std::string("has no \"") + key + "\"");
    return v ? *v : *kNothing;
  }

  const Json& Get(const char* key, Json::Kind kind) {
    const Json& v = Any(key);
    if (!v.is(kind)) Fault(std::string("has \"") + key + "\" as " + Json::Name(v.kind()) + ", expected " + Json::Name(kind));
    return v;
  }

  std::string String(const char* key) { return Get(key, Json::Kind::kString).string(); }
  bool Bool(const char* key) { return Get(key, Json::Kind::kBool).boolean(); }
  const std::vector<Json>& Array(const char* key) { return Get(key, Json::Kind::kArray).array(); }

  std::int64_t Int(const char* key, std::int64_t low, std::int64_t high) {
    const std::int64_t v = Get(key, Json::Kind::kInt).integer();
    if (v < low || v > high)
      Fault(std::string("has \"") + key + "\" = " + std::to_string(v) + ", expected " + std::to_string(low) + ".." + std::to_string(high));
    return v;
  }

  std::array<std::int64_t, 3> Three(const char* key, std::int64_t high) {
    std::array<std::int64_t, 3> out = {1, 1, 1};
    const std::vector<Json>& v = Array(key);
    if (v.size() != 3) Fault(std::string("has \"") + key + "\" of " + std::to_string(v.size()) + " entries, expected 3");
    for (std::size_t i = 0; i < 3 && i < v.size(); ++i) {
      out[i] = v[i].integer();
      if (out[i] < 1 || out[i] > high) Fault(std::string("has an entry of \"") + key + "\" outside 1.." + std::to_string(high));
    }
    return out;
  }

  std::string OneOf(const char* key, std::initializer_list<const char*> allowed) {
    const std::string v = String(key);
    std::string list;
    for (const char* a : allowed) {
      if (v == a) return v;
      list += (list.empty() ? "" : "|") + std::string(a);
    }
    Fault(std::string("has \"") + key + "\" = \"" + v + "\", expected " + list);
    return v;
  }

  // A text of the grammar of expr.h, or an integer; `key` is for the message.
  Expr Expression(const char* key, const Json& v) {
    const bool text = v.is(Json::Kind::kString), number = v.is(Json::Kind::kInt) && v.integer() >= 0;
    auto parsed = Expr::Parse(text ? v.string() : number ? std::to_string(v.integer()) : "");
    if (parsed.ok()) return std::move(parsed.value());
    Fault(std::string("has \"") + key + "\" with an entry that is neither an integer nor an expression: " + parsed.status().message());
    return {};
  }
  Expr Expression(const char* key) { return Expression(key, Any(key)); }

 private:
  const Json& object_;
  std::string where_;
  Status status_;
};

}  // namespace jfi
