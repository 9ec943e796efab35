// mma.sync, ldmatrix and stmatrix. Sums are rounded as an H200 rounds them, which has no E4M3 unit for mma.sync: it widens to F16, multiplies the first two of every four k,
// then the other two, both from zero, and adds the accumulator by an ordinary addition.
#include "numbers.h"

enum { F16, BF16, S8, U8, E4M3 };

static double element(u64 reg, int e, int type) {
  if (type <= BF16) return half_to_f64(reg >> (16 * e), type);
  u8 v = (u8)(reg >> (8 * e));
  return type == S8 ? (double)(i8)v : type == U8 ? (double)v : (double)e4m3_value[v];
}

// d += a b
static void multiply(double a[16][32], double b[32][8], double d[16][8], int K, int dot) {
  int ea[32], eb[32][8];
  for (int k = 0; k < K; k++) dot_exponents(b[k], eb[k], 8, dot);
  for (int i = 0; i < 16; i++) {
    dot_exponents(a[i], ea, K, dot);
    dot_row(a[i], ea, b[0], eb[0], 8, d[i], K, 8, HALF_FRACTION, 23);
  }
}

// A row of a fragment is undefined where one of its four lanes is.
u32 spread_rows(u32 undef) {
  u32 o = 0;
  for (int g = 0; g < 8; g++)
    if (undef >> (4 * g) & 15) o |= 15u << (4 * g);
  return o;
}

// im: 0 type, 1 K, 2 registers of A, 3 of B. Sources: A.., B.., C (4).
int op_mma(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  int type = (int)I->im[0], K = (int)I->im[1], na = (int)I->im[2], nb = (int)I->im[3], per = type <= BF16 ? 2 : 4;
  double A[16][32], B[32][8], sum[16][8] = {{0}}, C0[16][8], half[16][32], other[32][8];
  u32 undef_row[2] = {0, 0}, undef_col = 0;
  for (int q = 0; q < na; q++) {
    u64 *r = REG(ss[q]);
    undef_row[q & 1] |= spread_rows(W->undef[ss[q]]);
    for (int l = 0; l < 32; l++)
      for (int e = 0; e < per; e++) A[(l >> 2) + 8 * (q & 1)][per * (l & 3) + e + 4 * per * (q >> 1)] = element(r[l], e, type);
  }
  for (int q = 0; q < nb; q++) {
    u64 *r = REG(ss[na + q]);
    for (int l = 0; l < 32; l++) {
      undef_col |= (W->undef[ss[na + q]] >> l & 1) << (l >> 2);
      for (int e = 0; e < per; e++) B[per * (l & 3) + e + 4 * per * q][l >> 2] = element(r[l], e, type);
    }
  }
  int integers = type == S8 || type == U8;
  for (int q = 0; q < 4; q++)
    for (int l = 0; l < 32; l++) C0[(l >> 2) + 8 * (q >> 1)][2 * (l & 3) + (q & 1)] = as_f32(REG(ss[na + nb + q])[l]);
  if (integers) {
    for (int i = 0; i < 16; i++)
      for (int k = 0; k < K; k++)
        for (int j = 0; j < 8; j++) sum[i][j] += A[i][k] * B[k][j];
  } else if (type == E4M3) {
    for (int h = 0; h < 2; h++) {
      for (int k = 0; k < K / 2; k++) {
        int from = 4 * (k >> 1) + 2 * h + (k & 1);
        for (int i = 0; i < 16; i++) half[i][k] = A[i][from];
        memcpy(other[k], B[from], sizeof other[k]);
      }
      multiply(half, other, sum, K / 2, DOT_F16);
    }
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 8; j++) sum[i][j] = (float)(sum[i][j] + C0[i][j]);
  } else {
    memcpy(sum, C0, sizeof sum);
    multiply(A, B, sum, K, type == F16 ? DOT_F16 : DOT_BF16);
  }
  u64 D[4][32];       // first all, then the registers: they may be those of C in another order
  u32 undef_out[4];
  for (int q = 0; q < 4; q++) {
    u64 *C = REG(ss[na + nb + q]);
    u32 undef = W->undef[ss[na + nb + q]] | undef_row[q >> 1];
    for (int l = 0; l < 32; l++) {
      int col = 2 * (l & 3) + (q & 1);
      double v = sum[(l >> 2) + 8 * (q >> 1)][col];
      undef |= (undef_col >> col & 1) << l;
      D[q][l] = integers ? (u32)((u32)C[l] + (u32)(i64)v) : out_f32((float)v, 0);
    }
    undef_out[q] = undef;
  }
  for (int q = 0; q < 4; q++) {
    memcpy(REG(dd[q]), D[q], sizeof D[q]);
    W->undef[dd[q]] = undef_out[q];
  }
  S->mmas++;
  return OK;
}

// im: 0 matrices, 1 transposed, 2 offset. Source: row addresses.
int op_ldmatrix(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  u64 rows[32];
  memcpy(rows, REG(ss[0]), sizeof rows);
  if (W->undef[ss[0]]) report(S, R_UNINIT_ADDRESS, pc, "ldmatrix from an undefined address");
  if (S->bank_use) banks_used(x, rows, (u64)I->im[2], (u32)((1ull << 8 * I->im[0]) - 1), 16);
  for (int q = 0; q < I->im[0]; q++) {
    u64 got[32];
    u32 undef = 0;
    for (int l = 0; l < 32; l++) {
      got[l] = 0;
      for (int e = 0; e < 2; e++) {
        int along = 2 * (l & 3) + e, row = I->im[1] ? along : l >> 2, col = I->im[1] ? l >> 2 : along;
        i64 o = (u32)(rows[8 * q + row] + I->im[2]) & 0xffffff;
        if (o % 16) return fail(S, pc, "ldmatrix: row at shared offset %lld is not 16-byte aligned", (long long)(o - SMEM_BASE));
        if (shared_range(c, pc, o, 16, "ldmatrix")) return FAILED;
        o += 2 * col;
        hb_read(c, pc, o, 2, &W->vc, W->gid, W->vc.c[W->gid]);
        u16 h;
        memcpy(&h, c->sm + o, 2);
        got[l] |= (u64)h << (16 * e);
        if (!(c->defined[o] & c->defined[o + 1])) undef |= 1u << l;
      }
    }
    memcpy(REG(dd[q]), got, sizeof got);
    W->undef[dd[q]] = undef;
  }
  return OK;
}

// Rows are written whole, as by the lane that names them. im: 0 matrices, 1 transposed, 2 offset. Sources: row addresses, values.
int op_stmatrix(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  u64 *rows = REG(ss[0]);
  if (W->undef[ss[0]] & (u32)((1ull << 8 * I->im[0]) - 1)) report(S, R_UNINIT_ADDRESS, pc, "stmatrix to an undefined address");
  if (S->bank_use) banks_used(x, rows, (u64)I->im[2], (u32)((1ull << 8 * I->im[0]) - 1), 16);
  for (int r = 0; r < 8 * I->im[0]; r++) {
    int q = 1 + r / 8, row = r % 8;
    i64 o = (u32)(rows[r] + I->im[2]) & 0xffffff;
    if (o % 16) return fail(S, pc, "stmatrix: row at shared offset %lld is not 16-byte aligned", (long long)(o - SMEM_BASE));
    if (shared_range(c, pc, o, 16, "stmatrix") || not_over_mbarrier(c, pc, o, 16, "stmatrix")) return FAILED;
    lane_write(c, pc, o, 16, W, r, 0);
    hb_write(c, pc, o, 16, &W->vc, W->gid, W->vc.c[W->gid]);
    proxy_stored(c, o, 16);
    for (int col = 0; col < 8; col++) {
      int l = I->im[1] ? 4 * col + row / 2 : 4 * row + col / 2, half = (I->im[1] ? row : col) & 1;
      u16 h = (u16)(REG(ss[q])[l] >> 16 * half);
      memcpy(c->sm + o + 2 * col, &h, 2);
      memset(c->defined + o + 2 * col, !(W->undef[ss[q]] >> l & 1), 2);
    }
  }
  for (int l = 0; l < 32; l++) lane_used_shared(W, l);
  return OK;
}
