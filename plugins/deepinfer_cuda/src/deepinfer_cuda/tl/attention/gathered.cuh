// Prefill attention of 64 heads of 512 on Hopper: keys are rows of a bf16 buffer, fetched with asynchronous copies.
#ifndef DEEPINFER_ATTENTION_GATHERED_CUH
#define DEEPINFER_ATTENTION_GATHERED_CUH
namespace di {

struct Gather : Tiles {
  Bar q_ready, q_free;
  int places[2][COLUMNS];
};

static __device__ __forceinline__ void copy16(unsigned to, const __nv_bfloat16 *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void arrive_with_copies(Bar *b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at_shared(b)) : "memory");
}

// Rows `blockIdx.x`, `blockIdx.x + gridDim.x`, ... of a group of heads. The third warpgroup brings tiles, and the queries of the
// next row as soon as the last scores of a row are done: the end of a row is hidden behind the fetches of the next one.
template <int BYTES>
static __device__ __forceinline__ void attend_gathered(void *room, const void *q_, const void *kv_, const int *indices, const int *lengths,
                                                       const float *sink, void *out_, float *lse, int rows, int heads, int keys, int k,
                                                       int has_lengths, int has_sink, long long q_stride, float scale) {
  static_assert(sizeof(Gather) <= BYTES);
  Gather &w = *reinterpret_cast<Gather *>(room);
  const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(q_), *kv = static_cast<const __nv_bfloat16 *>(kv_);
  __nv_bfloat16 *out = static_cast<__nv_bfloat16 *>(out_);
  const int tx = threadIdx.x, group = __shfl_sync(0xffffffffu, tx / 128, 0), t = tx & 127, head0 = blockIdx.y * 64;
  const int tiles = (k + 63) / 64, evens = (tiles + 1) / 2, odds = tiles / 2;
  if (tx == 0) {
    w.begin(128);
    bar_init(&w.q_ready, 128);
    bar_init(&w.q_free, 8);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  int turn = 0;
  if (group == 2) {
    tl::warpgroup_reg_dealloc<72>();
    const int lane = t & 7, row_of_16 = t / 8;
    #pragma unroll 1
    for (int row = blockIdx.x; row < rows; row += gridDim.x, ++turn) {
      int *places = w.places[turn & 1];
      const int columns = has_lengths ? min(k, lengths[row]) : k;
      #pragma unroll 1
      for (int i = t; i < tiles * 64; i += 128) {
        int place = i < columns ? indices[(long long)row * k + i] : -1;
        if (place >= keys) place = -1;
        places[i] = place;
        unsigned there = __ballot_sync(0xffffffffu, place >= 0);
        if ((t & 31) == 0) w.present[turn & 3][i >> 5] = there;
      }
      meet<128>(2);
      if (turn) bar_wait(&w.q_free, (turn - 1) & 1);
      #pragma unroll
      for (int i = 0; i < 32; ++i) {
        int r = i / 8 * 16 + row_of_16, head = head0 + r;
        copy16(at_shared(w.q) + (i & 7) * 8192 + swizzled(r, lane), q + row * q_stride + min(head, heads - 1) * 512 + (i & 7) * 64 + lane * 8,
               head < heads);
      }
      arrive_with_copies(&w.q_ready);
      #pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        const int which = tile & 1, use = turn * (which ? odds : evens) + tile / 2;
        const unsigned to = at_shared(w.k[which]) + swizzled(row_of_16, lane);
        for (int half = 0; half < 2; ++half) bar_wait(&w.empty[which][half], (use + 1) & 1);
        #pragma unroll
        for (int part = 0; part < 4; ++part) {
          int place = places[tile * 64 + part * 16 + row_of_16];
          const __nv_bfloat16 *from = kv + (long long)max(place, 0) * 512 + lane * 8;
          #pragma unroll
          for (int b = 0; b < 8; ++b) copy16(to + b * 8192 + part * 2048, from + b * 64, place >= 0);
        }
        arrive_with_copies(&w.full[which]);
      }
    }
    return;
  }
  tl::warpgroup_reg_alloc<216>();
  const int side = group, head = first_head();
  #pragma unroll 1
  for (int row = blockIdx.x; row < rows; row += gridDim.x, ++turn) {
    float o[128], m[2], f[2], total[2];
    bar_wait(&w.q_ready, turn & 1);
    publish();
    attend_tiles<false>(w, turn, side, tiles, scale, o, m, total, [&] {
      if ((t & 31) == 0) bar_arrive(&w.q_free);
    });
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
      int r = head0 + head + 8 * h;
      float share = has_sink ? exp2_fast(sink[min(r, heads - 1)] * 1.4426950408889634f - m[h]) : 0.f;
      // the largest key contributes 1, so only a row without keys is below: it divides 0
      f[h] = 1.f / fmaxf(total[h] + share, 1.f);
      if (side == 0 && (t & 3) == 0 && r < heads)
        lse[(long long)row * heads + r] = total[h] == 0.f ? INFINITY : (m[h] + log2f(total[h])) * 0.6931471805599453f;
    }
    rescale(o, f);
    __nv_bfloat16 *to = out + ((long long)row * heads + head0) * 512 + side * 256;
    store_columns<false>(o, to, 512, heads - head0);
    store_columns<false>(o + 64, to + 128, 512, heads - head0);
  }
}

}  // namespace di
#endif
