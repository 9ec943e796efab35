// A launch: CTAs with their memory, and who runs next.
#include <fenv.h>
#include "numbers.h"

static u64 special_value(Sim *S, Warp *W, int kind, u32 lane) {
  CTA *c = W->c;
  u32 *b = S->block, *k = S->cluster, t = (u32)W->wid * 32 + lane;
  switch (kind) {       // numbers of decode/operands.py::SPECIALS
    case 1: return t % b[0];
    case 2: return t / b[0] % b[1];
    case 3: return t / (b[0] * b[1]);
    case 4: case 5: case 6: return b[kind - 4];
    case 7: case 8: case 9: return c->id[kind - 7];
    case 10: case 11: case 12: return S->grid[kind - 10];
    case 13: return lane;
    case 14: return (u64)W->wid;
    case 15: return (u64)c->rank;
    case 16: return (u64)S->nctas;
    case 17: return (u64)S->cta_index % 132;
    case 18: return 132;
    case 19: return (u64)c->rank % k[0];
    case 20: return (u64)c->rank / k[0] % k[1];
    case 21: return (u64)c->rank / (k[0] * k[1]);
    case 22: return (u64)S->smem;
    case 23: return (u64)c->nw;
    case 24: return 1u << lane;
    case 25: return (1u << lane) - 1;
    case 26: return (u32)((2ull << lane) - 1);
    case 27: return (u32) ~((2ull << lane) - 1);
    case 28: return (u32) ~((1ull << lane) - 1);
    case 29: case 30: case 31: return k[kind - 29];
    case 32: case 33: case 34: return S->grid[kind - 32] / k[kind - 32];
    default: return c->id[kind - 35] / k[kind - 35];
  }
}

static void open_warp(Sim *S, CTA *c, int index) {
  Warp *W = &c->w[index];
  int n = S->nreg + S->nconst;
  W->c = c;
  W->wid = index;
  W->gid = c->rank * c->nw + index;
  W->R = aligned_alloc(64, (size_t)n * 32 * sizeof(u64));
  for (i64 i = 0; i < (i64)S->nreg * 32; i++) W->R[i] = 0xDBDBDBDBull;
  for (int k = 0; k < S->nconst; k++)
    for (u32 l = 0; l < 32; l++) {
      u64 v = S->const_value[k];
      if (S->const_kind[k] == 100) v += (u64)c->rank << 24;
      else if (S->const_kind[k]) v = special_value(S, W, S->const_kind[k], l);
      REG(S->nreg + k)[l] = v;
    }
  W->P = calloc(S->npred + 2, sizeof(u32));
  W->P[S->npred + 1] = ALL_LANES;
  W->pundef = calloc(S->npred + 2, sizeof(u32));
  memset(W->pundef, 0xff, S->npred * sizeof(u32));
  W->undef = calloc(n, sizeof(u32));
  memset(W->undef, 0xff, S->nreg * sizeof(u32));
  W->last_write = calloc(n, sizeof(u32));
  W->last_read = calloc(n, sizeof(u32));
  W->is_acc = calloc(n, 1);
  W->inflight = calloc(n, sizeof(u16));
  W->loading = calloc(n, 1);
  W->f[0].mask = ALL_LANES;
  W->nf = 1;
  W->epoch = 1;
  W->vc.c[W->gid] = 1;
  W->bar = -1;
  W->tensor_lane = -1;
  W->registers = S->registers;
  if (S->local) W->local = calloc(32, S->local);
}

static void open_cta(Sim *S, CTA *c, int rank, u32 x, u32 y, u32 z) {
  c->s = S;
  c->rank = rank;
  c->id[0] = x, c->id[1] = y, c->id[2] = z;
  c->size = SMEM_BASE + S->smem;
  size_t bytes = c->size + 64, words = bytes / 4;
  c->sm = malloc(bytes);
  memset(c->sm, 0xCD, bytes);
  c->defined = calloc(bytes, 1);
  c->mbar_at = malloc(bytes / 8 * sizeof(i16));
  memset(c->mbar_at, 0xff, bytes / 8 * sizeof(i16));
  c->mb = calloc(MAX_MBARRIERS, sizeof(MBar));
  c->dirty = calloc(words, 1);
  c->dirty_list = malloc(words * sizeof(i32));
  c->write_agent = calloc(words, sizeof(u16));
  c->write_clock = calloc(words, sizeof(u32));
  if (S->races) {
    c->reads = calloc(words * 2 * S->nwarps, sizeof(u32));
    c->lane_writer = calloc(words, 1);
    c->lane_write_epoch = calloc(words, sizeof(u32));
    c->lane_readers = calloc(words, sizeof(u32));
    c->lane_read_epoch = calloc(words, sizeof(u32));
    c->lane_read_warp = calloc(words, sizeof(u16));
  }
  c->nw = (int)(S->block[0] * S->block[1] * S->block[2] / 32);
  c->w = calloc(c->nw, sizeof(Warp));
  for (int i = 0; i < c->nw; i++) open_warp(S, c, i);
}

static void close_cta(CTA *c) {
  for (int i = 0; i < c->nw; i++) {
    Warp *W = &c->w[i];
    for (int k = 0; k < W->nwq; k++) free(W->wq[k].clock);
    for (int k = 0; k < W->ncq; k++) free(W->cq[k].clock);
    for (int k = 0; k < W->ntq; k++) free(W->tq[k].clock);
    void *parts[] = {W->R, W->P, W->undef, W->pundef, W->last_write, W->last_read, W->is_acc, W->inflight, W->wq, W->cq, W->tq, W->loading, W->local};
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) free(parts[k]);
  }
  void *parts[] = {c->sm, c->defined, c->mbar_at, c->mb, c->dirty, c->dirty_list, c->write_agent, c->write_clock, c->reads,
                   c->lane_writer, c->lane_write_epoch, c->lane_readers, c->lane_read_epoch, c->lane_read_warp, c->w,
                   c->tmem, c->tmem_defined, c->tmem_write_agent, c->tmem_write_clock, c->tmem_reads};
  for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) free(parts[k]);
}

// Of what is pending let one thing happen: copy `k`, or the oldest tensor operation of the warp whose queue holds the k-th behind the copies.
static int asynchronous(Sim *S, u32 k) {
  if (k < (u32)S->ncopies) return copy_run(S, (int)k);
  k -= (u32)S->ncopies;
  for (int r = 0; r < S->nctas; r++)
    for (int i = 0; i < S->ctas[r].nw; i++) {
      Warp *W = &S->ctas[r].w[i];
      if (k < (u32)W->ntq) return umma_run(S, W);
      k -= (u32)W->ntq;
    }
  return fail(S, AT_LAUNCH, "the simulator lost count of its pending operations");
}

// Until every warp of the cluster has left and nothing is pending.
static int run_cluster(Sim *S) {
  int per = S->ctas[0].nw, n = S->nctas * per, idle = 0;
  for (;;) {
    u64 total = S->insts;
    int live = 0;
    i64 progress = 0;
    for (int i = 0; i < n; i++) {
      Warp *W = &S->ctas[i / per].w[i % per];
      total += W->n;
      live += W->nf > 0;
    }
    if (total > S->max_insts) return report_livelock(S);
    int pending = S->ncopies + S->tensor_pending;
    if (!live && !pending) return OK;
    if (S->mode == RANDOM && idle < 6 * n) {
      static const int slices[5] = {1, 4, 16, 64, 256};
      u32 k = random_bits(S) % (u32)(n + (pending ? n / 4 + 1 : 0));
      if ((int)k >= n) {        // now and then something asynchronous happens instead
        if (asynchronous(S, random_bits(S) % (u32)pending)) return FAILED;
        idle = 0;
        continue;
      }
      Warp *W = &S->ctas[k / per].w[k % per];
      int r = W->nf ? run_warp(S, W, slices[random_bits(S) % 5]) : 0;
      if (r < 0) return FAILED;
      idle = r ? 0 : idle + 1;
      continue;
    }
    for (int i = 0; i < n; i++) {
      Warp *W = &S->ctas[i / per].w[i % per];
      int r = W->nf ? run_warp(S, W, 20000) : 0;
      if (r < 0) return FAILED;
      progress += r;
    }
    idle = 0;
    if (progress) continue;
    if (!pending) return report_deadlock(S);
    if (asynchronous(S, 0)) return FAILED;
  }
}

static void check_end(Sim *S, CTA *c) {
  for (int i = 0; i < c->nallocs; i++)
    if (c->alloc[i].alive) report(S, R_TMEM_LEFT, i, "a CTA ends with tensor memory columns %u to %u allocated", c->alloc[i].col, c->alloc[i].col + c->alloc[i].n - 1);
  for (int i = 0; i < c->nmb; i++) {
    u32 *p = &S->phases[(c->mb[i].addr & 0xffffff) >> 3];
    if (c->mb[i].phase + 1 > *p) *p = c->mb[i].phase + 1;
  }
  for (int i = 0; i < c->nmb; i++)
    if (c->mb[i].alive && c->mb[i].signalled > c->mb[i].seen)
      report(S, R_LATE, i, "a copy or tcgen05.commit signals the mbarrier at shared offset %d in phase %u, which no warp waited for before the CTA ended: it may come after the end",
             (c->mb[i].addr & 0xffffff) - SMEM_BASE, c->mb[i].signalled);
  for (int q = 0; q < 16; q++)
    if (c->bar[q].n) report(S, R_BARRIER_LEFT, q, "named barrier %d left with %u of %u threads arrived at the end of a CTA", q, c->bar[q].n, c->bar[q].want);
  for (int w = 0; w + 3 < c->nw; w += 4)
    for (int q = 1; q < 4; q++)
      if (c->w[w].nwgmma != c->w[w + q].nwgmma)
        report(S, R_WGMMA_COUNT, w, "warps %d and %d of one warpgroup executed %llu and %llu wgmma", w, w + q, (ull)c->w[w].nwgmma, (ull)c->w[w + q].nwgmma);
}

static int run_one(Sim *S, u32 x, u32 y, u32 z) {
  u32 *k = S->cluster;
  S->ctas = calloc(S->nctas, sizeof(CTA));
  S->ncopies = S->tensor_pending = 0;
  S->cluster_arrived = S->cluster_gen = 0;
  memset(&S->cluster_collecting, 0, sizeof(Clock));
  memset(&S->cluster_done, 0, sizeof(Clock));
  for (int r = 0; r < S->nctas; r++) open_cta(S, &S->ctas[r], r, x + (u32)r % k[0], y + (u32)r / k[0] % k[1], z + (u32)r / (k[0] * k[1]));
  int rc = run_cluster(S);
  for (int r = 0; r < S->nctas; r++) {
    if (!rc) check_end(S, &S->ctas[r]);
    for (int w = 0; w < S->ctas[r].nw; w++) S->insts += S->ctas[r].w[w].n;
    close_cta(&S->ctas[r]);
  }
  for (int i = 0; i < S->ncopies; i++) {
    free(S->copies[i].clock);
    free(S->copies[i].data);
    free(S->copies[i].defined);
  }
  free(S->ctas);
  return rc;
}

// The part of Sim that Python knows.
#define SHARED_BYTES offsetof(Sim, ctas)
size_t sim_shared_bytes(void) { return SHARED_BYTES; }

int sim_run(void *shared) {
  Sim *S = calloc(1, sizeof *S);
  memcpy(S, shared, SHARED_BYTES);
  fenv_t callers;       // a thread of XLA flushes subnormals, of which bf16 has as many as fp32
  fegetenv(&callers);
  fesetenv(FE_DFL_ENV);
  init_numbers();
  u32 *g = S->grid, *k = S->cluster, threads = S->block[0] * S->block[1] * S->block[2];
  int rc = OK;
  S->errpc = AT_NOTHING;
  S->nctas = (int)(k[0] * k[1] * k[2]);
  S->nwarps = S->nctas * (int)threads / 32;
  for (int i = 0; i < S->npc; i++) S->any_wgmma |= S->code[i].op == OP_WGMMA;
  if (!threads || threads % 32) rc = fail(S, AT_LAUNCH, "a CTA of %u threads: only multiples of 32 are simulated", threads);
  else if (AGENTS_PER_WARP * S->nwarps + S->nctas * MAX_MBARRIERS > CLOCKS) rc = fail(S, AT_LAUNCH, "%d warps in %d CTAs of a cluster: more agents than the clocks hold (%d)", S->nwarps, S->nctas, CLOCKS);
  for (u32 z = 0; z < g[2] && !rc; z += k[2])
    for (u32 y = 0; y < g[1] && !rc; y += k[1])
      for (u32 x = 0; x < g[0] && !rc; x += k[0]) {
        rc = run_one(S, x, y, z);
        if (!rc) S->cta_index++;
      }
  free(S->copies);
  S->copies = NULL;
  memcpy(shared, S, SHARED_BYTES);
  free(S);
  fesetenv(&callers);
  return rc;
}
