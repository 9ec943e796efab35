// Shared memory as 32 banks of 4 bytes: in how many wavefronts a warp's access goes, and in how few it could.
//
// Up to 4 bytes a lane: all lanes go together; 8 bytes: half the lanes at a time; 16 bytes: a quarter. Those that go together take one wavefront for each different
// word that the fullest bank has to give or take; a word that several lanes want counts once. Fewest: one for each such part of the warp that has a lane.
#include "sim.h"

enum { BANKS = 32 };

// Wavefronts of lanes [from, to).
static u32 wavefronts(const u64 *address, u64 offset, u32 lanes, int from, int to, int bytes) {
  u32 word[BANKS][BANKS], n[BANKS] = {0}, most = 0;
  for (int l = from; l < to; l++) {
    if (!(lanes >> l & 1)) continue;
    u32 a = (u32)(address[l] + offset);
    for (u32 w = a >> 2; w <= (a + (u32)bytes - 1) >> 2; w++) {
      u32 b = w % BANKS, i = 0;
      while (i < n[b] && word[b][i] != w) i++;
      if (i == n[b]) word[b][n[b]++] = w;
      if (n[b] > most) most = n[b];
    }
  }
  return most;
}

void banks_used(Step *x, const u64 *address, u64 offset, u32 lanes, int bytes) {
  if (!lanes) return;
  u64 *use = x->S->bank_use + 3 * (i64)x->pc;
  int together = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  use[0]++;
  for (int from = 0; from < 32; from += together) {
    u32 n = wavefronts(address, offset, lanes, from, from + together, bytes);
    use[1] += n;
    use[2] += n > 0;
  }
}
