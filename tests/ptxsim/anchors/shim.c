// Stands for the DSL's runtime library under the host function of a compiled kernel: hands every launch to a callback.
#include <stdint.h>

typedef int (*Launch)(void *config, void *function, void **params);
static Launch launch;

void set_launch(Launch f) { launch = f; }
int _cudaLaunchKernelEx(void *config, void *function, void **params) { return launch ? launch(config, function, params) : 1; }
int _cudaLibraryLoadData(void) { return 0; }
int _cudaLibraryGetKernel(void) { return 0; }
int _cuKernelGetAttribute(void) { return 0; }
int _cudaFuncSetAttribute(void) { return 0; }
int _cudaKernelSetAttributeForDevice(void) { return 0; }
int _cudaGetDevice(int *device) {
  if (device) *device = 0;
  return 0;
}
int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute, (void)device;
  if (value) *value = 148;
  return 0;
}
