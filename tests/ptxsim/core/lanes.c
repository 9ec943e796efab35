// Collectives of a warp.
#include "numbers.h"

// A full-warp collective orders what lanes did before it with what they do after, as far as an arrival is concerned.
static void orders_all(Warp *W, u32 members) {
  if (members == ALL_LANES) W->acc_mask = 0;
}

// im: 0 mode (0 idx, 1 up, 2 down, 3 bfly), 6 predicate or -1. Sources: value, lane, clamp, members.
int op_shfl(Step *x) {
  PARTS(x);
  u32 members = (u32)REG(ss[3])[first_lane(m)], undef = 0, in_range = 0, undef_in = W->undef[ss[0]];
  u64 *value = REG(ss[0]), got[32] = {0};
  NEED(x, members);
  orders_all(W, members);
  FOR_LANES(l, m) {
    int by = (int)(REG(ss[1])[l] & 31), cv = (int)REG(ss[2])[l], clamp = cv & 31, segment = cv >> 8 & 31;
    int high = (l & segment) | (clamp & ~segment & 31), low = l & segment, j, ok;
    switch (I->im[0]) {
      case 1: j = l - by, ok = j >= high; break;
      case 2: j = l + by, ok = j <= high; break;
      case 3: j = l ^ by, ok = j <= high; break;
      default: j = low | (by & ~segment & 31), ok = j <= high;
    }
    if (!ok) j = l;
    if (!(m >> j & 1)) return fail(S, pc, "shfl: lane %d reads lane %d, which does not take part", l, j);
    got[l] = value[j];
    undef |= (undef_in >> j & 1) << l;
    in_range |= (u32)ok << l;
  }
  undef |= W->undef[ss[1]];
  FOR_LANES(l, m) REG(dd[0])[l] = got[l];
  set_undef(W, dd[0], m, undef);
  if (I->im[6] >= 0) set_pred(W, (int)I->im[6], m, in_range, 0);
  return OK;
}

// im: 0 mode (0 ballot, 1 any, 2 all, 3 uni), 1 source predicate, 2 negated, 6 destination predicate. Source: members.
int op_vote(Step *x) {
  PARTS(x);
  u32 members = (u32)REG(ss[0])[first_lane(m)];
  NEED(x, members);
  orders_all(W, members);
  u32 v = W->P[I->im[1]], part = m & members, undef = W->pundef[I->im[1]] & m ? ALL_LANES : 0;
  v = (I->im[2] ? ~v : v) & part;
  if (I->im[0] == 0) {
    FOR_LANES(l, m) REG(dd[0])[l] = v;
    set_undef(W, dd[0], m, undef);
    return OK;
  }
  int is = I->im[0] == 1 ? v != 0 : I->im[0] == 2 ? v == part : v == 0 || v == part;
  set_pred(W, (int)I->im[6], m, is ? ALL_LANES : 0, undef);
  return OK;
}

static u64 redux_f32(const Inst *I, const u64 *value, u32 part) {
  float r = 0;
  FOR_LANES(l, part) {
    float v = I->im[1] ? fabsf(as_f32(value[l])) : as_f32(value[l]);
    r = l == (int)first_lane(part) ? v : min_max_f32(r, v, I->im[0] == 9, (int)I->im[2]);
  }
  return out_f32(r, 0);
}

// im: 0 operation (0 add, 1 min.u, 2 max.u, 3 min.s, 4 max.s, 5 and, 6 or, 7 xor, 8 min.f32, 9 max.f32), of floats: 1 absolute values, 2 NaN wins. Sources: value, members.
int op_redux(Step *x) {
  PARTS(x);
  u32 members = (u32)REG(ss[1])[first_lane(m)];
  NEED(x, members);
  orders_all(W, members);
  u32 part = m & members, r = (u32)REG(ss[0])[first_lane(part)], undef = W->undef[ss[0]] & part ? ALL_LANES : 0;
  if (I->im[0] >= 8) r = (u32)redux_f32(I, REG(ss[0]), part);
  else FOR_LANES(l, part & ~(1u << first_lane(part))) {
    u32 v = (u32)REG(ss[0])[l];
    switch (I->im[0]) {
      case 0: r += v; break;
      case 1: r = v < r ? v : r; break;
      case 2: r = v > r ? v : r; break;
      case 3: r = (i32)v < (i32)r ? v : r; break;
      case 4: r = (i32)v > (i32)r ? v : r; break;
      case 5: r &= v; break;
      case 6: r |= v; break;
      default: r ^= v;
    }
  }
  FOR_LANES(l, m) REG(dd[0])[l] = r;
  set_undef(W, dd[0], m, undef);
  return OK;
}

// Any member may be elected: the first, or the last where the launch says so. im: 6 predicate. Source: members.
int op_elect(Step *x) {
  PARTS(x);
  u32 members = (u32)REG(ss[0])[first_lane(m)], part = m & members;
  NEED(x, members);
  u32 leader = S->elect_last ? 31 - (u32)__builtin_clz(part) : first_lane(part);
  set_pred(W, (int)I->im[6], m, 1u << leader, 0);
  if (I->nd && dd[0] >= 0) {
    FOR_LANES(l, m) REG(dd[0])[l] = leader;
    set_undef(W, dd[0], m, 0);
  }
  return OK;
}
