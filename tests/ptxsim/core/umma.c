// tcgen05.mma, cp and commit. Each warp has a queue of them that runs in order: at once (eager), when nothing else can run (lazy), or at any moment (random).
//
// What the manual orders by itself: a mma after the mma and cp before it of the same thread. A cp is not ordered after the mma before it that reads
// the columns it overwrites; that needs a commit that has been waited for. Only a commit says that operands in shared memory have been read.
// cta_group::1; products and sums of an instruction are exact in float64, one rounding to fp32 follows.
#include "numbers.h"

enum { KIND_F16, KIND_F8, KIND_MXF8, KIND_MXF4 };       // im 0 of a mma

typedef struct {
  i64 start, leading, stride;
  int swizzle;
} Matrix;

// ---- descriptors
static int shared_matrix(Sim *S, int pc, u64 d, const char *what, Matrix *o) {
  static const int swizzles[8] = {0, -1, 3, -1, 2, -1, 1, -1};
  int version = (int)(d >> 46 & 3), layout = (int)(d >> 61);
  if (version != 1) return fail(S, pc, "%s: shared memory descriptor %#llx of version %d: tcgen05 has 1", what, (ull)d, version);
  if (d >> 49 & 7 || d >> 52 & 1) return fail(S, pc, "%s: shared memory descriptor %#llx with a base offset or an absolute leading dimension: not simulated", what, (ull)d);
  if (swizzles[layout] < 0) return fail(S, pc, "%s: shared memory descriptor %#llx of layout %d: not simulated", what, (ull)d, layout);
  o->start = (i64)(d & 0x3fff) << 4;
  o->leading = (i64)(d >> 16 & 0x3fff) << 4;
  o->stride = (i64)(d >> 32 & 0x3fff) << 4;
  o->swizzle = swizzles[layout];
  return OK;
}

// Shared address of the 16 bytes at (row, byte) of a K-major matrix.
static i64 matrix_at(const Matrix *d, int row, int byte) {
  if (!d->swizzle) return d->start + (row >> 3) * d->stride + (row & 7) * 16 + (byte >> 4) * d->leading;
  return swizzled(d->start + (row >> 3) * d->stride + (row & 7) * (16 << d->swizzle) + byte, d->swizzle);
}

// Checks of the 16 bytes at `a`, which an operation of `W` reads.
static int reads_shared(Sim *S, Warp *W, TcItem *q, i64 a, const char *what) {
  CTA *c = W->c;
  if (shared_range(c, q->pc, a, 16, what)) return FAILED;
  hb_read(c, q->pc, a, 16, q->clock, tmem_tensor_agent(W), q->number);
  proxy_check(c, q->pc, a, 16, what);
  (void)S;
  return OK;
}

static u8 defined16(const CTA *c, i64 a) {
  for (int i = 0; i < 16; i++)
    if (!c->defined[a + i]) return 0;
  return 1;
}

// ---- mma
typedef struct {
  int kind, M, N, K, format[2], negate[2], scale_id[2], e8m0, per_scale;      // per_scale: elements that share one
} Shape;

static int instruction_shape(Sim *S, TcItem *q, const Inst *I, Shape *o) {
  u32 d = q->idesc;
  int pc = q->pc, scaled;
  o->kind = (int)I->im[0];
  o->per_scale = (int)I->im[1];
  scaled = o->kind >= KIND_MXF8;
  o->K = o->kind == KIND_F16 ? 16 : o->kind == KIND_MXF4 ? 64 : 32;
  for (int i = 0; i < 2; i++) {
    o->format[i] = (int)(d >> (7 + 3 * i) & 7);
    o->negate[i] = (int)(d >> (13 + i) & 1);
  }
  o->scale_id[0] = (int)(d >> 29 & 3);
  o->scale_id[1] = (int)(d >> 4 & 3);
  o->e8m0 = (int)(d >> 23 & 1);
  o->N = (int)(d >> 17 & 63) * 8;
  o->M = (int)(d >> 24 & 31) * 16;
  if (d >> 2 & 1 || d >> 15 & 3) return fail(S, pc, "tcgen05.mma: instruction descriptor %#x of a sparse or transposed operand: not simulated", d);
  if (d >> 3 & 1 || d >> 6 & 1) return fail(S, pc, "tcgen05.mma: instruction descriptor %#x: reserved bits or integer saturation are set", d);
  if (o->M != 128 && (scaled || o->M != 64)) return fail(S, pc, "tcgen05.mma: M = %d in instruction descriptor %#x: cta_group::1 has %s", o->M, d, scaled ? "128" : "64 and 128");
  if (o->N < 8 || o->N > 256 || (o->M == 128 && !scaled && o->N % 16)) return fail(S, pc, "tcgen05.mma: N = %d in instruction descriptor %#x", o->N, d);
  if (!scaled) {
    if ((d >> 4 & 3) != 1) return fail(S, pc, "tcgen05.mma: accumulator type %u in instruction descriptor %#x: only fp32 (1) is simulated", d >> 4 & 3, d);
    if (d >> 29) return fail(S, pc, "tcgen05.mma: instruction descriptor %#x: bits 29 to 31 are set", d);
  } else {
    if (d >> 31) return fail(S, pc, "tcgen05.mma: instruction descriptor %#x of another K: not simulated", d);
    int scales = o->K / o->per_scale;
    for (int i = 0; i < 2; i++)
      if (o->scale_id[i] % scales) return fail(S, pc, "tcgen05.mma: scale id %d of %c with %d scales a row: they lie in one word", o->scale_id[i], 'A' + i, scales);
    if (o->per_scale == 32 && !o->e8m0) return fail(S, pc, "tcgen05.mma: E4M3 scales (bit 23 of instruction descriptor %#x) need groups of 16", d);
  }
  for (int i = 0; i < 2; i++) {
    int ok = o->kind == KIND_MXF4 ? o->format[i] == 1 : o->format[i] <= 1;
    if (!ok) return fail(S, pc, "tcgen05.mma: format %d of operand %c in instruction descriptor %#x: %s", o->format[i], 'A' + i, d,
                         o->kind == KIND_F16 ? "F16 (0) and BF16 (1) are simulated" : o->kind == KIND_MXF4 ? "E2M1 is 1" : "E4M3 (0) and E5M2 (1) are simulated");
  }
  return OK;
}

static void decode_row(const u8 *p, const Shape *s, int operand, double *o, int at) {
  static const double e2m1[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
  double sign = s->negate[operand] ? -1 : 1;
  if (s->kind == KIND_F16) {
    u16 h[8];
    memcpy(h, p, 16);
    for (int i = 0; i < 8; i++) o[at / 2 + i] = sign * half_to_f64(h[i], s->format[operand]);
  } else if (s->kind == KIND_MXF4)
    for (int i = 0; i < 16; i++) {
      o[2 * (at + i)] = sign * e2m1[p[i] & 15];
      o[2 * (at + i) + 1] = sign * e2m1[p[i] >> 4];
    }
  else
    for (int i = 0; i < 16; i++) o[at + i] = sign * (s->format[operand] ? f16_value[p[i] << 8] : (double)e4m3_value[p[i]]);       // E5M2 is the upper half of a F16
}

static int read_operand(Sim *S, Warp *W, TcItem *q, const Shape *s, int operand, double (*rows)[64], u8 *undef) {
  Matrix d;
  int n = operand ? s->N : s->M;
  const char *what = operand ? "tcgen05.mma reads B at" : "tcgen05.mma reads A at";
  if (shared_matrix(S, q->pc, operand ? q->b : q->a, operand ? "operand B" : "operand A", &d)) return FAILED;
  for (int r = 0; r < n; r++) {
    undef[r] = 0;
    for (int byte = 0; byte < 32; byte += 16) {
      i64 a = matrix_at(&d, r, byte);
      if (reads_shared(S, W, q, a, what)) return FAILED;
      undef[r] |= !defined16(W->c, a);
      decode_row(W->c->sm + a, s, operand, rows[r], byte);
    }
  }
  return OK;
}

static double scale_value(u32 byte, int e8m0) {
  if (!e8m0) return e4m3_value[byte & 127];     // unsigned: bit 7 plays no part
  return byte == 255 ? NAN : ldexp(1, (int)byte - 127);
}

// Scales of rows `first` to `end` - 1 as partition p of tensor memory holds them: row r in lane r % 32 of it, column r / 32, bytes from `id`.
static void read_scales(CTA *c, u32 col, int first, int end, int p, const Shape *s, int operand, double (*scale)[4], u8 *undef) {
  int each = s->K / s->per_scale, id = s->scale_id[operand];
  u32 need = ((1u << each) - 1) << id;
  for (int r = first; r < end; r++) {
    size_t g = (size_t)(32 * p + r % 32) * TMEM_COLUMNS + col + r / 32;
    if ((c->tmem_defined[g] & need) != need) undef[r] = 1;
    for (int i = 0; i < each; i++) scale[r][i] = scale_value(c->tmem[g] >> (8 * (id + i)) & 255, s->e8m0);
  }
}

static int multiply(Sim *S, Warp *W, TcItem *q) {
  static double A[128][64], B[256][64], scaled[64][256], scale[256][4], sum[32][256];     // one launch a process at a time
  static u8 undef_row[128], undef_code[256], undef_col[256];
  CTA *c = W->c;
  const Inst *I = &S->code[q->pc];
  Shape s;
  if (instruction_shape(S, q, I, &s) || read_operand(S, W, q, &s, 0, A, undef_row) || read_operand(S, W, q, &s, 1, B, undef_code)) return FAILED;
  u32 lane = q->d >> 16, col = q->d & 0xffff, n = (u32)s.N;
  if (lane && !(s.M == 64 && lane == 16)) return fail(S, q->pc, "tcgen05.mma: accumulator at lane %u", lane);
  if (tmem_range(c, q->pc, col, n, "accumulator of tcgen05.mma")) return FAILED;
  int with_scales = s.kind >= KIND_MXF8, agent = tmem_tensor_agent(W), rows = s.M / 4;
  for (int i = 0; with_scales && i < 2; i++) {
    u32 at = (i ? q->scale_b : q->scale_a) & 0x3fffffff, columns = (u32)((i ? s.N : s.M) + 31) / 32;      // the upper two bits repeat the scale id
    if (at >> 16) return fail(S, q->pc, "tcgen05.mma: scales of %c at lane %u", 'A' + i, at >> 16);
    if (tmem_range(c, q->pc, at, columns, "scales of tcgen05.mma")) return FAILED;
    if (at < col + n && col < at + columns) return fail(S, q->pc, "tcgen05.mma: scales of %c in columns of the accumulator", 'A' + i);
    tmem_access(c, q->pc, 15, at, columns, q->clock, agent, q->number, 0);
  }
  tmem_access(c, q->pc, 15, col, n, q->clock, agent, q->number, 1);
  for (int p = 0; p < 4; p++) {
    memcpy(undef_col, undef_code, n);
    if (with_scales) {
      read_scales(c, q->scale_a & 0xffff, rows * p, rows * (p + 1), p, &s, 0, scale, undef_row);
      for (int r = rows * p; r < rows * (p + 1); r++)
        for (int k = 0; k < s.K; k++) A[r][k] *= scale[r][k / s.per_scale];
      read_scales(c, q->scale_b & 0xffff, 0, s.N, p, &s, 1, scale, undef_col);
    }
    for (int k = 0; k < s.K; k++)
      for (int j = 0; j < s.N; j++) scaled[k][j] = with_scales ? B[j][k] * scale[j][k / s.per_scale] : B[j][k];
    for (int i = 0; i < rows; i++) {
      int r = rows * p + i;
      double *o = sum[i];
      memset(o, 0, n * sizeof *o);
      for (int k = 0; k < s.K; k++) {
        double a = A[r][k];
        for (u32 j = 0; j < n; j++) o[j] += a * scaled[k][j];
      }
      size_t g = (size_t)(32 * p + (int)lane + i) * TMEM_COLUMNS + col;
      for (u32 j = 0; j < n; j++) {
        int defined = !(undef_row[r] | undef_col[j]) && (!q->accumulate || c->tmem_defined[g + j] == 15);
        c->tmem[g + j] = (u32)out_f32((float)((q->accumulate ? (double)as_f32(c->tmem[g + j]) : 0.0) + o[j]), 0);
        c->tmem_defined[g + j] = defined ? 15 : 0;
      }
    }
  }
  S->ummas++;
  return OK;
}

// ---- cp. im: 0 shape, 1 offset.
static int copy_to_tmem(Sim *S, Warp *W, TcItem *q) {
  static const struct { int rows, bytes; } shapes[] = {{32, 16}, {128, 16}, {128, 32}, {64, 16}, {64, 16}, {4, 32}};     // decode/tensor.py::CP_SHAPES
  CTA *c = W->c;
  int shape = (int)S->code[q->pc].im[0], rows = shapes[shape].rows, bytes = shapes[shape].bytes;
  Matrix d;
  u32 col = q->d & 0xffff, n = (u32)bytes / 4;
  if (q->d >> 16) return fail(S, q->pc, "tcgen05.cp to lane %u", q->d >> 16);
  if (shared_matrix(S, q->pc, q->a, "tcgen05.cp", &d) || tmem_range(c, q->pc, col, n, "tcgen05.cp")) return FAILED;
  tmem_access(c, q->pc, 15, col, n, q->clock, tmem_tensor_agent(W), q->number, 1);
  for (int r = 0; r < rows; r++)
    for (int byte = 0; byte < bytes; byte += 16) {
      i64 a = matrix_at(&d, r, byte);
      if (reads_shared(S, W, q, a, "tcgen05.cp reads")) return FAILED;
      for (int p = 0; p < 4; p++) {       // does partition p take this row, and where
        int takes = shape == 0 || (shape == 3 ? p % 2 == r / 32 : shape == 4 ? p / 2 == r / 32 : shape == 5 ? p == r : p == r / 32);
        if (!takes) continue;
        size_t g = (size_t)(32 * p + (shape == 5 ? 0 : r % 32)) * TMEM_COLUMNS + col + byte / 4;
        memcpy(c->tmem + g, c->sm + a, 16);
        for (int i = 0; i < 4; i++) {
          u8 *defined = c->defined + a + 4 * i;
          c->tmem_defined[g + i] = (u8)((defined[0] != 0) | (defined[1] != 0) << 1 | (defined[2] != 0) << 2 | (defined[3] != 0) << 3);
        }
      }
    }
  return OK;
}

// ---- the queue of a warp
static int run_item(Sim *S, Warp *W, TcItem *q) {
  int r;
  if (q->op == OP_TC_COMMIT) {
    r = OK;
    for (u32 rank = 0, mask = (u32)q->b; r == OK && rank < (u32)S->nctas; rank++) {     // a mask: the mbarrier at that offset in each CTA of it
      if (mask && !(mask >> rank & 1)) continue;
      MBar *b = mbar_at(S, q->pc, mask ? (q->d & 0xffffff) | rank << 24 : q->d);
      if (b) b->signalled = b->phase + 1;
      r = b ? mbar_arrive(S, q->pc, b, 1, 0, q->clock) : FAILED;
      if (!mask) break;
    }
  } else r = q->op == OP_TC_MMA ? multiply(S, W, q) : copy_to_tmem(S, W, q);
  free(q->clock);
  return r;
}

// Perform the oldest operation of the queue.
int umma_run(Sim *S, Warp *W) {
  TcItem q = W->tq[0];
  W->ntq--;
  S->tensor_pending--;
  memmove(W->tq, W->tq + 1, W->ntq * sizeof *W->tq);
  return run_item(S, W, &q);
}

static int enqueue(Step *x, TcItem *q) {
  PARTS(x);
  q->op = (int)I->op;
  q->pc = pc;
  q->number = ++W->ntensor;
  q->clock = clock_copy(&W->vc);
  int agent = tmem_tensor_agent(W);
  if (I->op != OP_TC_CP) q->clock->c[agent] = q->number - (I->op == OP_TC_MMA);       // after all before it; a commit stands for itself as well
  if (I->op == OP_TC_COMMIT) q->clock->c[W->gid] = 0;       // says nothing of what the warp itself loaded and stored
  W->vc.c[W->gid]++;
  if (W->ntq == W->ctq) {
    W->ctq = W->ctq ? 2 * W->ctq : 32;
    W->tq = realloc(W->tq, W->ctq * sizeof *W->tq);
  }
  W->tq[W->ntq++] = *q;
  S->tensor_pending++;
  return S->mode == EAGER ? umma_run(S, W) : OK;
}

// These are issued by one thread; a commit tracks what its own thread issued.
static int one_lane(Step *x, const char *what) {
  PARTS(x);
  int lane = (int)first_lane(m);
  if (m & (m - 1)) return fail(S, pc, "%s by %d lanes: it is issued by one (elect.sync)", what, __builtin_popcount(m));
  for (int i = 0; i < I->ns; i++)
    if (W->undef[ss[i]] & m) report(S, R_UNINIT_ADDRESS, pc, "%s with an undefined operand", what);
  if (W->tensor_lane >= 0 && W->tensor_lane != lane) report(S, R_TMEM_LANE, pc, "lane %d of warp %d goes on where lane %d issued: a commit tracks the operations of its own thread only", lane, W->wid, W->tensor_lane);
  W->tensor_lane = lane;
  return OK;
}

// im: 0 kind, 1 elements a scale (0: none), 2 and 3 offsets of D and of the scales of A, 4 of B, 5 predicate "accumulate", 6 its negation, 7 disable-output-lane operands.
// Sources: D, descriptors of A and B, instruction descriptor (, scales of A, of B) (, lanes to leave out).
int op_umma(Step *x) {
  PARTS(x);
  if (one_lane(x, "tcgen05.mma")) return FAILED;
  u32 l = first_lane(m);
  int with_scales = I->im[1] != 0;
  u32 accumulate = W->P[I->im[5]] >> l & 1;
  if (W->pundef[I->im[5]] >> l & 1) report(S, R_UNINIT_SYNC, pc, "tcgen05.mma with undefined enable-input-d");
  for (int i = 0; i < I->im[7]; i++)
    if ((u32)REG(ss[4 + i])[l]) return fail(S, pc, "tcgen05.mma that leaves out lanes: not simulated");
  tmem_used(x);
  TcItem q = {.d = (u32)(REG(ss[0])[l] + I->im[2]), .a = REG(ss[1])[l], .b = REG(ss[2])[l], .idesc = (u32)REG(ss[3])[l], .accumulate = I->im[6] ? !accumulate : accumulate};
  if (with_scales) {
    q.scale_a = (u32)(REG(ss[4])[l] + I->im[3]);
    q.scale_b = (u32)(REG(ss[5])[l] + I->im[4]);
  }
  return enqueue(x, &q);
}

// Sources: address, descriptor.
int op_umma_cp(Step *x) {
  PARTS(x);
  if (one_lane(x, "tcgen05.cp")) return FAILED;
  u32 l = first_lane(m);
  tmem_used(x);
  TcItem q = {.d = (u32)(REG(ss[0])[l] + I->im[1]), .a = REG(ss[1])[l]};
  return enqueue(x, &q);
}

// im: 0 offset. Sources: mbarrier (, mask of CTAs).
int op_umma_commit(Step *x) {
  PARTS(x);
  if (one_lane(x, "tcgen05.commit")) return FAILED;
  TcItem q = {.d = (u32)(REG(ss[0])[first_lane(m)] + I->im[0]), .b = I->ns > 1 ? REG(ss[1])[first_lane(m)] & 0xffff : 0};
  if (I->ns > 1 && (!q.b || q.b >> S->nctas)) return fail(S, pc, "tcgen05.commit to CTAs %#x of a cluster of %d", (u32)q.b, S->nctas);
  MBar *b = mbar_at(S, pc, q.d);
  if (!b) return FAILED;
  mbar_used(S, pc, b, W);
  mbar_signalled_by_copy(S, pc, b);
  W->unfenced = 0;
  return enqueue(x, &q);
}
