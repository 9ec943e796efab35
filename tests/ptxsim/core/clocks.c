// Happens-before: who may touch a word now. Shared memory between agents, lanes of one warp, global memory, async proxy.
#include "sim.h"

void clock_join(Clock *a, const Clock *b) {
  for (int i = 0; i < CLOCKS; i++) a->c[i] = a->c[i] > b->c[i] ? a->c[i] : b->c[i];
}

Clock *clock_copy(const Clock *a) {
  Clock *v = malloc(sizeof *v);
  *v = *a;
  return v;
}

static const char *agent_name(Sim *S, int a, char *t, size_t room) {
  int n = S->nwarps;
  if (a < n) snprintf(t, room, "warp %d", a);
  else if (a < 2 * n) snprintf(t, room, "%s of warp %d", S->any_wgmma ? "wgmma" : "tcgen05", a - n);
  else if (a < 3 * n) snprintf(t, room, "cp.async of warp %d", a - 2 * n);
  else snprintf(t, room, "the copy on mbarrier %d", a - AGENTS_PER_WARP * n);
  return t;
}

static void after_write(CTA *c, int pc, i64 g, const Clock *v, int agent, const char *what) {
  char t[60];
  int w = c->write_agent[g];
  if (w && w - 1 != agent && v->c[w - 1] < c->write_clock[g])
    report(c->s, R_RACE, pc, "shared %s at offset %lld is not ordered after the write by %s", what, (long long)(g * 4 - SMEM_BASE), agent_name(c->s, w - 1, t, sizeof t));
}

// `agent` reads [a, a + n) at its clock `now`, knowing `v`.
void hb_read(CTA *c, int pc, i64 a, i64 n, const Clock *v, int agent, u32 now) {
  if (!c->s->races) return;
  for (i64 g = a >> 2; g <= (a + n - 1) >> 2; g++) {
    after_write(c, pc, g, v, agent, "read");
    c->reads[g * 2 * c->s->nwarps + agent] = now;
  }
}

void hb_write(CTA *c, int pc, i64 a, i64 n, const Clock *v, int agent, u32 now) {
  Sim *S = c->s;
  if (!S->races) return;
  int readers = 2 * S->nwarps;
  for (i64 g = a >> 2; g <= (a + n - 1) >> 2; g++) {
    after_write(c, pc, g, v, agent, "write");
    u32 *r = c->reads + g * readers, bad = 0;
    for (int i = 0; i < readers; i++) bad |= r[i] > v->c[i];
    for (int i = 0; bad && i < readers; i++)
      if (r[i] > v->c[i] && i != agent) {
        char t[60];
        report(S, R_RACE, pc, "shared write at offset %lld is not ordered after the read by %s", (long long)(g * 4 - SMEM_BASE), agent_name(S, i, t, sizeof t));
        break;
      }
    memset(r, 0, readers * sizeof *r);
    c->write_agent[g] = (u16)(agent + 1);
    c->write_clock[g] = now;
  }
}

// Two lanes of a warp use one word and one of them writes: a .sync of the warp has to lie between. Words only: bytes are not told apart.
void lane_read(CTA *c, int pc, i64 a, i64 n, Warp *W, int lane) {
  if (!c->s->races || n < 4) return;
  for (i64 g = a >> 2; g <= (a + n - 1) >> 2; g++) {
    if (c->write_agent[g] - 1 == W->gid && c->lane_write_epoch[g] == W->epoch && c->lane_writer[g] != lane)
      report(c->s, R_LANE_RACE, pc, "lane %d of warp %d reads offset %lld, written by lane %d with no bar.warp.sync between", lane, W->wid, (long long)(g * 4 - SMEM_BASE), c->lane_writer[g]);
    if (c->lane_read_warp[g] != W->gid + 1 || c->lane_read_epoch[g] != W->epoch) {
      c->lane_read_warp[g] = (u16)(W->gid + 1);
      c->lane_read_epoch[g] = W->epoch;
      c->lane_readers[g] = 0;
    }
    c->lane_readers[g] |= 1u << lane;
  }
}

void lane_write(CTA *c, int pc, i64 a, i64 n, Warp *W, int lane, int is_copy) {
  if (!c->s->races || n < 4) return;
  for (i64 g = a >> 2; g <= (a + n - 1) >> 2; g++) {
    long long at = (long long)(g * 4 - SMEM_BASE);
    if (c->write_agent[g] - 1 == W->gid && c->lane_write_epoch[g] == W->epoch && c->lane_writer[g] != lane)
      report(c->s, R_LANE_RACE, pc, "lane %d of warp %d writes offset %lld, written by lane %d with no bar.warp.sync between", lane, W->wid, at, c->lane_writer[g]);
    if (c->lane_read_warp[g] == W->gid + 1 && c->lane_read_epoch[g] == W->epoch && c->lane_readers[g] & ~(1u << lane))
      report(c->s, R_LANE_RACE, pc, "lane %d of warp %d %s offset %lld, read by lanes %#x with no bar.warp.sync between", lane, W->wid, is_copy ? "starts a copy over" : "writes", at,
             c->lane_readers[g]);
    if (!is_copy) {
      c->lane_writer[g] = (u8)lane;
      c->lane_write_epoch[g] = W->epoch;
    }
  }
}

void lane_used_shared(Warp *W, int lane) {
  if (W->acc_epoch != W->epoch) {
    W->acc_epoch = W->epoch;
    W->acc_mask = 0;
  }
  W->acc_mask |= 1u << lane;
}

// Global memory: between CTAs of a launch nothing is ordered; between warps of a CTA the barriers order.
void global_access(Sim *S, Buf *b, u64 off, u64 n, Warp *W, int pc, int write) {
  if (!b->owner) return;
  const char *what = write ? "writes" : "reads";
  for (u64 g = off >> 2; g <= (off + n - 1) >> 2; g++) {
    if (b->owner[g] >= 0 && b->owner[g] != S->cta_index)
      report(S, R_GLOBAL_RACE, pc, "%s '%s' at byte %llu, which another CTA wrote in this launch", what, b->name, (ull)g * 4);
    else if (S->races && b->owner[g] == S->cta_index && b->writer[g] != W->gid && W->vc.c[b->writer[g]] < b->clock[g] && n >= 4)
      report(S, R_GLOBAL_RACE, pc, "%s '%s' at byte %llu, not ordered after the write by warp %u of the same CTA", what, b->name, (ull)g * 4, b->writer[g]);
    if (write) {
      b->owner[g] = S->cta_index;
      b->writer[g] = (u16)W->gid;
      b->clock[g] = W->vc.c[W->gid];
    }
  }
}

void proxy_stored(CTA *c, i64 a, i64 n) {
  for (i64 g = a >> 2; g <= (a + n - 1) >> 2; g++)
    if (!c->dirty[g]) {
      c->dirty[g] = 1;
      c->dirty_list[c->ndirty++] = (i32)g;
    }
}

// The asynchronous proxy touches words that ordinary stores wrote.
void proxy_check(CTA *c, int pc, i64 a, i64 n, const char *what) {
  for (i64 g = a >> 2; g <= (a + n - 1) >> 2; g++)
    if (c->dirty[g]) {
      report(c->s, R_PROXY, pc, "%s offset %lld, which an ordinary store wrote with no fence.proxy.async between", what, (long long)(g * 4 - SMEM_BASE));
      return;
    }
}
