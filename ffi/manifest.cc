#include "manifest.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <tuple>

namespace jfi {
namespace {

constexpr std::int64_t kSchema = 1;

// Reads members of one object; the first fault is kept, with the object's place in the file.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is(Json::Kind::kObject)) Fault(std::string("is ") + Json::Name(object.kind()) + ", expected an object");
  }

  void Fault(const std::string& what) {
    if (status_.ok()) status_ = FailedPrecondition("manifest.json: " + where_ + " " + what);
  }
  const Status& status() const { return status_; }

  const Json& Get(const char* key, Json::Kind kind) {
    static const Json* const kNothing = new Json;
    const Json* v = object_.find(key);
    if (!v) {
      Fault(std::string("has no \"") + key + "\"");
      return *kNothing;
    }
    if (!v->is(kind)) Fault(std::string("has \"") + key + "\" as " + Json::Name(v->kind()) + ", expected " + Json::Name(kind));
    return *v;
  }

  std::string String(const char* key) { return Get(key, Json::Kind::kString).string(); }

  std::int64_t Int(const char* key, std::int64_t low, std::int64_t high) {
    const std::int64_t v = Get(key, Json::Kind::kInt).integer();
    if (v < low || v > high) Fault(std::string("has \"") + key + "\" = " + std::to_string(v) + ", expected " + std::to_string(low) + ".." + std::to_string(high));
    return v;
  }

  std::array<std::int64_t, 3> Three(const char* key, std::int64_t high) {
    std::array<std::int64_t, 3> out = {1, 1, 1};
    const Json& v = Get(key, Json::Kind::kArray);
    if (v.array().size() != 3) Fault(std::string("has \"") + key + "\" of " + std::to_string(v.array().size()) + " entries, expected 3");
    for (std::size_t i = 0; i < 3 && i < v.array().size(); ++i) {
      out[i] = v.array()[i].integer();
      if (out[i] < 1 || out[i] > high) Fault(std::string("has an entry of \"") + key + "\" outside 1.." + std::to_string(high));
    }
    return out;
  }

  std::string OneOf(const char* key, std::initializer_list<const char*> allowed) {
    const std::string v = String(key);
    std::string list;
    for (const char* a : allowed) {
      if (v == a) return v;
      list += (list.empty() ? "" : "|") + std::string(a);
    }
    Fault(std::string("has \"") + key + "\" = \"" + v + "\", expected " + list);
    return v;
  }

 private:
  const Json& object_;
  std::string where_;
  Status status_;
};

bool ParseExtent(const Json& v, Extent& out) {
  if (v.is(Json::Kind::kInt)) {
    out.constant = v.integer();
    return true;
  }
  if (!v.is(Json::Kind::kString)) return false;
  std::string_view rest = v.string();
  while (true) {
    const std::size_t star = rest.find('*');
    std::string_view factor = rest.substr(0, star);
    while (!factor.empty() && factor.front() == ' ') factor.remove_prefix(1);
    while (!factor.empty() && factor.back() == ' ') factor.remove_suffix(1);
    if (factor.empty()) return false;
    if (std::isdigit(static_cast<unsigned char>(factor[0]))) {
      std::int64_t n = 0;
      for (char c : factor) {
        if (c < '0' || c > '9' || n > (std::int64_t{1} << 40)) return false;
        n = n * 10 + (c - '0');
      }
      if (__builtin_mul_overflow(out.constant, n, &out.constant)) return false;
    } else {
      out.scalars.emplace_back(factor);
    }
    if (star == std::string_view::npos) return true;
    rest.remove_prefix(star + 1);
  }
}

Status ParseRecipe(const Json& json, const std::string& where, TensorMapRecipe& out) {
  Reader r(json, where);
  out.buffer = r.String("buffer");
  const std::string dtype = r.OneOf("dtype", {"u8", "u16", "u32", "i32", "f16", "bf16", "f32"});
  out.dtype = dtype == "u8" ? cu::kU8 : dtype == "u16" ? cu::kU16 : dtype == "u32" ? cu::kU32 : dtype == "i32" ? cu::kS32 : dtype == "f16" ? cu::kF16 : dtype == "bf16" ? cu::kBf16 : cu::kF32;
  const std::string swizzle = r.OneOf("swizzle", {"none", "32", "64", "128"});
  out.swizzle = swizzle == "32" ? cu::kSwizzle32 : swizzle == "64" ? cu::kSwizzle64 : swizzle == "128" ? cu::kSwizzle128 : cu::kSwizzleNone;
  const std::string l2 = r.OneOf("l2_promotion", {"none", "64", "128", "256"});
  out.l2 = l2 == "64" ? cu::kL2_64 : l2 == "128" ? cu::kL2_128 : l2 == "256" ? cu::kL2_256 : cu::kL2None;
  for (auto [key, list] : {std::pair{"dims", &out.dims}, std::pair{"strides", &out.strides}})
    for (const Json& e : r.Get(key, Json::Kind::kArray).array())
      if (!ParseExtent(e, list->emplace_back())) r.Fault(std::string("has an entry of \"") + key + "\" that is no integer, scalar or product");
  for (const Json& e : r.Get("box", Json::Kind::kArray).array()) {
    if (e.integer() < 1 || e.integer() > 256) r.Fault("has a box entry outside 1..256");
    out.box.push_back(static_cast<std::uint32_t>(e.integer()));
  }
  const std::size_t rank = out.dims.size();
  if (rank < 1 || rank > 5 || out.box.size() != rank || out.strides.size() != rank - 1)
    r.Fault("needs 1..5 dims, as many box entries, and strides for all but the first");
  return r.status();
}

Status ParseParam(const Json& json, const std::string& where, Param& out) {
  Reader r(json, where);
  JFI_RETURN_IF_ERROR(r.status());
  if (json.object().size() != 1) {
    r.Fault("has " + std::to_string(json.object().size()) + " members, expected one: buffer, i32, i64 or tensor_map");
    return r.status();
  }
  const std::string& kind = json.object()[0].first;
  if (kind == "tensor_map") {
    out.kind = Param::Kind::kTensorMap;
    JFI_RETURN_IF_ERROR(ParseRecipe(json.object()[0].second, where + ".tensor_map", out.recipe));
    out.name = out.recipe.buffer;
    return {};
  }
  if (kind == "buffer") out.kind = Param::Kind::kBuffer;
  else if (kind == "i32") out.kind = Param::Kind::kI32;
  else if (kind == "i64") out.kind = Param::Kind::kI64;
  else r.Fault("is of the unknown kind \"" + kind + "\", expected buffer, i32, i64 or tensor_map");
  out.name = r.String(kind.c_str());
  return r.status();
}

Status ParseKernel(const Json& json, const std::string& where, Kernel& out) {
  Reader r(json, where);
  out.name = r.String("name");
  out.cubin = r.String("cubin");
  out.symbol = r.String("symbol");
  if (json.find("sha256")) out.sha256 = r.String("sha256");
  out.block = r.Three("block", 1024);
  out.cluster = r.Three("cluster", 16);
  out.dynamic_shared_bytes = r.Int("dynamic_shared_bytes", 0, std::int64_t{1} << 20);
  const Json& grid = r.Get("grid", Json::Kind::kObject);
  Reader g(grid, where + ".grid");
  if (grid.find("per_sm")) out.grid.per_sm = static_cast<int>(g.Int("per_sm", 1, 64));
  else out.grid.fixed = g.Three("fixed", std::numeric_limits<std::int32_t>::max());
  const std::string arch = r.String("arch");
  const Json& params = r.Get("params", Json::Kind::kArray);
  JFI_RETURN_IF_ERROR(r.status());
  JFI_RETURN_IF_ERROR(g.status());
  for (int i = 0; i < 3; ++i)
    if (out.grid.per_sm == 0 && out.grid.fixed[i] % out.cluster[i] != 0) r.Fault("has a fixed grid that is no multiple of its cluster");
  if (out.cubin.find("..") != std::string::npos || (!out.cubin.empty() && out.cubin[0] == '/')) r.Fault("names a cubin outside the cubin folder");
  JFI_RETURN_IF_ERROR(r.status());
  auto parsed = ParseArch(arch);
  if (!parsed.ok()) return parsed.status();
  out.arch = parsed.value();
  for (std::size_t i = 0; i < params.array().size(); ++i)
    JFI_RETURN_IF_ERROR(ParseParam(params.array()[i], where + ".params[" + std::to_string(i) + "]", out.params.emplace_back()));
  return {};
}

Status ParseVariant(const Json& json, const std::string& where, const std::vector<Kernel>& kernels, Variant& out) {
  Reader r(json, where);
  out.op = r.String("op");
  out.path = r.String("path");
  out.format = r.String("format");
  out.scale_layout = r.String("scale_layout");
  out.implementation = r.OneOf("implementation", {"native", "portable"});
  out.max_columns = r.Int("max_columns", 0, std::numeric_limits<std::int32_t>::max());
  out.pages = r.OneOf("passes", {"once", "pages"}) == "pages";
  const std::string arch = r.String("arch");
  const Json& launches = r.Get("launches", Json::Kind::kArray);
  JFI_RETURN_IF_ERROR(r.status());
  auto parsed = ParseArch(arch);
  if (!parsed.ok()) return parsed.status();
  out.arch = parsed.value();
  for (const Json& l : launches.array()) {
    auto k = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& k) { return k.name == l.string() && k.arch.name == arch; });
    if (k == kernels.end()) r.Fault("launches \"" + l.string() + "\", which is no kernel of " + arch);
    out.launches.push_back(static_cast<std::size_t>(k - kernels.begin()));
  }
  if (out.launches.empty()) r.Fault("launches nothing");
  return r.status();
}

bool Wanted(const std::string& asked, const std::string& has) { return asked.empty() || asked == has; }

bool Matches(const Request& q, const Variant& v) {
  return Wanted(q.op, v.op) && Wanted(q.path, v.path) && Wanted(q.format, v.format) && Wanted(q.scale_layout, v.scale_layout) &&
         (q.implementation != "portable" || v.implementation == "portable");
}

std::string RequestText(const Request& q) {
  std::string s;
  for (const std::string* part : {&q.path, &q.format, &q.scale_layout})
    if (!part->empty()) s += *part + " ";
  return s + (q.implementation == "portable" ? "portable kernel" : "kernel");
}

std::int64_t Bound(const Variant& v) { return v.max_columns ? v.max_columns : std::numeric_limits<std::int64_t>::max(); }

}  // namespace

std::string CapabilityText(Capability c) { return std::to_string(c.major) + "." + std::to_string(c.minor); }

bool Arch::RunsOn(Capability c) const { return c.major == major && (exact ? c.minor == minor : c.minor >= minor); }

Result<Arch> ParseArch(const std::string& name) {
  Arch a;
  a.name = name;
  std::size_t i = 3;
  int number = 0;
  while (name.compare(0, 3, "sm_") == 0 && i < name.size() && i < 7 && std::isdigit(static_cast<unsigned char>(name[i]))) number = number * 10 + (name[i++] - '0');
  const std::string suffix = i <= name.size() ? name.substr(i) : "";
  if (number < 10 || (!suffix.empty() && suffix != "a" && suffix != "f"))
    return FailedPrecondition("manifest.json: \"" + name + "\" is no architecture (sm_80, sm_90a, ...)");
  a.major = number / 10;
  a.minor = number % 10;
  a.exact = suffix == "a";
  return a;
}

Result<Manifest> Manifest::Parse(std::string_view text) {
  auto json = Json::Parse(text);
  if (!json.ok()) return FailedPrecondition("manifest.json is not readable (" + json.status().message() + "); reinstall jax_fp4_indexer or rebuild its cubins");
  Reader r(json.value(), "the file");
  const std::int64_t schema = r.Get("schema", Json::Kind::kInt).integer();
  if (r.status().ok() && schema != kSchema)
    return FailedPrecondition("manifest.json has schema " + std::to_string(schema) + ", this library reads schema " + std::to_string(kSchema) +
                              ": cubins and libjax_fp4_indexer_ffi.so come from different builds; reinstall jax_fp4_indexer or rebuild both");
  const Json& kernels = r.Get("kernels", Json::Kind::kArray);
  const Json& variants = r.Get("variants", Json::Kind::kArray);
  JFI_RETURN_IF_ERROR(r.status());
  Manifest m;
  std::set<std::pair<std::string, std::string>> seen;
  for (std::size_t i = 0; i < kernels.array().size(); ++i) {
    const std::string where = "kernels[" + std::to_string(i) + "]";
    Kernel& k = m.kernels.emplace_back();
    JFI_RETURN_IF_ERROR(ParseKernel(kernels.array()[i], where, k));
    if (!seen.emplace(k.arch.name, k.name).second) return FailedPrecondition("manifest.json: " + where + " repeats kernel " + k.name + " of " + k.arch.name);
  }
  for (std::size_t i = 0; i < variants.array().size(); ++i)
    JFI_RETURN_IF_ERROR(ParseVariant(variants.array()[i], "variants[" + std::to_string(i) + "]", m.kernels, m.variants.emplace_back()));
  return m;
}

bool Manifest::Serves(const Request& q) const {
  return std::any_of(variants.begin(), variants.end(), [&](const Variant& v) { return Matches(q, v); });
}

Result<std::vector<const Variant*>> Manifest::Candidates(const Request& q, Capability c) const {
  std::vector<const Variant*> out;
  std::set<std::string> shipped;
  for (const Variant& v : variants) {
    if (!Matches(q, v)) continue;
    shipped.insert(v.arch.name);
    if (v.arch.RunsOn(c)) out.push_back(&v);
  }
  if (out.empty()) {
    std::string list;
    for (const std::string& a : shipped) list += (list.empty() ? "" : ", ") + a;
    return FailedPrecondition("no " + RequestText(q) + " for compute capability " + CapabilityText(c) + "; this build ships " + (list.empty() ? "none" : list) +
                              "; use implementation=\"reference\"" + (c.major < 8 ? " (kernels need 8.0 or newer)" : ", or look for a newer jax_fp4_indexer"));
  }
  std::stable_sort(out.begin(), out.end(), [](const Variant* a, const Variant* b) {
    const auto key = [](const Variant* v) { return std::tuple(v->implementation != "native", -v->arch.minor, !v->arch.exact, Bound(*v)); };
    return key(a) < key(b);
  });
  const Variant& best = *out[0];
  out.erase(std::remove_if(out.begin(), out.end(), [&](const Variant* v) { return v->implementation != best.implementation || v->arch.name != best.arch.name; }), out.end());
  return out;
}

const Variant* PickVariant(const std::vector<const Variant*>& candidates, std::int64_t columns) {
  for (const Variant* v : candidates)
    if (columns <= Bound(*v)) return v;
  return candidates.empty() ? nullptr : candidates.back();
}

}  // namespace jfi
