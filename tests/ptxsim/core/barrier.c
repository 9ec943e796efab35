// mbarriers, named barriers, the cluster barrier, fences.
#include "sim.h"

static int offset_of(MBar *b) { return (b->addr & 0xffffff) - SMEM_BASE; }

MBar *mbar_at(Sim *S, int pc, u64 a) {
  int rank = (int)(a >> 24 & 0xff);
  i64 o = a & 0xffffff;
  if (rank >= S->nctas) {
    fail(S, pc, "mbarrier address %#llx names CTA %d of a cluster of %d", (ull)a, rank, S->nctas);
    return NULL;
  }
  CTA *c = &S->ctas[rank];
  if (o < SMEM_BASE || o + 8 > c->size || o % 8 || c->mbar_at[o >> 3] < 0 || !c->mb[c->mbar_at[o >> 3]].alive) {
    fail(S, pc, "no mbarrier at shared offset %lld", (long long)(o - SMEM_BASE));
    return NULL;
  }
  return &c->mb[c->mbar_at[o >> 3]];
}

static void complete_if_done(MBar *b) {
  if (b->pending || b->tx) return;
  b->phase++;
  b->pending = b->count;
  b->done = b->collecting;
  b->done.c[b->agent] = b->phase;
  memset(&b->collecting, 0, sizeof b->collecting);
  b->collecting.c[b->agent] = b->phase;
}

int mbar_arrive(Sim *S, int pc, MBar *b, u32 n, i64 tx, const Clock *v) {
  clock_join(&b->collecting, v);
  b->tx += tx;
  if (n > b->pending) return fail(S, pc, "over-arrival: %u arrivals on the mbarrier at shared offset %d, %u pending of %u", n, offset_of(b), b->pending, b->count);
  b->pending -= n;
  complete_if_done(b);
  return OK;
}

static void bytes_done(MBar *b, i64 n, const Clock *v) {
  clock_join(&b->collecting, v);
  b->tx -= n;
  complete_if_done(b);
}

// A copy of n bytes has landed.
void mbar_bytes(MBar *b, i64 n, const Clock *v) {
  b->signalled = b->phase + 1;
  bytes_done(b, n, v);
}

void mbar_used(Sim *S, int pc, MBar *b, Warp *W) {
  if (S->races && W->vc.c[b->init_warp] < b->init_clock)
    report(S, R_MBARRIER_INIT, pc, "warp %d uses the mbarrier at shared offset %d, not ordered after its init by warp %u", W->gid, offset_of(b), b->init_warp);
}

void mbar_signalled_by_copy(Sim *S, int pc, MBar *b) {
  if (!b->fenced) report(S, R_PROXY, pc, "a copy signals the mbarrier at shared offset %d with no fence.mbarrier_init or fence.proxy.async after its init", offset_of(b));
}

// im: 0 offset. Sources: address, count.
int op_mbar_init(Step *x) {
  PARTS(x);
  FOR_LANES(l, m) {
    i64 o = (u32)(REG(ss[0])[l] + I->im[0]) & 0xffffff;
    if (o % 8) return fail(S, pc, "misaligned mbarrier at shared offset %lld", (long long)(o - SMEM_BASE));
    if (shared_range(c, pc, o, 8, "mbarrier.init")) return FAILED;
    int k = c->mbar_at[o >> 3];
    if (k < 0) {
      if (c->nmb == MAX_MBARRIERS) return fail(S, pc, "more than %d mbarriers", MAX_MBARRIERS);
      k = c->mbar_at[o >> 3] = (i16)c->nmb++;
    } else if (c->mb[k].alive) report(S, R_MBARRIER_TWICE, pc, "mbarrier at shared offset %lld initialised twice", (long long)(o - SMEM_BASE));
    MBar *b = &c->mb[k];
    memset(b, 0, sizeof *b);
    b->count = b->pending = (u32)REG(ss[1])[l];
    if (!b->count) return fail(S, pc, "mbarrier.init with count 0");
    b->addr = (i32)(o | c->rank << 24);
    b->agent = AGENTS_PER_WARP * S->nwarps + c->rank * MAX_MBARRIERS + k;
    b->alive = 1;
    b->init_warp = (u32)W->gid;
    b->init_clock = W->vc.c[W->gid];
  }
  return OK;
}

int op_mbar_inval(Step *x) {
  PARTS(x);
  FOR_LANES(l, m) {
    MBar *b = mbar_at(S, pc, (u32)(REG(ss[0])[l] + I->im[0]));
    if (!b) return FAILED;
    b->alive = 0;
  }
  return OK;
}

// Also expect_tx and complete_tx alone. im: 0 offset, 1 expect_tx. Sources: address (, count or bytes).
int op_mbar_arrive(Step *x) {
  PARTS(x);
  if (S->races && I->op == OP_MB_ARRIVE && !I->im[1] && W->acc_epoch == W->epoch && W->acc_mask & ~m)
    report(S, R_LANE_RACE, pc, "lanes %#x of warp %d arrive, but lanes %#x used shared memory since the last .sync: their accesses are not covered by this arrival", m, W->wid, W->acc_mask & ~m);
  tmem_signals(x);
  FOR_LANES(l, m) {
    MBar *b = mbar_at(S, pc, (u32)(REG(ss[0])[l] + I->im[0]));
    if (!b) return FAILED;
    mbar_used(S, pc, b, W);
    u32 v = I->ns > 1 ? (u32)REG(ss[1])[l] : 1;
    if (I->op == OP_MB_COMPLETE) bytes_done(b, v, &W->vc);
    else if (I->op == OP_MB_EXPECT) {
      b->tx += v;
      complete_if_done(b);      // bytes that came before they were expected
    } else if (mbar_arrive(S, pc, b, I->im[1] ? 1 : v, I->im[1] ? v : 0, &W->vc)) return FAILED;
  }
  W->vc.c[W->gid]++;
  if (I->nd && dd[0] >= 0) {      // the phase token: nobody here waits by token
    FOR_LANES(l, m) REG(dd[0])[l] = 0;
    set_undef(W, dd[0], m, 0);
  }
  return OK;
}

// im: 0 offset, 1 try_wait (may suspend; test_wait never does), 6 destination predicate. Sources: address, parity.
int op_mbar_wait(Step *x) {
  PARTS(x);
  MBar *open = NULL, *last = NULL;
  if ((W->undef[ss[0]] | W->undef[ss[1]]) & m) report(S, R_UNINIT_SYNC, pc, "mbarrier wait with undefined address or parity");
  u32 parity = 0;
  FOR_LANES(l, m) {
    MBar *b = mbar_at(S, pc, (u32)(REG(ss[0])[l] + I->im[0]));
    if (!b) return FAILED;
    mbar_used(S, pc, b, W);
    if ((b->phase & 1) == (REG(ss[1])[l] & 1)) open = b, parity = REG(ss[1])[l] & 1;
  }
  if (open) {
    // try_wait may give up at any moment: programs that do not loop show
    int give_up = S->mode != EAGER && W->spurious < 3 && (random_bits(S) & 1);
    if (!I->im[1] || give_up) {
      W->spurious += (int)I->im[1];
      set_pred(W, (int)I->im[6], m, 0, 0);
      return OK;
    }
    BLOCK(x, "waits for phase parity %u of the mbarrier at shared offset %d (count %u, pending %u, bytes outstanding %lld, phases completed %u)", parity, offset_of(open), open->count,
          open->pending, (long long)open->tx, open->phase);
  }
  W->spurious = 0;
  W->synchronised = 1;
  FOR_LANES(l, m) {
    MBar *b = mbar_at(S, pc, (u32)(REG(ss[0])[l] + I->im[0]));
    if (b != last) clock_join(&W->vc, &b->done);
    last = b;
    b->seen = b->phase;
  }
  set_pred(W, (int)I->im[6], m, ALL_LANES, 0);
  return OK;
}

// im: 0 arrive only. Sources: barrier (, threads).
int op_bar(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  u32 id = (u32)REG(ss[0])[first_lane(m)], all = (u32)c->nw * 32, want = I->ns > 1 ? (u32)REG(ss[1])[first_lane(m)] : all;
  if (id > 15) return fail(S, pc, "named barrier %u: there are 16", id);
  if (!want || want % 32 || want > all) return fail(S, pc, "named barrier %u for %u threads: the CTA has %u", id, want, all);
  NamedBarrier *b = &c->bar[id];
  if (W->bar == (int)id) {      // has arrived, and waits
    if (b->gen == W->bar_gen) BLOCK(x, "waits at named barrier %u (%u of %u threads arrived)", id, b->n, b->want);
    W->bar = -1;
    W->synchronised = 1;
    W->epoch++;
    clock_join(&W->vc, &b->done);
    return OK;
  }
  if (b->n == 0) {
    b->want = want;
    memset(&b->collecting, 0, sizeof b->collecting);
  } else if (b->want != want) return fail(S, pc, "named barrier %u: %u threads expected here, %u by the warps already there", id, want, b->want);
  tmem_signals(x);
  clock_join(&b->collecting, &W->vc);
  W->vc.c[W->gid]++;
  W->epoch++;
  b->n += 32;
  if (b->n >= want) {
    b->n = 0;
    b->gen++;
    b->done = b->collecting;
    if (!I->im[0]) {
      clock_join(&W->vc, &b->done);
      W->synchronised = 1;
    }
    return OK;
  }
  if (I->im[0]) return OK;
  W->bar = (int)id;
  W->bar_gen = b->gen;
  BLOCK(x, "waits at named barrier %u (%u of %u threads arrived)", id, b->n, want);
}

int op_bar_warp(Step *x) {
  PARTS(x);
  NEED(x, (u32)REG(ss[0])[first_lane(m)]);
  W->epoch++;
  return OK;
}

int op_cluster_arrive(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  W->epoch++;
  clock_join(&S->cluster_collecting, &W->vc);
  W->vc.c[W->gid]++;
  W->cluster_gen = S->cluster_gen;
  if (++S->cluster_arrived == (u32)S->nwarps) {
    S->cluster_arrived = 0;
    S->cluster_gen++;
    S->cluster_done = S->cluster_collecting;
    memset(&S->cluster_collecting, 0, sizeof(Clock));
  }
  return OK;
}

int op_cluster_wait(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  if (S->cluster_gen == W->cluster_gen) BLOCK(x, "waits at the cluster barrier (%u of %d warps arrived)", S->cluster_arrived, S->nwarps);
  clock_join(&W->vc, &S->cluster_done);
  return OK;
}

// fence.mbarrier_init, and fence.proxy.async, which also hands over the stores this warp knows of.
int op_fence(Step *x) {
  PARTS(x);
  for (int i = 0; i < c->nmb; i++)
    if ((int)c->mb[i].init_warp == W->gid) c->mb[i].fenced = 1;
  if (I->op == OP_FENCE_MB) return OK;
  int kept = 0;
  for (int i = 0; i < c->ndirty; i++) {
    i32 g = c->dirty_list[i];
    int w = S->races ? c->write_agent[g] - 1 : -1;
    if (w >= 0 && w != W->gid && W->vc.c[w] < c->write_clock[g]) c->dirty_list[kept++] = g;     // a store it has not seen
    else c->dirty[g] = 0;
  }
  c->ndirty = kept;
  return OK;
}

// Registers move between the warps of a CTA, which has those that it started with and no more. im: 0 whether inc, 1 registers of a thread.
int op_setmaxnreg(Step *x) {
  PARTS(x);
  NEED(x, ALL_LANES);
  int n = (int)I->im[1], more = n - W->registers;
  if (n < 24 || n > 256 || n % 8) return fail(S, pc, "setmaxnreg to %d: a multiple of 8 from 24 to 256", n);
  if (I->im[0] ? more < 0 : more > 0) return fail(S, pc, "setmaxnreg.%s to %d where warp %d has %d", I->im[0] ? "inc" : "dec", n, W->wid, W->registers);
  if (more > c->free_registers)
    BLOCK(x, "waits for %d registers a thread (it has %d; warps of the CTA have given up %d, of %d a thread at its start)", n, W->registers, c->free_registers, S->registers);
  c->free_registers -= more;
  W->registers = n;
  return OK;
}
