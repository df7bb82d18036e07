// What the blocks of a cluster that share a row send each other: each finishes an N-th of the columns of each warpgroup.
#ifndef DEEPINFER_ATTENTION_SHARES_CUH
#define DEEPINFER_ATTENTION_SHARES_CUH
namespace di {

// Of two, the index is that of a warpgroup.
template <int N> struct Room : Tiles {
  float their_top[2][N > 1 ? N - 1 : 1][64], their_sum[2][N > 1 ? N - 1 : 1][64];
  Bar landed[2][4], free_there;  // parts of what the other blocks sent have come; the other blocks can be written to
  long long places[N > 1 ? 2 * COLUMNS / N : COLUMNS];
};
// Bytes that a warpgroup of a block is sent for a row: its share of the columns from each other block, maxima and sums.
template <int N> constexpr int SHARES = (N - 1) * 64 * 256 / N * 3;
// It comes in parts of 16 accumulators of a thread, so that one is added and stored while others are on their way.
template <int N> constexpr int PARTS = N > 1 ? 8 / N : 1;
template <int N> static __device__ __forceinline__ void expect_shares(Room<N> &w, int side) {
  #pragma unroll
  for (int part = 0; part < PARTS<N>; ++part) bar_expect(&w.landed[side][part], SHARES<N> / PARTS<N> + (part ? 0 : (N - 1) * 2 * 64 * 4));
}

// 16 accumulators without their last eight bits, 2^-15 of them at most, in twelve words.
static __device__ __forceinline__ void shorten(const float *o, unsigned *words) {
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned last = __float_as_uint(o[4 * i + 3]);
    #pragma unroll
    for (int j = 0; j < 3; ++j) words[3 * i + j] = __byte_perm(__float_as_uint(o[4 * i + j]), last, 0x0321 | (5 + j) << 12);
  }
}
// Four of them out of three words.
static __device__ __forceinline__ void lengthen(const unsigned *words, float *v) {
  #pragma unroll
  for (int j = 0; j < 3; ++j) v[j] = __uint_as_float(words[j] << 8);
  v[3] = __uint_as_float(__byte_perm(__byte_perm(words[0], words[1], 0x7300), words[2], 0x7320) & 0xffffff00u);
}

// Accumulators of a thread that its block finishes, and words of them, four a step, that it sends another one.
template <int N> constexpr int OWN = 128 / N;
template <int N> constexpr int WORDS = OWN<N> / 4 * 3;

// Where a warpgroup's shares from other blocks land: on the queries, or, once nothing follows, on the keys.
template <int N> static __device__ __forceinline__ unsigned char *landing(Room<N> &w, int side) {
  return N > 2 ? w.k[0] + side * (SHARES<N>) : w.q + side * 32768;
}
// Tells the other blocks that they may write there, a lane a warp.
template <int N> static __device__ __forceinline__ void tell_others(Room<N> &w, int rank) {
  if ((threadIdx.x & 31) == 0) {
    #pragma unroll
    for (int d = 0; d < N; ++d)
      if (d != rank) arrive_at(over_there(&w.free_there, d));
  }
}
// Sends what is not this block's share, and moves that to the front of o.
template <int N>
static __device__ __forceinline__ void send_shares(Room<N> &w, int rank, int side, float *o, const float *m, const float *total) {
  const int t = threadIdx.x & 127;
  #pragma unroll
  for (int d = 0; d < N; ++d) {
    if (d == rank) continue;
    const int slot = rank - (rank > d);
    const unsigned told = over_there(w.landed[side], d), to = over_there(landing(w, side), d) + slot * WORDS<N> * 512 + 16 * t;
    if ((t & 3) == 0) {
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        send(over_there(&w.their_top[side][slot][first_head() + 8 * h], d), m[h], told);
        send(over_there(&w.their_sum[side][slot][first_head() + 8 * h], d), total[h], told);
      }
    }
    #pragma unroll
    for (int i = 0; i < OWN<N> / 16; ++i) {
      const unsigned landed = told + i * PARTS<N> / (OWN<N> / 16) * 8;
      unsigned words[12];
      shorten(o + d * OWN<N> + 16 * i, words);
      #pragma unroll
      for (int j = 0; j < 3; ++j) send4(to + (3 * i + j) * 2048, words + 4 * j, landed);
    }
  }
  #pragma unroll
  for (int d = 1; d < N; ++d) {
    #pragma unroll
    for (int i = 0; i < OWN<N>; ++i) o[i] = rank == d ? o[d * OWN<N> + i] : o[i];
  }
}
// What the sums of each block are multiplied by: a thread's two heads, division by the whole sum included. `sunk`: sinks as
// powers of two. In m and total the whole row's maximum and sum take the place of the block's.
template <int N>
static __device__ __forceinline__ void weights_of(const Room<N> &w, int rank, int side, const float *sunk, float *m, float *total,
                                                  float (*share)[2]) {
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int head = first_head() + 8 * h;
    float tops[N], top = m[h], sum = 0.f;
    #pragma unroll
    for (int d = 0; d < N; ++d) {
      tops[d] = d == rank ? m[h] : w.their_top[side][d - (d > rank)][head];
      top = fmaxf(top, tops[d]);
    }
    #pragma unroll
    for (int d = 0; d < N; ++d) {
      share[d][h] = exp2_fast(tops[d] - top);
      sum = __fadd_rn(sum, __fmul_rn(d == rank ? total[h] : w.their_sum[side][d - (d > rank)][head], share[d][h]));
    }
    // the key that the maximum is of contributes 1, so only a row without keys is below: it divides 0
    const float inverse = 1.f / fmaxf(sum + exp2_fast(sunk[h] - top), 1.f);
    #pragma unroll
    for (int d = 0; d < N; ++d) share[d][h] *= inverse;
    m[h] = top;
    total[h] = sum;
  }
}
// The weights of the block's own share.
template <int N> static __device__ __forceinline__ void own_weights(int rank, float (*share)[2], float *own) {
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    own[h] = share[0][h];
    #pragma unroll
    for (int d = 1; d < N; ++d) own[h] = d == rank ? share[d][h] : own[h];
  }
}
// 16 accumulators `i` = the block's own share of them, weighted, and those that landed, in the order of the blocks that sent them.
template <int N>
static __device__ __forceinline__ void add_shares(Room<N> &w, int rank, int side, int i, const float *own, float (*share)[2], float *o) {
  #pragma unroll
  for (int k = 0; k < 16; ++k) o[k] = __fmul_rn(o[k], own[k >> 1 & 1]);
  const uint4 *landed = reinterpret_cast<const uint4 *>(landing(w, side)) + (threadIdx.x & 127);
  constexpr int STEP = WORDS<N> * 4 / OWN<N>;  // uint4 of 16 accumulators
  #pragma unroll
  for (int j = 0; j < N - 1; ++j) {
    // of block j or the one behind it
    const float x = j < rank ? share[j][0] : share[j + 1][0], y = j < rank ? share[j][1] : share[j + 1][1];
    uint4 words[STEP];
    float v[16];
    #pragma unroll
    for (int k = 0; k < STEP; ++k) words[k] = landed[(j * WORDS<N> / 4 + i * STEP + k) * 128];
    #pragma unroll
    for (int k = 0; k < 4; ++k) lengthen(reinterpret_cast<const unsigned *>(words) + STEP * k, v + 4 * k);
    #pragma unroll
    for (int k = 0; k < 16; ++k) o[k] = __fadd_rn(o[k], __fmul_rn(v[k], k & 2 ? y : x));
  }
}

}  // namespace di
#endif
