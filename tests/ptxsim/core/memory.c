// Loads, stores, atomics, and the limits of memory.
#include "numbers.h"

Buf *find_buffer(Sim *S, u64 a, u64 n) {
  for (int i = 0; i < S->nbuf; i++) {
    Buf *b = &S->buf[i];
    if (a >= b->base && a + n >= a && a + n <= b->base + b->size) return b;
  }
  return NULL;
}

static const char *name_at(Sim *S, u64 a) {
  Buf *b = find_buffer(S, a, 1);
  return b ? b->name : "?";
}

int outside(Sim *S, int pc, u64 a, u64 n, const char *what) {
  Buf *near = NULL;
  u64 best = ~0ull;
  for (int i = 0; i < S->nbuf; i++) {
    Buf *b = &S->buf[i];
    u64 d = a < b->base ? b->base - a : a - b->base - (a - b->base < b->size ? a - b->base : b->size);
    if (d < best) best = d, near = b;
  }
  return fail(S, pc, "%s: %llu bytes at global address %#llx lie outside every buffer; the nearest is '%s' of %llu bytes, at its byte %lld", what, (ull)n, (ull)a, near ? near->name : "-",
              near ? (ull)near->size : 0, near ? (long long)(a - near->base) : 0);
}

int shared_range(CTA *c, int pc, i64 a, i64 n, const char *what) {
  if (a >= SMEM_BASE && a + n <= c->size) return OK;
  return fail(c->s, pc, "%s: %lld bytes at shared offset %lld: the CTA has %d bytes", what, (long long)n, (long long)(a - SMEM_BASE), c->size - SMEM_BASE);
}

int not_over_mbarrier(CTA *c, int pc, i64 a, i64 n, const char *what) {
  for (i64 g = a >> 3; g <= (a + n - 1) >> 3; g++)
    if (c->mbar_at[g] >= 0 && c->mb[c->mbar_at[g]].alive) return fail(c->s, pc, "%s over the mbarrier at shared offset %lld", what, (long long)(g * 8 - SMEM_BASE));
  return OK;
}

// Of a ld or st, the lanes that reach shared memory.
static u32 shared_lanes(const Step *x, const u64 *address) {
  if (x->I->im[0] == SHARED) return x->m;
  u32 lanes = 0;
  FOR_LANES(l, x->I->im[0] == GENERIC ? x->m : 0) {
    u64 a = address[l] + (u64)x->I->im[4];
    lanes |= (u32)(a >= SHARED_WINDOW && a < SHARED_WINDOW + (1ull << 40)) << l;
  }
  return lanes;
}

// Where one lane's access goes.
typedef struct {
  u8 *p, *defined;    // `defined` null: all is
  Buf *b;             // global memory only
  u64 offset;         // in b
} Place;

// Resolve and check the access of `total` bytes by one lane. `place` keeps b from lane to lane.
static int locate(Step *x, int lane, u64 a, int total, int write, Place *place) {
  PARTS(x);
  const char *what = write ? "store" : "load";
  int space = (int)I->im[0];
  if (space == GENERIC) {
    space = GLOBAL;
    if (a >= LOCAL_WINDOW && a < LOCAL_WINDOW + (1ull << 28)) space = LOCAL;
    else if (a >= SHARED_WINDOW && a < SHARED_WINDOW + (1ull << 40)) space = SHARED, a -= SHARED_WINDOW;
  }
  place->defined = NULL;
  if (space == LOCAL) {
    i64 o = (i64)(a - LOCAL_WINDOW);
    if (o < 0 || o + total > S->local) return fail(S, pc, "%s: %d bytes at local offset %lld: a lane has %lld", what, total, (long long)o, (long long)S->local);
    place->p = W->local + lane * S->local + o;
    place->b = NULL;
    return OK;
  }
  if (space == SHARED) {
    int rank = (int)((u32)a >> 24);
    i64 o = a & 0xffffff;
    if (rank >= S->nctas) return fail(S, pc, "shared %s: address %#llx names CTA %d of a cluster of %d", what, (ull)a, rank, S->nctas);
    CTA *t = &S->ctas[rank];
    if (o % total) return fail(S, pc, "misaligned shared %s: offset %lld, %d bytes, lane %d", what, (long long)(o - SMEM_BASE), total, lane);
    if (shared_range(t, pc, o, total, what)) return FAILED;
    if (write && not_over_mbarrier(t, pc, o, total, what)) return FAILED;
    if (write) {
      lane_write(t, pc, o, total, W, lane, 0);
      hb_write(t, pc, o, total, &W->vc, W->gid, W->vc.c[W->gid]);
      proxy_stored(t, o, total);
    } else {
      hb_read(t, pc, o, total, &W->vc, W->gid, W->vc.c[W->gid]);
      lane_read(t, pc, o, total, W, lane);
    }
    lane_used_shared(W, lane);
    place->p = t->sm + o;
    place->defined = t->defined + o;
    place->b = NULL;
    return OK;
  }
  if (a % total) return fail(S, pc, "misaligned global %s: %#llx for %d bytes, lane %d ('%s')", what, (ull)a, total, lane, name_at(S, a));
  Buf *b = place->b;
  if (!b || a < b->base || a + total > b->base + b->size) b = place->b = find_buffer(S, a, total);
  if (!b) return outside(S, pc, a, total, what);
  place->offset = a - b->base;
  if (write && !b->owner) return fail(S, pc, "store into the input '%s' at byte %llu", b->name, (ull)place->offset);
  global_access(S, b, place->offset, total, W, pc, write);
  place->p = b->p + place->offset;
  if (b->init) place->defined = b->init + place->offset;
  return OK;
}

// im: 0 space, 1 bytes of an element, 2 elements, 3 signed, 4 offset, 5 bits of the destination. Source: address.
int op_ld(Step *x) {
  PARTS(x);
  int bytes = (int)I->im[1], n = (int)I->im[2];
  u64 *address = REG(ss[0]);
  Place place = {0};
  if (W->undef[ss[0]] & m) report(S, R_UNINIT_ADDRESS, pc, "load from an undefined address");
  if (S->bank_use) banks_used(x, address, (u64)I->im[4], shared_lanes(x, address), bytes * n);
  FOR_LANES(l, m) {
    if (locate(x, l, address[l] + (u64)I->im[4], bytes * n, 0, &place)) return FAILED;
    u64 got[4] = {0};       // first all, then the registers: the address may be one of them
    for (int q = 0; q < n; q++) memcpy(&got[q], place.p + q * bytes, bytes);
    for (int q = 0; q < n; q++) {
      if (dd[q] < 0) continue;
      u64 v = got[q];
      int ok = 1;
      if (I->im[3]) {
        v = (u64)((i64)(v << (64 - 8 * bytes)) >> (64 - 8 * bytes));
        if (I->im[5] < 64) v &= (1ull << I->im[5]) - 1;
      }
      REG(dd[q])[l] = v;
      for (int i = 0; place.defined && i < bytes; i++) ok &= place.defined[q * bytes + i];
      set_undef(W, dd[q], 1u << l, ok ? 0 : ALL_LANES);
    }
  }
  return OK;
}

// im: 0 space, 1 bytes of an element, 2 elements, 4 offset. Sources: address, elements.
int op_st(Step *x) {
  PARTS(x);
  int bytes = (int)I->im[1], n = (int)I->im[2];
  u64 *address = REG(ss[0]);
  Place place = {0};
  if (W->undef[ss[0]] & m) report(S, R_UNINIT_ADDRESS, pc, "store to an undefined address");
  if (S->bank_use) banks_used(x, address, (u64)I->im[4], shared_lanes(x, address), bytes * n);
  FOR_LANES(l, m) {
    if (locate(x, l, address[l] + (u64)I->im[4], bytes * n, 1, &place)) return FAILED;
    for (int q = 0; q < n; q++) {
      u64 v = REG(ss[1 + q])[l];
      int undefined = W->undef[ss[1 + q]] >> l & 1;
      if (undefined && place.b && !place.defined)
        report(S, R_UNINIT_STORE, pc, "stores undefined data to '%s' at byte %llu (lane %d, warp %d)", place.b->name, (ull)place.offset + q * bytes, l, W->wid);
      memcpy(place.p + q * bytes, &v, bytes);
      if (place.defined) memset(place.defined + q * bytes, !undefined, bytes);
    }
  }
  return OK;
}

enum { ATOM_ADD, ATOM_MIN, ATOM_MAX, ATOM_AND, ATOM_OR, ATOM_XOR, ATOM_EXCH, ATOM_CAS, ATOM_INC, ATOM_DEC };
enum { UNSIGNED, SIGNED, FLOAT };

static u64 atom_value(int op, int type, u64 o, u64 v, u64 w, int wide) {
  i64 so = wide ? (i64)o : (i32)o, sv = wide ? (i64)v : (i32)v;
  switch (op) {
    case ATOM_ADD: return type == FLOAT ? bits_f32(as_f32(o) + as_f32(v)) : o + v;
    case ATOM_MIN: return type == SIGNED ? (u64)(so < sv ? so : sv) : o < v ? o : v;
    case ATOM_MAX: return type == SIGNED ? (u64)(so > sv ? so : sv) : o > v ? o : v;
    case ATOM_AND: return o & v;
    case ATOM_OR: return o | v;
    case ATOM_XOR: return o ^ v;
    case ATOM_EXCH: return v;
    case ATOM_CAS: return o == v ? w : o;
    case ATOM_INC: return o >= v ? 0 : o + 1;
    default: return o == 0 || o > v ? v : o - 1;
  }
}

// im: 0 space, 1 bytes, 2 operation, 3 type, 4 offset. Sources: address, value (, second value). Atomics are not checked for races.
int op_atom(Step *x) {
  PARTS(x);
  int bytes = (int)I->im[1];
  FOR_LANES(l, m) {
    u64 a = REG(ss[0])[l] + (u64)I->im[4], v = REG(ss[1])[l], w = I->ns > 2 ? REG(ss[2])[l] : 0, old = 0;
    int space = (int)I->im[0];
    u8 *p;
    if (space == GENERIC && a >= SHARED_WINDOW && a < SHARED_WINDOW + (1ull << 40)) a -= SHARED_WINDOW, space = SHARED;
    if ((W->undef[ss[0]] | W->undef[ss[1]]) >> l & 1) report(S, R_UNINIT_STORE, pc, "atomic with undefined data or address");
    if (a % bytes) return fail(S, pc, "misaligned atomic at %#llx", (ull)a);
    if (space == SHARED) {
      i64 o = a & 0xffffff;
      u32 rank = (u32)a >> 24;
      if (rank >= (u32)S->nctas) return fail(S, pc, "shared atomic: address %#llx names CTA %u of a cluster of %d", (ull)a, rank, S->nctas);
      CTA *t = &S->ctas[rank];
      if (shared_range(t, pc, o, bytes, "atomic") || not_over_mbarrier(t, pc, o, bytes, "atomic")) return FAILED;
      p = t->sm + o;
      proxy_stored(t, o, bytes);
      if (!t->defined[o]) report(S, R_UNINIT_STORE, pc, "atomic on undefined shared memory at offset %lld", (long long)(o - SMEM_BASE));
      memset(t->defined + o, 1, bytes);
    } else {
      Buf *b = find_buffer(S, a, bytes);
      if (!b) return outside(S, pc, a, bytes, "atomic");
      if (!b->owner) return fail(S, pc, "atomic on the input '%s'", b->name);
      p = b->p + (a - b->base);
      if (b->init) {
        u8 *defined = b->init + (a - b->base);
        if (!defined[0]) report(S, R_UNINIT_STORE, pc, "atomic on undefined memory of '%s'", b->name);
        memset(defined, 1, bytes);
      }
    }
    memcpy(&old, p, bytes);
    if (bytes == 4) v = (u32)v, w = (u32)w;
    u64 now = atom_value((int)I->im[2], (int)I->im[3], old, v, w, bytes == 8);
    memcpy(p, &now, bytes);
    if (I->nd && dd[0] >= 0) {
      REG(dd[0])[l] = old;
      set_undef(W, dd[0], 1u << l, 0);
    }
  }
  return OK;
}
