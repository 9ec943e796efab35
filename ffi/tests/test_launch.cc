// Loading and launching against a stand-in driver (fake_libcuda.c): what reaches the driver, and when.
#include <atomic>
#include <thread>

#include "check.h"
#include "fake_driver.h"
#include "launcher.h"
#include "sha256.h"

using namespace jfi;
namespace fs = std::filesystem;

namespace {

DeviceInfo Device(int ordinal = 0, int sms = 132) { return {ordinal, {9, 0}, sms}; }
cu::Stream kStream = reinterpret_cast<cu::Stream>(0x5000);

// A call of the toy op: slots and addresses by name, and a variant of a store made launchable on device 0.
struct Call {
  const OpSpec& op;
  std::int64_t slots[kMaxSlots] = {};
  void* buffers[kMaxBuffers] = {};

  explicit Call(const CubinStore& store) : op(store.manifest().ops[0]) { Set("n", 1), Set("step", 1); }
  void Set(const char* name, std::int64_t value) { slots[op.names.Find(name)] = value; }
  void Address(const char* name, std::uintptr_t address) { buffers[op.FindBuffer(name)] = reinterpret_cast<void*>(address); }

  static Result<BoundVariant> Bind(CubinStore& store, std::size_t variant = 0, int device = 0) {
    const Variant& v = store.manifest().variants[variant];
    BoundVariant out{&v, {}};
    for (std::size_t k : v.launches) {
      auto handle = store.Prepare(k, device, "op");
      if (!handle.ok()) return handle.status();
      auto bound = BindKernel(store.manifest().kernels[k], handle.value(), store.manifest().ops[0]);
      if (!bound.ok()) return bound.status();
      out.launches.push_back(bound.value());
    }
    return out;
  }
  Status Launch(const BoundVariant& v, int sms = 132, std::int64_t scratch = 16) { return LaunchVariant(v, op, Device(0, sms), {slots, buffers}, scratch, kStream); }
};

void Loading(const Fake& fake) {
  fake.Reset();
  auto store = Open(KernelText("a", "sm_90a") + "," + KernelText("b", "sm_90a", R"({"buffer": "q"})", R"({"fixed": [16, 1, 1]})", "[16, 1, 1]", 230000), VariantText(R"("a", "b")", "sm_90a"));
  CHECK_EQ(fake.Count("loads"), 0);

  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { failures += !store->Prepare(0, i % 2, "op").ok(); });
  for (auto& t : threads) t.join();
  CHECK_EQ(failures.load(), 0);
  CHECK_EQ(fake.Count("loads"), 1);      // one load serves both devices
  CHECK_EQ(fake.Count("functions"), 2);  // lazy loading ended once on each
  CHECK_EQ(fake.Symbol(store->Prepare(0, 0, "op").value()), "sym_a");
  CHECK(store->Prepare(0, 0, "op").value() == store->Prepare(0, 1, "op").value());
  CHECK_EQ(fake.Count("loads"), 1);
  CHECK_EQ(fake.Call<int>("fake_smem_of", 0), 1000);
  CHECK_EQ(fake.Call<int>("fake_non_portable_of", 0), 0);

  CHECK(store->Prepare(1, 0, "op").ok());
  CHECK_EQ(fake.Count("loads"), 2);
  CHECK_EQ(std::string(fake.Call<const char*>("fake_image_of", 1)).substr(0, 5), "b and");
  CHECK_EQ(fake.Call<int>("fake_smem_of", 1), 230000);
  CHECK_EQ(fake.Call<int>("fake_non_portable_of", 1), 1);  // 16 CTAs are more than every device promises
}

void LoadingFails(const Fake& fake) {
  for (const char* call : {"cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelSetAttribute", "cuKernelGetFunction"}) {
    fake.Reset();
    auto store = Open(KernelText("a", "sm_90a"), VariantText(R"("a")", "sm_90a"));
    fake.Fail(call, 700);
    const std::string message = store->Prepare(0, 3, "fp4_op").status().message();
    CHECK(Contains(message, std::string("fp4_op: ") + call));
    CHECK(Contains(message, "failed: an illegal memory access was encountered (CUDA error 700) [kernel a, cubin sm_90a, device 3]"));
    CHECK(Contains(message, "update the NVIDIA driver, or use implementation=\"reference\"") == (std::string(call) == "cuLibraryLoadData"));
    fake.Fail("", 0);
    CHECK(store->Prepare(0, 3, "fp4_op").ok());  // the next call works
  }
  auto store = Open(KernelText("a", "sm_90a"), VariantText(R"("a")", "sm_90a"));
  auto gone = CubinStore::Open(Folder(ManifestText(KernelText("a", "sm_90a"), "")));
  fs::remove(g_root / std::to_string(g_folders - 1) / "sm_90a/a.cubin");
  CHECK(Contains(gone.value()->Prepare(0, 0, "op").status().message(), "sm_90a/a.cubin; reinstall jax_fp4_indexer"));
  CHECK(Contains(CubinStore::Open("/nowhere").status().message(), "cannot read /nowhere/manifest.json; reinstall"));
  CHECK(Contains(CubinStore::Open(Folder("{")).status().message(), "manifest.json is not readable"));
  CHECK(Contains(CubinStore::Open(Folder("{\"schema\": 2}")).status().message(), "has no \"ops\"; reinstall jax_fp4_indexer or rebuild its cubins"));
  fake.Reset();
  fake.Fail("cuCtxGetDevice", 201);
  CHECK(Contains(CurrentDevice("op").status().message(), "op: cuCtxGetDevice failed: invalid device context"));
  fake.Reset();
  fake.Device(99, 9, 0, 132);
  CHECK(Contains(CurrentDevice("op").status().message(), "device 99 is outside"));
  fake.Device(5, 10, 3, 148);
  CHECK_EQ(CurrentDevice("op").value(), 5);
  const DeviceInfo info = DescribeDevice("op", 5).value();
  CHECK(info.ordinal == 5 && info.capability.major == 10 && info.capability.minor == 3 && info.multiprocessors == 148);
}

// The bytes of a cubin are compared with the manifest's before the driver sees them.
void Damaged(const Fake& fake) {
  CHECK_EQ(Sha256("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(Sha256("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  for (auto [size, digest] : {std::pair{55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"}, std::pair{56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
                              std::pair{64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"}, std::pair{119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"}})
    CHECK_EQ(Sha256(std::string(size, 'a').data(), size), digest);
  fake.Reset();
  const std::string bytes = "a and padding", digest = Sha256(bytes.data(), bytes.size());
  auto text = [](const std::string& sha256) { return KernelText("a", "sm_90a", R"({"buffer": "q"})", R"({"per_sm": 1})", "[1, 1, 1]", 1000, sha256); };
  CHECK(Open(text(digest), VariantText(R"("a")", "sm_90a"))->Prepare(0, 0, "op").ok());
  CHECK_EQ(fake.Count("loads"), 1);
  auto store = Open(text("0" + digest.substr(1)), VariantText(R"("a")", "sm_90a"));
  const Status s = store->Prepare(0, 0, "op").status();
  CHECK(s.code() == Code::kFailedPrecondition && Contains(s.message(), "sm_90a/a.cubin is damaged or of another build") && Contains(s.message(), "; reinstall jax_fp4_indexer, or rebuild"));
  CHECK_EQ(fake.Count("loads"), 1);
}

void Parameters(const Fake& fake) {
  fake.Reset();
  auto store = Open(KernelText("a", "sm_90a", R"({"buffer": "k"}, {"i32": "tokens"}, {"i64": "pages"}, {"buffer": "q"}, {"i32": "path"}, {"i32": "tiles"})"),
                    VariantText(R"("a")", "sm_90a"));
  const BoundVariant v = Call::Bind(*store).value();
  fake.Sizes({8, 4, 8, 8, 4, 4});
  Call call(*store);
  call.Address("q", 0x1000);
  call.Address("k", 0x7fff12345600);
  call.Set("path", 1);
  call.Set("tokens", INT32_MAX);
  call.Set("pages", std::int64_t{1} << 40);
  call.Set("tiles", INT32_MIN);
  CHECK(call.Launch(v).ok());
  CHECK_EQ(fake.Count("launches"), 1);
  const LaunchRecord& l = fake.Launch(0);
  CHECK_EQ(Read<std::uint64_t>(l.params[0]), 0x7fff12345600u);
  CHECK_EQ(Read<std::int32_t>(l.params[1]), INT32_MAX);
  CHECK_EQ(Read<std::int64_t>(l.params[2]), std::int64_t{1} << 40);
  CHECK_EQ(Read<std::uint64_t>(l.params[3]), 0x1000u);
  CHECK_EQ(Read<std::int32_t>(l.params[4]), 1);
  CHECK_EQ(Read<std::int32_t>(l.params[5]), INT32_MIN);
  CHECK(l.grid[0] == 132 && l.grid[1] == 1 && l.grid[2] == 1 && l.block[0] == 128 && l.block[1] == 1 && l.shared == 1000);
  CHECK(l.stream == kStream && l.num_attributes == 0);

  call.Set("tokens", std::int64_t{INT32_MAX} + 1);
  const Status big = call.Launch(v);
  CHECK(big.code() == Code::kInvalidArgument && Contains(big.message(), "api_toy: tokens: got 2147483648, expected a value of 32 bits"));
  call.Set("tokens", 1);
  fake.Fail("cuLaunchKernelEx", 700);
  CHECK(Contains(call.Launch(v).message(), "api_toy: cuLaunchKernelEx failed: an illegal memory access was encountered (CUDA error 700) [kernel a, cubin sm_90a, device 0]"));
  fake.Fail("", 0);
  CHECK(call.Launch(v).ok());
  for (auto [params, what] : {std::pair{R"({"buffer": "w"})", "needs a buffer \"w\" that the op has not"}, std::pair{R"({"i32": "w"})", "needs a scalar \"w\" that the op has not"},
                              std::pair{R"({"tensor_map": {"buffer": "k", "dtype": "u8", "dims": ["w"], "strides": [], "box": [8], "swizzle": "none", "l2_promotion": "none"}})",
                                        "needs a size of the expression \"w\" that the op has not"}}) {
    auto other = Open(KernelText("a", "sm_90a", params), VariantText(R"("a")", "sm_90a"));
    CHECK(Contains(Call::Bind(*other).status().message(), std::string("api_toy: kernel a ") + what + "; cubins and library come from different builds"));
  }
}

void Grids(const Fake& fake) {
  fake.Reset();
  const std::string q = R"({"buffer": "q"})";
  auto store = Open(KernelText("fixed", "sm_90a", q, R"({"fixed": [6, 3, 2]})", "[2, 1, 1]") + "," + KernelText("two", "sm_90a", q, R"({"per_sm": 2})") + "," +
                        KernelText("pairs", "sm_90a", q, R"({"per_sm": 1})", "[2, 1, 1]") + "," + KernelText("square", "sm_90a", q, R"({"per_sm": 1})", "[2, 2, 1]"),
                    VariantText(R"("fixed", "two", "pairs", "square")", "sm_90a"));
  const BoundVariant v = Call::Bind(*store).value();
  Call call(*store);
  auto grids = [&](int sms) {
    const int first = fake.Count("launches");
    CHECK(call.Launch(v, sms).ok());
    std::string s;
    for (int i = first; i < fake.Count("launches"); ++i) {
      const LaunchRecord& l = fake.Launch(i);
      for (unsigned g : l.grid) s += std::to_string(g) + " ";
      s += l.num_attributes ? "c" + std::to_string(l.attribute_id) + ":" + std::to_string(l.cluster[0]) + std::to_string(l.cluster[1]) + std::to_string(l.cluster[2]) + " " : "- ";
      CHECK_EQ(fake.Symbol(l.kernel), "sym_" + store->manifest().kernels[static_cast<std::size_t>(i - first)].name);  // in the order of the launch list
    }
    return s;
  };
  CHECK_EQ(grids(132), "6 3 2 c4:211 264 1 1 - 132 1 1 c4:211 66 2 1 c4:221 ");
  CHECK_EQ(grids(131), "6 3 2 c4:211 262 1 1 - 130 1 1 c4:211 64 2 1 c4:221 ");  // whole clusters only
  CHECK_EQ(grids(1), "6 3 2 c4:211 2 1 1 - 2 1 1 c4:211 2 2 1 c4:221 ");          // at least one
}

void GridsOfSizes(const Fake& fake) {
  fake.Reset();
  auto store = Open(KernelText("a", "sm_90a", R"({"buffer": "q"})", R"({"expr": ["(tokens + 63) / 64 * heads", "pages", 1]})", "[2, 1, 1]"), VariantText(R"("a")", "sm_90a"));
  const BoundVariant v = Call::Bind(*store).value();
  Call call(*store);
  auto grid = [&](std::int64_t tokens, std::int64_t heads, std::int64_t pages) {
    call.Set("tokens", tokens), call.Set("heads", heads), call.Set("pages", pages);
    const Status s = call.Launch(v);
    if (!s.ok()) return s.message();
    const LaunchRecord& l = fake.Launch(fake.Count("launches") - 1);
    return std::to_string(l.grid[0]) + " " + std::to_string(l.grid[1]) + " " + std::to_string(l.grid[2]);
  };
  CHECK_EQ(grid(65, 3, 7), "6 7 1");
  CHECK_EQ(grid(64, 3, 7), "4 7 1");  // whole clusters
  CHECK_EQ(grid(0, 3, 0), "2 1 1");   // at least one
  CHECK_EQ(grid(64, 2147483646, 65535), "2147483646 65535 1");
  for (const std::string& message : {grid(64, 2147483647, 1), grid(64, 1, 65536), grid(INT64_MAX, 1, 1)})
    CHECK(Contains(message, "api_toy: grid: got a launch of ") && Contains(message, "; split the call"));
}

void Passes(const Fake& fake) {
  fake.Reset();
  const std::string p = R"({"i32": "first"}, {"i32": "step"})";
  auto store = Open(KernelText("plan", "sm_90a", p, R"({"fixed": [1, 1, 1]})") + "," + KernelText("main", "sm_90a", p),
                    VariantText(R"("plan", "main")", "sm_90a", "native", 0, "prefill", true, "step * 8") + "," + VariantText(R"("plan")", "sm_90a", "native", 0, "decode", false, "step * 8"));
  const BoundVariant repeated = Call::Bind(*store).value(), once = Call::Bind(*store, 1).value();
  fake.Sizes({4, 4});
  auto run = [&](const BoundVariant& v, std::int64_t n, std::int64_t step, std::int64_t scratch = 1000) {
    Call call(*store);
    call.Set("n", n), call.Set("step", step);
    fake.Call<void>("fake_forget_launches");
    const Status s = call.Launch(v, 132, scratch);
    std::string out;
    for (int i = 0; i < fake.Count("launches"); ++i) {
      const LaunchRecord& l = fake.Launch(i);
      out += fake.Symbol(l.kernel).substr(4) + std::to_string(Read<std::int32_t>(l.params[0])) + "/" + std::to_string(Read<std::int32_t>(l.params[1])) + " ";
    }
    return s.ok() ? out : s.message() + out;
  };
  CHECK_EQ(run(repeated, 10, 4), "plan0/4 main0/4 plan4/4 main4/4 plan8/4 main8/4 ");
  CHECK_EQ(run(repeated, 8, 4), "plan0/4 main0/4 plan4/4 main4/4 ");
  CHECK_EQ(run(repeated, 3, 4), "plan0/4 main0/4 ");
  CHECK_EQ(run(repeated, 0, 4), "plan0/4 main0/4 ");  // an empty list still has a result to write
  CHECK(Contains(run(repeated, 10, 0), "api_toy: step: got 0, expected at least 1"));
  CHECK_EQ(run(once, 10, 4), "plan0/10 ");  // one pass over everything, whatever the attribute says
  CHECK_EQ(run(once, 0, 0), "plan0/1 ");
  // Scratch of one pass
  CHECK_EQ(run(repeated, 10, 4, 32), "plan0/4 main0/4 plan4/4 main4/4 plan8/4 main8/4 ");
  CHECK_EQ(run(repeated, 10, 4, 31), "api_toy: scratch: got 31 bytes, expected 32 bytes for step = 4; lower the program again with this version of jax_fp4_indexer");
  CHECK(Contains(run(once, 10, 4, 79), "scratch: got 79 bytes, expected 80 bytes for step = 10"));
  CHECK(Contains(run(once, INT64_MAX / 2, 4, INT64_MAX), "expected more than 2^63 bytes for step = "));
}

void TensorMaps(const Fake& fake) {
  fake.Reset();
  const std::string map = R"({"i32": "n"}, {"tensor_map": {"buffer": "k", "dtype": "bf16", "dims": [64, "heads_kv*128", "pages"], "strides": [128, "2 * heads_kv * 8192"],
                             "offset": "tokens * 16", "box": [64, 128, 1], "swizzle": "128", "l2_promotion": "256"}})";
  auto store = Open(KernelText("a", "sm_90a", map), VariantText(R"("a")", "sm_90a"));
  const BoundVariant v = Call::Bind(*store).value();
  fake.Sizes({4, 128});
  Call call(*store);
  call.Address("k", 0x40000);
  call.Set("n", 5);
  call.Set("tokens", 2);
  call.Set("heads_kv", 3);
  call.Set("pages", 7000000);
  CHECK(call.Launch(v).ok());
  CHECK_EQ(fake.Count("maps"), 1);
  const MapRecord& m = fake.Map(0);
  CHECK(m.dtype == 9 && m.rank == 3 && m.address == reinterpret_cast<void*>(0x40020) && m.interleave == 0 && m.swizzle == 3 && m.l2 == 3 && m.fill == 0);
  CHECK(m.dims[0] == 64 && m.dims[1] == 384 && m.dims[2] == 7000000);
  CHECK(m.strides[0] == 128 && m.strides[1] == 49152);
  CHECK(m.box[0] == 64 && m.box[1] == 128 && m.box[2] == 1 && m.element_strides[0] == 1 && m.element_strides[2] == 1);
  CHECK(fake.Launch(0).params[1][0] == 0x41 && fake.Launch(0).params[1][127] == 0x41);  // the whole descriptor, as the driver wrote it
  call.Set("pages", 0);
  CHECK(call.Launch(v).ok());
  CHECK_EQ(fake.Count("maps"), 1);  // an empty tensor has no descriptor
  CHECK(fake.Launch(1).params[1][0] == 0 && fake.Launch(1).params[1][127] == 0);
  call.Set("pages", 1);
  fake.Fail("cuTensorMapEncodeTiled", 1);
  CHECK(Contains(call.Launch(v).message(), "cuTensorMapEncodeTiled of k failed: fake error (CUDA error 1) [kernel a, cubin sm_90a"));
  call.Set("heads_kv", INT64_MAX / 2);
  CHECK(Contains(call.Launch(v).message(), "api_toy: a size of the tensor map of kernel a overflows 64 bits: heads_kv*128"));
}

void Alignment() {
  alignas(128) static char bytes[256];
  CHECK(CheckAlignment("op", "q", bytes, 128).ok() && CheckAlignment("op", "q", nullptr, 128).ok() && CheckAlignment("op", "s", bytes + 32, 32).ok());
  for (int off : {16, 32, 64}) {
    const Status s = CheckAlignment("op", "q", bytes + off, 128);
    CHECK(s.code() == Code::kInvalidArgument);
    CHECK(Contains(s.message(), "op: q: got an address " + std::to_string(off) + " bytes past a multiple of 128, expected an address that is a multiple of 128; copy the array"));
  }
}

void OneFolderAProcess() {
  CHECK(Contains(CubinStore::Process().status().message(), "no cubin folder was set"));
  CHECK(CubinStore::SetFolder("/nowhere").ok());
  CHECK(Contains(CubinStore::Process().status().message(), "cannot read /nowhere/manifest.json"));
  const std::string folder = Folder(ManifestText(KernelText("a", "sm_90a"), VariantText(R"("a")", "sm_90a")));
  CHECK(CubinStore::SetFolder(folder).ok());  // nothing was in use
  CHECK(CubinStore::Process().ok() && CubinStore::Process().value() == CubinStore::Process().value());
  CHECK(CubinStore::SetFolder(folder).ok());
  CHECK(Contains(CubinStore::SetFolder("/elsewhere").message(), "cannot change over to /elsewhere"));
}

}  // namespace

int main(int argc, char** argv) {
  const Fake fake = StartFake(argc, argv);
  Loading(fake);
  LoadingFails(fake);
  Damaged(fake);
  Parameters(fake);
  Grids(fake);
  GridsOfSizes(fake);
  Passes(fake);
  TensorMaps(fake);
  Alignment();
  OneFolderAProcess();
  return Finish("launch");
}
