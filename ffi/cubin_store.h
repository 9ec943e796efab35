// The process's manifest and the cubins loaded from it.
//
// Protocol: Prepare loads (it takes locks, reads files and calls the driver's loader) before a program executes; what it returns stays
// valid, so that executing needs nothing of the store. A library handle belongs to no context and serves all devices; attributes and the
// end of lazy loading are per device.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check.h"
#include "cuda_api.h"
#include "manifest.h"

namespace jfi {

inline constexpr int kMaxDevices = 64;

struct DeviceInfo {
  int ordinal = -1;
  Capability capability;
  int multiprocessors = 0;
};

// The device of the calling thread's CUDA context.
Result<int> CurrentDevice(std::string_view op);
Result<DeviceInfo> DescribeDevice(std::string_view op, int ordinal);

class CubinStore {
 public:
  // Reads `<folder>/manifest.json`.
  static Result<std::unique_ptr<CubinStore>> Open(const std::string& folder);

  // The folder of the process, set once from Python; a second, different folder is refused once the first is in use.
  static Status SetFolder(const std::string& folder);
  // The process's store, opened on first use. A failure is reported and tried again next time.
  static Result<CubinStore*> Process();

  const Manifest& manifest() const { return manifest_; }

  // Makes kernel number `index` of the manifest launchable on the device, and returns its handle. The device's context must be current.
  // Idempotent, thread-safe.
  Result<cu::Kernel> Prepare(std::size_t index, int device, std::string_view op);

 private:
  struct Slot {
    std::atomic<cu::Kernel> kernel{nullptr};
    std::array<std::atomic<bool>, kMaxDevices> ready{};
  };

  CubinStore(std::string folder, Manifest manifest);
  Result<cu::Library> LoadLibrary(const Kernel&, const Place&);

  const std::string folder_;
  const Manifest manifest_;
  std::mutex mutex_;                                // guards everything below except reads of the atomics
  std::map<std::string, std::vector<char>> images_; // kept: nothing says that the loader copies
  std::map<std::string, cu::Library> libraries_;
  std::vector<std::unique_ptr<Slot>> slots_;        // one a kernel of the manifest; the vector never changes
};

}  // namespace jfi
