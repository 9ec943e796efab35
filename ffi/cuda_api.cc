#include "cuda_api.h"

#include <dlfcn.h>

#include <cstdlib>

namespace jfi::cu {
namespace {

struct Opened {
  Driver driver = {};
  std::string error;
  bool stand_in = false;
};

template <class F>
void Find(void* so, const char* symbol, const std::string& path, F& f, std::string& error) {
  f = reinterpret_cast<F>(dlsym(so, symbol));
  if (!f && error.empty()) error = path + " lacks " + symbol + " (the driver must be of CUDA 12.0 or newer)";
}

const Opened& Open() {
  static const Opened* opened = [] {
    auto* o = new Opened;  // lives as long as the process: kernels may be launched from other threads while it exits
    const char* other = std::getenv("JFI_LIBCUDA");
    o->stand_in = other && *other;
    const std::string path = o->stand_in ? other : "libcuda.so.1";
    void* so = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!so) {
      const char* why = dlerror();
      o->error = "cannot open the CUDA driver (" + std::string(why ? why : path) + "); install an NVIDIA driver, or use implementation=\"reference\"";
      return o;
    }
    Driver& d = o->driver;
    Find(so, "cuGetErrorString", path, d.GetErrorString, o->error);
    Find(so, "cuCtxGetDevice", path, d.CtxGetDevice, o->error);
    Find(so, "cuDeviceGetAttribute", path, d.DeviceGetAttribute, o->error);
    Find(so, "cuLibraryLoadData", path, d.LibraryLoadData, o->error);
    Find(so, "cuLibraryGetKernel", path, d.LibraryGetKernel, o->error);
    Find(so, "cuKernelGetFunction", path, d.KernelGetFunction, o->error);
    Find(so, "cuKernelSetAttribute", path, d.KernelSetAttribute, o->error);
    Find(so, "cuLaunchKernelEx", path, d.LaunchKernelEx, o->error);
    Find(so, "cuTensorMapEncodeTiled", path, d.TensorMapEncodeTiled, o->error);
    return o;
  }();
  return *opened;
}

}  // namespace

Result<const Driver*> Driver::Get() {
  const Opened& o = Open();
  if (!o.error.empty()) return FailedPrecondition("jax_fp4_indexer: " + o.error);
  return &o.driver;
}

bool Driver::IsStandIn() { return Open().stand_in; }

std::string Driver::Describe(Error e) const {
  const char* s = nullptr;
  if (GetErrorString(e, &s) != 0 || !s) s = "unknown error";
  return std::string(s) + " (CUDA error " + std::to_string(e) + ")";
}

}  // namespace jfi::cu
