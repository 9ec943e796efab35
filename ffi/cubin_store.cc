#include "cubin_store.h"

#include <fstream>
#include <iterator>

#include "sha256.h"

namespace jfi {
namespace {

struct ProcessState {
  std::mutex mutex;
  std::string folder;
  std::unique_ptr<CubinStore> store;
};

ProcessState& State() {
  static ProcessState* s = new ProcessState;  // never destroyed: executables may outlive static destruction
  return *s;
}

Result<std::vector<char>> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return FailedPrecondition("jax_fp4_indexer: cannot read " + path + "; reinstall jax_fp4_indexer, or build its cubins with `python -m jax_fp4_indexer.aot build`");
  return std::vector<char>(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

Result<int> CurrentDevice(std::string_view op) {
  auto driver = cu::Driver::Get();
  if (!driver.ok()) return driver.status();
  cu::Device d = -1;
  JFI_RETURN_IF_ERROR(CheckCuda(driver.value()->CtxGetDevice(&d), "cuCtxGetDevice", Place{op, "", ""}));
  if (d < 0 || d >= kMaxDevices) return Internal(std::string(op) + ": device " + std::to_string(d) + " is outside 0.." + std::to_string(kMaxDevices - 1));
  return d;
}

Result<DeviceInfo> DescribeDevice(std::string_view op, int ordinal) {
  auto driver = cu::Driver::Get();
  if (!driver.ok()) return driver.status();
  DeviceInfo info;
  info.ordinal = ordinal;
  const std::pair<cu::DeviceAttribute, int*> wanted[] = {
      {cu::kCapabilityMajor, &info.capability.major}, {cu::kCapabilityMinor, &info.capability.minor}, {cu::kMultiprocessorCount, &info.multiprocessors}};
  for (auto [attribute, value] : wanted)
    JFI_RETURN_IF_ERROR(CheckCuda(driver.value()->DeviceGetAttribute(value, attribute, ordinal), "cuDeviceGetAttribute", Place{op, "", "", ordinal}));
  return info;
}

CubinStore::CubinStore(std::string folder, Manifest manifest) : folder_(std::move(folder)), manifest_(std::move(manifest)) {
  for (std::size_t i = 0; i < manifest_.kernels.size(); ++i) slots_.push_back(std::make_unique<Slot>());
}

Result<std::unique_ptr<CubinStore>> CubinStore::Open(const std::string& folder) {
  auto text = ReadFile(folder + "/manifest.json");
  if (!text.ok()) return text.status();
  auto manifest = Manifest::Parse(std::string_view(text.value().data(), text.value().size()));
  if (!manifest.ok()) {
    const std::string fault = manifest.status().message(), remedy = "; reinstall jax_fp4_indexer or rebuild its cubins";
    return Status(manifest.status().code(), "jax_fp4_indexer: " + folder + "/" + fault + (fault.find("reinstall") == std::string::npos ? remedy : ""));
  }
  return std::unique_ptr<CubinStore>(new CubinStore(folder, std::move(manifest.value())));
}

Status CubinStore::SetFolder(const std::string& folder) {
  ProcessState& s = State();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.store && s.folder != folder)
    return FailedPrecondition("jax_fp4_indexer: kernels of " + s.folder + " are in use; a process cannot change over to " + folder);
  s.folder = folder;
  return {};
}

Result<CubinStore*> CubinStore::Process() {
  ProcessState& s = State();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.store) {
    if (s.folder.empty()) return FailedPrecondition("jax_fp4_indexer: no cubin folder was set; import jax_fp4_indexer and call its register()");
    auto opened = Open(s.folder);
    if (!opened.ok()) return opened.status();
    s.store = std::move(opened.value());
  }
  return s.store.get();
}

Result<cu::Library> CubinStore::LoadLibrary(const Kernel& kernel, const Place& at) {
  auto found = libraries_.find(kernel.cubin);
  if (found != libraries_.end()) return found->second;
  auto image = ReadFile(folder_ + "/" + kernel.cubin);
  if (!image.ok()) return image.status();
  // A damaged cubin may well load, and compute something else.
  if (!kernel.sha256.empty() && Sha256(image.value().data(), image.value().size()) != kernel.sha256)
    return FailedPrecondition(std::string(at.op) + ": " + folder_ + "/" + kernel.cubin +
                              " is damaged or of another build: its bytes are not those that manifest.json states; reinstall jax_fp4_indexer, or rebuild its cubins with "
                              "`python -m jax_fp4_indexer.aot build`");
  std::vector<char>& kept = images_[kernel.cubin] = std::move(image.value());
  cu::Library library = nullptr;
  const Status loaded = CheckCuda(cu::Driver::Get().value()->LibraryLoadData(&library, kept.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData", at);
  // The bytes are the manifest's: what is left is a driver that is older than the compiler, or no memory.
  if (!loaded.ok()) return Status(loaded.code(), loaded.message() + "; free device memory or update the NVIDIA driver, or use implementation=\"reference\"");
  libraries_[kernel.cubin] = library;
  return library;
}

Result<cu::Kernel> CubinStore::Prepare(std::size_t index, int device, std::string_view op) {
  Slot& slot = *slots_[index];
  if (slot.ready[device].load(std::memory_order_acquire)) return slot.kernel.load(std::memory_order_acquire);
  const Kernel& kernel = manifest_.kernels[index];
  const Place at{op, kernel.name, kernel.arch.name, device};
  auto got = cu::Driver::Get();
  if (!got.ok()) return got.status();
  const cu::Driver& driver = *got.value();
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot.ready[device].load(std::memory_order_relaxed)) return slot.kernel.load(std::memory_order_relaxed);
  cu::Kernel handle = slot.kernel.load(std::memory_order_relaxed);
  if (!handle) {
    auto library = LoadLibrary(kernel, at);
    if (!library.ok()) return library.status();
    JFI_RETURN_IF_ERROR(CheckCuda(driver.LibraryGetKernel(&handle, library.value(), kernel.symbol.c_str()), "cuLibraryGetKernel", at));
    slot.kernel.store(handle, std::memory_order_release);
  }
  JFI_RETURN_IF_ERROR(CheckCuda(driver.KernelSetAttribute(cu::kMaxDynamicSharedBytes, static_cast<int>(kernel.dynamic_shared_bytes), handle, device),
                                "cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)", at));
  if (kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2] > 8)
    JFI_RETURN_IF_ERROR(CheckCuda(driver.KernelSetAttribute(cu::kNonPortableClusterSizeAllowed, 1, handle, device),
                                  "cuKernelSetAttribute(NON_PORTABLE_CLUSTER_SIZE_ALLOWED)", at));
  // Loading is lazy: asking for the function in this context is what brings the code onto the device, before any capture begins.
  cu::Function function = nullptr;
  JFI_RETURN_IF_ERROR(CheckCuda(driver.KernelGetFunction(&function, handle), "cuKernelGetFunction", at));
  slot.ready[device].store(true, std::memory_order_release);
  return handle;
}

}  // namespace jfi
