// Number formats. NaNs come out as the hardware's: 0x7fffffff, 0x7fff.
#pragma once
#include "sim.h"

static inline float as_f32(u64 x) { u32 u = (u32)x; float f; memcpy(&f, &u, 4); return f; }
static inline u64 bits_f32(float f) { u32 u; memcpy(&u, &f, 4); return u; }
static inline double as_f64(u64 x) { double f; memcpy(&f, &x, 8); return f; }
static inline u64 bits_f64(double f) { u64 u; memcpy(&u, &f, 8); return u; }

extern double f16_value[65536];     // filled by init_numbers
extern float e4m3_value[256];
void init_numbers(void);

static inline double bf16_to_f64(u16 h) { return as_f32((u64)h << 16); }
static inline double half_to_f64(u64 v, int bf16) { return bf16 ? bf16_to_f64((u16)v) : f16_value[(u16)v]; }
u16 f64_to_f16(double d);           // one rounding, to nearest even
u16 f64_to_bf16(double d);
static inline u16 f64_to_half(double d, int bf16) { return bf16 ? f64_to_bf16(d) : f64_to_f16(d); }
u32 f32_to_e4m3(float f);           // to nearest even, saturating
u32 f32_to_e2m1(float f);

static inline float flush(float x, int ftz) { return ftz && fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x; }
static inline u64 out_f32(float x, int ftz) { return x != x ? 0x7fffffff : bits_f32(flush(x, ftz)); }

static inline float min_max_f32(float x, float y, int max, int nan) {
  if (x != x || y != y) return nan || (x != x && y != y) ? NAN : x != x ? y : x;
  if (x == y) return (max ? !signbit(x) : !!signbit(x)) ? x : y;      // -0 < +0
  return (x > y) == max ? x : y;
}

// dot.c
enum { DOT_F16, DOT_BF16, DOT_E4M3 };
enum { HALF_FRACTION = 25, E4M3_FRACTION = 13 };
void dot_exponents(const double *x, int *e, int n, int type);
void dot_row(const double *a, const int *ea, const double *b, const int *eb, int stride, double *d, int K, int n, int fraction, int result);
