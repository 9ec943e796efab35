// Ops of the manifest, and what is refused of a call.
#include <vector>

#include "check_test.h"
#include "manifest_text.h"
#include "spec.h"

using namespace jfi;

namespace {

Result<OpSpec> ParseOp(const std::string& text) { return OpSpec::Parse(Json::Parse(text).value(), "ops[0]"); }

std::string Refusal(const std::string& changed, const std::string& to) {
  auto op = ParseOp(OpText(changed, to));
  return op.ok() ? "accepted" : op.status().message();
}

void Ops() {
  CHECK(ParseOp(OpText()).ok());
  CHECK(Contains(Refusal("\"uint8\"", "\"uint3\""), "operands[0] has the unknown dtype \"uint3\""));
  CHECK(Contains(Refusal("\"prefill\": [", "\"other\": ["), "\"shape\" without a case for \"prefill\""));
  CHECK(Contains(Refusal("{\"by\": \"path\"", "{\"by\": \"few\""), "by \"few\", which is no choice of the op"));
  CHECK(Contains(Refusal("\"tokens\", \"heads\", \"64\"", "\"tokens +\""), "is no expression of sizes"));
  CHECK(Contains(Refusal("few * (heads", "few * (nothing"), "reads \"nothing\", which nothing sets"));
  CHECK(Contains(Refusal("\"argument\": \"k\"", "\"argument\": \"z\""), "is about \"z\", which is no operand or attribute"));
  CHECK(Contains(Refusal("[\"path\", \"format\"]", "[\"few\"]"), "selects by \"few\", which is no choice"));
  CHECK(Contains(Refusal("\"step\": \"step\"", "\"step\": \"stride\""), "steps by \"stride\", which is no size or attribute"));
  CHECK(Contains(Refusal("max(n, 1)", "max(m, 1)"), "reads \"m\""));
  CHECK(Contains(Refusal("\"align\": 128", "\"align\": 0"), "\"align\" = 0, expected 1..4096"));
  CHECK(Contains(Refusal("\"api\": \"api_toy\", ", ""), "has no \"api\""));
  // A size that stands in no shape alone has no value
  auto op = ParseOp(OpText("[\"n\"]", "[\"n * 2\"]"));
  CHECK(Contains(Signature::Make(op.value(), {{"path", "decode", 0, true}, {"format", "nvfp4", 0, true}, {"few", "", 1}, {"step", "", 1}}).status().message(), "in no shape alone: n"));
}

std::vector<Given> Attributes(const char* path = "decode", std::int64_t few = 2) {
  return {{"path", path, 0, true}, {"format", "nvfp4", 0, true}, {"few", "", few}, {"step", "", 4}};
}

std::string AttributeRefusal(const OpSpec& op, std::size_t index, Given g) {
  auto given = Attributes();
  if (index < given.size()) given.erase(given.begin() + static_cast<long>(index));
  if (!g.name.empty()) given.push_back(g);
  auto s = Signature::Make(op, given);
  return s.ok() ? "accepted" : s.status().message();
}

void AttributesOfACall() {
  const OpSpec op = ParseOp(OpText()).value();
  CHECK(AttributeRefusal(op, 9, {}) == "accepted");
  CHECK(Contains(AttributeRefusal(op, 0, {"path", "both", 0, true}), "api_toy: path: got 'both', expected decode or prefill; lower the program"));
  CHECK(Contains(AttributeRefusal(op, 0, {"path", "", 1, false}), "path: got an integer, expected decode or prefill"));
  CHECK(Contains(AttributeRefusal(op, 2, {"few", "x", 0, true}), "few: got a string, expected an integer in 0..9223372036854775807"));
  CHECK(Contains(AttributeRefusal(op, 2, {"few", "", -1}), "few: got -1, expected an integer in 0.."));
  CHECK(Contains(AttributeRefusal(op, 3, {"step", "", 1001}), "step: got 1001, expected an integer in 0..1000"));
  CHECK(Contains(AttributeRefusal(op, 3, {}), "step: got no attribute of this name, expected an integer"));
  CHECK(Contains(AttributeRefusal(op, 9, {"more", "", 3}), "more: got an attribute of this name, expected none: version 1"));
  const auto select = Signature::Make(op, Attributes("prefill")).value().Select();
  CHECK(select.size() == 2 && select[0].first == "path" && select[0].second == "prefill" && select[1].second == "nvfp4");
}

struct Buffers {
  std::vector<std::int64_t> dims[7] = {{5, 4, 64}, {9, 2}, {2, 8}, {11}, {4}, {4, 3, 5}, {32}};
  DType dtypes[7] = {DType::kU8, DType::kU8, DType::kF32, DType::kS32, DType::kS32, DType::kF32, DType::kU8};
  alignas(128) char memory[128];
  char* addresses[7] = {memory, memory, memory, memory, memory, memory, memory};

  std::vector<BufferView> Views() {
    std::vector<BufferView> out;
    for (int i = 0; i < 7; ++i) out.push_back({dtypes[i], dims[i].data(), dims[i].size(), addresses[i]});
    return out;
  }
};

struct Bound {
  Status status;
  std::int64_t slots[kMaxSlots];
  bool empty = false;
};

Bound Bind(const Signature& s, Buffers& b, std::size_t operands = 5, std::size_t results = 2) {
  Bound out;
  const auto views = b.Views();
  out.status = s.Bind(views.data(), operands, views.data() + 5, results, out.slots, out.empty);
  return out;
}

void BuffersOfACall() {
  const OpSpec op = ParseOp(OpText()).value();
  const Signature s = Signature::Make(op, Attributes()).value();
  Buffers good;
  const Bound bound = Bind(s, good);
  CHECK(bound.status.ok() && !bound.empty);
  const auto value = [&](const char* name) { return bound.slots[op.names.Find(name)]; };
  CHECK(value("tokens") == 5 && value("heads") == 4 && value("heads_kv") == 2 && value("pages") == 9 && value("n") == 11 && value("seqs") == 3);
  CHECK(value("tiles") == 3 && value("groups") == 8 && value("few") == 2 && value("scratch_bytes") == 32 && value("path") == 0 && value("format") == 0);

  const auto refusal = [&](auto change) {
    Buffers b;
    change(b);
    const Bound r = Bind(s, b);
    return r.status.ok() ? std::string(r.empty ? "empty" : "accepted") : r.status.message();
  };
  CHECK(Contains(refusal([](Buffers& b) { b.dtypes[0] = DType::kOther; }), "api_toy: q: got another type[5,4,64], expected uint8[tokens,heads,64]"));
  CHECK(Contains(refusal([](Buffers& b) { b.dims[1] = {9}; }), "k: got uint8[9], expected uint8[pages,heads_kv]"));
  CHECK(Contains(refusal([](Buffers& b) { b.dims[0][2] = 32; }), "q: got uint8[5,4,32], expected uint8[5,4,64]"));
  CHECK(Contains(refusal([](Buffers& b) { b.dims[2][0] = 1; }), "scale: got float32[1,8], expected float32[2,8]"));
  CHECK(Contains(refusal([](Buffers& b) { b.dims[4] = {0}; }), "sums: got int32[0], expected int32[seqs + 1]"));
  CHECK(Contains(refusal([](Buffers& b) { b.dims[5][2] = 6; }), "y: got float32[4,3,6], expected float32[4,3,5]"));
  CHECK(Contains(refusal([](Buffers& b) { b.dtypes[5] = DType::kBf16; }), "y: got bfloat16[4,3,5], expected float32["));
  CHECK(Contains(refusal([](Buffers& b) { b.dims[6] = {4, 4}; }), "scratch: got uint8[4,4], expected uint8[scratch_bytes]"));
  CHECK(Contains(refusal([](Buffers& b) { b.dims[1][1] = 3; }), "k: got uint8[9,3], expected a number of heads that divides q's"));
  CHECK(Contains(refusal([](Buffers& b) { b.dims[1][1] = 0; }), "k: got uint8[9,0], expected a number of heads"));  // a division by zero
  CHECK_EQ(refusal([](Buffers& b) { b.dims[5][1] = 0; }), std::string("empty"));
  CHECK(Contains(Bind(s, good, 4, 2).status.message(), "operands: got 4 of them, expected 5"));
  CHECK(Contains(Bind(s, good, 5, 1).status.message(), "results: got 1 of them, expected 2"));
  // Another choice, other shapes
  const Signature prefill = Signature::Make(op, Attributes("prefill")).value();
  CHECK(Contains(Bind(prefill, good).status.message(), "scale: got float32[2,8], expected float32[tokens * heads]"));
  good.dims[2] = {20};
  CHECK(Bind(prefill, good).status.ok());
  good.dims[0] = {INT64_MAX, 4, 64};
  good.dims[5] = {4, 3, INT64_MAX};
  CHECK(Contains(Bind(prefill, good).status.message(), "scale: got float32[20], expected float32[tokens * heads]"));  // overflows
}

// Every buffer by its own alignment, at most what the host promises.
void Addresses() {
  const OpSpec op = ParseOp(OpText()).value();
  const Signature s = Signature::Make(op, Attributes()).value();
  const int aligns[] = {128, 32, 4, 4, 4, 16, 128};
  for (int i = 0; i < 7; ++i)
    for (int off = 1; off <= 64; off *= 2) {
      Buffers b;
      b.addresses[i] += off;
      for (int limit : {64, 4096}) {
        const auto views = b.Views();
        const Status status = s.CheckAddresses(views.data(), views.data() + 5, static_cast<std::uintptr_t>(limit));
        const int align = std::min(aligns[i], limit);
        CHECK(status.ok() == (off % align == 0));
        if (off % align)
          CHECK(Contains(status.message(), "api_toy: " + op.buffers[static_cast<std::size_t>(i)].name + ": got an address " + std::to_string(off) +
                                               " bytes past a multiple of " + std::to_string(align)));
      }
    }
}

}  // namespace

int main() {
  Ops();
  AttributesOfACall();
  BuffersOfACall();
  Addresses();
  return Finish("spec");
}
