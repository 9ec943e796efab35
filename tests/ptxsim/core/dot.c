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
typedef double Doubles __attribute__((vector_size(8 * WIDE), aligned(8)));
typedef i64 Longs __attribute__((vector_size(8 * WIDE), aligned(8)));
typedef i32 Ints __attribute__((vector_size(4 * WIDE), aligned(4)));

// Vectors go into and out of these two functions by pointer: by value, their calling convention would depend on the registers of the processor.
static inline void raise_to(Ints *top, const Ints *e) {
  Ints below = *top < *e;
  *top = (*e & below) | (*top & ~below);
}

// x becomes trunc of every element, and keeps the sign of a zero; `bad` where one is not a number below 2^62.
static inline void truncate_all(Doubles *x, Longs *bad) {
  Longs sign = (Longs)*x & (i64)(1ull << 63);
  *bad |= ~((Doubles)((Longs)*x ^ sign) < 0x1p62);
  *x = (Doubles)((Longs)__builtin_convertvector(__builtin_convertvector(*x, Longs), Doubles) | sign);
}

// d[j] += a . b[.][j] for n columns, a multiple of WIDE. b and its exponents: [K][stride]. fraction: bits kept below the greatest exponent; result: below that of the sum (23: of a fp32).
void dot_row(const double *a, const int *ea, const double *b, const int *eb, int stride, double *d, int K, int n, int fraction, int result) {
  for (int first = 0; first < n; first += WIDE, b += WIDE, eb += WIDE, d += WIDE) {
    Ints top;
    for (int j = 0; j < WIDE; j++) top[j] = exponent(d[j]);
    for (int k = 0; k < K; k++) {
      Ints e = *(const Ints *)(eb + k * stride) + ea[k];
      raise_to(&top, &e);
    }
    Ints least = (Ints){} - 126;
    raise_to(&top, &least);
    Doubles up = (Doubles)((__builtin_convertvector(fraction - top, Longs) + 1023) << 52);
    Longs bad = {};
    Doubles sum = *(const Doubles *)d * up;
    truncate_all(&sum, &bad);
    for (int k = 0; k < K; k++) {
      Doubles product = a[k] * *(const Doubles *)(b + k * stride) * up;
      truncate_all(&product, &bad);
      sum += product;
    }
    for (int j = 0; j < WIDE; j++) {
      double s = sum[j];
      if (bad[j]) {             // an infinity or NaN among them shows in the sum
        s = trunc(d[j] * up[j]);
        for (int k = 0; k < K; k++) s += trunc(a[k] * b[k * stride + j] * up[j]);
      }
      d[j] = cut(s * power(top[j] - fraction), result);
    }
  }
}
