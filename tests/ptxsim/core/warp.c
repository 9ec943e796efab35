// One warp: its fragments, and the step from instruction to instruction.
#include "sim.h"

u32 random_bits(Sim *S) {
  S->rng ^= S->rng << 13;
  S->rng ^= S->rng >> 7;
  S->rng ^= S->rng << 17;
  return (u32)(S->rng >> 24);
}

u32 live_lanes(Warp *W) {
  u32 v = 0;
  for (int i = 0; i < W->nf; i++) v |= W->f[i].mask;
  return v;
}

static void add_fragment(Warp *W, u32 pc, u32 mask) {
  for (int i = 0; i < W->nf; i++)
    if (W->f[i].pc == pc) {
      W->f[i].mask |= mask;
      W->f[i].why[0] = 0;
      return;
    }
  Frag *f = &W->f[W->nf++];
  f->pc = pc;
  f->mask = mask;
  f->why[0] = 0;
}

static void remove_fragment(Warp *W, int i) { W->f[i] = W->f[--W->nf]; }

static int execute(Step *x) {
  Warp *W = x->W;
  switch (x->I->op) {
    case OP_LD: return op_ld(x);
    case OP_ST: return op_st(x);
    case OP_ATOM: return op_atom(x);
    case OP_CPASYNC: return op_cp_async(x);
    case OP_CPCOMMIT: W->cp_open++; return OK;
    case OP_CPWAIT: return op_cp_wait(x);
    case OP_CPMBAR: return op_cp_mbar(x);
    case OP_BULK_G2S: return op_bulk_load(x);
    case OP_BULK_S2G: return op_bulk_store(x);
    case OP_TMA_LOAD: return op_tensor_load(x);
    case OP_TMA_STORE: return op_tensor_store(x);
    case OP_ST_ASYNC: return op_store_async(x);
    case OP_MB_INIT: return op_mbar_init(x);
    case OP_MB_INVAL: return op_mbar_inval(x);
    case OP_MB_ARRIVE: case OP_MB_EXPECT: case OP_MB_COMPLETE: return op_mbar_arrive(x);
    case OP_MB_WAIT: return op_mbar_wait(x);
    case OP_BAR: return op_bar(x);
    case OP_BARWARP: return op_bar_warp(x);
    case OP_CL_ARRIVE: return op_cluster_arrive(x);
    case OP_CL_WAIT: return op_cluster_wait(x);
    case OP_FENCE_ASYNC: case OP_FENCE_MB: return op_fence(x);
    case OP_SETMAXNREG: return op_setmaxnreg(x);
    case OP_SHFL: return op_shfl(x);
    case OP_VOTE: return op_vote(x);
    case OP_REDUX: return op_redux(x);
    case OP_ELECT: return op_elect(x);
    case OP_MMA: return op_mma(x);
    case OP_LDMATRIX: return op_ldmatrix(x);
    case OP_STMATRIX: return op_stmatrix(x);
    case OP_WGMMA: return op_wgmma(x);
    case OP_WG_FENCE:
      NEED(x, ALL_LANES);
      W->acc_mask = 0;
      W->fence_at = (u32)(W->n + x->n) + 1;
      return OK;
    case OP_WG_COMMIT:
      NEED(x, ALL_LANES);
      W->acc_mask = 0;
      W->wgmma_open++;
      return OK;
    case OP_WG_WAIT: return op_wgmma_wait(x);
    case OP_TMEM_ALLOC: return op_tmem_alloc(x);
    case OP_TMEM_DEALLOC: return op_tmem_dealloc(x);
    case OP_TMEM_RELINQUISH: return op_tmem_relinquish(x);
    case OP_TMEM_LD: return op_tmem_ld(x);
    case OP_TMEM_ST: return op_tmem_st(x);
    case OP_TMEM_WAIT: return op_tmem_wait(x);
    case OP_TC_FENCE: return op_tc_fence(x);
    case OP_TC_MMA: return op_umma(x);
    case OP_TC_CP: return op_umma_cp(x);
    case OP_TC_COMMIT: return op_umma_commit(x);
    default: return op_alu(x);
  }
}

// When registers were last used, which the rules of wgmma.fence need; and poison of plain operations.
static void bookkeeping(Step *x) {
  PARTS(x);
  u32 now = (u32)(W->n + x->n) + 1;
  if (I->simple) {
    u32 undef = 0;
    for (int i = 0; i < I->ns; i++) undef |= W->undef[ss[i]];
    set_undef(W, dd[0], m, undef);
  }
  if (!S->any_wgmma || I->op == OP_WGMMA) return;
  for (int i = 0; i < I->ns; i++)
    if (W->is_acc[ss[i]]) W->last_read[ss[i]] = now;
  for (int i = 0; i < I->nd; i++)
    if (dd[i] >= 0) {
      W->last_write[dd[i]] = now;
      W->is_acc[dd[i]] = 0;
    }
}

static int leave(Sim *S, Warp *W, int pc) {
  if (W->nwq) report(S, R_EXIT, pc, "warp %d exits with wgmma in flight", W->wid);
  if (W->ncq) report(S, R_EXIT, pc, "warp %d exits with cp.async not waited for", W->wid);
  return cp_drain(S, W, ~0u);
}

// Run fragment `index` for up to `budget` instructions. Returns how many ran (0: blocked), or FAILED.
static int run_fragment(Sim *S, Warp *W, int index, int budget) {
  Frag *f = &W->f[index];
  const u32 lanes = f->mask;
  u64 *executed = S->coverage + (S->by_warp ? (i64)W->wid * (S->npc + 1) : 0);
  u32 pc = f->pc;
  int n = 0;
  for (;;) {
    if (n >= budget) {
      f->pc = pc;
      f->why[0] = 0;
      W->n += n;
      return n;
    }
    if (pc >= (u32)S->npc) return fail(S, (int)pc - 1, "ran past the end of the kernel");
    Inst *I = &S->code[pc];
    Step x = {S, W, W->c, f, I, S->pool + I->dof, S->pool + I->sof, lanes, (int)pc, (u32)n};
    if (I->guard >= 0) {
      u32 g = W->P[I->guard], undef = W->pundef[I->guard] & lanes;
      if (undef) report(S, R_UNINIT_BRANCH, x.pc, "guard depends on undefined data (lanes %#x of warp %d)", undef, W->wid);
      x.m &= I->guard_neg ? ~g : g;
    }
    if (!x.m) {
      executed[pc] += I->op == OP_BRA;       // a branch not taken has been executed
      n++, pc++;
    } else if (I->op == OP_BRA) {
      executed[pc]++;
      n++;
      if (x.m != lanes) {
        u32 target = (u32)I->im[0];
        W->n += n;
        remove_fragment(W, index);
        add_fragment(W, pc + 1, lanes & ~x.m);
        add_fragment(W, target, x.m);
        return n;
      }
      pc = (u32)I->im[0];
    } else if (I->op == OP_RET) {
      executed[pc]++;
      n++;
      W->n += n;
      if (x.m == lanes) remove_fragment(W, index);
      else f->mask = lanes & ~x.m, f->pc = pc + 1;
      return !W->nf && leave(S, W, x.pc) ? FAILED : n;
    } else {
      int put_off = 0;
      if (W->ninflight) {
        int moved = I->op == OP_MOV ? wgmma_move(&x) : 0;
        if (!moved && I->op != OP_WGMMA) wgmma_hazards(&x);
        put_off = moved == 1;
      }
      if (W->nloading) tmem_hazards(&x);
      int r = put_off ? OK : execute(&x);
      if (r == FAILED) return FAILED;
      if (r == BLOCKED) {
        f->pc = pc;
        W->n += n;
        return n;
      }
      executed[pc]++;
      if (!put_off) bookkeeping(&x);
      n++, pc++;
    }
    for (int i = 0; W->nf > 1 && i < W->nf; i++)        // join a fragment that waits here
      if (i != index && W->f[i].pc == pc) {
        W->f[i].mask |= lanes;
        W->f[i].why[0] = 0;
        W->n += n;
        remove_fragment(W, index);
        return n;
      }
  }
}

// Run a warp, its rearmost fragment first, until all block or `budget` is used.
int run_warp(Sim *S, Warp *W, int budget) {
  int total = 0;
  while (W->nf && total < budget) {
    int any = 0, ran = 0;
    u32 last = 0;
    while (!ran) {
      int next = -1;
      for (int i = 0; i < W->nf; i++)
        if ((!any || W->f[i].pc > last) && (next < 0 || W->f[i].pc < W->f[next].pc)) next = i;
      if (next < 0) break;
      any = 1;
      last = W->f[next].pc;
      ran = run_fragment(S, W, next, budget - total);
      if (ran < 0) return FAILED;
    }
    if (!ran) break;
    total += ran;
  }
  return total;
}
