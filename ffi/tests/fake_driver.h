// The stand-in driver of fake_libcuda.c from C++, and cubin folders for it.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "check_test.h"
#include "cubin_store.h"
#include "manifest_text.h"

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

inline std::filesystem::path g_root;
inline int g_folders = 0;

// A cubin folder with these kernels; every cubin holds its own name.
inline std::string Folder(const std::string& manifest) {
  const std::filesystem::path folder = g_root / std::to_string(g_folders++);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "manifest.json") << manifest;
  auto m = jfi::Manifest::Parse(manifest);
  if (m.ok())
    for (const jfi::Kernel& k : m.value().kernels) {
      std::filesystem::create_directories((folder / k.cubin).parent_path());
      std::ofstream(folder / k.cubin) << k.name << " and padding";
    }
  return folder.string();
}

inline std::unique_ptr<jfi::CubinStore> Open(const std::string& kernels, const std::string& variants) {
  auto s = jfi::CubinStore::Open(Folder(ManifestText(kernels, variants)));
  CHECK(s.ok());
  if (!s.ok()) std::printf("%s\n", s.status().message().c_str());
  return std::move(s.value());
}

template <class T>
T Read(const unsigned char* bytes) {
  T v;
  std::memcpy(&v, bytes, sizeof v);
  return v;
}

// The stand-in driver and the folder for cubins that a test program is started with; exits if they are not there.
inline Fake StartFake(int argc, char** argv) {
  if (argc != 3) std::printf("usage: %s <stand-in libcuda> <scratch folder>\n", argv[0]), std::exit(2);
  setenv("JFI_LIBCUDA", argv[1], 1);
  g_root = argv[2];
  std::filesystem::create_directories(g_root);
  const Fake fake{dlopen(argv[1], RTLD_NOW)};
  if (!fake.so) std::printf("%s\n", dlerror()), std::exit(2);
  CHECK(jfi::cu::Driver::Get().ok() && jfi::cu::Driver::IsStandIn());
  return fake;
}
