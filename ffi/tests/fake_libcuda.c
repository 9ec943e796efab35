/* A stand-in for libcuda.so.1: records what the launcher asks for, computes nothing. The capability and SM count it reports, and an
 * error it shall return, are set by the test through fake_*. Not thread-safe beyond what one test needs. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { MAX_LAUNCHES = 64, MAX_PARAMS = 32, PARAM_BYTES = 128, MAX_MAPS = 16 };

struct Config { unsigned grid[3], block[3], shared; void* stream; void* attributes; unsigned num_attributes; };
struct Attribute { int id; char pad[4]; unsigned cluster[3]; char rest[52]; };

struct Launch {
  unsigned grid[3], block[3], shared, num_attributes, cluster[3];
  int attribute_id, device;
  void* stream;
  void* kernel;
  unsigned char params[MAX_PARAMS][PARAM_BYTES];
};
struct Map {
  int dtype, swizzle, l2, interleave, fill;
  uint32_t rank, box[5], element_strides[5];
  uint64_t dims[5], strides[5];
  void* address;
};

static struct Launch launches[MAX_LAUNCHES];
static struct Map maps[MAX_MAPS];
static int num_launches, num_maps, loads, functions, device, major = 9, minor = 0, sms = 132, fail_code;
static int smem_of[64], non_portable_of[64];
static char fail_call[64], symbols[64][64], first_bytes[64][16];
static int num_kernels, sizes[MAX_PARAMS], num_sizes;

API void fake_reset(void) { num_launches = num_maps = loads = functions = num_kernels = num_sizes = fail_code = 0; device = 0; fail_call[0] = 0; memset(smem_of, 0, sizeof smem_of); memset(non_portable_of, 0, sizeof non_portable_of); }
API void fake_forget_launches(void) { num_launches = 0; }
API void fake_set_device(int d, int maj, int min, int count) { device = d; major = maj; minor = min; sms = count; }
API void fake_fail(const char* call, int code) { snprintf(fail_call, sizeof fail_call, "%s", call); fail_code = code; }
/* The sizes of the parameters of the kernels to come: the real driver has them from the cubin. */
API void fake_param_sizes(const int* s, int n) { memcpy(sizes, s, sizeof(int) * n); num_sizes = n; }
API int fake_num_launches(void) { return num_launches; }
API int fake_num_maps(void) { return num_maps; }
API int fake_num_loads(void) { return loads; }
API int fake_num_functions(void) { return functions; }
API int fake_smem_of(int kernel) { return smem_of[kernel]; }
API int fake_non_portable_of(int kernel) { return non_portable_of[kernel]; }
API const struct Launch* fake_launch(int i) { return &launches[i]; }
API const struct Map* fake_map(int i) { return &maps[i]; }
API const char* fake_symbol_of(void* kernel) { return symbols[(uintptr_t)kernel - 1]; }
API const char* fake_image_of(int library) { return first_bytes[library]; }

static int fails(const char* call) { return fail_code && !strcmp(call, fail_call) ? fail_code : 0; }

API int cuGetErrorString(int e, const char** s) { *s = e == 700 ? "an illegal memory access was encountered" : e == 201 ? "invalid device context" : "fake error"; return 0; }
API int cuCtxGetDevice(int* d) { *d = device; return fails("cuCtxGetDevice"); }
API int cuDeviceGetAttribute(int* v, int a, int d) { (void)d; *v = a == 16 ? sms : a == 75 ? major : a == 76 ? minor : -1; return fails("cuDeviceGetAttribute"); }
API int cuLibraryLoadData(void** lib, const void* code, void* a, void** b, unsigned c, void* d, void** e, unsigned f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  if (fails("cuLibraryLoadData")) return fail_code;
  memcpy(first_bytes[loads], code, 8);
  *lib = (void*)(uintptr_t)++loads;
  return 0;
}
API int cuLibraryGetKernel(void** kernel, void* lib, const char* name) {
  (void)lib;
  if (fails("cuLibraryGetKernel")) return fail_code;
  snprintf(symbols[num_kernels], sizeof symbols[0], "%s", name);
  *kernel = (void*)(uintptr_t)++num_kernels;
  return 0;
}
API int cuKernelGetFunction(void** f, void* k) { *f = k; ++functions; return fails("cuKernelGetFunction"); }
API int cuKernelSetAttribute(int attribute, int value, void* kernel, int d) {
  (void)d;
  if (attribute == 8) smem_of[(uintptr_t)kernel - 1] = value;
  if (attribute == 14) non_portable_of[(uintptr_t)kernel - 1] = value;
  return fails("cuKernelSetAttribute");
}
API int cuLaunchKernelEx(const struct Config* c, void* kernel, void** params, void** extra) {
  if (fails("cuLaunchKernelEx")) return fail_code;
  if (extra || num_launches == MAX_LAUNCHES) return 1;
  struct Launch* l = &launches[num_launches++];
  memset(l, 0, sizeof *l);
  memcpy(l->grid, c->grid, sizeof l->grid);
  memcpy(l->block, c->block, sizeof l->block);
  l->shared = c->shared, l->stream = c->stream, l->kernel = kernel, l->device = device, l->num_attributes = c->num_attributes;
  if (c->num_attributes) {
    const struct Attribute* a = c->attributes;
    l->attribute_id = a->id;
    memcpy(l->cluster, a->cluster, sizeof l->cluster);
  }
  for (int i = 0; i < num_sizes; ++i) memcpy(l->params[i], params[i], sizes[i]);
  return 0;
}
API int cuTensorMapEncodeTiled(void* out, int dtype, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                               const uint32_t* element_strides, int interleave, int swizzle, int l2, int fill) {
  if (fails("cuTensorMapEncodeTiled")) return fail_code;
  if ((uintptr_t)out % 64 || num_maps == MAX_MAPS) return 1;
  struct Map* m = &maps[num_maps++];
  memset(m, 0, sizeof *m);
  m->dtype = dtype, m->rank = rank, m->address = address, m->interleave = interleave, m->swizzle = swizzle, m->l2 = l2, m->fill = fill;
  memcpy(m->dims, dims, rank * sizeof *dims);
  memcpy(m->strides, strides, (rank - 1) * sizeof *strides);
  memcpy(m->box, box, rank * sizeof *box);
  memcpy(m->element_strides, element_strides, rank * sizeof *box);
  memset(out, 0x40 + num_maps, 128);
  return 0;
}
