// The few lines of a test program: a named check that counts failures and says where.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

inline int g_failures = 0, g_checks = 0;

#define CHECK(what)                                                              \
  do {                                                                           \
    ++g_checks;                                                                  \
    if (!(what)) ++g_failures, std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
  } while (0)

#define CHECK_EQ(a, b)                                                                         \
  do {                                                                                         \
    ++g_checks;                                                                                \
    const auto got_ = (a);                                                                     \
    const decltype(got_) want_ = (b);                                                          \
    if (!(got_ == want_))                                                                      \
      ++g_failures, std::printf("%s:%d: %s is %s, expected %s\n", __FILE__, __LINE__, #a, Text(got_).c_str(), Text(want_).c_str()); \
  } while (0)

inline std::string Text(const std::string& s) { return '"' + s + '"'; }
inline std::string Text(const void* p) { return std::to_string(reinterpret_cast<unsigned long>(p)); }
template <class T>
std::string Text(const T& v) { return std::to_string(v); }

inline bool Contains(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return true;
  std::printf("  in: %s\n", std::string(text).c_str());
  return false;
}

inline int Finish(const char* name) {
  std::printf("%s: %d checks, %d failed\n", name, g_checks, g_failures);
  return g_failures != 0;
}
