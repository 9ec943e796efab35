// A reader for JSON texts of the size of a manifest: whole values in memory, objects in the order written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "status.h"

namespace jfi {

class Json {
 public:
  enum class Kind { kNull, kBool, kInt, kReal, kString, kArray, kObject };

  // The value of the whole text; the error names line and column.
  static Result<Json> Parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool boolean() const { return int_ != 0; }
  std::int64_t integer() const { return int_; }
  double real() const { return kind_ == Kind::kInt ? static_cast<double>(int_) : real_; }
  const std::string& string() const { return string_; }
  const std::vector<Json>& array() const { return array_; }
  const std::vector<std::pair<std::string, Json>>& object() const { return object_; }
  // The member of an object, or null where there is none (or this is no object).
  const Json* find(std::string_view key) const;
  static const char* Name(Kind);

 private:
  friend class JsonParser;
  Kind kind_ = Kind::kNull;
  std::int64_t int_ = 0;
  double real_ = 0;
  std::string string_;
  std::vector<Json> array_;
  std::vector<std::pair<std::string, Json>> object_;
};

}  // namespace jfi
