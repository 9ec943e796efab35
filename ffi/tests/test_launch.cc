// Loading and launching against a stand-in driver (fake_libcuda.c): what reaches the driver, and when.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "check.h"
#include "check_test.h"
#include "cubin_store.h"
#include "launcher.h"
#include "manifest_text.h"
#include "sha256.h"

using namespace jfi;
namespace fs = std::filesystem;

namespace {

// As fake_libcuda.c declares them.
struct LaunchRecord {
  unsigned grid[3], block[3], shared, num_attributes, cluster[3];
  int attribute_id, device;
  void *stream, *kernel;
  unsigned char params[32][128];
};
struct MapRecord {
  int dtype, swizzle, l2, interleave, fill;
  std::uint32_t rank, box[5], element_strides[5];
  std::uint64_t dims[5], strides[5];
  void* address;
};

struct Fake {
  void* so;
  template <class R, class... A>
  R Call(const char* name, A... args) const {
    return reinterpret_cast<R (*)(A...)>(dlsym(so, name))(args...);
  }
  void Reset() const { Call<void>("fake_reset"); }
  int Count(const char* what) const { return Call<int>((std::string("fake_num_") + what).c_str()); }
  const LaunchRecord& Launch(int i) const { return *Call<const LaunchRecord*>("fake_launch", i); }
  const MapRecord& Map(int i) const { return *Call<const MapRecord*>("fake_map", i); }
  std::string Symbol(void* kernel) const { return Call<const char*>("fake_symbol_of", kernel); }
  void Fail(const char* call, int code) const { Call<void>("fake_fail", call, code); }
  void Device(int d, int major, int minor, int sms) const { Call<void>("fake_set_device", d, major, minor, sms); }
  void Sizes(std::vector<int> s) const { Call<void>("fake_param_sizes", static_cast<const int*>(s.data()), static_cast<int>(s.size())); }
};

fs::path g_root;
int g_folders = 0;

// A cubin folder with these kernels; every cubin holds its own name.
std::string Folder(const std::string& manifest) {
  const fs::path folder = g_root / std::to_string(g_folders++);
  fs::create_directories(folder);
  std::ofstream(folder / "manifest.json") << manifest;
  auto m = Manifest::Parse(manifest);
  if (m.ok())
    for (const Kernel& k : m.value().kernels) {
      fs::create_directories((folder / k.cubin).parent_path());
      std::ofstream(folder / k.cubin) << k.name << " and padding";
    }
  return folder.string();
}

std::unique_ptr<CubinStore> Open(const std::string& kernels, const std::string& variants) {
  auto s = CubinStore::Open(Folder(ManifestText(kernels, variants)));
  CHECK(s.ok());
  return std::move(s.value());
}

DeviceInfo Device(int ordinal = 0, int sms = 132) { return {ordinal, {9, 0}, sms}; }
cu::Stream kStream = reinterpret_cast<cu::Stream>(0x5000);

template <class T>
T Read(const unsigned char* bytes) {
  T v;
  std::memcpy(&v, bytes, sizeof v);
  return v;
}

void Loading(const Fake& fake) {
  fake.Reset();
  auto store = Open(KernelText("a", "sm_90a") + "," + KernelText("b", "sm_90a", R"({"buffer": "q"})", R"({"fixed": [16, 1, 1]})", "[16, 1, 1]", 230000), VariantText(R"("a", "b")", "sm_90a"));
  CHECK_EQ(fake.Count("loads"), 0);
  CHECK(Contains(store->Find(0, 0, "op").status().message(), "op: kernel a (sm_90a) is not loaded on device 0: XLA ran no prepare stage"));
  CHECK_EQ(fake.Count("loads"), 0);  // asking never loads

  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { failures += !store->Prepare(0, i % 2, "op").ok(); });
  for (auto& t : threads) t.join();
  CHECK_EQ(failures.load(), 0);
  CHECK_EQ(fake.Count("loads"), 1);      // one load serves both devices
  CHECK_EQ(fake.Count("functions"), 2);  // lazy loading ended once on each
  CHECK(store->Find(0, 0, "op").ok() && store->Find(0, 1, "op").ok() && !store->Find(0, 2, "op").ok() && !store->Find(1, 0, "op").ok());
  CHECK_EQ(fake.Symbol(store->Find(0, 0, "op").value()), "sym_a");
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
    const std::string message = store->Prepare(0, 3, "fp4_op").message();
    CHECK(Contains(message, std::string("fp4_op: ") + call));
    CHECK(Contains(message, "failed: an illegal memory access was encountered (CUDA error 700) [kernel a, cubin sm_90a, device 3]"));
    CHECK(Contains(message, "update the NVIDIA driver, or use implementation=\"reference\"") == (std::string(call) == "cuLibraryLoadData"));
    CHECK(!store->Find(0, 3, "fp4_op").ok());
    fake.Fail("", 0);
    CHECK(store->Prepare(0, 3, "fp4_op").ok() && store->Find(0, 3, "fp4_op").ok());  // the next call works
  }
  auto store = Open(KernelText("a", "sm_90a"), VariantText(R"("a")", "sm_90a"));
  auto gone = CubinStore::Open(Folder(ManifestText(KernelText("a", "sm_90a"), "")));
  fs::remove(g_root / std::to_string(g_folders - 1) / "sm_90a/a.cubin");
  CHECK(Contains(gone.value()->Prepare(0, 0, "op").message(), "sm_90a/a.cubin; reinstall jax_fp4_indexer"));
  CHECK(Contains(CubinStore::Open("/nowhere").status().message(), "cannot read /nowhere/manifest.json; reinstall"));
  CHECK(Contains(CubinStore::Open(Folder("{")).status().message(), "manifest.json is not readable"));
  CHECK(Contains(CubinStore::Open(Folder("{\"schema\": 1}")).status().message(), "has no \"kernels\"; reinstall jax_fp4_indexer or rebuild its cubins"));
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
  const Status s = store->Prepare(0, 0, "op");
  CHECK(s.code() == Code::kFailedPrecondition && Contains(s.message(), "sm_90a/a.cubin is damaged or of another build") && Contains(s.message(), "; reinstall jax_fp4_indexer, or rebuild"));
  CHECK_EQ(fake.Count("loads"), 1);
}

void Parameters(const Fake& fake) {
  fake.Reset();
  auto store = Open(KernelText("a", "sm_90a", R"({"buffer": "k"}, {"i32": "tokens"}, {"i64": "big"}, {"buffer": "q"}, {"i32": "mask"}, {"i32": "low"})"), VariantText(R"("a")", "sm_90a"));
  CHECK(store->Prepare(0, 0, "op").ok());
  fake.Sizes({8, 4, 8, 8, 4, 4});
  Bindings call;
  call.AddBuffer("q", reinterpret_cast<void*>(0x1000));
  call.AddBuffer("k", reinterpret_cast<void*>(0x7fff12345600));
  call.SetScalar("mask", 9);
  call.SetScalar("mask", 2);  // the last value counts
  call.SetScalar("tokens", INT32_MAX);
  call.SetScalar("big", std::int64_t{1} << 40);
  call.SetScalar("low", INT32_MIN);
  const Variant& v = store->manifest().variants[0];
  CHECK(LaunchVariant(*store, v, Device(), call, kStream, "op").ok());
  CHECK_EQ(fake.Count("launches"), 1);
  const LaunchRecord& l = fake.Launch(0);
  CHECK_EQ(Read<std::uint64_t>(l.params[0]), 0x7fff12345600u);
  CHECK_EQ(Read<std::int32_t>(l.params[1]), INT32_MAX);
  CHECK_EQ(Read<std::int64_t>(l.params[2]), std::int64_t{1} << 40);
  CHECK_EQ(Read<std::uint64_t>(l.params[3]), 0x1000u);
  CHECK_EQ(Read<std::int32_t>(l.params[4]), 2);
  CHECK_EQ(Read<std::int32_t>(l.params[5]), INT32_MIN);
  CHECK(l.grid[0] == 132 && l.grid[1] == 1 && l.grid[2] == 1 && l.block[0] == 128 && l.block[1] == 1 && l.shared == 1000);
  CHECK(l.stream == kStream && l.num_attributes == 0);

  call.SetScalar("tokens", std::int64_t{INT32_MAX} + 1);
  const Status big = LaunchVariant(*store, v, Device(), call, kStream, "op");
  CHECK(big.code() == Code::kInvalidArgument && Contains(big.message(), "op: tokens: got 2147483648, expected a value of 32 bits"));
  CHECK_EQ(fake.Count("launches"), 1);

  Bindings none;
  CHECK(Contains(LaunchVariant(*store, v, Device(), none, kStream, "op").message(), "kernel a asks for a buffer \"k\""));
  none.AddBuffer("k", nullptr);
  CHECK(Contains(LaunchVariant(*store, v, Device(), none, kStream, "op").message(), "kernel a asks for a scalar \"tokens\""));

  call.SetScalar("tokens", 1);
  fake.Fail("cuLaunchKernelEx", 700);
  CHECK(Contains(LaunchVariant(*store, v, Device(), call, kStream, "op").message(), "op: cuLaunchKernelEx failed: an illegal memory access was encountered (CUDA error 700) [kernel a, cubin sm_90a, device 0]"));
  fake.Fail("", 0);
  CHECK(LaunchVariant(*store, v, Device(), call, kStream, "op").ok());
  CHECK(Contains(LaunchVariant(*store, v, Device(1), call, kStream, "op").message(), "not loaded on device 1"));
}

void Grids(const Fake& fake) {
  fake.Reset();
  const std::string q = R"({"buffer": "q"})";
  auto store = Open(KernelText("fixed", "sm_90a", q, R"({"fixed": [6, 3, 2]})", "[2, 1, 1]") + "," + KernelText("two", "sm_90a", q, R"({"per_sm": 2})") + "," +
                        KernelText("pairs", "sm_90a", q, R"({"per_sm": 1})", "[2, 1, 1]") + "," + KernelText("square", "sm_90a", q, R"({"per_sm": 1})", "[2, 2, 1]"),
                    VariantText(R"("fixed", "two", "pairs", "square")", "sm_90a"));
  for (int i = 0; i < 4; ++i) CHECK(store->Prepare(i, 0, "op").ok());
  Bindings call;
  call.AddBuffer("q", nullptr);
  auto grids = [&](int sms) {
    const int first = fake.Count("launches");
    CHECK(LaunchVariant(*store, store->manifest().variants[0], Device(0, sms), call, kStream, "op").ok());
    std::string s;
    for (int i = first; i < fake.Count("launches"); ++i) {
      const LaunchRecord& l = fake.Launch(i);
      for (unsigned g : l.grid) s += std::to_string(g) + " ";
      s += l.num_attributes ? "c" + std::to_string(l.attribute_id) + ":" + std::to_string(l.cluster[0]) + std::to_string(l.cluster[1]) + std::to_string(l.cluster[2]) + " " : "- ";
      CHECK_EQ(fake.Symbol(l.kernel), "sym_" + store->manifest().kernels[i - first].name);  // in the order of the launch list
    }
    return s;
  };
  CHECK_EQ(grids(132), "6 3 2 c4:211 264 1 1 - 132 1 1 c4:211 66 2 1 c4:221 ");
  CHECK_EQ(grids(131), "6 3 2 c4:211 262 1 1 - 130 1 1 c4:211 64 2 1 c4:221 ");  // whole clusters only
  CHECK_EQ(grids(1), "6 3 2 c4:211 2 1 1 - 2 1 1 c4:211 2 2 1 c4:221 ");          // at least one
}

void Passes(const Fake& fake) {
  fake.Reset();
  const std::string p = R"({"i32": "first_page"}, {"i32": "pages_per_pass"})";
  auto store = Open(KernelText("plan", "sm_90a", p, R"({"fixed": [1, 1, 1]})") + "," + KernelText("main", "sm_90a", p), VariantText(R"("plan", "main")", "sm_90a", "native", 0, "prefill", "pages"));
  for (int i = 0; i < 2; ++i) CHECK(store->Prepare(i, 0, "op").ok());
  fake.Sizes({4, 4});
  auto run = [&](std::int64_t num_indices, std::int64_t per_pass) {
    Bindings call;
    call.SetScalar("num_indices", num_indices);
    call.SetScalar("pages_per_pass", per_pass);
    const int first = fake.Count("launches");
    const Status s = LaunchVariant(*store, store->manifest().variants[0], Device(), call, kStream, "op");
    if (!s.ok()) return s.message();
    std::string out;
    for (int i = first; i < fake.Count("launches"); ++i) out += fake.Symbol(fake.Launch(i).kernel).substr(4) + std::to_string(Read<std::int32_t>(fake.Launch(i).params[0])) + " ";
    return out;
  };
  CHECK_EQ(run(10, 4), "plan0 main0 plan4 main4 plan8 main8 ");
  CHECK_EQ(run(8, 4), "plan0 main0 plan4 main4 ");
  CHECK_EQ(run(7, 3), "plan0 main0 plan3 main3 plan6 main6 ");
  CHECK_EQ(run(3, 4), "plan0 main0 ");
  CHECK_EQ(run(0, 4), "plan0 main0 ");  // an empty list still has -inf to write
  CHECK(Contains(run(10, 0), "op: pages_per_pass: got 0, expected at least 1"));
}

void TensorMaps(const Fake& fake) {
  fake.Reset();
  const std::string map = R"({"i32": "n"}, {"tensor_map": {"buffer": "k", "dtype": "bf16", "dims": [64, "heads_kv*128", "num_pages"], "strides": [128, "2*heads_kv*8192"],
                             "box": [64, 128, 1], "swizzle": "128", "l2_promotion": "256"}})";
  auto store = Open(KernelText("a", "sm_90a", map), VariantText(R"("a")", "sm_90a"));
  CHECK(store->Prepare(0, 0, "op").ok());
  fake.Sizes({4, 128});
  Bindings call;
  call.AddBuffer("k", reinterpret_cast<void*>(0x40000));
  call.SetScalar("n", 5);
  call.SetScalar("heads_kv", 3);
  call.SetScalar("num_pages", 7000000);
  const Variant& v = store->manifest().variants[0];
  CHECK(LaunchVariant(*store, v, Device(), call, kStream, "op").ok());
  CHECK_EQ(fake.Count("maps"), 1);
  const MapRecord& m = fake.Map(0);
  CHECK(m.dtype == 9 && m.rank == 3 && m.address == reinterpret_cast<void*>(0x40000) && m.interleave == 0 && m.swizzle == 3 && m.l2 == 3 && m.fill == 0);
  CHECK(m.dims[0] == 64 && m.dims[1] == 384 && m.dims[2] == 7000000);
  CHECK(m.strides[0] == 128 && m.strides[1] == 49152);
  CHECK(m.box[0] == 64 && m.box[1] == 128 && m.box[2] == 1 && m.element_strides[0] == 1 && m.element_strides[2] == 1);
  CHECK(fake.Launch(0).params[1][0] == 0x41 && fake.Launch(0).params[1][127] == 0x41);  // the whole descriptor, as the driver wrote it
  call.SetScalar("num_pages", 0);
  CHECK(LaunchVariant(*store, v, Device(), call, kStream, "op").ok());
  CHECK_EQ(fake.Count("maps"), 1);  // an empty tensor has no descriptor
  CHECK(fake.Launch(1).params[1][0] == 0 && fake.Launch(1).params[1][127] == 0);
  call.SetScalar("num_pages", 1);
  fake.Fail("cuTensorMapEncodeTiled", 1);
  CHECK(Contains(LaunchVariant(*store, v, Device(), call, kStream, "op").message(), "cuTensorMapEncodeTiled of k failed: fake error (CUDA error 1) [kernel a, cubin sm_90a"));
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
  if (argc != 3) return std::printf("usage: test_launch <stand-in libcuda> <scratch folder>\n"), 2;
  setenv("JFI_LIBCUDA", argv[1], 1);
  g_root = argv[2];
  fs::create_directories(g_root);
  const Fake fake{dlopen(argv[1], RTLD_NOW)};
  if (!fake.so) return std::printf("%s\n", dlerror()), 2;
  CHECK(cu::Driver::Get().ok() && cu::Driver::IsStandIn());
  Loading(fake);
  LoadingFails(fake);
  Damaged(fake);
  Parameters(fake);
  Grids(fake);
  Passes(fake);
  TensorMaps(fake);
  Alignment();
  OneFolderAProcess();
  return Finish("launch");
}
