// How two warpgroups attend to the tiles of a row: each has half of the columns of the output and scores every other tile.
//
// Two tiles are in shared memory. Prefill has the scores of both under way together, and the right group's probabilities are made
// beside its product with the left group's; decode, whose tiles take longer to come, does first what is there first. The running
// maximum goes from tile to tile in the order of the columns, whoever scores them and when, so a row has the same bits each time.
#ifndef DEEPINFER_ATTENTION_TILES_CUH
#define DEEPINFER_ATTENTION_TILES_CUH
namespace di {

constexpr int COLUMNS = 1280;

// Of two, index 0 belongs to even tiles of a row and 1 to odd ones; of `sums`, to a row and a warpgroup.
struct Tiles {
  unsigned char q[65536], k[2][65536], p[2][8192];
  float top[2][64], sums[2][2][64];
  unsigned present[4][COLUMNS / 32], decided[2][2];  // a bit a key, of four rows; answers of `comes_first`, of a warpgroup
  Bar full[2], empty[2][2], p_ready[2];  // of `empty`, the second index is a warpgroup's half of the columns

  // `bringing`: threads that bring keys
  __device__ __forceinline__ void begin(int bringing) {
    for (int i = 0; i < 2; ++i) {
      bar_init(&full[i], bringing);
      for (int side = 0; side < 2; ++side) bar_init(&empty[i][side], 128);
      bar_init(&p_ready[i], 128);
    }
  }
};

// Each warpgroup's sum becomes that of the row.
static __device__ __forceinline__ void add_sums(Tiles &w, int turn, int side, float *total) {
  float *sums = w.sums[turn & 1][0];
  const int head = first_head();
  if ((threadIdx.x & 3) == 0) {
    sums[side * 64 + head] = total[0];
    sums[side * 64 + head + 8] = total[1];
  }
  meet<256>(1);
  total[0] += sums[(1 - side) * 64 + head];
  total[1] += sums[(1 - side) * 64 + head + 8];
}

// Row number `turn` of the block, by warpgroup `side`: o, not divided yet, with the maximum m and the sum of all tiles.
// HALVES: as `weigh` has it. `scored` is called after the row's last scores.
template <bool HALVES, class Scored>
static __device__ __forceinline__ void attend_tiles(Tiles &w, int turn, int side, int tiles, float scale, float *o, float *m, float *total,
                                                    Scored scored) {
  const unsigned q = at_shared(w.q), k = at_shared(w.k[0]), mine = k + side * 32768, p = at_shared(w.p[0]), *present = w.present[turn & 3];
  float s[32], f[2];
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    m[h] = -1e30f;  // finite: the difference of two such is 0 and not NaN
    total[h] = 0.f;
  }
  #pragma unroll
  for (int i = 0; i < 128; ++i) o[i] = 0.f;
  if (tiles == 0) scored();
  #pragma unroll 1
  for (int tile = 0; tile < tiles; tile += 2) {
    const int even = (turn * ((tiles + 1) / 2) + tile / 2) & 1, odd = (turn * (tiles / 2) + tile / 2) & 1;
    const bool two = tile + 1 < tiles;
    if (!side || two) {
      bar_wait(&w.full[side], side ? odd : even);
      publish();
      score(q, k + side * 65536, s);
      settle(s, 32);
    }
    if (tile + 2 >= tiles) scored();
    if (!side) soften(s, present[2 * tile], present[2 * tile + 1], scale, m, f, p, w.top[0], &w.p_ready[0]);
    bar_wait(&w.full[0], even);
    if (side) publish();
    bar_wait(&w.p_ready[0], even);
    if (side) follow(w.top[0], m, f, total);
    rescale_if(o, f);
    weigh<HALVES>(p, mine, o);
    // beside the product
    if (!side) add_up(s, f, total);
    if (side && two) soften(s, present[2 * tile + 2], present[2 * tile + 3], scale, m, f, p + 8192, w.top[1], &w.p_ready[1]);
    settle(o, 128);
    bar_arrive(&w.empty[0][side]);
    if (two) {
      bar_wait(&w.full[1], odd);
      if (!side) publish();
      bar_wait(&w.p_ready[1], odd);
      if (!side) follow(w.top[1], m, f, total);
      rescale_if(o, f);
      weigh<HALVES>(p + 8192, mine + 65536, o);
      if (side) add_up(s, f, total);
      settle(o, 128);
      bar_arrive(&w.empty[1][side]);
    }
  }
  add_sums(w, turn, side, total);
}

// The same, one step a tile: the scores of the warpgroup's own tile behind this one, or the product of this one, whichever is there
// first.
template <bool HALVES, class Scored>
static __device__ __forceinline__ void attend_steps(Tiles &w, int turn, int side, int tiles, float scale, float *o, float *m, float *total,
                                                    Scored scored) {
  const unsigned q = at_shared(w.q), k = at_shared(w.k[0]) + side * 32768, p = at_shared(w.p[0]);
  const unsigned *present = w.present[turn & 3];
  const int evens = turn * ((tiles + 1) / 2), odds = turn * (tiles / 2);
  float s[32], f[2] = {1.f, 1.f};
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    m[h] = -1e30f;  // finite: the difference of two such is 0 and not NaN
    total[h] = 0.f;
  }
  #pragma unroll
  for (int i = 0; i < 128; ++i) o[i] = 0.f;
  if (side >= tiles) scored();
  bool softened = false;  // s are the probabilities of the tile behind
  #pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const int which = tile & 1, next = tile + (which ^ side);
    const bool own = which == side;
    const int parity = ((which ? odds : evens) + tile / 2) & 1, next_parity = ((side ? odds : evens) + next / 2) & 1;
    const bool scoring = !softened && next < tiles &&
                         (own || comes_first(&w.full[side], next_parity, &w.p_ready[which], parity, &w.decided[side][tile >> 1 & 1], 3 + side));
    if (scoring) {
      bar_wait(&w.full[side], next_parity);
      publish();
      score(q, k + side * 32768, s);
      settle(s, 32);
      if (next + 2 >= tiles) scored();
    }
    if (own && !softened)
      soften(s, present[2 * tile], present[2 * tile + 1], scale, m, f, p + side * 8192, w.top[side], &w.p_ready[side]);
    bar_wait(&w.p_ready[which], parity);
    if (!own) {
      bar_wait(&w.full[which], parity);
      publish();
      follow(w.top[which], m, f, total);
    }
    rescale_if(o, f);
    weigh<HALVES>(p + which * 8192, k + which * 65536, o);
    // beside the product
    if (own) add_up(s, f, total);
    softened = scoring && !own;
    if (softened)
      soften(s, present[2 * next], present[2 * next + 1], scale, m, f, p + side * 8192, w.top[side], &w.p_ready[side]);
    settle(o, 128);
    bar_arrive(&w.empty[which][side]);
  }
  add_sums(w, turn, side, total);
}

}  // namespace di
#endif
