// cuTensorMapEncodeTiled: the 128 bytes that the device reads, as ../tensor_map.py decodes them. What the driver refuses is refused here,
// and what is not simulated: interleaving, strides between elements, strides of 2^36 bytes or more.
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID_VALUE = 1 };

// Of the driver's element types: the device's number, and bits.
static const struct { int code, bits; } types[] = {
  {0, 8}, {1, 16}, {2, 32}, {3, 32}, {4, 64}, {5, 64}, {6, 16}, {7, 32}, {9, 64}, {10, 16}, {8, 32}, {-1, 32}, {-1, 32}, {11, 4}};

API int cuTensorMapEncodeTiled(void *out, int dtype, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                               int interleave, int swizzle, int l2, int fill) {
  uint64_t w[16] = {0}, base = (uint64_t)(uintptr_t)address, bytes = 0;
  if (!out || rank < 1 || rank > 5 || dtype < 0 || dtype >= (int)(sizeof types / sizeof *types) || types[dtype].code < 0) return INVALID_VALUE;
  if (interleave || fill || swizzle < 0 || swizzle > 3 || l2 < 0 || l2 > 3 || base % 16) return INVALID_VALUE;
  int bits = types[dtype].bits;
  uint64_t inner = (uint64_t)box[0] * (uint64_t)bits / 8;
  if (inner % 16 || (swizzle && inner > (16u << swizzle)) || (bits == 4 && (base % 32 || dims[0] % 2))) return INVALID_VALUE;
  for (uint32_t i = 0; i < rank; i++) {
    if (!dims[i] || dims[i] > 1ull << 32 || box[i] < 1 || box[i] > 256 || element_strides[i] != 1) return INVALID_VALUE;
    if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 36)) return INVALID_VALUE;
  }
  bytes = rank > 1 ? strides[rank - 2] * dims[rank - 1] : dims[0] * (uint64_t)bits / 8;
  w[0] = base;
  w[1] = 2 | (uint64_t)(rank - 1) << 4 | (uint64_t)types[dtype].code << 7 | (uint64_t)swizzle << 13 | (uint64_t)l2 << 17 | (uint64_t)(bytes >= 1 << 17) << 21;
  for (uint32_t i = 1; i < rank; i++) {
    uint64_t s = strides[i - 1] >> 4;
    w[i / 2 + 1] |= s << (i % 2 ? 32 : 0);       // strides 1 to 4 in halves of words 1 to 3
  }
  for (uint32_t i = 0; i < rank; i++) {
    w[4 + i / 2] |= ((dims[i] - 1) & 0xffffffff) << (i % 2 ? 32 : 0);
    if (i == 0) w[6] |= (uint64_t)(box[0] - 1) << 56;
    else w[7] |= (uint64_t)(box[i] - 1) << (8 * (i - 1));
  }
  memcpy(out, w, sizeof w);
  return SUCCESS;
}
