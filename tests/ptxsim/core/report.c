// Faults end the launch; reports are collected, one a kind and instruction.
#include "sim.h"

int fail(Sim *S, int pc, const char *format, ...) {
  va_list a;
  va_start(a, format);
  vsnprintf(S->err, sizeof S->err, format, a);
  va_end(a);
  S->errpc = pc;
  return FAILED;
}

void report(Sim *S, int kind, int pc, const char *format, ...) {
  for (int i = 0; i < S->nreports; i++)
    if (S->reports[i].kind == kind && S->reports[i].pc == pc) {
      S->reports[i].count++;
      return;
    }
  if (S->nreports >= S->max_reports) return;
  Report *r = &S->reports[S->nreports++];
  r->kind = kind;
  r->pc = pc;
  r->count = 1;
  va_list a;
  va_start(a, format);
  vsnprintf(r->text, sizeof r->text, format, a);
  va_end(a);
}

// Behind the first o bytes of the error: who waits where and for what, or runs where. launch.py turns pc#N into the line of the PTX.
static int who_waits(Sim *S, int o) {
  const int room = sizeof S->err;
  for (int r = 0; r < S->nctas; r++) {
    CTA *c = &S->ctas[r];
    for (int i = 0; i < c->nw; i++)
      for (int k = 0; k < c->w[i].nf && o < room - 800; k++) {
        Frag *f = &c->w[i].f[k];
        o += snprintf(S->err + o, room - o, "  CTA (%u, %u, %u) warp %d, %d lanes at pc#%u: %s\n", c->id[0], c->id[1], c->id[2], i, __builtin_popcount(f->mask), f->pc, f->why[0] ? f->why : "runs");
      }
    for (int i = 0; i < c->nmb && o < room - 300; i++) {
      MBar *b = &c->mb[i];
      if (b->alive && (b->pending != b->count || b->tx))
        o += snprintf(S->err + o, room - o, "  mbarrier at shared offset %d: count %u, pending %u, bytes outstanding %lld, phases completed %u\n",
                      (b->addr & 0xffffff) - SMEM_BASE, b->count, b->pending, (long long)b->tx, b->phase);
    }
  }
  return FAILED;
}

int report_deadlock(Sim *S) {
  S->errpc = AT_DEADLOCK;
  return who_waits(S, snprintf(S->err, sizeof S->err, "deadlock: no warp can run and no copy is pending\n"));
}

int report_livelock(Sim *S) {
  S->errpc = AT_LAUNCH;
  return who_waits(S, snprintf(S->err, sizeof S->err, "livelock? %llu warp instructions are used up (max_insts)\n", (ull)S->max_insts));
}
