#include "numbers.h"

double f16_value[65536];
float e4m3_value[256];

void init_numbers(void) {
  static int ready = 0;
  if (ready) return;
  for (int i = 0; i < 65536; i++) {
    int e = i >> 10 & 31, m = i & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    f16_value[i] = i & 0x8000 ? -v : v;
  }
  for (int i = 0; i < 256; i++) {
    int e = i >> 3 & 15, m = i & 7;
    float v = e == 15 && m == 7 ? NAN : e ? ldexpf(8 + m, e - 10) : ldexpf(m, -9);
    e4m3_value[i] = i & 128 ? -v : v;
  }
  ready = 1;
}

u16 f64_to_f16(double d) {
  if (d != d) return 0x7fff;
  u16 sign = signbit(d) ? 0x8000 : 0;
  double a = fabs(d);
  if (a >= 65520) return sign | 0x7c00;                                     // rounds to 65536 or more
  if (a < ldexp(1, -14)) return sign | (u16)nearbyint(ldexp(a, 24));        // subnormal: multiples of 2^-24
  u64 u = bits_f64(a);
  u += (1ull << 41) - 1 + (u >> 42 & 1);                                    // 52 - 10 bits go, half to even
  return sign | (u16)((u >> 42) - ((1023ull - 15) << 10));
}

// Two roundings would differ: to odd in fp32 first, then to nearest even.
u16 f64_to_bf16(double d) {
  if (d != d) return 0x7fff;
  float f = (float)d;
  u32 u = (u32)bits_f32(f);
  if (isinf(f)) return (u16)(u >> 16);
  if ((double)f != d) {
    if (fabs((double)f) > fabs(d)) u--;
    u |= 1;
  }
  return (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// Nearest of an ascending table, ties to the even code.
static u32 nearest_code(double a, const float *table, int n) {
  int best = 0;
  double distance = INFINITY;
  for (int i = 0; i < n; i++) {
    double d = fabs(table[i] - a);
    if (d < distance || (d == distance && !(i & 1))) distance = d, best = i;
  }
  return (u32)best;
}

u32 f32_to_e4m3(float f) {
  if (f != f) return 0x7f;
  return (signbit(f) ? 128 : 0) | nearest_code(fmin(fabs((double)f), 448), e4m3_value, 127);
}

u32 f32_to_e2m1(float f) {
  static const float table[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  if (f != f) return 7;
  return (signbit(f) ? 8 : 0) | nearest_code(fmin(fabs((double)f), 6), table, 8);
}
