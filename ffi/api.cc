// The C symbols that Python calls beside the FFI handlers.
#include <cstring>
#include <exception>
#include <string>

#include "cubin_store.h"
#include "export.h"
#include "xla/ffi/api/c_api.h"

// 1000 * major + minor of the FFI API this library was built against: a runtime refuses handlers newer than itself.
JFI_EXPORT int jfi_ffi_api_version() { return XLA_FFI_API_MAJOR * 1000 + XLA_FFI_API_MINOR; }

// Sets the folder that holds manifest.json. Null on success, else a message that lives until this thread's next call.
JFI_EXPORT const char* jfi_set_cubin_dir(const char* folder) {
  thread_local std::string message;
  try {
    jfi::Status s = jfi::CubinStore::SetFolder(folder ? folder : "");
    if (s.ok()) return nullptr;
    message = s.message();
    return message.c_str();
  } catch (const std::exception&) {
    return "jax_fp4_indexer: out of memory";
  }
}

// Which kernels a call would run on a device of that capability; needs no GPU. An empty string asks for any path, format or layout.
// Writes to `text` (at most `size` bytes, ended by 0): "<arch> <implementation> <kernel> <kernel> ..." and returns 0, or why there
// are none and returns 1.
JFI_EXPORT int jfi_choose_variant(const char* op, const char* path, const char* format, const char* scale_layout, const char* implementation, int major, int minor,
                                  long long columns, char* text, std::size_t size) {
  if (!text || size == 0) return 1;
  std::string out;
  int rc = 1;
  try {
    auto store = jfi::CubinStore::Process();
    if (!store.ok()) {
      out = store.status().message();
    } else {
      const jfi::Manifest& manifest = store.value()->manifest();
      auto candidates = manifest.Candidates({op, path, format, scale_layout, implementation}, {major, minor});
      if (!candidates.ok()) {
        out = candidates.status().message();
      } else {
        const jfi::Variant& v = *jfi::PickVariant(candidates.value(), columns);
        out = v.arch.name + " " + v.implementation;
        for (std::size_t k : v.launches) out += " " + manifest.kernels[k].name;
        rc = 0;
      }
    }
  } catch (const std::exception& e) {
    out = e.what();
  }
  std::strncpy(text, out.c_str(), size - 1);
  text[size - 1] = '\0';
  return rc;
}
