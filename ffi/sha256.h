// SHA-256 (FIPS 180-4), for comparing a cubin with what the manifest says of it.
#pragma once

#include <cstddef>
#include <string>

namespace jfi {

// 64 lower-case hexadecimal digits.
std::string Sha256(const void* data, std::size_t size);

}  // namespace jfi
