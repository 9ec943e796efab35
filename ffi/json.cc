#include "json.h"

#include <cerrno>
#include <cstdlib>

namespace jfi {

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Result<Json> Whole() {
    Json v;
    if (!Value(v, 0)) return Fail();
    Space();
    if (at_ != text_.size()) {
      Error("text after the value");
      return Fail();
    }
    return v;
  }

 private:
  static constexpr int kMaxDepth = 64;

  bool Error(const char* what) {
    if (!error_) error_ = what, error_at_ = at_;
    return false;
  }

  Status Fail() const {
    int line = 1, column = 1;
    for (std::size_t i = 0; i < error_at_ && i < text_.size(); ++i) text_[i] == '\n' ? (++line, column = 1) : ++column;
    return InvalidArgument("JSON line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + error_);
  }

  void Space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }

  bool Eat(char c) {
    Space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool Word(std::string_view w) {
    if (text_.substr(at_, w.size()) != w) return Error("not a value");
    at_ += w.size();
    return true;
  }

  bool Value(Json& v, int depth) {
    if (depth > kMaxDepth) return Error("nested too deeply");
    Space();
    if (at_ >= text_.size()) return Error("ends where a value is expected");
    switch (text_[at_]) {
      case '{': return Object(v, depth);
      case '[': return Array(v, depth);
      case '"': v.kind_ = Json::Kind::kString; return String(v.string_);
      case 't': v.kind_ = Json::Kind::kBool; v.int_ = 1; return Word("true");
      case 'f': v.kind_ = Json::Kind::kBool; return Word("false");
      case 'n': return Word("null");
      default: return Number(v);
    }
  }

  bool Object(Json& v, int depth) {
    v.kind_ = Json::Kind::kObject;
    ++at_;
    if (Eat('}')) return true;
    do {
      Space();
      std::pair<std::string, Json> member;
      if (at_ >= text_.size() || text_[at_] != '"') return Error("expected a member's name");
      if (!String(member.first)) return false;
      if (!Eat(':')) return Error("expected ':'");
      if (!Value(member.second, depth + 1)) return false;
      v.object_.push_back(std::move(member));
    } while (Eat(','));
    return Eat('}') || Error("expected ',' or '}'");
  }

  bool Array(Json& v, int depth) {
    v.kind_ = Json::Kind::kArray;
    ++at_;
    if (Eat(']')) return true;
    do {
      v.array_.emplace_back();
      if (!Value(v.array_.back(), depth + 1)) return false;
    } while (Eat(','));
    return Eat(']') || Error("expected ',' or ']'");
  }

  bool Number(Json& v) {
    const std::size_t start = at_;
    auto digits = [&] {
      const std::size_t from = at_;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
      return at_ > from;
    };
    if (text_[at_] == '-') ++at_;
    if (!digits()) return Error("not a value");
    bool whole = true;
    if (at_ < text_.size() && text_[at_] == '.') {
      whole = false, ++at_;
      if (!digits()) return Error("expected digits after '.'");
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      whole = false, ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      if (!digits()) return Error("expected digits of an exponent");
    }
    const std::string token(text_.substr(start, at_ - start));
    errno = 0;
    if (whole) {
      v.kind_ = Json::Kind::kInt;
      v.int_ = std::strtoll(token.c_str(), nullptr, 10);
      if (errno == ERANGE) return Error("integer beyond 64 bits");
    } else {
      v.kind_ = Json::Kind::kReal;
      v.real_ = std::strtod(token.c_str(), nullptr);
    }
    return true;
  }

  bool Hex4(unsigned& out) {
    out = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ >= text_.size()) return Error("ends inside a string");
      const char c = text_[at_];
      const int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (d < 0) return Error("bad \\u escape");
      out = out * 16 + static_cast<unsigned>(d);
    }
    return true;
  }

  static void Utf8(unsigned c, std::string& s) {
    auto put = [&](unsigned b) { s += static_cast<char>(b); };
    if (c < 0x80) return put(c);
    if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 63));
    if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  }

  bool String(std::string& s) {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return Error("control character inside a string");
      if (c != '\\') {
        s += c;
        continue;
      }
      if (at_ >= text_.size()) break;
      const char e = text_[at_++];
      static constexpr char kFrom[] = "\"\\/bfnrt", kTo[] = "\"\\/\b\f\n\r\t";
      if (e == 'u') {
        unsigned u, low;
        if (!Hex4(u)) return false;
        if (u >= 0xD800 && u < 0xDC00 && text_.substr(at_, 2) == "\\u") {
          at_ += 2;
          if (!Hex4(low)) return false;
          if (low < 0xDC00 || low > 0xDFFF) return Error("bad \\u escape");
          u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
        }
        Utf8(u, s);
      } else if (const char* p = e ? static_cast<const char*>(__builtin_strchr(kFrom, e)) : nullptr) {
        s += kTo[p - kFrom];
      } else {
        return Error("unknown escape");
      }
    }
    return Error("ends inside a string");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  const char* error_ = nullptr;
  std::size_t error_at_ = 0;
};

Result<Json> Json::Parse(std::string_view text) { return JsonParser(text).Whole(); }

const Json* Json::find(std::string_view key) const {
  for (const auto& [k, v] : object_)
    if (k == key) return &v;
  return nullptr;
}

const char* Json::Name(Kind k) {
  static constexpr const char* kNames[] = {"null", "a boolean", "an integer", "a number", "a string", "an array", "an object"};
  return kNames[static_cast<int>(k)];
}

}  // namespace jfi
