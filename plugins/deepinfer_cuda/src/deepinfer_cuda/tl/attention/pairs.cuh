// Decode attention of 64 heads of 512 on Hopper: a pair of blocks has half of a row's tiles of 64 keys each (hopper_decode.py).
#ifndef DEEPINFER_ATTENTION_PAIRS_CUH
#define DEEPINFER_ATTENTION_PAIRS_CUH
namespace di {

struct Arguments {
  const __nv_bfloat16 *q;
  const unsigned char *window, *extra;
  const int *idx, *lengths, *extra_idx, *extra_lengths;
  const float *sink;
  __nv_bfloat16 *out;
  float *lse;
  int rows, heads, k1, k2, window_page, window_stride, extra_page, extra_stride, has_lengths, has_extra_lengths, has_sink;
  long long q_stride;
  float scale;
};

// Of two, the index is that of a warpgroup.
struct Room : Tiles {
  float their_top[2][64], their_sum[2][64];
  Bar landed[2], q_free;  // what the other block sent has come; the other block's queries are of no more use
  long long places[COLUMNS];
};
constexpr int SENT = 64 * 128 * 4 + 2 * 64 * 4;

// Byte of the entry that `column` of a row lists, -1 where it lists none.
static __device__ __forceinline__ long long place_of(const int *idx, int columns, int row, int column, int has_lengths,
                                                     const int *lengths, int page, int stride, int bytes) {
  if (column >= columns) return -1;
  int slot = idx[(long long)row * columns + column], length = has_lengths ? lengths[row] : columns;
  if (slot < 0 || column >= length) return -1;
  int unit = slot / page;
  return (long long)unit * stride + (slot - unit * page) * bytes;
}
// Places of the keys of a row from `i` on.
template <class First, class Other>
static __device__ __forceinline__ void locate(Room &w, const Arguments &a, int row, int first_tile, int tiles, int split, int i, int step,
                                              unsigned *present) {
  #pragma unroll 1
  for (; i < tiles * 64; i += step) {
    long long place = i < split * 64 ? place_of(a.idx, a.k1, row, first_tile * 64 + i, a.has_lengths, a.lengths, a.window_page,
                                                a.window_stride, Spread<First>::BYTES)
                                     : place_of(a.extra_idx, a.k2, row, i - split * 64, a.has_extra_lengths, a.extra_lengths,
                                                a.extra_page, a.extra_stride, Spread<Other>::BYTES);
    w.places[i] = place;
    unsigned there = __ballot_sync(0xffffffffu, place >= 0);
    if ((threadIdx.x & 31) == 0) present[i >> 5] = there;
  }
}
// The entries from key `i` on set out for the second-level cache, after the loads of those that are needed first.
template <class First, class Other>
static __device__ __forceinline__ void ask(const Room &w, const Arguments &a, int tiles, int split, int i, int step) {
  #pragma unroll 1
  for (; i < tiles * 64; i += step) {
    if (w.places[i] < 0) continue;
    if (i < split * 64) prefetch_entry(a.window, w.places[i], Spread<First>::BYTES);
    else prefetch_entry(a.extra, w.places[i], Spread<Other>::BYTES);
  }
}

// Half `side` of the columns of the queries sets out; `turn_queries` by the same threads waits and orders them as expand.cuh.
static __device__ __forceinline__ void load_queries(unsigned q, const Arguments &a, int row, int head0, int side, int t) {
  #pragma unroll
  for (int i = 0; i < 16; ++i) {
    int r = i / 4 * 16 + t / 8, head = head0 + r, column = side * 256 + (i & 3) * 64 + (t & 7) * 8;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(q + (side * 4 + (i & 3)) * 8192 + swizzled(r, t & 7)),
                 "l"(a.q + row * a.q_stride + min(head, a.heads - 1) * 512 + column), "r"(head < a.heads ? 16 : 0) : "memory");
  }
}
static __device__ __forceinline__ void turn_queries(unsigned q, int side, int t) {
  asm volatile("cp.async.wait_all;" ::: "memory");
  #pragma unroll
  for (int i = 0; i < 16; ++i) {
    unsigned at = q + (side * 4 + (i & 3)) * 8192 + i / 4 * 2048 + swizzled(t / 8, t & 7);
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(__byte_perm(x.x, x.z, 0x5410)),
                 "r"(__byte_perm(x.x, x.z, 0x7632)), "r"(__byte_perm(x.y, x.w, 0x5410)), "r"(__byte_perm(x.y, x.w, 0x7632)) : "memory");
  }
}

template <class First, class Other, int BYTES>
static __device__ __forceinline__ void attend_rows(void *room, const Arguments &a) {
  static_assert(sizeof(Room) <= BYTES);
  Room &w = *reinterpret_cast<Room *>(room);
  const int tx = threadIdx.x, group = __shfl_sync(0xffffffffu, tx / 128, 0), t = tx & 127, key = t / 4;
  const int rank = blockIdx.x & 1, head0 = blockIdx.x / 2 * 64;
  const int window_tiles = (a.k1 + 63) / 64, all = window_tiles + (a.k2 + 63) / 64, half = (all + 1) / 2;
  const int first_tile = rank * half, tiles = max(0, min(half, all - first_tile)), split = window_tiles - first_tile;
  const int evens = (tiles + 1) / 2, odds = tiles / 2;
  if (tx == 0) {
    w.begin();
    bar_init(&w.landed[0], 1);
    bar_init(&w.landed[1], 1);
    bar_init(&w.q_free, 8);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    bar_expect(&w.landed[0], SENT);
    bar_expect(&w.landed[1], SENT);
  }
  cluster_begin();
  locate<First, Other>(w, a, blockIdx.y, first_tile, tiles, split, tx, 384, w.present[0]);
  if (group < 2) load_queries(at_shared(w.q), a, blockIdx.y, head0, group, t);
  __syncthreads();
  // The first tile of the first row by the two groups that wait for it, half each: the third begins with the second tile.
  Held<First, Other> held;
  held.window = a.window;
  held.extra = a.extra;
  held.lane = t & 3;
  if (group < 2 * tiles) {
    long long at = w.places[group * 32 + key];
    int second = group / 2 >= split;
    unsigned tile = at_shared(w.k[group / 2]);
    held.load(second, at);
    ask<First, Other>(w, a, tiles, split, 96 + tx, 384);
    if (second) held.template expand<Other, Other, false>(tile, (group & 1) * 32 + key, a.extra, at, 1, -1);
    else held.template expand<First, First, false>(tile, (group & 1) * 32 + key, a.window, at, 0, -1);
  }
  if (group == 2) {
    tl::warpgroup_reg_dealloc<104>();
    cluster_ready();
    int part = 3, turn = 0;
    #pragma unroll 1
    for (int row = blockIdx.y; row < a.rows; row += gridDim.y, ++turn, part = 0) {
      if (turn) {
        meet<128>(2);  // nobody reads the places of the row before any more
        locate<First, Other>(w, a, row, first_tile, tiles, split, t, 128, w.present[turn & 3]);
        meet<128>(2);
        ask<First, Other>(w, a, tiles, split, 32 + t, 128);
      }
      long long at = part < 2 * tiles ? w.places[part * 32 + key] : -1;
      int second = part / 2 >= split;
      held.load(second, at);
      #pragma unroll 1
      for (; part < 2 * tiles; ++part) {
        const int number = part / 2, which = number & 1, use = turn * (which ? odds : evens) + number / 2;
        const long long now = at;
        unsigned next_scales[8];
        at = part + 1 < 2 * tiles ? w.places[(part + 1) * 32 + key] : -1;
        second = (part + 1) / 2 >= split;
        load_scales<First, Other>(next_scales, a.window, a.extra, second, at);
        if ((part & 1) == 0) bar_wait(&w.empty[which], (use + 1) & 1);
        unsigned tile = at_shared(w.k[which]);
        if (number >= split) held.template expand<Other, Other, true>(tile, (part & 1) * 32 + key, a.extra, now, second, at);
        else held.template expand<First, First, true>(tile, (part & 1) * 32 + key, a.window, now, second, at);
        #pragma unroll
        for (int i = 0; i < 8; ++i) held.scales[i] = next_scales[i];
        if (part & 1) {
          publish();
          bar_arrive(&w.full[which]);
        }
      }
    }
    return;
  }
  tl::warpgroup_reg_alloc<200>();
  cluster_ready();
  const int side = group, head = first_head();
  const unsigned q = at_shared(w.q);
  int turn = 0;
  #pragma unroll 1
  for (int row = blockIdx.y; row < a.rows; row += gridDim.y, ++turn) {
    turn_queries(q, side, t);
    publish();
    meet<256>(1);  // queries, and in the first turn the first tile
    if (turn == 0 && side == 0 && tiles > 0) bar_arrive(&w.full[0]);
    float o[128], m[2], f[2], total[2];
    if (tiles == 0 && (t & 31) == 0) arrive_at(over_there(&w.q_free, 1 - rank));
    attend_tiles<false>(w, turn, side, tiles, a.scale, o, m, total, [&] {
      if ((t & 31) == 0) arrive_at(over_there(&w.q_free, 1 - rank));  // the other block may write there
    });
    // Each block finishes half of each warpgroup's columns: the other half goes over there, where the queries were.
    #pragma unroll
    for (int i = 0; i < 64; ++i) {
      float low = o[i], high = o[64 + i];
      o[i] = rank ? high : low;
      o[64 + i] = rank ? low : high;
    }
    bar_wait(&w.q_free, turn & 1);
    const unsigned to = over_there(w.q, 1 - rank) + side * 32768 + 16 * t, told = over_there(&w.landed[side], 1 - rank);
    #pragma unroll
    for (int i = 0; i < 16; ++i) send4(to + i * 2048, o + 64 + 4 * i, told);
    if ((t & 3) == 0) {
      #pragma unroll
      for (int h = 0; h < 2; ++h) {
        send(over_there(&w.their_top[side][head + 8 * h], 1 - rank), m[h], told);
        send(over_there(&w.their_sum[side][head + 8 * h], 1 - rank), total[h], told);
      }
    }
    bar_wait(&w.landed[side], turn & 1);
    float own[2];
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
      int r = head + 8 * h;
      float theirs = w.their_top[side][r], top = fmaxf(m[h], theirs), x = exp2_fast(m[h] - top), y = exp2_fast(theirs - top);
      float sum = __fadd_rn(__fmul_rn(total[h], x), __fmul_rn(w.their_sum[side][r], y));
      if (side == 0 && rank == 0 && (t & 3) == 0 && head0 + r < a.heads)
        a.lse[(long long)row * a.heads + head0 + r] = sum == 0.f ? INFINITY : (top + log2f(sum)) * 0.6931471805599453f;
      float share = a.has_sink ? exp2_fast(a.sink[min(head0 + r, a.heads - 1)] * 1.4426950408889634f - top) : 0.f;
      // the largest key contributes 1, so only a row without keys is below: it divides 0
      float inverse = 1.f / fmaxf(sum + share, 1.f);
      own[h] = x * inverse;
      f[h] = y * inverse;
    }
    const float4 *landed = reinterpret_cast<const float4 *>(w.q + side * 32768);
    #pragma unroll
    for (int i = 0; i < 16; ++i) {
      float4 x = landed[i * 128 + t];
      o[4 * i] = __fadd_rn(__fmul_rn(o[4 * i], own[0]), __fmul_rn(x.x, f[0]));
      o[4 * i + 1] = __fadd_rn(__fmul_rn(o[4 * i + 1], own[0]), __fmul_rn(x.y, f[0]));
      o[4 * i + 2] = __fadd_rn(__fmul_rn(o[4 * i + 2], own[1]), __fmul_rn(x.z, f[1]));
      o[4 * i + 3] = __fadd_rn(__fmul_rn(o[4 * i + 3], own[1]), __fmul_rn(x.w, f[1]));
    }
    if (row + gridDim.y < a.rows) {
      if (t == 0) bar_expect(&w.landed[side], SENT);
      meet<128>(3 + side);  // what landed has been read
      load_queries(q, a, row + gridDim.y, head0, side, t);
    }
    store_columns<true>(o, a.out + ((long long)row * a.heads + head0) * 512 + side * 256 + rank * 128, 512, a.heads - head0);
  }
}

// As TileLang calls it: it has no structures to pass.
template <class First, class Other, int BYTES>
static __device__ __forceinline__ void attend(void *room, const void *q, const void *window, const void *extra, const int *idx,
                                              const int *lengths, const int *extra_idx, const int *extra_lengths, const float *sink,
                                              void *out, float *lse, int rows, int heads, int k1, int k2, int window_page,
                                              int window_stride, int extra_page, int extra_stride, int has_lengths,
                                              int has_extra_lengths, int has_sink, long long q_stride, float scale) {
  Arguments a = {static_cast<const __nv_bfloat16 *>(q), static_cast<const unsigned char *>(window),
                 static_cast<const unsigned char *>(extra), idx, lengths, extra_idx, extra_lengths, sink,
                 static_cast<__nv_bfloat16 *>(out), lse, rows, heads, k1, k2, window_page, window_stride, extra_page, extra_stride,
                 has_lengths, has_extra_lengths, has_sink, q_stride, scale};
  attend_rows<First, Other, BYTES>(room, a);
}

}  // namespace di
#endif
