// From the errors of this library to those of XLA's FFI.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "../status.h"
#include "xla/ffi/api/ffi.h"

namespace jfi {

inline xla::ffi::Error ToFfi(const Status& s) {
  using xla::ffi::Error, xla::ffi::ErrorCode;
  switch (s.code()) {
    case Code::kOk: return Error::Success();
    case Code::kInvalidArgument: return Error(ErrorCode::kInvalidArgument, s.message());
    case Code::kFailedPrecondition: return Error(ErrorCode::kFailedPrecondition, s.message());
    case Code::kInternal: break;
  }
  return Error(ErrorCode::kInternal, s.message());
}

// The Status that `body` returns. XLA is C++ without exceptions: none may leave a handler.
template <class F>
Status NoThrow(std::string_view op, F&& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    return Internal(std::string(op) + ": " + e.what());
  } catch (...) {
    return Internal(std::string(op) + ": unknown exception");
  }
}

}  // namespace jfi
