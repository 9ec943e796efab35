// A stand-in for libcuda.so.1 whose launches are answered by a function of the test (stand_in.py), which runs them in the simulator.
// Implements the calls that ffi/cuda_api.cc looks up. One device; not thread-safe beyond what one call at a time needs.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, CLUSTER_DIMENSION = 4, MAX_KERNELS = 512 };

typedef struct { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned num_attributes; } LaunchConfig;
typedef struct { int id; char pad[4]; unsigned cluster[3]; char rest[52]; } LaunchAttribute;
// Returns 0 if the launch ended well.
typedef int (*Launch)(const char *symbol, const unsigned *grid, const unsigned *block, const unsigned *cluster, unsigned shared, void **params);

static struct { int major, minor, multiprocessors; Launch launch; } device;
static char symbols[MAX_KERNELS][256];
static int num_kernels;

API void stand_in_device(int major, int minor, int multiprocessors, Launch launch) {
  device.major = major, device.minor = minor, device.multiprocessors = multiprocessors, device.launch = launch;
}

API int cuGetErrorString(int e, const char **s) {
  *s = e == LAUNCH_FAILED ? "the simulated launch failed" : "error of the stand-in driver";
  return SUCCESS;
}

API int cuCtxGetDevice(int *d) {
  *d = 0;
  return SUCCESS;
}

API int cuDeviceGetAttribute(int *v, int attribute, int d) {
  (void)d;
  switch (attribute) {
    case MULTIPROCESSORS: *v = device.multiprocessors; return SUCCESS;
    case MAJOR: *v = device.major; return SUCCESS;
    case MINOR: *v = device.minor; return SUCCESS;
    default: return INVALID_VALUE;
  }
}

// The "cubin" is the symbol's name: the manifest of the test says which.
API int cuLibraryLoadData(void **lib, const void *code, void *a, void **b, unsigned c, void *d, void **e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  *lib = (void *)code;
  return SUCCESS;
}

API int cuLibraryGetKernel(void **kernel, void *lib, const char *name) {
  (void)lib;
  if (num_kernels == MAX_KERNELS || strlen(name) >= sizeof symbols[0]) return NOT_FOUND;
  strcpy(symbols[num_kernels], name);
  *kernel = symbols[num_kernels++];
  return SUCCESS;
}

API int cuKernelGetFunction(void **f, void *kernel) {
  *f = kernel;
  return SUCCESS;
}

API int cuKernelSetAttribute(int attribute, int value, void *kernel, int d) {
  (void)attribute, (void)value, (void)kernel, (void)d;
  return SUCCESS;
}

API int cuLaunchKernelEx(const LaunchConfig *c, void *kernel, void **params, void **extra) {
  unsigned cluster[3] = {1, 1, 1};
  const LaunchAttribute *a = c->attributes;
  for (unsigned i = 0; i < c->num_attributes; i++)
    if (a[i].id == CLUSTER_DIMENSION) memcpy(cluster, a[i].cluster, sizeof cluster);
  if (extra || !device.launch) return INVALID_VALUE;
  return device.launch(kernel, c->grid, c->block, cluster, c->shared, params) ? LAUNCH_FAILED : SUCCESS;
}
