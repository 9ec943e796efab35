// The C symbols that Python calls in addition to the FFI handlers.
#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "check.h"
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

namespace {

// "key=value;key=value" as choices of the op, in the order of op.select.
jfi::Result<jfi::Select> ParseSelect(const jfi::OpSpec& op, std::string_view text) {
  const std::string_view whole = text;
  jfi::Select given, out;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(';'));
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos) return jfi::BadArgument(op.api, "select", std::string(pair), "key=value", "write key=value;key=value");
    given.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
  }
  for (const std::string& key : op.select) {
    const auto found = std::find_if(given.begin(), given.end(), [&](const auto& choice) { return choice.first == key; });
    if (found != given.end()) out.push_back(*found);
  }
  if (out.size() == given.size()) return out;
  std::string keys;
  for (const std::string& key : op.select) keys += (keys.empty() ? "" : ", ") + key;
  return jfi::BadArgument(op.api, "select", std::string(whole), keys, "name each of these at most once");
}

jfi::Status Choose(const std::string& op_name, std::string_view select, const std::string& implementation, jfi::Capability capability,
                   std::int64_t bound, std::string& out) {
  auto store = jfi::CubinStore::Process();
  if (!store.ok()) return store.status();
  const jfi::Manifest& manifest = store.value()->manifest();
  const jfi::OpSpec* op = manifest.FindOp(op_name);
  if (!op) return jfi::FailedPrecondition("jax_fp4_indexer: these cubins hold no op " + op_name + "; rebuild them, or use implementation=\"reference\"");
  auto choices = ParseSelect(*op, select);
  if (!choices.ok()) return choices.status();
  auto candidates = manifest.Candidates({op_name, choices.value(), implementation}, capability);
  if (!candidates.ok()) return candidates.status();
  const jfi::Variant& v = *candidates.value()[jfi::PickVariant(candidates.value(), bound)];
  out = v.arch.name + " " + v.implementation;
  for (std::size_t k : v.launches) out += " " + manifest.kernels[k].name;
  return {};
}

}  // namespace

// Which kernels a call would run on a device of that capability; needs no GPU. select: "key=value;key=value"; a choice that it lacks may be
// any. bound: the value of the op's bound. Writes to `text` (at most `size` bytes, ended by 0): "<arch> <implementation> <kernel> <kernel>
// ..." and returns 0, or why there are none and returns 1.
JFI_EXPORT int jfi_choose_variant(const char* op, const char* select, const char* implementation, int major, int minor, long long bound,
                                  char* text, std::size_t size) {
  if (!text || size == 0) return 1;
  std::string out;
  int rc = 1;
  try {
    const jfi::Status s = Choose(op, select, implementation, {major, minor}, bound, out);
    rc = s.ok() ? 0 : 1;
    if (!s.ok()) out = s.message();
  } catch (const std::exception& e) {
    out = e.what();
  }
  std::strncpy(text, out.c_str(), size - 1);
  text[size - 1] = '\0';
  return rc;
}
