// wgmma: queued on each of the four warps, which multiplies its own 16 rows when the group is waited for (lazy), at once (eager), or either (random).
#include "numbers.h"

enum { F16, BF16, S8, U8, E4M3 };
#define TAG(group) ((u16)((group) % 32000 + 1))

// Shared address of the 16 bytes at (row, byte) of a K-major operand. A base offset moves the place that the swizzle counts its rows of 128 bytes from.
static i64 operand_at(u64 desc, int row, int byte) {
  i64 start = (desc & 0x3fff) << 4, leading = (desc >> 16 & 0x3fff) << 4, stride = (desc >> 32 & 0x3fff) << 4;
  int layout = (int)(desc >> 62);
  if (layout == 0) return start + (row >> 3) * stride + (byte >> 4) * leading + (row & 7) * 16;
  i64 from = (i64)(desc >> 49 & 7) * 128, a = start + (row >> 3) * stride + (row & 7) * (layout == 1 ? 128 : layout == 2 ? 64 : 32) + byte;
  return a ^ swizzled(a - from, 4 - layout) ^ (a - from);
}

static void decode16(const u8 *p, int type, double *o) {
  if (type <= BF16) {
    u16 h[8];
    memcpy(h, p, 16);
    for (int i = 0; i < 8; i++) o[i] = half_to_f64(h[i], type);
  } else for (int i = 0; i < 16; i++) o[i] = type == S8 ? (double)(i8)p[i] : type == U8 ? (double)p[i] : (double)e4m3_value[p[i]];
}

// The 16 rows of one warp. im: 0 N, 1 bytes of K, 2 type, 3 A in shared memory, 4 and 5 scale-d predicate and its negation, 6 saturate.
static int multiply(Sim *S, Warp *W, WgmmaItem *q) {
  static double A[16][32], B[32][256], sum[16][256];      // [row][k], [k][column]; one launch a process at a time
  static int ea[16][32], eb[32][256];                     // exponents
  static u8 undef_col[256];
  Inst *I = &S->code[q->pc];
  CTA *c = W->c;
  const i32 *dd = S->pool + I->dof, *ss = S->pool + I->sof;
  int N = (int)I->im[0], type = (int)I->im[2], a_shared = (int)I->im[3], per16 = type <= BF16 ? 8 : 16, K = 2 * per16;
  u32 undef_row[2] = {0, 0};
  memset(undef_col, 0, sizeof undef_col);
  for (int is_b = !a_shared; is_b < 2; is_b++) {
    u64 desc = is_b ? q->desc_b : q->desc_a;
    for (int r = 0; r < (is_b ? N : 16); r++)
      for (int byte = 0; byte < 32; byte += 16) {
        i64 a = operand_at(desc, is_b ? r : r + 16 * (W->wid & 3), byte);
        if (shared_range(c, q->pc, a, 16, "wgmma operand")) return FAILED;
        hb_read(c, q->pc, a, 16, q->clock, S->nwarps + W->gid, (u32)q->group + 1);
        proxy_check(c, q->pc, a, 16, "wgmma reads");
        int defined = 1;
        for (int i = 0; i < 16; i++) defined &= c->defined[a + i];
        if (!defined && is_b) undef_col[r] = 1;
        if (!defined && !is_b) undef_row[r >> 3] |= 15u << (4 * (r & 7));
        double o[16];
        decode16(c->sm + a, type, o);
        for (int i = 0; i < per16; i++) *(is_b ? &B[byte / 16 * per16 + i][r] : &A[r][byte / 16 * per16 + i]) = o[i];
      }
  }
  for (int r = 0; r < 4 && !a_shared; r++) {
    undef_row[r & 1] |= spread_rows(W->undef[ss[r]]);
    for (int l = 0; l < 32; l++)
      for (int e = 0; e < per16 / 4; e++) {
        u64 x = REG(ss[r])[l];
        double v = type <= BF16 ? half_to_f64(x >> (16 * e), type) : type == S8 ? (double)(i8)(x >> (8 * e)) : (double)(u8)(x >> (8 * e));
        A[(l >> 2) + 8 * (r & 1)][per16 / 4 * (l & 3) + e + per16 * (r >> 1)] = v;
      }
  }
  int integers = type == S8 || type == U8, fraction = type == E4M3 ? E4M3_FRACTION : HALF_FRACTION, dot = type == F16 ? DOT_F16 : type == BF16 ? DOT_BF16 : DOT_E4M3;
  for (int r = 0; r < N / 2; r++) {       // register 4j + 2i + e: column block j, row half i, column e of a pair
    int j = r >> 2, i = r >> 1 & 1, e = r & 1;
    u64 *D = REG(dd[r]);
    for (int l = 0; l < 32; l++) sum[(l >> 2) + 8 * i][8 * j + 2 * (l & 3) + e] = q->scale_d && !integers ? (double)as_f32(D[l]) : 0.0;
  }
  for (int k = 0; k < K && !integers; k++) dot_exponents(B[k], eb[k], N, dot);
  for (int i = 0; i < 16; i++) {
    if (integers) {
      for (int k = 0; k < K; k++)
        for (int j = 0; j < N; j++) sum[i][j] += A[i][k] * B[k][j];
    } else {
      dot_exponents(A[i], ea[i], K, dot);
      dot_row(A[i], ea[i], B[0], eb[0], 256, sum[i], K, N, fraction, type == E4M3 ? E4M3_FRACTION : 23);
    }
  }
  for (int r = 0; r < N / 2; r++) {
    int j = r >> 2, i = r >> 1 & 1, e = r & 1, reg = dd[r];
    u64 *D = REG(reg);
    u32 undef = undef_row[i] | (q->scale_d ? W->undef[reg] : 0);
    for (int l = 0; l < 32; l++) {
      int col = 8 * j + 2 * (l & 3) + e;
      double v = sum[(l >> 2) + 8 * i][col];
      if (undef_col[col]) undef |= 1u << l;
      if (integers) {
        i64 s = (q->scale_d ? (i64)(i32)D[l] : 0) + (i64)v;
        if (I->im[6]) s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
        D[l] = (u32)s;
      } else D[l] = out_f32((float)v, 0);
    }
    W->undef[reg] = undef;
  }
  S->wgmmas++;
  return OK;
}

static void push(Warp *W, WgmmaItem q) {
  if (W->nwq == W->cwq) {
    W->cwq = W->cwq ? 2 * W->cwq : 32;
    W->wq = realloc(W->wq, W->cwq * sizeof(WgmmaItem));
  }
  W->wq[W->nwq++] = q;
}

static void hold(Warp *W, int reg, u16 tag) {
  if (!W->inflight[reg]) W->ninflight++;
  W->inflight[reg] = tag;
}

static void release(Warp *W, int reg, u16 tag) {
  if ((W->inflight[reg] & ~ARM_A) != tag) return;
  W->inflight[reg] = 0;
  W->ninflight--;
}

static int in_flight_accumulator(Warp *W, int reg) { return W->inflight[reg] && !(W->inflight[reg] & ARM_A); }

// Complete the groups numbered below `upto`.
static int drain(Sim *S, Warp *W, u32 upto) {
  int kept = 0;
  for (int i = 0; i < W->nwq; i++) {
    WgmmaItem *q = &W->wq[i];
    if ((u32)q->group >= upto) {
      W->wq[kept++] = *q;
      continue;
    }
    if (q->is_move) {
      if (S->mode != EAGER) {
        memcpy(REG(q->dst), REG(q->src), 32 * sizeof(u64));
        W->undef[q->dst] = W->undef[q->src];
      }
      release(W, q->dst, TAG(q->group));
      continue;
    }
    if (S->mode != EAGER && !q->executed && multiply(S, W, q)) return FAILED;
    free(q->clock);
    Inst *I = &S->code[q->pc];
    for (int k = 0; k < I->nd; k++) release(W, S->pool[I->dof + k], TAG(q->group));
    for (int k = 0; k < 4 && !I->im[3]; k++) release(W, S->pool[I->sof + k], TAG(q->group));
  }
  W->nwq = kept;
  return OK;
}

// What wgmma.fence has to lie between: ordinary accesses of A and the accumulator before, this instruction after.
static void fence_rules(Step *x, int scale_d) {
  PARTS(x);
  if (!W->fence_at) report(S, R_WGMMA_FENCE, pc, "first wgmma with no wgmma.fence before it");
  for (int i = 0; i < 4 && !I->im[3]; i++) {
    if (W->last_write[ss[i]] >= W->fence_at) report(S, R_WGMMA_FENCE, pc, "A operand register written after the last wgmma.fence");
    if (in_flight_accumulator(W, ss[i])) report(S, R_WGMMA_READ, pc, "A operand is an accumulator in flight");
  }
  for (int i = 0; i < I->nd; i++) {
    if (W->inflight[dd[i]]) continue;
    if (scale_d && W->last_write[dd[i]] >= W->fence_at) report(S, R_WGMMA_FENCE, pc, "accumulator written after the last wgmma.fence");
    else if (W->last_read[dd[i]] >= W->fence_at) report(S, R_WGMMA_FENCE, pc, "accumulator read after the last wgmma.fence, and now overwritten");
  }
}

// im: see multiply. Sources: A (descriptor, or 4 registers), descriptor of B.
int op_wgmma(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  if (m != ALL_LANES) return fail(S, pc, "wgmma by %d lanes", __builtin_popcount(m));
  int a_shared = (int)I->im[3], na = a_shared ? 1 : 4;
  u64 *da = REG(ss[0]), *db = REG(ss[na]);
  for (int l = 1; l < 32; l++)
    if (db[l] != db[0] || (a_shared && da[l] != da[0])) return fail(S, pc, "wgmma descriptor differs between lanes");
  if (W->undef[ss[na]] || (a_shared && W->undef[ss[0]])) report(S, R_UNINIT_SYNC, pc, "wgmma with an undefined descriptor");
  u32 scale_d = I->im[5] ? ~W->P[I->im[4]] : W->P[I->im[4]];
  if (scale_d != 0 && scale_d != ALL_LANES) return fail(S, pc, "wgmma scale-d differs between lanes");
  if (W->pundef[I->im[4]]) report(S, R_UNINIT_SYNC, pc, "wgmma with undefined scale-d");
  fence_rules(x, scale_d != 0);
  WgmmaItem q = {.group = (int)W->wgmma_open, .pc = pc, .scale_d = scale_d != 0, .desc_a = da[0], .desc_b = db[0], .clock = clock_copy(&W->vc)};
  // in random order only the first of a queue may run early: those behind it use the same accumulators
  if (S->mode == EAGER || (S->mode == RANDOM && !W->nwq && (random_bits(S) & 1))) {
    if (multiply(S, W, &q)) return FAILED;
    q.executed = 1;
  }
  push(W, q);
  W->nwgmma++;
  for (int i = 0; i < I->nd; i++) {
    W->is_acc[dd[i]] = 1;
    hold(W, dd[i], TAG(q.group));
  }
  for (int i = 0; i < 4 && !a_shared; i++) hold(W, ss[i], TAG(q.group) | ARM_A);
  W->vc.c[W->gid]++;
  return OK;
}

// im: 0 groups that may stay open.
int op_wgmma_wait(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  W->acc_mask = 0;
  u32 upto = W->wgmma_open > (u32)I->im[0] ? W->wgmma_open - (u32)I->im[0] : 0;
  if (drain(S, W, upto)) return FAILED;
  u32 *seen = &W->vc.c[S->nwarps + W->gid];
  if (*seen < upto) *seen = upto;
  return OK;
}

// An ordinary instruction while products are in flight.
void wgmma_hazards(Step *x) {
  PARTS(x);
  for (int i = 0; i < I->ns; i++)
    if (ss[i] >= 0 && in_flight_accumulator(W, ss[i])) report(S, R_WGMMA_READ, pc, "reads an accumulator of a wgmma in flight (no wait_group between), warp %d", W->wid);
  for (int i = 0; i < I->nd; i++)
    if (dd[i] >= 0 && W->inflight[dd[i]])
      report(S, R_WGMMA_WRITE, pc, "overwrites %s of a wgmma in flight, warp %d", W->inflight[dd[i]] & ARM_A ? "an A operand register" : "an accumulator", W->wid);
}

// PTX may move an accumulator in flight (a phi that ptxas removes): the move takes effect with the product. Returns 1 if it is put off, 2 if it happens now as well.
int wgmma_move(Step *x) {
  PARTS(x);
  if (!in_flight_accumulator(W, ss[0])) return 0;
  u16 tag = W->inflight[ss[0]];
  report(S, R_WGMMA_MOVE, pc, "moves an accumulator in flight: right here; whether ptxas removes the move shows in the SASS alone");
  WgmmaItem q = {.is_move = 1, .group = (int)W->wgmma_open, .pc = pc, .dst = dd[0], .src = ss[0]};
  for (int i = 0; i < W->nwq; i++)
    if (TAG(W->wq[i].group) == tag) q.group = W->wq[i].group;
  push(W, q);
  hold(W, dd[0], tag);
  return S->mode == EAGER ? 2 : 1;
}
