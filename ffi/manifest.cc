#include "manifest.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <tuple>

#include "reader.h"

namespace jfi {
namespace {

constexpr std::int64_t kSchema = 2;

Status ParseRecipe(const Json& json, const std::string& where, TensorMapRecipe& out) {
  Reader r(json, where);
  out.buffer = r.String("buffer");
  const std::string dtype = r.OneOf("dtype", {"u8", "u16", "u32", "i32", "f16", "bf16", "f32"});
  out.dtype = dtype == "u8"    ? cu::kU8
              : dtype == "u16" ? cu::kU16
              : dtype == "u32" ? cu::kU32
              : dtype == "i32" ? cu::kS32
              : dtype == "f16" ? cu::kF16
              : dtype == "bf16" ? cu::kBf16
                                : cu::kF32;
  const std::string swizzle = r.OneOf("swizzle", {"none", "32", "64", "128"});
  out.swizzle = swizzle == "32" ? cu::kSwizzle32 : swizzle == "64" ? cu::kSwizzle64 : swizzle == "128" ? cu::kSwizzle128 : cu::kSwizzleNone;
  const std::string l2 = r.OneOf("l2_promotion", {"none", "64", "128", "256"});
  out.l2 = l2 == "64" ? cu::kL2_64 : l2 == "128" ? cu::kL2_128 : l2 == "256" ? cu::kL2_256 : cu::kL2None;
  for (auto [key, list] : {std::pair{"dims", &out.dims}, std::pair{"strides", &out.strides}})
    for (const Json& e : r.Array(key)) list->push_back(r.Expression(key, e));
  if (r.Has("offset")) out.offset = r.Expression("offset");
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
  if (g.Has("per_sm")) {
    out.grid.per_sm = static_cast<int>(g.Int("per_sm", 1, 64));
  } else if (g.Has("expr")) {
    for (const Json& e : g.Array("expr")) out.grid.expr.push_back(g.Expression("expr", e));
    if (out.grid.expr.size() != 3) g.Fault("has \"expr\" of " + std::to_string(out.grid.expr.size()) + " entries, expected 3");
  } else {
    out.grid.fixed = g.Three("fixed", std::numeric_limits<std::int32_t>::max());
  }
  const std::string arch = r.String("arch");
  const Json& params = r.Get("params", Json::Kind::kArray);
  JFI_RETURN_IF_ERROR(r.status());
  JFI_RETURN_IF_ERROR(g.status());
  for (int i = 0; i < 3; ++i)
    if (out.grid.per_sm == 0 && out.grid.expr.empty() && out.grid.fixed[i] % out.cluster[i] != 0) r.Fault("has a fixed grid that is no multiple of its cluster");
  if (out.cubin.find("..") != std::string::npos || (!out.cubin.empty() && out.cubin[0] == '/')) r.Fault("names a cubin outside the cubin folder");
  if (params.array().size() > kMaxParams) r.Fault("has more than " + std::to_string(kMaxParams) + " parameters");
  JFI_RETURN_IF_ERROR(r.status());
  auto parsed = ParseArch(arch);
  if (!parsed.ok()) return parsed.status();
  out.arch = parsed.value();
  for (std::size_t i = 0; i < params.array().size(); ++i)
    JFI_RETURN_IF_ERROR(ParseParam(params.array()[i], where + ".params[" + std::to_string(i) + "]", out.params.emplace_back()));
  return {};
}

// The choices of `json`, which are all those of op.select and no others, in the order of op.select.
void ReadSelect(Reader& r, const Json& json, const OpSpec& op, Select& out) {
  for (const std::string& key : op.select) {
    const Json* value = json.find(key);
    if (!value) r.Fault("has no choice of \"" + key + "\"");
    const auto a = std::find_if(op.attributes.begin(), op.attributes.end(), [&](const Attribute& a) { return a.name == key; });
    const std::string text = value ? value->string() : "";
    if (std::find(a->values.begin(), a->values.end(), text) == a->values.end()) r.Fault("has the unknown " + key + " \"" + text + "\"");
    out.emplace_back(key, text);
  }
  if (json.object().size() != op.select.size()) r.Fault("chooses more than " + op.name + " selects by");
}

Status ParseVariant(const Json& json, const std::string& where, const Manifest& m, Variant& out) {
  Reader r(json, where);
  out.op = r.String("op");
  const OpSpec* op = m.FindOp(out.op);
  if (!op) r.Fault("is of \"" + out.op + "\", which is no op of the manifest");
  const Json& select = r.Get("select", Json::Kind::kObject);
  out.implementation = r.OneOf("implementation", {"native", "portable"});
  out.bound = r.Int("bound", 0, std::numeric_limits<std::int32_t>::max());
  out.repeat = r.Bool("repeat");
  const Expr scratch = r.Expression("scratch");
  const std::string arch = r.String("arch");
  const Json& launches = r.Get("launches", Json::Kind::kArray);
  JFI_RETURN_IF_ERROR(r.status());
  ReadSelect(r, select, *op, out.select);
  if (out.repeat && !op->loop) r.Fault("repeats, but its op has no loop");
  auto bytes = scratch.Bind(op->names);
  if (!bytes.ok()) r.Fault("has \"scratch\" that names what the op has not: " + bytes.status().message());
  JFI_RETURN_IF_ERROR(r.status());
  out.scratch = std::move(bytes.value());
  auto parsed = ParseArch(arch);
  if (!parsed.ok()) return parsed.status();
  out.arch = parsed.value();
  for (const Json& l : launches.array()) {
    auto k = std::find_if(m.kernels.begin(), m.kernels.end(), [&](const Kernel& k) { return k.name == l.string() && k.arch.name == arch; });
    if (k == m.kernels.end()) r.Fault("launches \"" + l.string() + "\", which is no kernel of " + arch);
    out.launches.push_back(static_cast<std::size_t>(k - m.kernels.begin()));
  }
  if (out.launches.empty()) r.Fault("launches nothing");
  return r.status();
}

bool Matches(const Request& q, const Variant& v) {
  return q.op == v.op && (q.implementation != "portable" || v.implementation == "portable") &&
         std::all_of(q.select.begin(), q.select.end(),
                     [&](const auto& choice) { return std::find(v.select.begin(), v.select.end(), choice) != v.select.end(); });
}

std::int64_t Bound(const Variant& v) { return v.bound ? v.bound : std::numeric_limits<std::int64_t>::max(); }

}  // namespace

std::string RequestText(const Request& q) {
  std::string s;
  for (const auto& [key, value] : q.select) s += value + " ";
  return s + (q.implementation == "portable" ? "portable kernel" : "kernel");
}

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
  const std::vector<Json>& ops = r.Array("ops");
  const Json& kernels = r.Get("kernels", Json::Kind::kArray);
  const Json& variants = r.Get("variants", Json::Kind::kArray);
  JFI_RETURN_IF_ERROR(r.status());
  Manifest m;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    auto op = OpSpec::Parse(ops[i], "ops[" + std::to_string(i) + "]");
    if (!op.ok()) return op.status();
    if (m.FindOp(op.value().name)) return FailedPrecondition("manifest.json: ops[" + std::to_string(i) + "] repeats " + op.value().name);
    m.ops.push_back(std::move(op.value()));
  }
  std::set<std::pair<std::string, std::string>> seen;
  for (std::size_t i = 0; i < kernels.array().size(); ++i) {
    const std::string where = "kernels[" + std::to_string(i) + "]";
    Kernel& k = m.kernels.emplace_back();
    JFI_RETURN_IF_ERROR(ParseKernel(kernels.array()[i], where, k));
    if (!seen.emplace(k.arch.name, k.name).second) return FailedPrecondition("manifest.json: " + where + " repeats kernel " + k.name + " of " + k.arch.name);
  }
  for (std::size_t i = 0; i < variants.array().size(); ++i)
    JFI_RETURN_IF_ERROR(ParseVariant(variants.array()[i], "variants[" + std::to_string(i) + "]", m, m.variants.emplace_back()));
  return m;
}

const OpSpec* Manifest::FindOp(std::string_view name) const {
  const auto found = std::find_if(ops.begin(), ops.end(), [&](const OpSpec& op) { return op.name == name; });
  return found == ops.end() ? nullptr : &*found;
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

std::size_t PickVariant(const std::vector<const Variant*>& candidates, std::int64_t value) {
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (value <= Bound(*candidates[i])) return i;
  return candidates.size() - 1;
}

}  // namespace jfi
