// Manifests for the tests, written out.
#pragma once

#include <string>

// A small op: `path` selects, `few` is an integer, the loop goes over `n` by `step`.
inline std::string OpText(const std::string& changed = "", const std::string& to = "") {
  std::string s = R"j({"op": "toy", "api": "api_toy", "version": 1, "select": ["path", "format"], "scratch": true,
    "attributes": [{"name": "path", "values": ["decode", "prefill"]}, {"name": "format", "values": ["nvfp4", "mxfp4"]},
                   {"name": "few", "low": 0, "high": 9223372036854775807}, {"name": "step", "low": 0, "high": 1000}],
    "derived": {"groups": {"by": "format", "cases": {"nvfp4": 8, "mxfp4": 4}}},
    "operands": [
      {"name": "q", "dtype": "uint8", "shape": ["tokens", "heads", "64"], "align": 128},
      {"name": "k", "dtype": "uint8", "shape": ["pages", "heads_kv"], "align": 32},
      {"name": "scale", "dtype": "float32", "align": 4,
       "shape": {"by": "path", "cases": {"decode": ["(tokens + 3) / 4", "groups"], "prefill": ["tokens * heads"]}}},
      {"name": "list", "dtype": "int32", "shape": ["n"], "align": 4},
      {"name": "sums", "dtype": "int32", "shape": ["seqs + 1"], "align": 4}],
    "results": [{"name": "y", "dtype": {"by": "format", "cases": {"nvfp4": "float32", "mxfp4": "bfloat16"}}, "shape": ["heads", "tiles", "tokens"], "align": 16}],
    "conditions": [{"argument": "k", "zero": "heads % heads_kv", "expected": "a number of heads that divides q's"}],
    "bound": "few * (heads / heads_kv)",
    "loop": {"scalar": "first", "stop": "max(n, 1)", "step": "step"}})j";
  if (!changed.empty()) s.replace(s.find(changed), changed.size(), to);
  return s;
}

inline std::string KernelText(const std::string& name, const std::string& arch, const std::string& params = R"({"buffer": "q"}, {"i32": "seqs"})",
                              const std::string& grid = R"({"per_sm": 1})", const std::string& cluster = "[1, 1, 1]", int smem = 1000,
                              const std::string& sha256 = "") {
  return R"({"name": ")" + name + R"(", "arch": ")" + arch + R"(", "cubin": ")" + arch + "/" + name + R"(.cubin", )" +
         (sha256.empty() ? "" : R"("sha256": ")" + sha256 + R"(", )") + R"("symbol": "sym_)" + name + R"(", "block": [128, 1, 1], "cluster": )" + cluster +
         R"(, "grid": )" + grid + R"(, "dynamic_shared_bytes": )" + std::to_string(smem) + R"(, "params": [)" + params + R"(], "registers": 1, "spill_bytes": 0})";
}

inline std::string VariantText(const std::string& launches, const std::string& arch, const std::string& implementation = "native", int bound = 0,
                               const std::string& path = "decode", bool repeat = false, const std::string& scratch = "16") {
  return R"({"op": "toy", "select": {"format": "nvfp4", "path": ")" + path + R"("}, "implementation": ")" + implementation + R"(", "arch": ")" + arch +
         R"(", "bound": )" + std::to_string(bound) + R"(, "repeat": )" + (repeat ? "true" : "false") + R"(, "scratch": ")" + scratch + R"(", "launches": [)" + launches + "]}";
}

inline std::string ManifestText(const std::string& kernels, const std::string& variants, int schema = 2, const std::string& ops = OpText()) {
  return R"({"schema": )" + std::to_string(schema) + R"(, "fingerprint": "f", "dsl": "4", "ops": [)" + ops + R"(], "kernels": [)" + kernels +
         R"(], "variants": [)" + variants + "]}";
}
