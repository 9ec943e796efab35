#include "check_test.h"
#include "manifest.h"
#include "manifest_text.h"

using namespace jfi;

namespace {

std::string Refusal(const std::string& text) {
  auto m = Manifest::Parse(text);
  return m.ok() ? "accepted" : m.status().message();
}

std::string WithKernel(const std::string& kernel) { return ManifestText(kernel, VariantText(R"("a")", "sm_90a")); }

void Refusals() {
  CHECK(Manifest::Parse(WithKernel(KernelText("a", "sm_90a"))).ok());
  CHECK(Contains(Refusal("{"), "is not readable (JSON line 1"));
  CHECK(Contains(Refusal("[]"), "expected an object"));
  CHECK(Contains(Refusal(ManifestText("", "", 1)), "has schema 1, this library reads schema 2"));
  CHECK(Contains(Refusal(ManifestText("", "", 1)), "reinstall jax_fp4_indexer"));
  CHECK(Contains(Refusal(R"({"kernels": [], "variants": []})"), "has no \"schema\""));
  CHECK(Contains(Refusal(WithKernel("3")), "kernels[0] is an integer, expected an object"));
  CHECK(Contains(Refusal(WithKernel(R"({"name": 1})")), "has \"name\" as an integer, expected a string"));
  CHECK(Contains(Refusal(WithKernel(KernelText("b", "sm_90a"))), "launches \"a\", which is no kernel of sm_90a"));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_80"))), "which is no kernel of sm_90a"));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a") + "," + KernelText("a", "sm_90a"))), "repeats kernel a of sm_90a"));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "gfx942"))), "\"gfx942\" is no architecture"));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a", R"({"f32": "x"})"))), "params[0] is of the unknown kind \"f32\""));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a", R"({"i32": "x", "i64": "y"})"))), "has 2 members"));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a", R"({"buffer": "q"})", R"({"per_sm": 0})"))), "expected 1..64"));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a", R"({"buffer": "q"})", R"({"magic": 1})"))), "has no \"fixed\""));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a", R"({"buffer": "q"})", R"({"fixed": [3, 1, 1]})", "[2, 1, 1]"))), "no multiple of its cluster"));
  CHECK(Contains(Refusal(ManifestText(KernelText("a", "sm_90a"), VariantText("", "sm_90a"))), "launches nothing"));
  CHECK(Contains(Refusal(ManifestText(KernelText("a", "sm_90a"), VariantText(R"("a")", "sm_90a", "fast"))), "expected native|portable"));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a", R"({"buffer": "q"})", R"({"expr": ["tokens", 1]})"))), "\"expr\" of 2 entries, expected 3"));
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a", R"({"buffer": "q"})", R"({"expr": ["tokens +", 1, 1]})"))), "is no expression of sizes"));
  std::string many = R"({"buffer": "q"})";
  for (int i = 0; i < 48; ++i) many += R"(, {"buffer": "q"})";
  CHECK(Contains(Refusal(WithKernel(KernelText("a", "sm_90a", many))), "has more than 48 parameters"));
  const std::string variant = VariantText(R"("a")", "sm_90a"), kernel = KernelText("a", "sm_90a");
  const auto other = [&](const char* from, const char* to) {
    std::string s = variant;
    s.replace(s.find(from), std::string(from).size(), to);
    return Refusal(ManifestText(kernel, s));
  };
  CHECK(Contains(other("\"toy\"", "\"none\""), "is of \"none\", which is no op of the manifest"));
  CHECK(Contains(other("\"path\": \"decode\"", "\"path\": \"both\""), "has the unknown path \"both\""));
  CHECK(Contains(other(", \"path\": \"decode\"", ""), "has no choice of \"path\""));
  CHECK(Contains(other("\"path\":", "\"few\": \"1\", \"path\":"), "chooses more than toy selects by"));
  CHECK(Contains(other("\"scratch\": \"16\"", "\"scratch\": \"nothing\""), "reads \"nothing\", which nothing sets"));
  CHECK(Contains(other("\"bound\": 0", "\"bound\": -1"), "\"bound\" = -1"));
  CHECK(Contains(other("\"repeat\": false", "\"repeat\": 0"), "\"repeat\" as an integer"));
  const std::string loop = ",\n    \"loop\": {\"scalar\": \"first\", \"stop\": \"max(n, 1)\", \"step\": \"step\"}";
  CHECK(Contains(Refusal(ManifestText(kernel, VariantText(R"("a")", "sm_90a", "native", 0, "decode", true), 2, OpText(loop))), "repeats, but its op has no loop"));
  CHECK(Contains(Refusal(ManifestText("", "", 2, OpText() + "," + OpText())), "ops[1] repeats toy"));
  std::string outside = KernelText("a", "sm_90a");
  outside.replace(outside.find("sm_90a/a.cubin"), 14, "../../a.cubin");
  CHECK(Contains(Refusal(WithKernel(outside)), "outside the cubin folder"));
}

void Recipes() {
  const std::string good = R"({"tensor_map": {"buffer": "k", "dtype": "u8", "dims": [64, "heads_kv * 128", "num_pages"], "strides": [64, "heads_kv*8192"], "box": [64, 128, 1],
                              "swizzle": "64", "l2_promotion": "256"}})";
  auto m = Manifest::Parse(WithKernel(KernelText("a", "sm_90a", good)));
  CHECK(m.ok());
  const TensorMapRecipe& r = m.value().kernels[0].params[0].recipe;
  CHECK(m.value().kernels[0].params[0].kind == Param::Kind::kTensorMap && r.buffer == "k" && r.dtype == cu::kU8);
  CHECK(r.dims[0].text() == "64" && r.dims[1].text() == "heads_kv * 128" && r.dims[1].names() == std::vector<std::string>{"heads_kv"});
  CHECK(r.strides[1].text() == "heads_kv*8192" && r.offset.text() == "0" && r.swizzle == cu::kSwizzle64 && r.l2 == cu::kL2_256 && r.box[1] == 128);
  auto with = [&](const char* from, const char* to) {
    std::string s = good;
    s.replace(s.find(from), std::string(from).size(), to);
    return Refusal(WithKernel(KernelText("a", "sm_90a", s)));
  };
  CHECK(Contains(with("\"u8\"", "\"fp4\""), "\"dtype\" = \"fp4\", expected u8|u16"));
  CHECK(Contains(with("[64, 128, 1]", "[64, 128]"), "as many box entries"));
  CHECK(Contains(with("[64, 128, 1]", "[64, 512, 1]"), "box entry outside 1..256"));
  CHECK(Contains(with("heads_kv*8192", "heads_kv*"), "neither an integer nor an expression"));
  CHECK(Contains(with("heads_kv*8192", "99999999999999999999*x"), "a number overflows 64 bits"));
  CHECK(Contains(with("\"256\"", "\"512\""), "l2_promotion"));
}

void Archs() {
  auto runs = [](const char* arch, int major, int minor) { return ParseArch(arch).value().RunsOn({major, minor}); };
  CHECK(runs("sm_80", 8, 0) && runs("sm_80", 8, 6) && runs("sm_80", 8, 9) && !runs("sm_80", 9, 0) && !runs("sm_80", 7, 5));
  CHECK(runs("sm_86", 8, 9) && !runs("sm_86", 8, 0));
  CHECK(runs("sm_90a", 9, 0) && !runs("sm_90a", 9, 1) && !runs("sm_90a", 10, 0));
  CHECK(runs("sm_100a", 10, 0) && !runs("sm_100a", 10, 3) && runs("sm_103a", 10, 3) && !runs("sm_103a", 10, 0));
  CHECK(runs("sm_120a", 12, 0) && !runs("sm_120a", 12, 1) && runs("sm_100f", 10, 3));
  for (const char* bad : {"", "sm_", "sm_9", "90a", "sm_90ab", "sm_90x", "sm_12345678"}) CHECK(!ParseArch(bad).ok());
}

const Select kDecode = {{"path", "decode"}, {"format", "nvfp4"}};

std::string Choice(const Manifest& m, Capability c, std::int64_t bound, const char* implementation = "auto") {
  auto v = m.Candidates({"toy", kDecode, implementation}, c);
  if (!v.ok()) return v.status().message();
  const Variant* p = v.value()[PickVariant(v.value(), bound)];
  return p->arch.name + " " + m.kernels[p->launches[0]].name;
}

void Choices() {
  std::string kernels, variants;
  auto add = [&](const char* name, const char* arch, const char* implementation, int bound) {
    kernels += (kernels.empty() ? "" : ",") + KernelText(name, arch);
    variants += (variants.empty() ? "" : ",") + VariantText("\"" + std::string(name) + "\"", arch, implementation, bound);
  };
  // On purpose not in the order of preference.
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a"}) add("direct", arch, "portable", 0);
  add("wide", "sm_90a", "native", 0);
  add("n16", "sm_90a", "native", 16);
  add("n8", "sm_90a", "native", 8);
  add("n64", "sm_103a", "native", 64);
  const Manifest m = Manifest::Parse(ManifestText(kernels, variants)).value();

  CHECK_EQ(Choice(m, {8, 0}, 1), "sm_80 direct");
  CHECK_EQ(Choice(m, {8, 6}, 1), "sm_80 direct");
  CHECK_EQ(Choice(m, {8, 9}, 1), "sm_80 direct");
  CHECK_EQ(Choice(m, {9, 0}, 0), "sm_90a n8");
  CHECK_EQ(Choice(m, {9, 0}, 8), "sm_90a n8");
  CHECK_EQ(Choice(m, {9, 0}, 9), "sm_90a n16");
  CHECK_EQ(Choice(m, {9, 0}, 17), "sm_90a wide");
  CHECK_EQ(Choice(m, {9, 0}, 8, "portable"), "sm_90a direct");
  CHECK_EQ(Choice(m, {10, 0}, 1), "sm_100a direct");
  CHECK_EQ(Choice(m, {10, 3}, 1), "sm_103a n64");
  CHECK_EQ(Choice(m, {10, 3}, 1000), "sm_103a n64");  // no bound holds 1000: the widest
  CHECK_EQ(Choice(m, {12, 0}, 1), "sm_120a direct");
  for (Capability c : {Capability{7, 5}, {12, 1}, {9, 1}}) {
    const std::string message = Choice(m, c, 1);
    CHECK(Contains(message, "no decode nvfp4 kernel for compute capability " + CapabilityText(c)));
    CHECK(Contains(message, "ships sm_100a, sm_103a, sm_120a, sm_80, sm_90a"));
    CHECK(Contains(message, "implementation=\"reference\""));
  }
  CHECK(Contains(Choice(m, {12, 1}, 1), "a newer jax_fp4_indexer") && Contains(Choice(m, {7, 5}, 1), "kernels need 8.0 or newer"));
  CHECK(Contains(Choice(m, {7, 5}, 1, "portable"), "no decode nvfp4 portable kernel"));
  CHECK(m.Serves({"toy", {{"path", "decode"}}}) && !m.Serves({"toy", {{"path", "prefill"}}}) && !m.Serves({"other", {}}));
  CHECK(m.Candidates({"toy", {}}, {9, 0}).ok() && !m.Candidates({"toy", {{"few", "1"}}}, {9, 0}).ok());

  // A cubin for exactly this capability before one for the family, whatever the order in the file.
  const Manifest family = Manifest::Parse(ManifestText(KernelText("base", "sm_80") + "," + KernelText("own", "sm_86"), VariantText(R"("base")", "sm_80") + "," + VariantText(R"("own")", "sm_86"))).value();
  CHECK_EQ(Choice(family, {8, 6}, 1), "sm_86 own");
  CHECK_EQ(Choice(family, {8, 0}, 1), "sm_80 base");
}

}  // namespace

int main() {
  Refusals();
  Recipes();
  Archs();
  Choices();
  return Finish("manifest");
}
