// What one launch is made of. A launch runs CTA after CTA (cluster after cluster); inside, warps take turns.
//
// Divergence: a warp is a set of fragments (pc, lanes). Fragments at one pc join.
// Poison: every register, predicate and byte of shared memory carries whether it is defined; poison travels and is
// reported where it decides something (branch, address, global store, barrier).
// Happens-before: every agent has a component in vector clocks. Agents are the warps of the cluster, the wgmma or tcgen05
// operations of each warp, the cp.async of each warp, its loads from and its stores to tensor memory, and each mbarrier on
// behalf of the copies that signal it.
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "opcodes.h"

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;
typedef int64_t i64;
typedef int32_t i32;
typedef int16_t i16;
typedef int8_t i8;
typedef unsigned long long ull;     // for printf

enum {
  SMEM_BASE = 1024,       // first shared byte of a CTA; below it lies what the system keeps
  MAX_MBARRIERS = 96,     // of a CTA
  CLOCKS = 448,           // components of a vector clock
  AGENTS_PER_WARP = 5,
  TMEM_LANES = 128, TMEM_COLUMNS = 512,
  MAX_TMEM_BLOCKS = 16,   // allocations of tensor memory at a time
  ARM_A = 0x8000,         // mark in Warp.inflight: an A operand register, not an accumulator
};
// Generic addresses of the windows; launch.py and decode/ use the same numbers.
#define PARAM_WINDOW 0x700000000000ull
#define SHARED_WINDOW 0x710000000000ull
#define LOCAL_WINDOW 0x720000000000ull
#define ALL_LANES 0xffffffffu

enum { EAGER, LAZY, RANDOM };                               // Sim.mode
enum { GLOBAL, SHARED, GENERIC, LOCAL };                    // state spaces of ld and st
enum { OK = 0, FAILED = -1, BLOCKED = 1 };                  // what an operation returns
enum { AT_LAUNCH = -3, AT_DEADLOCK = -2, AT_NOTHING = -1 }; // Sim.errpc where it is no instruction

// Reports: launch.py holds the names, in this order.
enum {
  R_UNINIT_BRANCH, R_UNINIT_STORE, R_UNINIT_ADDRESS, R_RACE, R_PROXY, R_WGMMA_READ, R_WGMMA_WRITE, R_WGMMA_FENCE, R_WGMMA_MOVE,
  R_GLOBAL_RACE, R_MBARRIER_INIT, R_EXIT, R_BARRIER_LEFT, R_UNINIT_SYNC, R_MBARRIER_TWICE, R_LANE_RACE, R_WGMMA_COUNT,
  R_TMEM_RACE, R_TMEM_LEFT, R_TMEM_LANE, R_TMEM_FENCE, R_TMEM_EARLY, R_LATE
};

// ---- what Python hands over (field by field the same in launch.py)
typedef struct {
  i64 op, guard, guard_neg;     // guard: predicate or -1
  i64 nd, dof, ns, sof;         // destinations and sources: counts, offsets in Sim.pool
  i64 simple;                   // 1: the destination is undefined where a source is
  i64 im[8];                    // what else the operation needs; stated where it is executed
} Inst;

typedef struct {
  u64 base, size;
  u8 *p;
  char *name;
  i32 *owner;   // per word: CTA that wrote it in this launch, or -1; null: read-only
  u8 *init;     // per byte: defined; null: all is
  u32 *clock;   // per word: clock of the write by `writer`
  u16 *writer;  // per word: warp of the owner
} Buf;

typedef struct {
  u64 base;
  i64 rank, bits, swizzle, integer32, dims[5], strides[5], box[5];
} TensorMap;

typedef struct {
  i32 kind, pc;
  i64 count;
  char text[240];
} Report;

// ---- private
typedef struct { u32 c[CLOCKS]; } Clock;

typedef struct {
  u32 count, pending, phase, alive, fenced;
  i64 tx;                 // bytes outstanding
  i32 addr, agent;
  u32 init_warp, init_clock;
  u32 signalled, seen;    // phases that a copy or a commit has signalled, that some warp has waited for
  Clock collecting, done;     // of the running phase, of the last completed one
} MBar;

typedef struct {
  u32 pc, mask;
  char why[160];
} Frag;

// In the queue of a warp's wgmma groups: a product, or a move of an accumulator in flight.
typedef struct {
  int is_move, group, pc;
  u32 scale_d, executed;
  u64 desc_a, desc_b;
  int dst, src;
  Clock *clock;
} WgmmaItem;

typedef struct {
  int group, pc;
  i32 dst, bytes, valid;      // shared address, bytes written, bytes read
  Buf *b;
  u64 g;
  Clock *clock;
} CpItem;

// A tcgen05.mma, cp or commit in the queue of a warp.
typedef struct {
  int op, pc;
  u32 number;             // in the order of the warp
  u32 d, idesc, scale_a, scale_b, accumulate;     // tensor memory addresses; `d` of a commit: the mbarrier, `b` its CTAs
  u64 a, b;               // shared memory descriptors
  Clock *clock;
} TcItem;

typedef struct { u32 col, n; int alive, freed_by; } TmemBlock;

struct CTA;
struct Sim;

typedef struct Warp {
  struct CTA *c;
  int wid, gid;           // in the CTA, in the cluster
  u64 *R;                 // registers, then constants: [nreg + nconst][32]
  u32 *P;                 // predicates, one bit a lane; then false, true
  u32 *undef, *pundef;    // lanes whose register, predicate is undefined
  u32 *last_write, *last_read;    // instruction counts, for the rules of wgmma.fence
  u8 *is_acc;             // register was an accumulator since its last ordinary write
  u16 *inflight;          // tag of the wgmma group that holds the register, | ARM_A
  int ninflight;
  Frag f[33];
  int nf;
  Clock vc;
  u64 n;                  // instructions executed
  u32 epoch;              // grows at every .sync of the warp: what lanes did in different epochs is ordered
  u32 acc_epoch, acc_mask;        // lanes that used shared memory in the epoch
  int bar;                // named barrier it waits at, or -1
  u32 bar_gen, cluster_gen;
  int spurious;           // try_wait answers "no" in a row that need not have been
  WgmmaItem *wq;
  int nwq, cwq;
  u32 wgmma_open, fence_at;
  u64 nwgmma;
  CpItem *cq;
  int ncq, ccq;
  u32 cp_open;
  u8 *local;              // [32][Sim.local]
  TcItem *tq;
  int ntq, ctq, tensor_lane;      // tensor_lane: which issues, or -1
  u32 ntensor, nload, nstore;     // tcgen05 operations, loads from and stores to tensor memory so far
  u8 *loading;            // register of a tcgen05.ld that no wait::ld followed
  int nloading;
  int registers;          // of a thread, now
  int synchronised, unfenced;     // since the last tcgen05.fence::after_thread_sync, ::before_thread_sync
} Warp;

typedef struct {
  u32 n, want, gen;
  Clock collecting, done;
} NamedBarrier;

typedef struct CTA {
  struct Sim *s;
  int rank;               // in the cluster
  u32 id[3];
  u8 *sm, *defined;       // shared memory, and which bytes are defined
  i32 size;
  i16 *mbar_at;           // per 8 bytes: index in mb, or -1
  MBar *mb;
  int nmb;
  u32 *write_clock;       // per word: last write ...
  u16 *write_agent;       // ... by agent - 1 (0: none)
  u32 *reads;             // per word and agent (warps, their wgmma): clock of the last read since that write
  u8 *lane_writer;        // per word: lane of the last ordinary write, and its epoch
  u32 *lane_write_epoch;
  u32 *lane_readers, *lane_read_epoch;
  u16 *lane_read_warp;
  u8 *dirty;              // per word: ordinary store not yet followed by fence.proxy.async
  i32 *dirty_list;
  int ndirty;
  NamedBarrier bar[16];
  Warp *w;
  int nw;
  u32 *tmem;              // [lane][column]
  u8 *tmem_defined;       // bit a byte
  u16 *tmem_write_agent;  // per partition of 32 lanes and column, as in shared memory
  u32 *tmem_write_clock, *tmem_reads;
  TmemBlock alloc[MAX_TMEM_BLOCKS];
  int nallocs, relinquished;      // relinquished: by warp - 1
  int free_registers;     // of 32 threads, given up by warps
} CTA;

// An asynchronous copy into shared memory that has not happened yet.
typedef struct {
  CTA *c;
  int pc;
  i32 dst, bytes;
  Buf *b;                 // source of a bulk copy
  u64 g;
  u8 *data, *defined;     // or what a tensor copy has gathered
  u32 mbar;
  u16 multicast;
  int swizzle, generic;   // generic: st.async, which is no operation of the async proxy
  Clock *clock;
} Copy;

typedef struct Sim {
  // ---- shared with launch.py, down to `cta_index`
  Inst *code;
  i32 npc, nreg, npred, nconst, nbuf, nmaps;
  i32 *pool;
  u64 *const_value;
  u8 *const_kind;         // 0 value, 100 shared address, else a special register
  Buf *buf;
  TensorMap *maps;
  u64 *map_address;
  u32 grid[3], block[3], cluster[3];
  i32 smem, mode, races, elect_last;
  u64 rng, max_insts;
  i64 local;              // bytes a lane
  u64 *coverage;
  Report *reports;
  i32 nreports, max_reports;
  char err[6000];
  i32 errpc, cta_index;
  u64 insts, bulk_bytes, wgmmas, mmas, ummas;
  i32 registers;          // a thread starts with, where the kernel moves registers between warps (setmaxnreg)
  u64 *bank_use;          // per instruction: accesses of shared memory, their wavefronts, the fewest possible; null: not asked for
  i32 by_warp;            // coverage is one array of npc + 1 for each warp of a CTA
  u32 *phases;            // per 8 bytes of shared memory: 1 + the phases that the mbarrier there completed in the life of a CTA, at most
  // ---- private
  CTA *ctas;
  int nctas, nwarps;      // of the cluster
  Copy *copies;
  int ncopies, max_copies, tensor_pending;
  u32 cluster_arrived, cluster_gen;
  Clock cluster_collecting, cluster_done;
  int any_wgmma;
} Sim;

// One instruction of one fragment.
typedef struct {
  Sim *S;
  Warp *W;
  CTA *c;
  Frag *f;
  Inst *I;
  i32 *dd, *ss;       // registers
  u32 m;              // lanes whose guard holds
  int pc;
  u32 n;              // instructions of this slice before it
} Step;

#define REG(i) (W->R + 32 * (i64)(i))
#define FOR_LANES(l, m) for (int l = 0; l < 32; l++) if ((m) >> l & 1)
// Names that the operations use for the parts of a Step.
#define PARTS(x) \
  Sim *S = (x)->S; Warp *W = (x)->W; CTA *c = (x)->c; Inst *I = (x)->I; i32 *dd = (x)->dd, *ss = (x)->ss; const u32 m = (x)->m; const int pc = (x)->pc; \
  (void)S, (void)W, (void)c, (void)I, (void)dd, (void)ss, (void)m, (void)pc
#define BLOCK(x, ...) do { snprintf((x)->f->why, sizeof(x)->f->why, __VA_ARGS__); return BLOCKED; } while (0)
// A .sync instruction: every live lane of `want` has to be in this fragment.
#define NEED(x, want) \
  do { u32 need_ = live_lanes((x)->W) & (want); if (((x)->m & need_) != need_) BLOCK(x, "waits for the other lanes of its warp (reconvergence at a .sync instruction)"); } while (0)

static inline u32 first_lane(u32 m) { return (u32)__builtin_ctz(m); }
static inline void set_undef(Warp *W, int reg, u32 m, u32 undef) { W->undef[reg] = (W->undef[reg] & ~m) | (undef & m); }
static inline void set_pred(Warp *W, int p, u32 m, u32 value, u32 undef) {
  W->P[p] = (W->P[p] & ~m) | (value & m);
  W->pundef[p] = (W->pundef[p] & ~m) | (undef & m);
}

// report.c
int fail(Sim *S, int pc, const char *format, ...) __attribute__((format(printf, 3, 4)));
void report(Sim *S, int kind, int pc, const char *format, ...) __attribute__((format(printf, 4, 5)));
int report_deadlock(Sim *S);
int report_livelock(Sim *S);
// clocks.c
void clock_join(Clock *a, const Clock *b);
Clock *clock_copy(const Clock *a);
void hb_read(CTA *c, int pc, i64 a, i64 n, const Clock *v, int agent, u32 now);
void hb_write(CTA *c, int pc, i64 a, i64 n, const Clock *v, int agent, u32 now);
void lane_read(CTA *c, int pc, i64 a, i64 n, Warp *W, int lane);
void lane_write(CTA *c, int pc, i64 a, i64 n, Warp *W, int lane, int is_copy);
void lane_used_shared(Warp *W, int lane);
void global_access(Sim *S, Buf *b, u64 off, u64 n, Warp *W, int pc, int write);
void proxy_stored(CTA *c, i64 a, i64 n);
void proxy_check(CTA *c, int pc, i64 a, i64 n, const char *what);
// memory.c
Buf *find_buffer(Sim *S, u64 a, u64 n);
int outside(Sim *S, int pc, u64 a, u64 n, const char *what);
int shared_range(CTA *c, int pc, i64 a, i64 n, const char *what);
int not_over_mbarrier(CTA *c, int pc, i64 a, i64 n, const char *what);
int op_ld(Step *x);
int op_st(Step *x);
int op_atom(Step *x);
// barrier.c
MBar *mbar_at(Sim *S, int pc, u64 a);
int mbar_arrive(Sim *S, int pc, MBar *b, u32 n, i64 tx, const Clock *v);
void mbar_bytes(MBar *b, i64 n, const Clock *v);
void mbar_used(Sim *S, int pc, MBar *b, Warp *W);
void mbar_signalled_by_copy(Sim *S, int pc, MBar *b);
int op_mbar_init(Step *x);
int op_mbar_inval(Step *x);
int op_mbar_arrive(Step *x);
int op_mbar_wait(Step *x);
int op_bar(Step *x);
int op_bar_warp(Step *x);
int op_cluster_arrive(Step *x);
int op_cluster_wait(Step *x);
int op_fence(Step *x);
int op_setmaxnreg(Step *x);
// copy.c
i64 swizzled(i64 a, int mode);
int copy_run(Sim *S, int i);
int cp_drain(Sim *S, Warp *W, u32 upto);
int op_cp_async(Step *x);
int op_cp_wait(Step *x);
int op_cp_mbar(Step *x);
int op_bulk_load(Step *x);
int op_bulk_store(Step *x);
int op_tensor_load(Step *x);
int op_tensor_store(Step *x);
int op_store_async(Step *x);
// banks.c
void banks_used(Step *x, const u64 *address, u64 offset, u32 lanes, int bytes);
// lanes.c
int op_shfl(Step *x);
int op_vote(Step *x);
int op_redux(Step *x);
int op_elect(Step *x);
// mma.c, wgmma.c
u32 spread_rows(u32 undef);
int op_mma(Step *x);
int op_ldmatrix(Step *x);
int op_stmatrix(Step *x);
int op_wgmma(Step *x);
int op_wgmma_wait(Step *x);
void wgmma_hazards(Step *x);
int wgmma_move(Step *x);
// tmem.c, umma.c
int tmem_tensor_agent(Warp *W);
int tmem_range(CTA *c, int pc, u32 col, u32 n, const char *what);
void tmem_access(CTA *c, int pc, u32 parts, u32 col, u32 n, const Clock *v, int agent, u32 now, int write);
void tmem_used(Step *x);
void tmem_signals(Step *x);
void tmem_hazards(Step *x);
int op_tc_fence(Step *x);
int op_tmem_alloc(Step *x);
int op_tmem_dealloc(Step *x);
int op_tmem_relinquish(Step *x);
int op_tmem_ld(Step *x);
int op_tmem_st(Step *x);
int op_tmem_wait(Step *x);
int umma_run(Sim *S, Warp *W);
int op_umma(Step *x);
int op_umma_cp(Step *x);
int op_umma_commit(Step *x);
// alu.c
int op_alu(Step *x);
// warp.c
u32 live_lanes(Warp *W);
int run_warp(Sim *S, Warp *W, int budget);
u32 random_bits(Sim *S);
