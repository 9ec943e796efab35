// How the tensor core of an H200 adds up one mma.sync or wgmma of floating-point numbers, bit for bit (docs/facts.md, probes/rounding.py): products are exact; they and
// the accumulator are aligned to the greatest exponent among them, that of a product being the sum of its factors', and cut toward zero; the sum of what is left is exact, and cut.
#include "numbers.h"

enum { NOTHING = -10000 };      // the exponent of a zero, and of an infinity or NaN, which show in the sum by themselves: below every other, also of a sum

static double power(int e) { return as_f64((u64)(e + 1023) << 52); }

static int exponent(double x) {
  int e = (int)(bits_f64(x) >> 52 & 0x7ff);
  return e == 0 || e == 0x7ff ? NOTHING : e - 1023;
}

// Of n operands; subnormal ones have the least exponent of their type.
void dot_exponents(const double *x, int *e, int n, int type) {
  int least = type == DOT_F16 ? -14 : type == DOT_BF16 ? -126 : -6;
  for (int i = 0; i < n; i++) {
    int v = exponent(x[i]);
    e[i] = v != NOTHING && v < least ? least : v;
  }
}

static double cut(double x, int fraction) {
  if (fraction == 23) {
    float f = (float)x;
    return fabs((double)f) > fabs(x) ? as_f32(bits_f32(f) - 1) : f;     // the next one toward zero
  }
  int e = exponent(x);
  return e == NOTHING ? x : trunc(x * power(fraction - e)) * power(e - fraction);
}

enum { WIDE = 8 };      // columns at a time, in registers

// d[j] += a . b[.][j] for n columns, a multiple of WIDE. b and its exponents: [K][stride]. fraction: bits kept below the greatest exponent; result: below that of the sum (23: of a fp32).
void dot_row(const double *a, const int *ea, const double *b, const int *eb, int stride, double *d, int K, int n, int fraction, int result) {
  for (int first = 0; first < n; first += WIDE, b += WIDE, eb += WIDE, d += WIDE) {
    int top[WIDE];
    double up[WIDE], sum[WIDE];
    for (int j = 0; j < WIDE; j++) top[j] = exponent(d[j]);
    for (int k = 0; k < K; k++)
      for (int j = 0; j < WIDE; j++) {
        int e = ea[k] + eb[k * stride + j];
        top[j] = e > top[j] ? e : top[j];
      }
    for (int j = 0; j < WIDE; j++) {
      top[j] = top[j] < -126 ? -126 : top[j];
      up[j] = power(fraction - top[j]);
      sum[j] = trunc(d[j] * up[j]);
    }
    for (int k = 0; k < K; k++)
      for (int j = 0; j < WIDE; j++) sum[j] += trunc(a[k] * b[k * stride + j] * up[j]);
    for (int j = 0; j < WIDE; j++) d[j] = cut(sum[j] * power(top[j] - fraction), result);
  }
}
