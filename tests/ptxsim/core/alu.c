// Arithmetic, one lane at a time. Registers are kept in 64 bits with the unused upper bits 0.
#include "numbers.h"

#define A (a[l])
#define B (b[l])
#define C (c3[l])
#define F(x) as_f32(x)
#define D(x) as_f64(x)
#define S32(x) ((i32)(x))
#define S16(x) ((i16)(x))
#define IM(i) ((int)I->im[i])
// Full warps go without a branch a lane, so that the compiler makes vectors of them.
#define LANES(expr) \
  do { \
    u64 *out = REG(dd[0]); \
    if (m == ALL_LANES) for (int l = 0; l < 32; l++) out[l] = (expr); \
    else for (int l = 0; l < 32; l++) { u64 v_ = (expr); out[l] = m >> l & 1 ? v_ : out[l]; } \
  } while (0)
#define TEST(expr) do { r = 0; for (int l = 0; l < 32; l++) r |= (u32)((expr) != 0) << l; } while (0)

static u64 mask_of(int bits) { return bits >= 64 ? ~0ull : (1ull << bits) - 1; }
static i64 extend(u64 x, int bits) { return (i64)(x << (64 - bits)) >> (64 - bits); }
static u64 saturate32(i64 x) { return (u32)(x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x); }

static u64 reverse(u64 x, int bits) {
  u64 y = 0;
  for (int q = 0; q < bits; q++) y |= (x >> q & 1) << (bits - 1 - q);
  return y;
}

static i32 pick_s32(int max, i32 x, i32 y) { return (x > y) == max ? x : y; }
static u64 relu_s32(int relu, i32 x) { return (u32)(relu && x < 0 ? 0 : x); }

// The sign bit of bfe.s32 is the last bit of the field, or bit 31 where the field passes it.
static u64 bfe_s32(u64 a, u64 b, u64 c) {
  u32 at = b & 255, n = c & 255, x = (u32)a;
  if (!n) return 0;
  u32 sign = at + n - 1 > 31 ? 31 : at + n - 1, v = at > 31 ? 0 : x >> at;
  if (n < 32) v &= (1u << n) - 1;
  if (x >> sign & 1) {
    u32 have = at > 31 ? 0 : (n < 32 - at ? n : 32 - at);
    if (have < 32) v |= ~0u << have;
  }
  return v;
}

static u64 bfe_u(u64 a, u64 b, u64 c, int bits) {
  u32 at = b & 255, n = c & 255;
  u64 x = (int)at >= bits ? 0 : (a & mask_of(bits)) >> at;
  return (int)n >= bits ? x : x & mask_of((int)n);
}

static u64 bfi(u64 a, u64 b, u64 at, u64 n, int bits) {
  at &= 255, n &= 255;
  if ((int)at >= bits) return b & mask_of(bits);
  u64 field = (mask_of((int)n < bits ? (int)n : bits) << at) & mask_of(bits);
  return ((a << at) & field) | (b & mask_of(bits) & ~field);
}

static u64 prmt(u64 a, u64 b, u64 select) {
  u64 both = b << 32 | (u32)a, out = 0;
  for (int q = 0; q < 4; q++) {
    u32 k = select >> (4 * q) & 15;
    u64 v = both >> (8 * (k & 7)) & 255;
    if (k & 8) v = v & 128 ? 255 : 0;
    out |= v << (8 * q);
  }
  return out;
}

// Four products of bytes, signed or not as each operand says, and a word.
static u64 dp4a(u64 a, u64 b, u64 c, int a_signed, int b_signed) {
  u32 sum = c;
  for (int q = 0; q < 4; q++) {
    i32 x = (u8)(a >> (8 * q)), y = (u8)(b >> (8 * q));
    sum += (u32)((a_signed ? (i8)x : x) * (b_signed ? (i8)y : y));
  }
  return sum;
}

static u64 funnel(u64 a, u64 b, u64 by, int left, int wrap) {
  u32 k = wrap ? by & 31 : (u32)by > 32 ? 32 : (u32)by;
  u64 both = b << 32 | (u32)a;
  return left ? k == 32 ? (u32)a : (u32)(both << k >> 32) : k == 32 ? (u32)b : (u32)(both >> k);
}

// im: 0 source bits, 1 source signed, 2 destination bits, 3 saturate, 4 register bits, 5 destination signed.
static u64 convert_int(u64 a, const Inst *I) {
  int sb = IM(0), db = IM(2), to_signed = IM(5);
  u64 x = a & mask_of(sb);
  if (IM(1)) x = (u64)extend(x, sb);
  if (IM(3)) {
    i64 y = (i64)x;
    if (to_signed) {
      i64 hi = (i64)mask_of(db - 1);
      y = y > hi ? hi : y < -hi - 1 ? -hi - 1 : y;
    } else if (db < 64) {
      if (IM(1) && y < 0) y = 0;
      if (y > (i64)mask_of(db)) y = (i64)mask_of(db);
    }
    x = (u64)y;
  }
  x &= mask_of(db);
  if (to_signed) x = (u64)extend(x, db);
  return x & mask_of(IM(4));
}

static double round_by(double x, int mode) { return mode == 0 ? rint(x) : mode == 1 ? trunc(x) : mode == 2 ? floor(x) : ceil(x); }

// im: 0 rounding, 1 destination bits, 2 signed, 3 from float64. Saturates; NaN is 0 (2^63 for 64 bits).
static u64 float_to_int(u64 a, const Inst *I) {
  double x = round_by(IM(3) ? as_f64(a) : as_f32(a), IM(0));
  int bits = IM(1);
  if (x != x) return bits == 64 ? 1ull << 63 : 0;
  if (IM(2)) {
    double hi = ldexp(1, bits - 1);
    return x >= hi ? mask_of(bits - 1) : x < -hi ? 1ull << (bits - 1) : (u64)(i64)x & mask_of(bits);
  }
  return x >= ldexp(1, bits) ? mask_of(bits) : x < 0 ? 0 : (u64)x & mask_of(bits);
}

// im: 0 source bits, 1 signed, 2 to float64.
static u64 int_to_float(u64 a, const Inst *I) {
  u64 x = a & mask_of(IM(0));
  i64 y = extend(x, IM(0));
  if (IM(2)) return bits_f64(IM(1) ? (double)y : (double)x);
  return bits_f32(IM(1) ? (float)y : (float)x);
}

// im: 0 operation (0 add, 1 sub, 2 mul, 3 fma, 4 min, 5 max, 6 neg, 7 abs), 1 bf16, 2 halves, 3 NaN. Exact in float64, one rounding.
static u16 half_value(const Inst *I, u64 a, u64 b, u64 c) {
  int op = IM(0), bf16 = IM(1);
  double x = half_to_f64(a, bf16), y = half_to_f64(b, bf16), z = half_to_f64(c, bf16), r;
  switch (op) {
    case 0: r = x + y; break;
    case 1: r = x - y; break;
    case 2: r = x * y; break;
    case 3: r = fma(x, y, z); break;
    case 4: case 5: r = min_max_f32((float)x, (float)y, op == 5, IM(3)); break;
    case 6: return (u16)a ^ 0x8000;
    default: return (u16)a & 0x7fff;
  }
  return f64_to_half(r, bf16);
}

// One half of an operation on two fp32: 0 add, 1 sub, 2 mul, 3 fma.
static u64 pair_f32(int op, int ftz, u64 a, u64 b, u64 c) {
  float x = flush(as_f32(a), ftz), y = flush(as_f32(b), ftz);
  return out_f32(op == 0 ? x + y : op == 1 ? x - y : op == 2 ? x * y : fmaf(x, y, flush(as_f32(c), ftz)), ftz);
}

static int compare(double x, double y, int c) {
  int un = x != x || y != y;
  switch (c) {
    case 0: return x == y;
    case 1: return !un && x != y;
    case 2: return x < y;
    case 3: return x <= y;
    case 4: return x > y;
    case 5: return x >= y;
    case 6: return un || x == y;
    case 7: return x != y;
    case 8: return un || x < y;
    case 9: return un || x <= y;
    case 10: return un || x > y;
    case 11: return un || x >= y;
    case 12: return !un;
    default: return un;
  }
}

// im: 0 comparison, 1 type (0 unsigned, 1 signed, 2 f32, 3 f64, 4 f16, 5 bf16), 2 bits, 3 combine (1 and, 2 or, 3 xor), 4 and 5 predicate and its negation,
// 6 and 7 destinations (the second: of the negated comparison).
static void setp(Warp *W, const Inst *I, i32 *ss, u32 m) {
  u64 *a = REG(ss[0]), *b = REG(ss[1]);
  u32 r = 0, undef = W->undef[ss[0]] | W->undef[ss[1]];
  int by = IM(0), shift = 64 - IM(2);
  switch (IM(1)) {
    case 2: TEST(compare(F(A), F(B), by)); break;
    case 3: TEST(compare(D(A), D(B), by)); break;
    case 4: case 5: TEST(compare(half_to_f64(A, IM(1) - 4), half_to_f64(B, IM(1) - 4), by)); break;
    case 1:
      switch (by) {
        case 0: TEST(A == B); break;
        case 1: TEST(A != B); break;
        case 2: TEST((i64)(A << shift) < (i64)(B << shift)); break;
        case 3: TEST((i64)(A << shift) <= (i64)(B << shift)); break;
        case 4: TEST((i64)(A << shift) > (i64)(B << shift)); break;
        default: TEST((i64)(A << shift) >= (i64)(B << shift));
      }
      break;
    default:
      switch (by) {
        case 0: TEST(A == B); break;
        case 1: TEST(A != B); break;
        case 2: TEST(A < B); break;
        case 3: TEST(A <= B); break;
        case 4: TEST(A > B); break;
        default: TEST(A >= B);
      }
  }
  u32 value[2] = {r, ~r}, bad[2] = {undef, undef};
  for (int i = 0; i < 2; i++) {
    u32 p = IM(5) ? ~W->P[I->im[4]] : W->P[I->im[4]], pu = W->pundef[I->im[4]], v = value[i];
    switch (IM(3)) {      // a defined operand that decides makes the result defined
      case 1: value[i] = v & p; bad[i] = (undef | pu) & ~(~p & ~pu) & ~(~v & ~undef); break;
      case 2: value[i] = v | p; bad[i] = (undef | pu) & ~(p & ~pu) & ~(v & ~undef); break;
      case 3: value[i] = v ^ p; bad[i] = undef | pu; break;
    }
  }
  for (int i = 0; i < 2; i++)
    if (I->im[6 + i] >= 0) set_pred(W, IM(6 + i), m, value[i], bad[i]);
}

// im: 0, 1 and 2, 3 predicates and their negations; 6 destination.
static void predicate(Warp *W, const Inst *I, u32 m) {
  u32 x = W->P[I->im[0]], xu = W->pundef[I->im[0]], y = W->P[I->im[2]], yu = W->pundef[I->im[2]], v, undef = xu | yu;
  if (IM(1)) x = ~x;
  if (IM(3)) y = ~y;
  switch (I->op) {
    case OP_PAND: v = x & y; undef &= ~((~x & ~xu) | (~y & ~yu)); break;
    case OP_POR: v = x | y; undef &= ~((x & ~xu) | (y & ~yu)); break;
    case OP_PXOR: v = x ^ y; break;
    case OP_PNOT: v = ~x; undef = xu; break;
    default: v = x; undef = xu;
  }
  set_pred(W, IM(6), m, v, undef);
}

// im: 0 bits of a part.
// Up to two words, the lower parts first.
static void unpack(Warp *W, const Inst *I, i32 *dd, i32 *ss, u32 m) {
  u64 whole[2][32];
  int bits = IM(0);
  for (int i = 0; i < I->ns; i++) memcpy(whole[i], REG(ss[i]), sizeof whole[i]);
  u32 undef = W->undef[ss[0]] | W->undef[ss[I->ns - 1]];
  for (int k = 0; k < I->nd; k++) {
    if (dd[k] < 0) continue;
    const u64 *from = whole[k * bits / 64];
    FOR_LANES(l, m) REG(dd[k])[l] = from[l] >> (bits * k % 64) & mask_of(bits);
    set_undef(W, dd[k], m, undef);
  }
}

static void pack(Warp *W, const Inst *I, i32 *dd, i32 *ss, u32 m) {
  u64 whole[32] = {0};
  u32 undef = 0;
  int bits = IM(0);
  for (int k = 0; k < I->ns; k++) {
    u64 *part = REG(ss[k]);
    undef |= W->undef[ss[k]];
    for (int l = 0; l < 32; l++) whole[l] |= (part[l] & mask_of(bits)) << (bits * k);
  }
  FOR_LANES(l, m) REG(dd[0])[l] = whole[l];
  set_undef(W, dd[0], m, undef);
}

static void lop3(Warp *W, const Inst *I, i32 *dd, const u64 *a, const u64 *b, const u64 *c3, u32 m) {
  u32 out[32] = {0};
  for (int k = 0; k < 8; k++)
    if (IM(0) >> k & 1)
      for (int l = 0; l < 32; l++) out[l] |= (u32)((k & 4 ? A : ~A) & (k & 2 ? B : ~B) & (k & 1 ? C : ~C));
  FOR_LANES(l, m) REG(dd[0])[l] = out[l];
}

static int floating(Step *x, const u64 *a, const u64 *b, const u64 *c3) {
  Warp *W = x->W;
  const Inst *I = x->I;
  i32 *dd = x->dd;
  const u32 m = x->m;
  const int z = IM(0);      // .ftz
  switch (I->op) {
    case OP_FADD: LANES(out_f32(flush(F(A), z) + flush(F(B), z), z)); break;
    case OP_FSUB: LANES(out_f32(flush(F(A), z) - flush(F(B), z), z)); break;
    case OP_FMUL: LANES(out_f32(flush(F(A), z) * flush(F(B), z), z)); break;
    case OP_FFMA: LANES(out_f32(fmaf(flush(F(A), z), flush(F(B), z), flush(F(C), z)), z)); break;
    case OP_FX2: LANES(pair_f32((int)IM(1), z, A, B, C) | pair_f32((int)IM(1), z, A >> 32, B >> 32, C >> 32) << 32); break;
    case OP_FFMAH: LANES(out_f32(fmaf((float)half_to_f64(A, z), (float)half_to_f64(B, z), F(C)), 0)); break;        // im 0: bf16
    case OP_FMIN: case OP_FMAX: {
      const int max = I->op == OP_FMAX, nan = IM(1);
      if (I->ns > 2) LANES(out_f32(min_max_f32(min_max_f32(F(A), F(B), max, nan), F(C), max, nan), z));
      else LANES(out_f32(min_max_f32(F(A), F(B), max, nan), z));
      break;
    }
    case OP_FNEG: LANES(out_f32(F(A ^ 0x80000000u), z)); break;
    case OP_FABS: LANES(out_f32(F(A & 0x7fffffffu), z)); break;
    case OP_FCOPYSIGN: LANES((B & 0x7fffffff) | (A & 0x80000000)); break;
    // the approximate ones are correctly rounded here
    case OP_FDIV: LANES(out_f32(flush(F(A), z) / flush(F(B), z), z)); break;
    case OP_FRCP: LANES(out_f32(1.f / flush(F(A), z), z)); break;
    case OP_FSQRT: LANES(out_f32(sqrtf(flush(F(A), z)), z)); break;
    case OP_FRSQRT: LANES(out_f32((float)(1.0 / sqrt(flush(F(A), z))), z)); break;
    case OP_FEX2: LANES(out_f32((float)exp2(flush(F(A), z)), z)); break;
    case OP_FLG2: LANES(out_f32((float)log2(flush(F(A), z)), z)); break;
    case OP_DADD: LANES(bits_f64(D(A) + D(B))); break;
    case OP_DSUB: LANES(bits_f64(D(A) - D(B))); break;
    case OP_DMUL: LANES(bits_f64(D(A) * D(B))); break;
    case OP_DFMA: LANES(bits_f64(fma(D(A), D(B), D(C)))); break;
    case OP_DDIV: LANES(bits_f64(D(A) / D(B))); break;
    case OP_HALF:
      if (IM(2) == 1) LANES(half_value(I, A, B, C));
      else LANES((u64)half_value(I, A, B, C) | (u64)half_value(I, A >> 16, B >> 16, C >> 16) << 16);
      break;
    case OP_CVT_I2F: LANES(int_to_float(A, I)); break;
    case OP_CVT_F2I: LANES(float_to_int(A, I)); break;
    case OP_CVT_H2F: LANES(z ? (A & 0xffff) << 16 : out_f32((float)half_to_f64(A, 0), 0)); break;       // im 0: bf16, whose NaNs stay what they are
    case OP_CVT_F2H: LANES(f64_to_half(F(A), z)); break;
    case OP_CVT_F2H2: LANES((u64)f64_to_half(F(B), z) | (u64)f64_to_half(F(A), z) << 16); break;
    case OP_CVT_E4M3X2_H2: LANES((u64)f64_to_f16(e4m3_value[A & 255]) | (u64)f64_to_f16(e4m3_value[A >> 8 & 255]) << 16); break;
    case OP_CVT_E4M3X2_F2: LANES(f32_to_e4m3(F(B)) | f32_to_e4m3(F(A)) << 8); break;
    case OP_CVT_E2M1X2_F2: LANES(f32_to_e2m1(F(B)) | f32_to_e2m1(F(A)) << 4); break;
    case OP_CVT_F2F:        // im 0: 0 to f64, 1 to f32, 2 to an integral f32 by rounding im 1
      if (z == 0) LANES(bits_f64((double)F(A)));
      else if (z == 1) LANES(bits_f32((float)D(A)));
      else LANES(bits_f32((float)round_by(F(A), IM(1))));
      break;
    default: return fail(x->S, x->pc, "operation %d has no body", (int)I->op);
  }
  return OK;
}

int op_alu(Step *x) {
  PARTS(x);
  const u64 *a = I->ns > 0 && ss[0] >= 0 ? REG(ss[0]) : NULL, *b = I->ns > 1 ? REG(ss[1]) : a, *c3 = I->ns > 2 ? REG(ss[2]) : a;
  switch (I->op) {
    case OP_NOP: break;
    case OP_TRAP: return fail(S, pc, "trap executed");
    case OP_PMOV: case OP_PNOT: case OP_PAND: case OP_POR: case OP_PXOR: predicate(W, I, m); break;
    case OP_SETP: setp(W, I, ss, m); break;
    case OP_SELP: {
      u32 p = W->P[I->im[4]], undef = (W->undef[ss[0]] & p) | (W->undef[ss[1]] & ~p) | W->pundef[I->im[4]];
      LANES(p >> l & 1 ? A : B);
      set_undef(W, dd[0], m, undef);
      break;
    }
    case OP_MOV: LANES(A); break;
    case OP_UNPACK: unpack(W, I, dd, ss, m); break;
    case OP_PACK: pack(W, I, dd, ss, m); break;
    case OP_CLOCK: LANES(W->n + x->n); break;
    case OP_MAPA: LANES((A & 0xffffff) | (B & 0xff) << 24); break;
    case OP_ACTIVEMASK: LANES(m); break;
    case OP_ADD16: LANES((u16)(A + B)); break;
    case OP_ADD32: LANES((u32)(A + B)); break;
    case OP_ADD64: LANES(A + B); break;
    case OP_SUB16: LANES((u16)(A - B)); break;
    case OP_SUB32: LANES((u32)(A - B)); break;
    case OP_SUB64: LANES(A - B); break;
    case OP_ADDSAT: LANES(saturate32((i64)S32(A) + S32(B))); break;
    case OP_SUBSAT: LANES(saturate32((i64)S32(A) - S32(B))); break;
    case OP_MUL16: LANES((u16)(A * B)); break;
    case OP_MUL32: LANES((u32)(A * B)); break;
    case OP_MUL64: LANES(A * B); break;
    case OP_MULHIU32: LANES(((u64)(u32)A * (u32)B) >> 32); break;
    case OP_MULHIS32: LANES((u32)(((i64)S32(A) * S32(B)) >> 32)); break;
    case OP_MULHIU64: LANES((u64)(((unsigned __int128)A * B) >> 64)); break;
    case OP_MULHIS64: LANES((u64)(((__int128)(i64)A * (i64)B) >> 64)); break;
    case OP_MULWU16: LANES((u32)((u32)(u16)A * (u16)B)); break;
    case OP_MULWS16: LANES((u32)(S16(A) * S16(B))); break;
    case OP_MULWU32: LANES((u64)(u32)A * (u32)B); break;
    case OP_MULWS32: LANES((u64)((i64)S32(A) * S32(B))); break;
    case OP_MAD16: LANES((u16)(A * B + C)); break;
    case OP_MAD32: LANES((u32)(A * B + C)); break;
    case OP_MAD64: LANES(A * B + C); break;
    case OP_MADHIU32: LANES((u32)((((u64)(u32)A * (u32)B) >> 32) + C)); break;
    case OP_MADHIS32: LANES((u32)((((i64)S32(A) * S32(B)) >> 32) + (i64)C)); break;
    case OP_MADWU16: LANES((u32)((u32)(u16)A * (u16)B + C)); break;
    case OP_MADWS16: LANES((u32)(S16(A) * S16(B) + (i32)C)); break;
    case OP_MADWU32: LANES((u64)(u32)A * (u32)B + C); break;
    case OP_MADWS32: LANES((u64)((i64)S32(A) * S32(B) + (i64)C)); break;
    // division by zero is all ones on the device, and INT_MIN / -1 wraps
    case OP_DIVU32: LANES((u32)B ? (u32)A / (u32)B : 0xffffffffu); break;
    case OP_REMU32: LANES((u32)B ? (u32)A % (u32)B : (u32)A); break;
    case OP_DIVS32: LANES((u32)B ? (u32)((i64)S32(A) / S32(B)) : 0xffffffffu); break;
    case OP_REMS32: LANES((u32)B ? (u32)((i64)S32(A) % S32(B)) : (u32)A); break;
    case OP_DIVU64: LANES(B ? A / B : ~0ull); break;
    case OP_REMU64: LANES(B ? A % B : A); break;
    case OP_DIVS64: LANES(B ? B == ~0ull ? -A : (u64)((i64)A / (i64)B) : ~0ull); break;
    case OP_REMS64: LANES(B ? B == ~0ull ? 0 : (u64)((i64)A % (i64)B) : A); break;
    case OP_MINU: LANES(A < B ? A : B); break;
    case OP_MAXU: LANES(A > B ? A : B); break;
    case OP_MINS16: LANES((u16)(S16(A) < S16(B) ? A : B)); break;
    case OP_MAXS16: LANES((u16)(S16(A) > S16(B) ? A : B)); break;
    case OP_MINS32: case OP_MAXS32: {       // im 0: relu
      const int max = I->op == OP_MAXS32, relu = IM(0);
      if (I->ns > 2) LANES(relu_s32(relu, pick_s32(max, pick_s32(max, S32(A), S32(B)), S32(C))));
      else LANES(relu_s32(relu, pick_s32(max, S32(A), S32(B))));
      break;
    }
    case OP_MINS64: LANES((i64)A < (i64)B ? A : B); break;
    case OP_MAXS64: LANES((i64)A > (i64)B ? A : B); break;
    case OP_NEG16: LANES((u16)-A); break;
    case OP_NEG32: LANES((u32)-A); break;
    case OP_NEG64: LANES(-A); break;
    case OP_ABS32: LANES((u32)(S32(A) < 0 ? -A : A)); break;
    case OP_ABS64: LANES((i64)A < 0 ? -A : A); break;
    case OP_AND: LANES(A & B); break;
    case OP_OR: LANES(A | B); break;
    case OP_XOR: LANES(A ^ B); break;
    case OP_NOT16: LANES((u16)~A); break;
    case OP_NOT32: LANES((u32)~A); break;
    case OP_NOT64: LANES(~A); break;
    // shifts clamp their count
    case OP_SHL16: LANES((u32)B > 15 ? 0 : (u16)(A << (B & 15))); break;
    case OP_SHL32: LANES((u32)B > 31 ? 0 : (u32)(A << (B & 31))); break;
    case OP_SHL64: LANES((u32)B > 63 ? 0 : A << (B & 63)); break;
    case OP_SHRU: LANES((u32)B > 63 ? 0 : A >> (B & 63)); break;
    case OP_SHRS16: LANES((u16)(S16(A) >> ((u32)B > 15 ? 15 : (u32)B))); break;
    case OP_SHRS32: LANES((u32)(S32(A) >> ((u32)B > 31 ? 31 : (u32)B))); break;
    case OP_SHRS64: LANES((u64)((i64)A >> ((u32)B > 63 ? 63 : (u32)B))); break;
    case OP_POPC: LANES((u64)__builtin_popcountll(A)); break;
    case OP_CLZ32: LANES((u32)A ? (u64)__builtin_clz((u32)A) : 32); break;
    case OP_CLZ64: LANES(A ? (u64)__builtin_clzll(A) : 64); break;
    case OP_BREV32: LANES(reverse(A, 32)); break;
    case OP_BREV64: LANES(reverse(A, 64)); break;
    case OP_BFINDU32: LANES((u32)A ? (u64)(31 - __builtin_clz((u32)A)) : 0xffffffffu); break;
    case OP_BFEU32: LANES(bfe_u(A, B, C, 32)); break;
    case OP_BFEU64: LANES(bfe_u(A, B, C, 64)); break;
    case OP_BFES32: LANES(bfe_s32(A, B, C)); break;
    case OP_BFI32: LANES(bfi(A, B, C, REG(ss[3])[l], 32)); break;
    case OP_BFI64: LANES(bfi(A, B, C, REG(ss[3])[l], 64)); break;
    case OP_SHF_L: LANES(funnel(A, B, C, 1, IM(0))); break;
    case OP_SHF_R: LANES(funnel(A, B, C, 0, IM(0))); break;
    case OP_PRMT: LANES(prmt(A, B, C)); break;
    case OP_LOP3: lop3(W, I, dd, a, b, c3, m); break;
    case OP_DP4A: LANES(dp4a(A, B, C, IM(0), IM(1))); break;
    case OP_CVTI: LANES(convert_int(A, I)); break;
    default: return floating(x, a, b, c3);
  }
  return OK;
}
