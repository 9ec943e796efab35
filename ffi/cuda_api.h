// What this library needs of the CUDA driver's C ABI, declared here so that a build needs no CUDA toolkit.
// The driver is opened with dlopen on first use: the library itself loads on machines without one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "status.h"

namespace jfi::cu {

using Error = int;                 // CUresult; 0 is success
using Device = int;                // CUdevice
using Library = struct LibrarySt*;   // CUlibrary: belongs to no context
using Kernel = struct KernelSt*;     // CUkernel: may stand where a CUfunction is asked for
using Function = struct FunctionSt*; // CUfunction: belongs to one context
using Stream = struct StreamSt*;     // CUstream

enum DeviceAttribute : int { kMultiprocessorCount = 16, kCapabilityMajor = 75, kCapabilityMinor = 76 };
enum FunctionAttribute : int { kMaxDynamicSharedBytes = 8, kNonPortableClusterSizeAllowed = 14 };
enum LaunchAttributeId : int { kClusterDimension = 4 };

struct LaunchAttribute {
  LaunchAttributeId id;
  char pad[8 - sizeof(LaunchAttributeId)];
  union {
    char bytes[64];
    struct { unsigned x, y, z; } cluster;
  } value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};

struct alignas(64) TensorMap { std::uint64_t opaque[16]; };

enum TensorMapDataType : int { kU8 = 0, kU16 = 1, kU32 = 2, kS32 = 3, kF16 = 6, kF32 = 7, kBf16 = 9 };
enum TensorMapSwizzle : int { kSwizzleNone = 0, kSwizzle32 = 1, kSwizzle64 = 2, kSwizzle128 = 3 };
enum TensorMapL2 : int { kL2None = 0, kL2_64 = 1, kL2_128 = 2, kL2_256 = 3 };

static_assert(sizeof(LaunchAttribute) == 72 && sizeof(TensorMap) == 128, "the driver's ABI");
static_assert(sizeof(void*) == 8 && sizeof(LaunchConfig) == 56, "the driver's ABI on 64-bit hosts");

struct Driver {
  Error (*GetErrorString)(Error, const char**);
  Error (*CtxGetDevice)(Device*);
  Error (*DeviceGetAttribute)(int*, DeviceAttribute, Device);
  Error (*LibraryLoadData)(Library*, const void* code, void* jit_options, void** jit_values, unsigned num_jit, void* options, void** values,
                           unsigned num_options);
  Error (*LibraryGetKernel)(Kernel*, Library, const char* name);
  Error (*KernelGetFunction)(Function*, Kernel);
  Error (*KernelSetAttribute)(FunctionAttribute, int value, Kernel, Device);
  Error (*LaunchKernelEx)(const LaunchConfig*, Function, void** params, void** extra);
  Error (*TensorMapEncodeTiled)(TensorMap*, TensorMapDataType, std::uint32_t rank, void* address, const std::uint64_t* dims,
                                const std::uint64_t* stride_bytes, const std::uint32_t* box, const std::uint32_t* element_strides, int interleave,
                                TensorMapSwizzle, TensorMapL2, int out_of_bounds_fill);

  // The process's driver, or why there is none. JFI_LIBCUDA names another library to open (a stand-in, for tests).
  static Result<const Driver*> Get();
  // True where JFI_LIBCUDA was set when the driver was first asked for.
  static bool IsStandIn();

  std::string Describe(Error) const;
};

}  // namespace jfi::cu
