// Decode attention of 64 heads of 512 on Hopper: keys are entries of caches, which two warpgroups expand for two that multiply.
#ifndef DEEPINFER_ATTENTION_CACHED_CUH
#define DEEPINFER_ATTENTION_CACHED_CUH
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

// Addresses of the keys of a row from `i` on, -1 where none is listed; `meanwhile` is called while lists are on their way.
template <class First, class Other, int N, class Meanwhile>
static __device__ __forceinline__ void locate(Room<N> &w, const Arguments &a, int row, int first_tile, int tiles, int split, int i, int step,
                                              unsigned *present, Meanwhile meanwhile) {
  #pragma unroll 1
  for (; i < tiles * 64; i += step) {
    const bool second = i >= split * 64;
    const int *idx = second ? a.extra_idx : a.idx, *lengths = second ? a.extra_lengths : a.lengths;
    const int columns = second ? a.k2 : a.k1, column = second ? i - split * 64 : first_tile * 64 + i;
    int slot = -1, length = columns;
    if (column < columns) slot = idx[(long long)row * columns + column];
    if (second ? a.has_extra_lengths : a.has_lengths) length = lengths[row];
    meanwhile();
    const int page = second ? a.extra_page : a.window_page, stride = second ? a.extra_stride : a.window_stride, unit = slot / page;
    const long long base = reinterpret_cast<long long>(second ? a.extra : a.window);
    const long long place = base + (long long)unit * stride + (slot - unit * page) * (second ? Spread<Other>::BYTES : Spread<First>::BYTES);
    const bool there = slot >= 0 && column < length;
    w.places[i] = there ? place : -1;
    unsigned marks = __ballot_sync(0xffffffffu, there);
    if ((threadIdx.x & 31) == 0) present[i >> 5] = marks;
  }
}
// Half of the keys of tiles `number` up to `end`, of one format. `foresee` is called with tiles whose entries may set out for the
// second-level cache.
template <class Entry, int N, class Foresee>
static __device__ __forceinline__ void bring(Room<N> &w, Stream &stream, int &number, int end, int turn, int tiles, int key, Foresee foresee) {
  if (number >= end) return;
  stream.begin<Entry>(w.places[number * 64 + key]);
  foresee(number + 1);
  foresee(number + 2);
  #pragma unroll 1
  for (; number < end; ++number) {
    const int which = number & 1, use = turn * ((tiles + 1 - which) / 2) + number / 2;
    const long long next = number + 1 < end ? w.places[number * 64 + 64 + key] : -1;
    foresee(number + 3);
    bar_wait(&w.empty[which][0], (use + 1) & 1);
    stream.expand<Entry>(at_shared(w.k[which]), key, next, [&] { bar_wait(&w.empty[which][1], (use + 1) & 1); });
    bar_arrive(&w.full[which]);
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
// The queries of a row of which there may be none set out for the second-level cache.
static __device__ __forceinline__ void ask_queries(const Arguments &a, int row, int head0, int t) {
  if (row >= a.rows) return;
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    int line = t + 256 * i, head = head0 + line / 8;
    if (head < a.heads)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(a.q + row * a.q_stride + head * 512 + (line & 7) * 64));
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

// N: blocks that share a row. Of one and of two, each stays for several rows; of more, a cluster has one row.
template <class First, class Other, int N, int BYTES>
static __device__ __forceinline__ void attend_rows(void *room, const Arguments &a) {
  static_assert(sizeof(Room<N>) <= BYTES);
  Room<N> &w = *reinterpret_cast<Room<N> *>(room);
  const int tx = threadIdx.x, group = __shfl_sync(0xffffffffu, tx / 128, 0), t = tx & 127;
  const int rank = blockIdx.x % N, head0 = blockIdx.x / N * 64;
  const int window_tiles = (a.k1 + 63) / 64, all = window_tiles + (a.k2 + 63) / 64;
  const int first_tile = all * rank / N, tiles = all * (rank + 1) / N - first_tile, split = window_tiles - first_tile;
  if (tx == 0) {
    w.begin(256);
    if (N > 1) {
      for (int i = 0; i < 8; ++i) bar_init(&w.landed[0][i], 1);
      bar_init(&w.free_there, 8 * (N - 1));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (N > 1) {
      expect_shares(w, 0);
      expect_shares(w, 1);
    }
  }
  if (N > 1) cluster_begin();
  bool asked = group >= 2;
  auto queries = [&] {
    if (!asked) load_queries(at_shared(w.q), a, blockIdx.y, head0, group, t);
    asked = true;
  };
  locate<First, Other, N>(w, a, blockIdx.y, first_tile, tiles, split, tx, 512, w.present[0], queries);
  queries();  // of those who had nothing to locate
  __syncthreads();
  // Two warpgroups bring half of the keys of each tile; the first row's second tile comes from the two others, which wait for it, and by
  // the same code as the first, which has to be fetched before anything hides that. The thread's number goes
  // through a shuffle, or it would be read from its special register again and again, which takes long.
  const int place = __shfl_sync(0xffffffffu, tx & 255, tx & 31), key = (place & 128) / 4 + (place & 127) / 4;
  Stream stream(place & 3);
  // By lines, each lane one: bulk requests take uniform registers, so that a warp would make them one lane after the other.
  auto foresee = [&](int tile) {
    if (tile >= tiles) return;
    const long long entry = w.places[tile * 64 + key];
    if (!alike<First, Other> && tile < split) stream.foresee<First>(entry);
    else stream.foresee<Other>(entry);
  };
  const int side = group & 1, one = group < 2 ? 1 : 0;
  const unsigned q = at_shared(w.q);
  const bool first_format = !alike<First, Other> && one < split;
  const long long at = one < tiles ? w.places[one * 64 + key] : -1;
  if (first_format) stream.begin<First>(at);
  else stream.begin<Other>(at);
  if (group < 2) turn_queries(q, side, t);
  if (one < tiles) {
    if (first_format) stream.expand<First>(at_shared(w.k[one]), key, -1, [] {});
    else stream.expand<Other>(at_shared(w.k[one]), key, -1, [] {});
    bar_arrive(&w.full[one]);
  }
  if (N > 1) cluster_ready();
  if (group >= 2) {
    tl::warpgroup_reg_dealloc<64>();
    const int t2 = tx - 256;
    int turn = 0;
    #pragma unroll 1
    for (int row = blockIdx.y; row < a.rows; row += gridDim.y, ++turn) {
      if (turn) {
        if (turn == 1 && tiles == 2) bar_wait(&w.full[1], 0);  // with more tiles, theirs were asked for long ago
        meet<256>(2);  // nobody reads the places of the row before any more
        locate<First, Other, N>(w, a, row, first_tile, tiles, split, t2, 256, w.present[turn & 3], [] {});
        meet<256>(2);
      }
      int number = turn ? 0 : 2;
      if (!alike<First, Other>) bring<First>(w, stream, number, min(split, tiles), turn, tiles, key, foresee);
      bring<Other>(w, stream, number, tiles, turn, tiles, key, foresee);
      ask_queries(a, row + gridDim.y, head0, t2);
    }
    return;
  }
  tl::warpgroup_reg_alloc<192>();
  const int head = first_head();
  publish();
  int turn = 0;
  #pragma unroll 1
  for (int row = blockIdx.y; row < a.rows; row += gridDim.y, ++turn) {
    if (turn) {
      turn_queries(q, side, t);
      publish();
    }
    meet<256>(1);
    float o[128], m[2], total[2];
    attend_tiles<true>(w, turn, side, tiles, a.scale, o, m, total, [&] {
      if (N == 2) tell_others(w, rank);
    });
    if (N > 2) tell_others(w, rank);
    const bool more = row + gridDim.y < a.rows;
    if (N == 1 && more) load_queries(q, a, row + gridDim.y, head0, side, t);
    if (N > 1) {
      bar_wait(&w.free_there, turn & 1);
      send_shares(w, rank, side, o, m, total);
    }
    float sunk[2], share[N][2];
    #pragma unroll
    for (int h = 0; h < 2; ++h) sunk[h] = a.has_sink ? a.sink[min(head0 + head + 8 * h, a.heads - 1)] * 1.4426950408889634f : -INFINITY;
    if (N > 1) bar_wait(w.landed[side], turn & 1);
    weights_of(w, rank, side, sunk, m, total, share);
    if (side == 0 && rank == 0 && (t & 3) == 0) {
      #pragma unroll
      for (int h = 0; h < 2; ++h)
        if (head0 + head + 8 * h < a.heads)
          a.lse[(long long)row * a.heads + head0 + head + 8 * h] = total[h] == 0.f ? INFINITY : (m[h] + log2f(total[h])) * 0.6931471805599453f;
    }
    float own[2];
    own_weights<N>(rank, share, own);
    __nv_bfloat16 *out = a.out + ((long long)row * a.heads + head0) * 512 + side * 256 + rank * (256 / N);
    #pragma unroll
    for (int i = 0; i < OWN<N> / 16; ++i) {
      constexpr int EACH = OWN<N> / 16 / PARTS<N>;
      if (N > 1 && i && i % EACH == 0) bar_wait(&w.landed[side][i / EACH], turn & 1);
      add_shares(w, rank, side, i, own, share, o + 16 * i);
      store_columns<true, 1>(o + 16 * i, out + 32 * i, 512, a.heads - head0);
    }
    if (N == 2 && more) {
      if (t == 0) expect_shares(w, side);
      meet<128>(3 + side);  // what landed has been read
      load_queries(q, a, row + gridDim.y, head0, side, t);
    }
  }
}

// As TileLang calls it: it has no structures to pass.
template <class First, class Other, int N, int BYTES>
static __device__ __forceinline__ void attend(void *room, const void *q, const void *window, const void *extra, const int *idx,
                                              const int *lengths, const int *extra_idx, const int *extra_lengths, const float *sink,
                                              void *out, float *lse, int rows, int heads, int k1, int k2, int window_page,
                                              int window_stride, int extra_page, int extra_stride, int has_lengths,
                                              int has_extra_lengths, int has_sink, long long q_stride, float scale) {
  Arguments a = {static_cast<const __nv_bfloat16 *>(q), static_cast<const unsigned char *>(window),
                 static_cast<const unsigned char *>(extra), idx, lengths, extra_idx, extra_lengths, sink,
                 static_cast<__nv_bfloat16 *>(out), lse, rows, heads, k1, k2, window_page, window_stride, extra_page, extra_stride,
                 has_lengths, has_extra_lengths, has_sink, q_stride, scale};
  attend_rows<First, Other, N, BYTES>(room, a);
}

}  // namespace di
#endif
