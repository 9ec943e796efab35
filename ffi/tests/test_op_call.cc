// Instantiate, prepare and execute of a call, whatever the op, against the stand-in driver.
#include <thread>

#include "fake_driver.h"
#include "op_call.h"

using namespace jfi;

namespace {

constexpr std::uintptr_t kLimit = 4096;
cu::Stream kStream = reinterpret_cast<cu::Stream>(0x5000);

std::vector<Given> Attributes(const char* path = "decode", std::int64_t few = 2, std::int64_t step = 4) {
  return {{"path", path, 0, true}, {"format", "nvfp4", 0, true}, {"few", "", few}, {"step", "", step}};
}

std::unique_ptr<OpCall> MakeCall(CubinStore& store, const std::vector<Given>& attributes) {
  auto call = OpCall::Make(store, "toy", "auto", attributes);
  CHECK(call.ok());
  return std::move(call.value());
}

// Operands and results of a call with 4 heads beside 2.
struct Buffers {
  std::vector<std::int64_t> dims[7] = {{5, 4, 64}, {9, 2}, {2, 8}, {11}, {4}, {4, 3, 5}, {64}};
  DType dtypes[7] = {DType::kU8, DType::kU8, DType::kF32, DType::kS32, DType::kS32, DType::kF32, DType::kU8};
  alignas(4096) char memory[7 * 128];

  Status Execute(const OpCall& call, int misaligned = -1) {
    BufferView views[7];
    for (int i = 0; i < 7; ++i) views[i] = {dtypes[i], dims[i].data(), dims[i].size(), memory + 128 * i + (i == misaligned ? 2 : 0)};
    return call.Execute(kStream, views, 5, views + 5, 2, kLimit);
  }
};

const std::string kKernels = KernelText("n8", "sm_90a", R"({"buffer": "y"}, {"i32": "heads"}, {"i32": "step"})") + "," +
                             KernelText("wide", "sm_90a", R"({"buffer": "y"}, {"i32": "heads"}, {"i32": "step"})") + "," + KernelText("old", "sm_80");
const std::string kVariants = VariantText(R"("n8")", "sm_90a", "native", 8) + "," + VariantText(R"("wide")", "sm_90a", "native", 0, "decode", false, "n * 4") + "," +
                              VariantText(R"("old")", "sm_80", "portable");

void Made() {
  auto store = Open(kKernels, kVariants);
  CHECK(OpCall::Make(*store, "toy", "auto", Attributes()).ok());
  CHECK(Contains(OpCall::Make(*store, "other", "auto", Attributes()).status().message(), "jax_fp4_indexer: op: got 'other', expected toy"));
  CHECK(Contains(OpCall::Make(*store, "toy", "reference", Attributes()).status().message(), "api_toy: implementation: got 'reference', expected auto or portable"));
  CHECK(Contains(OpCall::Make(*store, "toy", "auto", Attributes("both")).status().message(), "api_toy: path: got 'both'"));
  CHECK(Contains(OpCall::Make(*store, "toy", "portable", Attributes("prefill")).status().message(),
                 "api_toy: these cubins hold no prefill nvfp4 portable kernel; rebuild them with `python -m jax_fp4_indexer.aot build`"));
}

void Launched(const Fake& fake) {
  fake.Reset();
  fake.Device(0, 9, 0, 132);
  fake.Sizes({8, 4, 4});
  auto store = Open(kKernels, kVariants);
  auto call = MakeCall(*store, Attributes());
  Buffers b;
  // Without a prepare stage on the device nothing is loaded, nothing launched.
  const Status unprepared = b.Execute(*call);
  CHECK(unprepared.code() == Code::kFailedPrecondition && Contains(unprepared.message(), "api_toy: no kernel is loaded on device 0: XLA ran no prepare stage there"));
  CHECK(fake.Count("loads") == 0 && fake.Count("launches") == 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { CHECK(call->Prepare().ok()); });
  for (auto& t : threads) t.join();
  CHECK_EQ(fake.Count("loads"), 2);  // both that the call may pick
  CHECK(b.Execute(*call).ok());
  const LaunchRecord& l = fake.Launch(0);
  CHECK_EQ(fake.Symbol(l.kernel), "sym_n8");  // 2 * (4 / 2) is at most 8
  CHECK(l.stream == kStream && Read<char*>(l.params[0]) == b.memory + 5 * 128 && Read<std::int32_t>(l.params[1]) == 4 && Read<std::int32_t>(l.params[2]) == 11);
  fake.Device(1, 9, 0, 132);
  CHECK(Contains(b.Execute(*call).message(), "no kernel is loaded on device 1"));
  fake.Device(0, 9, 0, 132);
  fake.Fail("cuCtxGetDevice", 201);
  CHECK(Contains(b.Execute(*call).message(), "cuCtxGetDevice failed: invalid device context"));
  fake.Fail("", 0);
  fake.Device(2, 7, 5, 40);
  CHECK(Contains(call->Prepare().message(), "api_toy: no decode nvfp4 kernel for compute capability 7.5; this build ships sm_80, sm_90a"));
  fake.Device(0, 9, 0, 132);
}

// Execute, rather than one of its parts, looks at every address and shape.
void Checked(const Fake& fake) {
  fake.Reset();
  fake.Device(0, 9, 0, 132);
  auto store = Open(kKernels, kVariants);
  auto call = MakeCall(*store, Attributes());
  CHECK(call->Prepare().ok());
  for (int i = 0; i < 7; ++i) {
    Buffers b;
    const Status s = b.Execute(*call, i);
    CHECK(s.code() == Code::kInvalidArgument && Contains(s.message(), "got an address 2 bytes past a multiple of "));
    b.dims[i].push_back(1);
    CHECK(b.Execute(*call).code() == Code::kInvalidArgument);
  }
  Buffers empty;
  empty.dims[5][1] = 0;
  CHECK(empty.Execute(*call, 0).ok());  // nothing is read or written
  CHECK_EQ(fake.Count("launches"), 0);
}

// A bound beyond 64 bits is larger than that of any variant; scratch beyond 64 bits is more than there is.
void Overflows(const Fake& fake) {
  fake.Reset();
  fake.Device(0, 9, 0, 132);
  auto store = Open(kKernels, kVariants);
  const auto launched = [&](std::int64_t few) {
    auto call = MakeCall(*store, Attributes("decode", few));
    CHECK(call->Prepare().ok());
    Buffers b;
    fake.Call<void>("fake_forget_launches");
    const Status s = b.Execute(*call);
    return s.ok() ? fake.Symbol(fake.Launch(0).kernel) : s.message();
  };
  CHECK_EQ(launched(4), std::string("sym_n8"));
  CHECK_EQ(launched(5), std::string("sym_wide"));
  CHECK_EQ(launched(INT64_MAX / 2 + 1), std::string("sym_wide"));  // wraps to a negative number
  CHECK_EQ(launched(INT64_MAX), std::string("sym_wide"));          // wraps to -2

  auto huge = Open(kKernels, VariantText(R"("n8")", "sm_90a", "native", 0, "decode", false, "n * few"));
  auto call = MakeCall(*huge, Attributes("decode", INT64_MAX / 11 + 1));  // wraps to a negative number
  CHECK(call->Prepare().ok());
  Buffers b;
  CHECK(Contains(b.Execute(*call).message(), "api_toy: scratch: got 64 bytes, expected more than 2^63 bytes for step = 11; lower the program again"));
}

}  // namespace

int main(int argc, char** argv) {
  const Fake fake = StartFake(argc, argv);
  Made();
  Launched(fake);
  Checked(fake);
  Overflows(fake);
  return Finish("op_call");
}
