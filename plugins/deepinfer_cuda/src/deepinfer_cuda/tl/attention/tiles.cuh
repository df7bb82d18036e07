// How two warpgroups attend to the tiles of a row: each has half of the columns of the output and scores every other tile.
//
// Two tiles are in shared memory. The scores of both are under way together; the right group's probabilities are made beside
// its product with the left group's. The running maximum goes from tile to tile in the order of the columns, whoever scores
// them, so a row has the same bits in any batch.
#ifndef DEEPINFER_ATTENTION_TILES_CUH
#define DEEPINFER_ATTENTION_TILES_CUH
namespace di {

constexpr int COLUMNS = 1280;

// Of two, index 0 belongs to even tiles of a row and 1 to odd ones; of `sums`, to a row and a warpgroup.
struct Tiles {
  unsigned char q[65536], k[2][65536], p[2][8192];
  float top[2][64], sums[2][2][64];
  unsigned present[4][COLUMNS / 32];  // a bit a key, of four rows
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

}  // namespace di
#endif
