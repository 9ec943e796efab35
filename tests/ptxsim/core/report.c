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

// Who waits where and for what. launch.py turns pc#N into the line of the PTX.
int report_deadlock(Sim *S) {
  const int room = sizeof S->err;
  int o = snprintf(S->err, room, "deadlock: no warp can run and no copy is pending\n");
  S->errpc = AT_DEADLOCK;
  for (int r = 0; r < S->nctas; r++) {
    CTA *c = &S->ctas[r];
    for (int i = 0; i < c->nw; i++)
      for (int k = 0; k < c->w[i].nf && o < room - 800; k++) {
        Frag *f = &c->w[i].f[k];
        o += snprintf(S->err + o, room - o, "  CTA (%u, %u, %u) warp %d, %d lanes at pc#%u: %s\n", c->id[0], c->id[1], c->id[2], i, __builtin_popcount(f->mask), f->pc, f->why);
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
