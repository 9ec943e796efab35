// cuTensorMapEncodeTiled: the 128 bytes that the device reads, bit for bit those that the driver of an H200 writes (docs/facts.md). What that driver
// refuses is refused here; so are interleaving and another fill than zero, which it takes.
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID_VALUE = 1 };

// Of the driver's element types: the device's number, bits, TF32. The 4- and 6-bit types behind them are refused, as on an H200.
static const struct { int code, bits, tf32; } types[] = {
  {0, 8, 0}, {1, 16, 0}, {2, 32, 0}, {3, 32, 0}, {4, 64, 0}, {5, 64, 0}, {6, 16, 0}, {7, 32, 0}, {9, 64, 0}, {10, 16, 0}, {8, 32, 0}, {7, 32, 1}, {8, 32, 1}};

API int cuTensorMapEncodeTiled(void *out, int dtype, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                               int interleave, int swizzle, int l2, int fill) {
  uint64_t w[16] = {0}, base = (uint64_t)(uintptr_t)address, bytes;
  if (!out || rank < 1 || rank > 5 || dtype < 0 || dtype >= (int)(sizeof types / sizeof *types)) return INVALID_VALUE;
  if (interleave || fill || swizzle < 0 || swizzle > 3 || l2 < 0 || l2 > 3 || base % 16) return INVALID_VALUE;
  int bits = types[dtype].bits;
  uint64_t inner = bytes = (uint64_t)box[0] * (uint64_t)bits / 8;
  if (inner % 16 || (swizzle && inner > (16u << swizzle))) return INVALID_VALUE;
  for (uint32_t i = 0; i < rank; i++) {
    if (!dims[i] || dims[i] > 1ull << 32 || box[i] < 1 || box[i] > 256 || element_strides[i] < 1 || element_strides[i] > 8) return INVALID_VALUE;
    if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)) return INVALID_VALUE;
  }
  w[0] = base;
  w[1] = (uint64_t)(rank - 1) << 4 | (uint64_t)types[dtype].code << 7 | (uint64_t)swizzle << 13 | (uint64_t)types[dtype].tf32 << 16 | (uint64_t)l2 << 17;
  for (uint32_t i = 1; i < rank; i++) {
    uint64_t s = strides[i - 1] >> 4;
    w[i / 2 + 1] |= (s & 0xffffffff) << (i % 2 ? 32 : 0);       // strides 1 to 4 in halves of words 1 to 3, their upper bits in word 3
    w[3] |= (s >> 32) << (28 + 4 * i);
  }
  for (uint32_t i = 0; i < rank; i++) {
    w[4 + i / 2] |= ((dims[i] - 1) & 0xffffffff) << (i % 2 ? 32 : 0);
    w[6] |= (uint64_t)(element_strides[i] - 1) << (32 + 3 * i);
    if (i == 0) w[6] |= (uint64_t)(box[0] - 1) << 56;
    else w[7] |= (uint64_t)(box[i] - 1) << (8 * (i - 1));
  }
  for (uint32_t i = 1; i < rank; i++) bytes *= box[i];
  w[8] = bytes;                                 // of a box
  w[9] = swizzle ? 128u << swizzle : 16;        // after which the swizzle repeats
  memcpy(out, w, sizeof w);
  return SUCCESS;
}
