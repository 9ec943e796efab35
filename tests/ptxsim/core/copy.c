// Asynchronous copies. Eager: done when issued. Lazy: when waited for; bulk copies when nothing else can run. Random: at any moment.
#include "sim.h"

// Swizzle of an absolute shared address: mode 1, 2, 3 for spans of 32, 64, 128 bytes.
i64 swizzled(i64 a, int mode) { return mode ? a ^ (a >> 7 & ((1 << mode) - 1)) << 4 : a; }

// ---- bulk and tensor copies: queued on the cluster, signalled by bytes on an mbarrier
static Copy *new_copy(Sim *S) {
  if (S->ncopies == S->max_copies) {
    S->max_copies = S->max_copies ? 2 * S->max_copies : 64;
    S->copies = realloc(S->copies, S->max_copies * sizeof(Copy));
  }
  Copy *q = &S->copies[S->ncopies++];
  memset(q, 0, sizeof *q);
  return q;
}

static int complete(Sim *S, Copy *q) {
  for (int r = 0; r < S->nctas; r++) {
    if (q->multicast ? !(q->multicast >> r & 1) : r != q->c->rank) continue;
    CTA *c = &S->ctas[r];
    MBar *b = mbar_at(S, q->pc, q->multicast ? (q->mbar & 0xffffff) | (u32)r << 24 : q->mbar);      // multicast signals each CTA's own
    if (!b || shared_range(c, q->pc, q->dst, q->bytes, "bulk copy") || not_over_mbarrier(c, q->pc, q->dst, q->bytes, "bulk copy")) return FAILED;
    u8 *src = q->data ? q->data : q->b->p + (q->g - q->b->base);
    u8 *defined = q->data ? q->defined : q->b->init ? q->b->init + (q->g - q->b->base) : NULL;
    if (q->generic) proxy_stored(c, q->dst, q->bytes);
    else proxy_check(c, q->pc, q->dst, q->bytes, "a bulk copy writes");
    hb_write(c, q->pc, q->dst, q->bytes, q->clock, b->agent, b->phase + 1);
    for (i32 i = 0; i < q->bytes; i += 16) {
      i64 o = swizzled(q->dst + i, q->swizzle), n = q->bytes - i < 16 ? q->bytes - i : 16;
      memcpy(c->sm + o, src + i, n);
      if (defined) memcpy(c->defined + o, defined + i, n);
      else memset(c->defined + o, 1, n);
    }
    S->bulk_bytes += (u64)q->bytes;
    mbar_bytes(b, q->bytes, q->clock);
  }
  free(q->clock);
  free(q->data);
  free(q->defined);
  return OK;
}

// Perform pending copy i.
int copy_run(Sim *S, int i) {
  Copy q = S->copies[i];
  S->ncopies--;
  memmove(S->copies + i, S->copies + i + 1, (S->ncopies - i) * sizeof(Copy));
  return complete(S, &q);
}

static int issue(Step *x, Copy *q, u32 dst, u32 mbar, int mask_source, int lane) {
  PARTS(x);
  q->c = &S->ctas[dst >> 24];
  q->pc = pc;
  q->dst = dst & 0xffffff;
  q->mbar = mbar;
  q->clock = clock_copy(&W->vc);
  q->multicast = mask_source >= 0 ? (u16)REG(ss[mask_source])[lane] : 0;
  return S->mode == EAGER ? copy_run(S, S->ncopies - 1) : OK;
}

static int signals(Step *x, u32 mbar) {
  MBar *b = mbar_at(x->S, x->pc, mbar);
  if (!b) return FAILED;
  mbar_used(x->S, x->pc, b, x->W);
  mbar_signalled_by_copy(x->S, x->pc, b);
  return OK;
}

// im: 0..2 offsets of destination, source, mbarrier; 3 multicast. Sources: destination, source, bytes, mbarrier (, mask).
int op_bulk_load(Step *x) {
  PARTS(x);
  FOR_LANES(l, m) {
    u32 d = (u32)(REG(ss[0])[l] + I->im[0]), bytes = (u32)REG(ss[2])[l], mbar = (u32)(REG(ss[3])[l] + I->im[2]);
    u64 g = REG(ss[1])[l] + (u64)I->im[1];
    if ((W->undef[ss[0]] | W->undef[ss[1]] | W->undef[ss[2]] | W->undef[ss[3]]) >> l & 1) report(S, R_UNINIT_ADDRESS, pc, "bulk copy with an undefined operand");
    if (d % 16 || g % 16 || bytes % 16)
      return fail(S, pc, "bulk copy: shared offset %d, source %#llx and size %u have to be multiples of 16", (int)(d & 0xffffff) - SMEM_BASE, (ull)g, bytes);
    if (d >> 24 >= (u32)S->nctas) return fail(S, pc, "bulk copy into CTA %u of a cluster of %d", d >> 24, S->nctas);
    if (signals(x, mbar)) return FAILED;
    if (!bytes) continue;
    Buf *b = find_buffer(S, g, bytes);
    if (!b) return outside(S, pc, g, bytes, "bulk copy");
    for (u64 w = (g - b->base) >> 2; b->owner && w < (g - b->base + bytes) >> 2; w++) {
      if (b->owner[w] < 0) continue;
      if (b->owner[w] == S->cta_index) report(S, R_PROXY, pc, "bulk copy of '%s', which this CTA wrote by ordinary stores in the same launch", b->name);
      else report(S, R_GLOBAL_RACE, pc, "bulk copy of '%s' at byte %llu, which another CTA wrote in this launch", b->name, (ull)w * 4);
      break;
    }
    CTA *t = &S->ctas[d >> 24];
    if (shared_range(t, pc, d & 0xffffff, bytes, "bulk copy")) return FAILED;
    lane_write(t, pc, d & 0xffffff, bytes, W, l, 1);
    Copy *q = new_copy(S);
    q->b = b;
    q->g = g;
    q->bytes = (i32)bytes;
    if (issue(x, q, d, mbar, I->im[3] ? 4 : -1, l)) return FAILED;
  }
  W->vc.c[W->gid]++;
  return OK;
}

// im: 0, 1 offsets of address and mbarrier, 2 bytes of a value, 3 values. Sources: address, mbarrier, values.
int op_store_async(Step *x) {
  PARTS(x);
  int size = (int)I->im[2], n = (int)I->im[3];
  FOR_LANES(l, m) {
    u32 d = (u32)(REG(ss[0])[l] + I->im[0]), mbar = (u32)(REG(ss[1])[l] + I->im[1]);
    if ((W->undef[ss[0]] | W->undef[ss[1]]) >> l & 1) report(S, R_UNINIT_ADDRESS, pc, "st.async with an undefined address");
    if (d % (u32)(size * n)) return fail(S, pc, "misaligned st.async: shared offset %d, %d bytes", (int)(d & 0xffffff) - SMEM_BASE, size * n);
    if (d >> 24 >= (u32)S->nctas || d >> 24 != mbar >> 24) return fail(S, pc, "st.async into CTA %u, mbarrier in CTA %u, of a cluster of %d: they lie in one CTA", d >> 24, mbar >> 24, S->nctas);
    if (shared_range(&S->ctas[d >> 24], pc, d & 0xffffff, size * n, "st.async")) return FAILED;
    MBar *b = mbar_at(S, pc, mbar);
    if (!b) return FAILED;
    mbar_used(S, pc, b, W);
    lane_write(&S->ctas[d >> 24], pc, d & 0xffffff, size * n, W, l, 1);
    Copy *q = new_copy(S);
    q->data = malloc(size * n);
    q->defined = malloc(size * n);
    for (int i = 0; i < n; i++) {
      memcpy(q->data + size * i, &REG(ss[2 + i])[l], size);
      memset(q->defined + size * i, !(W->undef[ss[2 + i]] >> l & 1), size);
    }
    q->bytes = size * n;
    q->generic = 1;
    if (issue(x, q, d, mbar, -1, l)) return FAILED;
  }
  W->vc.c[W->gid]++;
  return OK;
}

// The rows of a box at `at` of a tensor map, one after another: whether the next lies inside the tensor, and where in it.
typedef struct {
  const TensorMap *t;
  const i64 *at;
  i64 index[5];
} Box;

static int next_row(Box *x, i64 *offset) {
  int inside = 1;
  *offset = 0;
  for (int i = 1; i < x->t->rank; i++) {
    i64 v = x->at[i] + x->index[i];
    inside &= v >= 0 && v < x->t->dims[i];
    *offset += v * x->t->strides[i - 1];
  }
  for (int i = 1; i < x->t->rank; i++) {
    if (++x->index[i] < x->t->box[i]) break;
    x->index[i] = 0;
  }
  return inside;
}

// Gather the box at `at` of a tensor map; what lies outside the tensor is zero.
static int gather(Step *x, TensorMap *t, const i64 *at, i64 inner, i64 bytes, u8 *data, u8 *defined) {
  Sim *S = x->S;
  Box box = {.t = t, .at = at};
  i64 first = at[0] * t->bits / 8, width = t->dims[0] * t->bits / 8, off;
  for (i64 row = 0; row < bytes / inner; row++) {
    int inside = next_row(&box, &off);
    for (i64 j = 0; inside && j < inner; j++) {
      if (first + j < 0 || first + j >= width) continue;
      u64 a = t->base + (u64)(off + first + j);
      Buf *b = find_buffer(S, a, 1);
      if (!b) return outside(S, x->pc, a, 1, "tensor load");
      data[row * inner + j] = b->p[a - b->base];
      if (b->init) defined[row * inner + j] = b->init[a - b->base];
    }
  }
  return OK;
}

// The map that lane l names, its box at the coordinates behind source `first`.
static TensorMap *map_and_box(Step *x, int l, int map, int first, i64 *at, i64 *inner, i64 *bytes) {
  PARTS(x);
  TensorMap *t = NULL;
  for (int i = 0; i < S->nmaps; i++)
    if (S->map_address[i] == REG(ss[map])[l]) t = &S->maps[i];
  if (!t) {
    fail(S, pc, "no tensor map at %#llx", (ull)REG(ss[map])[l]);
    return NULL;
  }
  if (t->rank != I->im[2]) {
    fail(S, pc, "tensor map of rank %lld, %lld coordinates", (long long)t->rank, (long long)I->im[2]);
    return NULL;
  }
  *inner = *bytes = t->box[0] * t->bits / 8;
  for (int i = 0; i < t->rank; i++) at[i] = (i32)REG(ss[first + i])[l];
  for (int i = 1; i < t->rank; i++) *bytes *= t->box[i];
  return t;
}

// im: 0, 1 offsets of destination and mbarrier, 2 rank, 3 multicast. Sources: destination, map, mbarrier, coordinates (, mask).
int op_tensor_load(Step *x) {
  PARTS(x);
  FOR_LANES(l, m) {
    u32 d = (u32)(REG(ss[0])[l] + I->im[0]), mbar = (u32)(REG(ss[2])[l] + I->im[1]);
    i64 inner, bytes, at[5];
    TensorMap *t = map_and_box(x, l, 1, 3, at, &inner, &bytes);
    if (!t) return FAILED;
    if (d % 128) return fail(S, pc, "tensor load: shared offset %d is not a multiple of 128", (int)(d & 0xffffff) - SMEM_BASE);
    if (d >> 24 >= (u32)S->nctas) return fail(S, pc, "tensor load into CTA %u of a cluster of %d", d >> 24, S->nctas);
    if (signals(x, mbar)) return FAILED;
    if (bytes % 16) return fail(S, pc, "tensor load of %lld bytes, not a multiple of 16", (long long)bytes);
    if (shared_range(&S->ctas[d >> 24], pc, d & 0xffffff, bytes, "tensor load")) return FAILED;
    u8 *data = calloc(bytes, 1), *defined = malloc(bytes);
    memset(defined, 1, bytes);
    if (gather(x, t, at, inner, bytes, data, defined)) {
      free(data);
      free(defined);
      return FAILED;
    }
    Copy *q = new_copy(S);
    q->data = data;
    q->defined = defined;
    q->bytes = (i32)bytes;
    q->swizzle = (int)t->swizzle;
    if (issue(x, q, d, mbar, I->im[3] ? 3 + (int)t->rank : -1, l)) return FAILED;
  }
  W->vc.c[W->gid]++;
  return OK;
}

// n bytes (at most 16, inside one buffer) from shared to global memory, done at once: its wait is not checked. add: 32-bit integers are added.
static int store_bytes(Step *x, u64 g, i64 o, i64 n, int add, const char *what) {
  PARTS(x);
  Buf *b = find_buffer(S, g, (u64)n);
  if (!b) return outside(S, pc, g, (u64)n, what);
  if (!b->owner) return fail(S, pc, "%s into the input '%s'", what, b->name);
  u64 off = g - b->base;
  hb_read(c, pc, o, n, &W->vc, W->gid, W->vc.c[W->gid]);
  proxy_check(c, pc, o, n, add ? "a bulk reduction reads" : "a bulk store reads");
  for (i64 i = 0; i < n && !b->init; i++)
    if (!c->defined[o + i]) {
      report(S, R_UNINIT_STORE, pc, "%s of undefined shared memory to '%s'", what, b->name);
      break;
    }
  if (!add) {
    global_access(S, b, off, (u64)n, W, pc, 1);
    memcpy(b->p + off, c->sm + o, n);
    if (b->init) memcpy(b->init + off, c->defined + o, n);
    return OK;
  }
  for (i64 i = 0; i < n; i += 4) {        // like an atomic: no race with another one
    u32 old, value;
    memcpy(&old, b->p + off + i, 4);
    memcpy(&value, c->sm + o + i, 4);
    old += value;
    memcpy(b->p + off + i, &old, 4);
    for (int k = 0; b->init && k < 4; k++) b->init[off + i + k] &= c->defined[o + i + k];
  }
  return OK;
}

// im: 0, 1 offsets, 2 add. Sources: destination, source, bytes.
int op_bulk_store(Step *x) {
  PARTS(x);
  FOR_LANES(l, m) {
    u64 g = REG(ss[0])[l] + (u64)I->im[0];
    i64 o = (u32)(REG(ss[1])[l] + I->im[1]) & 0xffffff;
    u32 bytes = (u32)REG(ss[2])[l];
    if (o % 16 || g % 16 || bytes % 16) return fail(S, pc, "bulk store: shared offset %lld, destination %#llx and size %u have to be multiples of 16", (long long)(o - SMEM_BASE), (ull)g, bytes);
    if (shared_range(c, pc, o, bytes, "bulk store")) return FAILED;
    for (u32 i = 0; i < bytes; i += 16)
      if (store_bytes(x, g + i, o + i, 16, (int)I->im[2], "bulk store")) return FAILED;
  }
  return OK;
}

// The part of the box inside of the tensor. im: 0 offset, 2 rank, 3 add. Sources: map, source, coordinates.
int op_tensor_store(Step *x) {
  PARTS(x);
  FOR_LANES(l, m) {
    i64 o = (u32)(REG(ss[1])[l] + I->im[0]) & 0xffffff, inner, bytes, at[5], off;
    TensorMap *t = map_and_box(x, l, 0, 2, at, &inner, &bytes);
    if (!t) return FAILED;
    if (o % 128) return fail(S, pc, "tensor store: shared offset %d is not a multiple of 128", (int)o - SMEM_BASE);
    if (shared_range(c, pc, o, bytes, "tensor store")) return FAILED;
    if (I->im[3] && !t->integer32) return fail(S, pc, "tensor reduction of other elements than 32-bit integers: not simulated");
    Box box = {.t = t, .at = at};
    i64 first = at[0] * t->bits / 8, width = t->dims[0] * t->bits / 8, each = t->bits >= 32 ? 4 : t->bits >= 16 ? 2 : 1;
    for (i64 row = 0; row < bytes / inner; row++) {
      int inside = next_row(&box, &off);
      for (i64 j = 0, n; inside && j < inner; j += n) {       // 16 bytes where they lie in one swizzled chunk and inside, else an element
        i64 from = row * inner + j;
        n = from % 16 == 0 && j + 16 <= inner && first + j >= 0 && first + j + 16 <= width ? 16 : each;
        if (first + j < 0 || first + j + n > width) continue;
        if (store_bytes(x, t->base + (u64)(off + first + j), swizzled(o + from, (int)t->swizzle), n, (int)I->im[3], "tensor store")) return FAILED;
      }
    }
  }
  return OK;
}

// ---- cp.async: queued on the warp, in groups
static int cp_run(Sim *S, Warp *W, CpItem *q) {
  CTA *c = W->c;
  hb_write(c, q->pc, q->dst, q->bytes, q->clock, 2 * S->nwarps + W->gid, (u32)q->group + 1);
  memset(c->sm + q->dst, 0, q->bytes);
  memset(c->defined + q->dst, 1, q->bytes);
  if (q->valid) {
    u64 o = q->g - q->b->base;
    memcpy(c->sm + q->dst, q->b->p + o, q->valid);
    if (q->b->init) memcpy(c->defined + q->dst, q->b->init + o, q->valid);
  }
  proxy_stored(c, q->dst, q->bytes);
  return OK;
}

// Complete the groups numbered below `upto`.
int cp_drain(Sim *S, Warp *W, u32 upto) {
  int kept = 0;
  for (int i = 0; i < W->ncq; i++) {
    CpItem *q = &W->cq[i];
    if ((u32)q->group >= upto) {
      W->cq[kept++] = *q;
      continue;
    }
    if (S->mode != EAGER && cp_run(S, W, q)) return FAILED;
    free(q->clock);
  }
  W->ncq = kept;
  return OK;
}

// im: 0, 1 offsets, 2 bytes. Sources: destination, source (, bytes to read: the rest is zero).
int op_cp_async(Step *x) {
  PARTS(x);
  int bytes = (int)I->im[2];
  FOR_LANES(l, m) {
    i64 o = (u32)(REG(ss[0])[l] + I->im[0]) & 0xffffff;
    u64 g = REG(ss[1])[l] + (u64)I->im[1];
    int valid = I->ns > 2 ? (int)(u32)REG(ss[2])[l] : bytes;
    if ((W->undef[ss[0]] | W->undef[ss[1]]) >> l & 1) report(S, R_UNINIT_ADDRESS, pc, "cp.async with an undefined address");
    if (valid < 0 || valid > bytes) return fail(S, pc, "cp.async reads %d of %d bytes", valid, bytes);
    if (o % bytes || g % bytes) return fail(S, pc, "misaligned cp.async: shared offset %lld, global %#llx, %d bytes", (long long)(o - SMEM_BASE), (ull)g, bytes);
    if (shared_range(c, pc, o, bytes, "cp.async") || not_over_mbarrier(c, pc, o, bytes, "cp.async")) return FAILED;
    Buf *b = valid ? find_buffer(S, g, valid) : NULL;
    if (valid && !b) return outside(S, pc, g, valid, "cp.async");
    if (b) global_access(S, b, g - b->base, valid, W, pc, 0);
    if (W->ncq == W->ccq) {
      W->ccq = W->ccq ? 2 * W->ccq : 64;
      W->cq = realloc(W->cq, W->ccq * sizeof(CpItem));
    }
    CpItem q = {(int)W->cp_open, pc, (i32)o, bytes, valid, b, g, clock_copy(&W->vc)};
    if (S->mode == EAGER && cp_run(S, W, &q)) return FAILED;
    W->cq[W->ncq++] = q;
  }
  return OK;
}

static void saw_copies(Sim *S, Warp *W, u32 upto) {
  u32 *own = &W->vc.c[2 * S->nwarps + W->gid];
  if (upto > *own) *own = upto;
}

// im: 0 groups that may stay open, -1: wait_all.
int op_cp_wait(Step *x) {
  PARTS(x);
  if (I->im[0] < 0) W->cp_open++;
  u32 stay = I->im[0] < 0 ? 0 : (u32)I->im[0], upto = W->cp_open > stay ? W->cp_open - stay : 0;
  if (cp_drain(S, W, upto)) return FAILED;
  saw_copies(S, W, upto);
  return OK;
}

// The mbarrier is told at once: the copies before it are completed here. im: 0 offset.
int op_cp_mbar(Step *x) {
  PARTS(x);
  W->cp_open++;
  if (cp_drain(S, W, W->cp_open)) return FAILED;
  Clock v = W->vc;
  v.c[2 * S->nwarps + W->gid] = W->cp_open;
  FOR_LANES(l, m) {
    MBar *b = mbar_at(S, pc, (u32)(REG(ss[0])[l] + I->im[0]));
    if (!b || mbar_arrive(S, pc, b, 1, 0, &v)) return FAILED;
  }
  W->vc.c[W->gid]++;
  return OK;
}
