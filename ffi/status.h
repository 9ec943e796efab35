// Success or an error, without exceptions and without the XLA headers (only the handlers know those).
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace jfi {

enum class Code { kOk, kInvalidArgument, kFailedPrecondition, kInternal };

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status FailedPrecondition(std::string m) { return {Code::kFailedPrecondition, std::move(m)}; }
inline Status Internal(std::string m) { return {Code::kInternal, std::move(m)}; }

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::move(value)) {}             // NOLINT: implicit, so that `return value;` works
  Result(Status status) : v_(std::move(status)) {}      // NOLINT
  bool ok() const { return std::holds_alternative<T>(v_); }
  Status status() const { return ok() ? Status() : std::get<Status>(v_); }
  T& value() { return std::get<T>(v_); }
  const T& value() const { return std::get<T>(v_); }

 private:
  std::variant<T, Status> v_;
};

#define JFI_RETURN_IF_ERROR(expr)                    \
  do {                                               \
    if (::jfi::Status jfi_s_ = (expr); !jfi_s_.ok()) \
      return jfi_s_;                                 \
  } while (0)

}  // namespace jfi
