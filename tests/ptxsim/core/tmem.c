// Tensor memory (sm_100a, sm_103a): 128 lanes x 512 columns of 32 bits a CTA; its allocation, loads and stores by warps, and who may touch a column now.
//
// Happens-before is kept per partition (the 32 lanes that one warp of four reaches) and column. A warp's loads and stores are
// agents of their own: they are complete for others once tcgen05.wait::ld or ::st has been passed, although the registers of a
// load may be used at once (compilers move that use over the wait; a note says so).
#include "numbers.h"

#define PARTITION 32

int tmem_tensor_agent(Warp *W) { return W->c->s->nwarps + W->gid; }
static int load_agent(Warp *W) { return 3 * W->c->s->nwarps + W->gid; }
static int store_agent(Warp *W) { return 4 * W->c->s->nwarps + W->gid; }

static int open_tmem(CTA *c) {
  if (c->tmem) return OK;
  c->tmem = calloc(TMEM_LANES * TMEM_COLUMNS, sizeof(u32));
  c->tmem_defined = calloc(TMEM_LANES * TMEM_COLUMNS, 1);
  c->tmem_write_agent = calloc(4 * TMEM_COLUMNS, sizeof(u16));
  c->tmem_write_clock = calloc(4 * TMEM_COLUMNS, sizeof(u32));
  c->tmem_reads = calloc((size_t)4 * TMEM_COLUMNS * 2 * c->s->nwarps, sizeof(u32));
  return OK;
}

int tmem_range(CTA *c, int pc, u32 col, u32 n, const char *what) {
  for (int i = 0; i < c->nallocs; i++) {
    TmemBlock *b = &c->alloc[i];
    if (col >= b->col && col + n <= b->col + b->n) {
      if (b->alive) return OK;
      return fail(c->s, pc, "%s: tensor memory columns %u to %u after their deallocation by warp %d", what, col, col + n - 1, b->freed_by);
    }
  }
  return fail(c->s, pc, "%s: tensor memory columns %u to %u are not inside one allocation of the CTA", what, col, col + n - 1);
}

static const char *last_writer(Sim *S, int agent, char *t, size_t room) {
  int n = S->nwarps;
  if (agent < n) snprintf(t, room, "the allocation or deallocation by warp %d", agent);
  else if (agent < 2 * n) snprintf(t, room, "the write by a tcgen05.mma or cp of warp %d (its commit was not waited for)", agent - n);
  else snprintf(t, room, "the tcgen05.st of warp %d (no wait::st seen)", agent - 4 * n);
  return t;
}

// `agent` touches columns [col, col + n) of the partitions in `parts` at its clock `now`, knowing `v`. Slots of the readers: loads of a warp, then tensor operations of a warp.
void tmem_access(CTA *c, int pc, u32 parts, u32 col, u32 n, const Clock *v, int agent, u32 now, int write) {
  Sim *S = c->s;
  if (!S->races) return;
  int nw = S->nwarps, own_load = agent >= 4 * nw ? agent - 4 * nw : -1;     // a warp's store comes after its own loads
  char t[120];
  for (u32 p = 0; p < 4; p++) {
    if (!(parts >> p & 1)) continue;
    for (u32 g = p * TMEM_COLUMNS + col; g < p * TMEM_COLUMNS + col + n; g++) {
      int w = c->tmem_write_agent[g] - 1;
      u32 *r = c->tmem_reads + (size_t)g * 2 * nw;
      if (w >= 0 && v->c[w] < c->tmem_write_clock[g] && !(w == agent && agent >= 4 * nw))
        report(S, R_TMEM_RACE, pc, "tensor memory column %u is %s, not ordered after %s", g % TMEM_COLUMNS, write ? "written" : "read", last_writer(S, w, t, sizeof t));
      if (!write) {
        r[agent >= 3 * nw ? agent - 3 * nw : agent] = now;
        continue;
      }
      for (int i = 0; i < 2 * nw; i++)
        if (r[i] > v->c[i < nw ? 3 * nw + i : i] && i != own_load) {
          if (i < nw) report(S, R_TMEM_RACE, pc, "tensor memory column %u is written, not ordered after the tcgen05.ld of warp %d (wait::ld, then a barrier that the writer waits for)", g % TMEM_COLUMNS, i);
          else report(S, R_TMEM_RACE, pc, "tensor memory column %u is written, not ordered after its use by a tcgen05.mma of warp %d (the commit was not waited for)", g % TMEM_COLUMNS, i - nw);
          break;
        }
      memset(r, 0, 2 * nw * sizeof *r);
      c->tmem_write_agent[g] = (u16)(agent + 1);
      c->tmem_write_clock[g] = now;
    }
  }
}

// What the manual asks of fences around synchronisation between threads. Notes: NVIDIA's own kernels go without.
void tmem_used(Step *x) {
  PARTS(x);
  if (W->synchronised) report(S, R_TMEM_FENCE, pc, "no tcgen05.fence::after_thread_sync between the last barrier of warp %d and this", W->wid);
  W->unfenced = 1;
}

// Before the warp signals others.
void tmem_signals(Step *x) {
  PARTS(x);
  if (W->unfenced) report(S, R_TMEM_FENCE, pc, "no tcgen05.fence::before_thread_sync between the last tcgen05 access of warp %d and this", W->wid);
}

// im: 0 whether before_thread_sync.
int op_tc_fence(Step *x) {
  if (x->I->im[0]) x->W->unfenced = 0;
  else x->W->synchronised = 0;
  return OK;
}

static int same_everywhere(Step *x, int source, const char *what, u32 *value) {
  PARTS(x);
  u64 *v = REG(ss[source]);
  if (W->undef[ss[source]] & m) report(S, R_UNINIT_ADDRESS, pc, "%s with an undefined operand", what);
  FOR_LANES(l, m)
    if ((u32)v[l] != (u32)v[first_lane(m)]) return fail(S, pc, "%s: operand %d differs between lanes", what, source);
  *value = (u32)v[first_lane(m)];
  return OK;
}

// im: 0 offset. Sources: shared address for the result, columns.
int op_tmem_alloc(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  u32 to, n, free = 0, places[TMEM_COLUMNS / 32], used = 0;
  if (same_everywhere(x, 0, "tcgen05.alloc", &to) || same_everywhere(x, 1, "tcgen05.alloc", &n)) return FAILED;
  if (n < 32 || n > TMEM_COLUMNS || n & (n - 1)) return fail(S, pc, "tcgen05.alloc of %u columns: a power of two from 32 to 512", n);
  if (c->relinquished) return fail(S, pc, "tcgen05.alloc after warp %d relinquished the right to allocate", c->relinquished - 1);
  for (u32 col = 0; col + n <= TMEM_COLUMNS; col += n) {
    int taken = 0;
    for (int i = 0; i < c->nallocs; i++) taken |= c->alloc[i].alive && col < c->alloc[i].col + c->alloc[i].n && c->alloc[i].col < col + n;
    if (!taken) places[free++] = col;
  }
  for (int i = 0; i < c->nallocs; i++) used += c->alloc[i].alive ? c->alloc[i].n : 0;
  if (!free) BLOCK(x, "waits for %u columns of tensor memory (%u of 512 are in use by the CTA)", n, used);
  // nothing promises a certain place: the first, the last, or any
  u32 col = places[S->mode == EAGER ? 0 : S->mode == LAZY ? free - 1 : random_bits(S) % free];
  int k = 0;
  while (k < c->nallocs && c->alloc[k].alive) k++;
  for (int i = 0; i < c->nallocs; i++)      // what covers freed columns again takes their place in the table
    if (!c->alloc[i].alive && c->alloc[i].col < col + n && col < c->alloc[i].col + c->alloc[i].n) c->alloc[i] = (TmemBlock){0, 0, 0, 0};
  if (k == MAX_TMEM_BLOCKS) return fail(S, pc, "more than %d allocations of tensor memory", MAX_TMEM_BLOCKS);
  if (k == c->nallocs) c->nallocs++;
  c->alloc[k] = (TmemBlock){col, n, 1, -1};
  open_tmem(c);
  for (int lane = 0; lane < TMEM_LANES; lane++) memset(c->tmem_defined + lane * TMEM_COLUMNS + col, 0, n);
  tmem_access(c, pc, 15, col, n, &W->vc, W->gid, W->vc.c[W->gid], 1);
  i64 o = (to + (u32)I->im[0]) & 0xffffff;
  if (o % 4) return fail(S, pc, "tcgen05.alloc: misaligned shared offset %lld", (long long)(o - SMEM_BASE));
  if (shared_range(c, pc, o, 4, "tcgen05.alloc") || not_over_mbarrier(c, pc, o, 4, "tcgen05.alloc")) return FAILED;
  hb_write(c, pc, o, 4, &W->vc, W->gid, W->vc.c[W->gid]);
  memcpy(c->sm + o, &col, 4);
  memset(c->defined + o, 1, 4);
  W->epoch++;
  return OK;
}

// Sources: address, columns.
int op_tmem_dealloc(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  u32 col, n;
  if (same_everywhere(x, 0, "tcgen05.dealloc", &col) || same_everywhere(x, 1, "tcgen05.dealloc", &n)) return FAILED;
  for (int i = 0; i < c->nallocs; i++)
    if (c->alloc[i].alive && c->alloc[i].col == col) {
      if (c->alloc[i].n != n) return fail(S, pc, "tcgen05.dealloc of %u columns at %u: %u were allocated there", n, col, c->alloc[i].n);
      tmem_access(c, pc, 15, col, n, &W->vc, W->gid, W->vc.c[W->gid], 1);
      c->alloc[i].alive = 0;
      c->alloc[i].freed_by = W->wid;
      W->vc.c[W->gid]++;
      return OK;
    }
  return fail(S, pc, "tcgen05.dealloc of %u columns at %u: there is no such allocation", n, col);
}

int op_tmem_relinquish(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  if (!c->relinquished) c->relinquished = W->wid + 1;
  return OK;
}

// The lane a warp of four reaches, and its columns.
static int lane_columns(Step *x, u32 at, u32 n, const char *what, u32 *lane, u32 *col) {
  PARTS(x);
  *lane = at >> 16, *col = at & 0xffff;
  if (*lane != PARTITION * (u32)(W->wid & 3)) return fail(S, pc, "%s: warp %d reaches lanes %d to %d, the address names lane %u", what, W->wid, PARTITION * (W->wid & 3), PARTITION * (W->wid & 3) + 31, *lane);
  return tmem_range(c, pc, *col, n, what);
}

// im: 0 columns, 1 offset, 2 reduction (0 none, 1 min, 2 max), 3 of absolute values, 4 NaN wins. Source: address. Destinations: columns (, the reduction).
int op_tmem_ld(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  u32 n = (u32)I->im[0], at, lane, col;
  if (same_everywhere(x, 0, "tcgen05.ld", &at) || lane_columns(x, at + (u32)I->im[1], n, "tcgen05.ld", &lane, &col)) return FAILED;
  tmem_used(x);
  W->nload++;
  tmem_access(c, pc, 1u << (lane / PARTITION), col, n, &W->vc, load_agent(W), W->nload, 0);
  float best[32];
  u32 undef_any = 0;
  for (u32 i = 0; i < n; i++) {
    u32 undef = 0;
    u64 got[32];
    for (u32 l = 0; l < 32; l++) {
      size_t g = (size_t)(lane + l) * TMEM_COLUMNS + col + i;
      got[l] = c->tmem[g];
      undef |= (u32)(c->tmem_defined[g] != 15) << l;
      float v = as_f32(got[l]);
      if (I->im[3]) v = fabsf(v);
      best[l] = i ? min_max_f32(best[l], v, I->im[2] == 2, (int)I->im[4]) : v;
    }
    undef_any |= undef;
    if (dd[i] < 0) continue;
    memcpy(REG(dd[i]), got, sizeof got);
    W->undef[dd[i]] = undef;
  }
  if (I->im[2] && dd[n] >= 0) {
    for (u32 l = 0; l < 32; l++) REG(dd[n])[l] = out_f32(best[l], 0);
    W->undef[dd[n]] = undef_any;
  }
  for (int i = 0; i < I->nd; i++)
    if (dd[i] >= 0 && !W->loading[dd[i]]) {
      W->loading[dd[i]] = 1;
      W->nloading++;
    }
  return OK;
}

// im: 0 columns, 1 offset. Sources: address, values.
int op_tmem_st(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  u32 n = (u32)I->im[0], at, lane, col;
  if (same_everywhere(x, 0, "tcgen05.st", &at) || lane_columns(x, at + (u32)I->im[1], n, "tcgen05.st", &lane, &col)) return FAILED;
  tmem_used(x);
  W->nstore++;
  tmem_access(c, pc, 1u << (lane / PARTITION), col, n, &W->vc, store_agent(W), W->nstore, 1);
  for (u32 i = 0; i < n; i++)
    for (u32 l = 0; l < 32; l++) {
      size_t g = (size_t)(lane + l) * TMEM_COLUMNS + col + i;
      c->tmem[g] = (u32)REG(ss[1 + i])[l];
      c->tmem_defined[g] = W->undef[ss[1 + i]] >> l & 1 ? 0 : 15;
    }
  return OK;
}

static void loads_done(Warp *W, int nregs) {
  memset(W->loading, 0, nregs);
  W->nloading = 0;
}

// im: 0 whether ::st.
int op_tmem_wait(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  if (I->im[0]) W->vc.c[store_agent(W)] = W->nstore;
  else {
    W->vc.c[load_agent(W)] = W->nload;
    if (W->nloading) loads_done(W, S->nreg + S->nconst);
  }
  return OK;
}

// Registers of a tcgen05.ld that are used before tcgen05.wait::ld: once for all of those in flight.
void tmem_hazards(Step *x) {
  PARTS(x);
  int hit = 0;
  for (int i = 0; i < I->ns; i++) hit |= ss[i] >= 0 && W->loading[ss[i]];
  if (!hit || I->op == OP_TMEM_WAIT) return;
  report(S, R_TMEM_EARLY, pc, "warp %d uses a register of a tcgen05.ld before tcgen05.wait::ld: right here, and on the device where the assembler waits for the register", W->wid);
  loads_done(W, S->nreg + S->nconst);
}
