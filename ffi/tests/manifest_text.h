// Manifests for the tests, written out.
#pragma once

#include <string>

inline std::string KernelText(const std::string& name, const std::string& arch, const std::string& params = R"({"buffer": "q"}, {"i32": "num_seqs"})",
                              const std::string& grid = R"({"per_sm": 1})", const std::string& cluster = "[1, 1, 1]", int smem = 1000, const std::string& sha256 = "") {
  return R"({"name": ")" + name + R"(", "arch": ")" + arch + R"(", "cubin": ")" + arch + "/" + name + R"(.cubin", )" + (sha256.empty() ? "" : R"("sha256": ")" + sha256 + R"(", )") + R"("symbol": "sym_)" + name +
         R"(", "block": [128, 1, 1], "cluster": )" + cluster + R"(, "grid": )" + grid + R"(, "dynamic_shared_bytes": )" + std::to_string(smem) + R"(, "params": [)" + params +
         R"(], "registers": 1, "spill_bytes": 0})";
}

inline std::string VariantText(const std::string& launches, const std::string& arch, const std::string& implementation = "native", int max_columns = 0,
                               const std::string& path = "decode", const std::string& passes = "once") {
  return R"({"op": "block_scores", "path": ")" + path + R"(", "format": "nvfp4", "scale_layout": "public", "implementation": ")" + implementation + R"(", "arch": ")" + arch +
         R"(", "max_columns": )" + std::to_string(max_columns) + R"(, "passes": ")" + passes + R"(", "launches": [)" + launches + "]}";
}

inline std::string ManifestText(const std::string& kernels, const std::string& variants, int schema = 1) {
  return R"({"schema": )" + std::to_string(schema) + R"(, "fingerprint": "f", "dsl": "4", "kernels": [)" + kernels + R"(], "variants": [)" + variants + "]}";
}
