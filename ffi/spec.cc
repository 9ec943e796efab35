#include "spec.h"

#include <algorithm>
#include <limits>

#include "reader.h"

namespace jfi {
namespace {

constexpr std::pair<DType, const char*> kDTypes[] = {{DType::kU8, "uint8"},     {DType::kS32, "int32"},
                                                     {DType::kF32, "float32"},  {DType::kF16, "float16"},
                                                     {DType::kBf16, "bfloat16"}, {DType::kF8E4M3FN, "float8_e4m3fn"}};

// Reads a value or {"by": attribute, "cases": {value: ...}}; `read` reads one.
template <class T, class Read>
void ReadByChoice(Reader& r, const char* key, const Json& json, const std::vector<Attribute>& attributes, Read read, ByChoice<T>& out) {
  const Json* by = json.find("by");
  const Json* cases = json.find("cases");
  if (!by || !cases) {
    out.cases[0] = read(json);
    return;
  }
  const auto a = std::find_if(attributes.begin(), attributes.end(), [&](const Attribute& a) { return a.name == by->string(); });
  if (a == attributes.end() || a->values.empty()) return r.Fault(std::string("has \"") + key + "\" by \"" + by->string() + "\", which is no choice of the op");
  out.attribute = static_cast<int>(a - attributes.begin());
  out.cases.clear();
  for (const std::string& value : a->values) {
    const Json* one = cases->find(value);
    if (!one) return r.Fault(std::string("has \"") + key + "\" without a case for \"" + value + "\"");
    out.cases.push_back(read(*one));
  }
}

void ReadBuffer(const Json& json, const std::string& where, OpSpec& op, Status& status) {
  Reader r(json, where);
  BufferSpec& b = op.buffers.emplace_back();
  b.name = r.String("name");
  b.align = static_cast<std::uintptr_t>(r.Int("align", 1, 4096));
  const auto dtype = [&](const Json& v) {
    for (auto [type, name] : kDTypes)
      if (v.string() == name) return type;
    r.Fault("has the unknown dtype \"" + v.string() + "\"");
    return DType::kOther;
  };
  const auto shape = [&](const Json& v) {
    std::vector<Formula> dims;
    if (!v.is(Json::Kind::kArray)) r.Fault("has a shape that is no array");
    for (const Json& d : v.array()) dims.push_back(r.Expression("shape", d).BindAdding(op.names));
    return dims;
  };
  ReadByChoice(r, "dtype", r.Any("dtype"), op.attributes, dtype, b.dtype);
  ReadByChoice(r, "shape", r.Any("shape"), op.attributes, shape, b.shape);
  if (status.ok()) status = r.status();
}

void ReadAttribute(const Json& json, const std::string& where, OpSpec& op, Status& status) {
  Reader r(json, where);
  Attribute& a = op.attributes.emplace_back();
  a.name = r.String("name");
  a.slot = op.names.Add(a.name);
  if (r.Has("values")) {
    for (const Json& v : r.Array("values")) a.values.push_back(v.string());
    if (a.values.empty()) r.Fault("has no value");
  } else {
    a.low = r.Int("low", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
    a.high = r.Int("high", a.low, std::numeric_limits<std::int64_t>::max());
  }
  if (status.ok()) status = r.status();
}

Formula BindOrFault(Reader& r, const char* key, const Names& names) {
  auto bound = r.Expression(key).Bind(names);
  if (bound.ok()) return std::move(bound.value());
  r.Fault(std::string("has \"") + key + "\" that names what the op has not: " + bound.status().message());
  return {};
}

std::string TypeText(DType dtype, const std::int64_t* dims, std::size_t rank) {
  return DTypeName(dtype) + ShapeText(std::vector<std::int64_t>(dims, dims + rank));
}

std::string Listed(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& v : values) list += (list.empty() ? "" : " or ") + v;
  return list;
}

}  // namespace

const char* DTypeName(DType dtype) {
  for (auto [type, name] : kDTypes)
    if (type == dtype) return name;
  return "another type";
}

Result<OpSpec> OpSpec::Parse(const Json& entry, const std::string& where) {
  Reader r(entry, where);
  OpSpec op;
  op.name = r.String("op");
  op.api = r.String("api");
  op.version = r.Int("version", 1, 1000);
  op.scratch = r.Bool("scratch");
  for (const Json& s : r.Array("select")) op.select.push_back(s.string());
  Status status;
  const auto each = [&](const char* key, auto read) {
    const std::vector<Json>& list = r.Array(key);
    for (std::size_t i = 0; i < list.size(); ++i) read(list[i], where + "." + key + "[" + std::to_string(i) + "]", op, status);
    return list.size();
  };
  each("attributes", ReadAttribute);
  for (const auto& [name, json] : r.Get("derived", Json::Kind::kObject).object()) {
    DerivedSize& d = op.derived.emplace_back();
    d.slot = op.names.Add(name);
    ReadByChoice(r, "derived", json, op.attributes, [](const Json& v) { return v.integer(); }, d.value);
  }
  op.num_operands = each("operands", ReadBuffer);
  op.num_results = each("results", ReadBuffer);
  if (op.scratch) {
    BufferSpec& b = op.buffers.emplace_back();
    b.name = "scratch";
    b.dtype.cases[0] = DType::kU8;
    b.shape.cases[0] = {Expr::Parse("scratch_bytes").value().BindAdding(op.names)};
    b.align = 128;
  }
  if (r.Has("loop")) {
    Reader l(r.Get("loop", Json::Kind::kObject), where + ".loop");
    Loop& loop = op.loop.emplace();
    loop.scalar = op.names.Add(l.String("scalar"));
    loop.step_name = l.String("step");
    loop.step = op.names.Find(loop.step_name);
    loop.stop = BindOrFault(l, "stop", op.names);
    if (loop.step < 0) l.Fault("steps by \"" + loop.step_name + "\", which is no size or attribute");
    JFI_RETURN_IF_ERROR(l.status());
  }
  each("conditions", [](const Json& json, const std::string& at, OpSpec& op, Status& status) {
    Reader c(json, at);
    Condition& condition = op.conditions.emplace_back();
    condition.argument = c.String("argument");
    condition.expected = c.String("expected");
    condition.zero = BindOrFault(c, "zero", op.names);
    if (op.FindBuffer(condition.argument) < 0 && op.names.Find(condition.argument) < 0)
      c.Fault("is about \"" + condition.argument + "\", which is no operand or attribute");
    if (status.ok()) status = c.status();
  });
  op.bound = BindOrFault(r, "bound", op.names);
  for (const std::string& s : op.select)
    if (std::none_of(op.attributes.begin(), op.attributes.end(), [&](const Attribute& a) { return a.name == s && !a.values.empty(); }))
      r.Fault("selects by \"" + s + "\", which is no choice of the op");
  if (op.names.size() > kMaxSlots || op.buffers.size() > kMaxBuffers) r.Fault("has more sizes or buffers than this library serves");
  JFI_RETURN_IF_ERROR(r.status());
  JFI_RETURN_IF_ERROR(status);
  return op;
}

int OpSpec::FindBuffer(std::string_view wanted) const {
  const auto found = std::find_if(buffers.begin(), buffers.end(), [&](const BufferSpec& b) { return b.name == wanted; });
  return found == buffers.end() ? -1 : static_cast<int>(found - buffers.begin());
}

Result<Signature> Signature::Make(const OpSpec& op, const std::vector<Given>& attributes) {
  Signature s;
  s.op_ = &op;
  s.fixed_.resize(op.names.size());
  const auto given = [&](const std::string& name) {
    return std::find_if(attributes.begin(), attributes.end(), [&](const Given& g) { return g.name == name; });
  };
  for (const Given& g : attributes)
    if (std::none_of(op.attributes.begin(), op.attributes.end(), [&](const Attribute& a) { return a.name == g.name; }))
      return BadArgument(op.api, g.name, "an attribute of this name", "none: version " + std::to_string(op.version) + " of the call has no such attribute");
  for (const Attribute& a : op.attributes) {
    const bool choice = !a.values.empty();
    const auto g = given(a.name);
    const std::string expected = choice ? Listed(a.values) : "an integer in " + std::to_string(a.low) + ".." + std::to_string(a.high);
    if (g == attributes.end()) return BadArgument(op.api, a.name, "no attribute of this name", expected);
    if (g->is_text != choice) return BadArgument(op.api, a.name, g->is_text ? "a string" : "an integer", expected);
    const auto value = std::find(a.values.begin(), a.values.end(), g->text);
    if (choice && value == a.values.end()) return BadArgument(op.api, a.name, "'" + g->text + "'", expected);
    if (!choice && (g->number < a.low || g->number > a.high)) return BadArgument(op.api, a.name, std::to_string(g->number), expected);
    s.choices_.push_back(choice ? static_cast<std::size_t>(value - a.values.begin()) : 0);
    s.fixed_[static_cast<std::size_t>(a.slot)] = choice ? value - a.values.begin() : g->number;
  }
  std::vector<bool> known(op.names.size());  // sizes that have their value before the buffer at hand
  for (const DerivedSize& d : op.derived) {
    s.fixed_[static_cast<std::size_t>(d.slot)] = d.value.Of(s.choices_);
    known[static_cast<std::size_t>(d.slot)] = true;
  }
  for (const Attribute& a : op.attributes) known[static_cast<std::size_t>(a.slot)] = true;
  for (const BufferSpec& spec : op.buffers) {
    Buffer& b = s.buffers_.emplace_back();
    b.spec = &spec;
    b.dtype = spec.dtype.Of(s.choices_);
    for (const Formula& formula : spec.shape.Of(s.choices_)) {
      Dim& d = b.dims.emplace_back();
      d.formula = &formula;
      int slot;
      if (!formula.Solve(slot, d.constant) || known[static_cast<std::size_t>(slot)]) continue;
      d.slot = slot;
      known[static_cast<std::size_t>(slot)] = true;
    }
  }
  if (op.loop) known[static_cast<std::size_t>(op.loop->scalar)] = true;
  if (const auto unset = std::find(known.begin(), known.end(), false); unset != known.end())
    return FailedPrecondition("manifest.json: a size of " + op.name + " stands in no shape alone: " +
                              op.names.Name(static_cast<int>(unset - known.begin())));
  return s;
}

std::vector<std::pair<std::string, std::string>> Signature::Select() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& key : op_->select)
    for (std::size_t i = 0; i < op_->attributes.size(); ++i)
      if (op_->attributes[i].name == key) out.emplace_back(key, op_->attributes[i].values[choices_[i]]);
  return out;
}

// slots: the sizes, or null where they are not known yet.
Status Signature::Mismatch(const Buffer& b, const BufferView& got, const std::int64_t* slots) const {
  std::string want = DTypeName(b.dtype) + std::string("[");
  for (std::size_t i = 0; i < b.dims.size(); ++i) {
    std::int64_t n;
    const bool known = slots && b.dims[i].formula->Value(slots, n) == Formula::Fault::kNone;
    want += (i ? "," : "") + (known ? std::to_string(n) : b.dims[i].formula->text());
  }
  return BadArgument(op_->api, b.spec->name, TypeText(got.dtype, got.dims, got.rank), want + "]");
}

Status Signature::CheckCondition(const Condition& c, const BufferView* operands, const BufferView* results, const std::int64_t* slots) const {
  std::int64_t n;
  if (c.zero.Value(slots, n) == Formula::Fault::kNone && n == 0) return {};
  const int buffer = op_->FindBuffer(c.argument);
  if (buffer < 0) return BadArgument(op_->api, c.argument, std::to_string(slots[op_->names.Find(c.argument)]), c.expected);
  const BufferView& view = View(static_cast<std::size_t>(buffer), operands, results);
  return BadArgument(op_->api, c.argument, TypeText(view.dtype, view.dims, view.rank), c.expected);
}

Status Signature::Bind(const BufferView* operands, std::size_t num_operands, const BufferView* results, std::size_t num_results,
                       std::int64_t* slots, bool& empty) const {
  const std::size_t want_results = buffers_.size() - op_->num_operands;
  if (num_operands != op_->num_operands)
    return BadArgument(op_->api, "operands", std::to_string(num_operands) + " of them", std::to_string(op_->num_operands));
  if (num_results != want_results)
    return BadArgument(op_->api, "results", std::to_string(num_results) + " of them", std::to_string(want_results));
  std::copy(fixed_.begin(), fixed_.end(), slots);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer& b = buffers_[i];
    const BufferView& view = View(i, operands, results);
    if (view.dtype != b.dtype || view.rank != b.dims.size()) return Mismatch(b, view, nullptr);
    for (std::size_t d = 0; d < view.rank; ++d) {
      if (b.dims[d].slot < 0) continue;
      const std::int64_t n = view.dims[d] - b.dims[d].constant;
      if (n < 0) return Mismatch(b, view, nullptr);
      slots[b.dims[d].slot] = n;
    }
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const BufferView& view = View(i, operands, results);
    for (std::size_t d = 0; d < view.rank; ++d) {
      const Dim& dim = buffers_[i].dims[d];
      if (dim.slot >= 0) continue;
      std::int64_t want;
      if (dim.formula->Value(slots, want) != Formula::Fault::kNone || want != view.dims[d]) return Mismatch(buffers_[i], view, slots);
    }
  }
  for (const Condition& c : op_->conditions) JFI_RETURN_IF_ERROR(CheckCondition(c, operands, results, slots));
  empty = true;
  for (std::size_t i = 0; i < op_->num_results; ++i) {
    const std::int64_t* dims = results[i].dims;
    if (std::find(dims, dims + results[i].rank, 0) == dims + results[i].rank) empty = false;
  }
  return {};
}

Status Signature::CheckAddresses(const BufferView* operands, const BufferView* results, std::uintptr_t limit) const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const BufferSpec& spec = *buffers_[i].spec;
    JFI_RETURN_IF_ERROR(CheckAlignment(op_->api, spec.name, View(i, operands, results).address, std::min(spec.align, limit)));
  }
  return {};
}

}  // namespace jfi
