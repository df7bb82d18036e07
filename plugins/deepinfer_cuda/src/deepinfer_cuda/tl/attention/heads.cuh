// What a warpgroup does for 64 heads and a tile of 64 keys: scores, probabilities, weighted sums, and rows of output.
#ifndef DEEPINFER_ATTENTION_HEADS_CUH
#define DEEPINFER_ATTENTION_HEADS_CUH
#include <tl_templates/cuda/instruction/wgmma.h>
#include <tl_templates/cuda/intrin.h>
namespace di {

// Descriptors of operands in shared memory, 128 bytes a row, swizzled. A block has 64 columns and 64 rows: 8,192 bytes.
// Above bit 17 an address has the block's rank in its cluster, which would get into the field beside it.
static __device__ __forceinline__ uint64_t by_rows(unsigned at) {
  return (uint64_t)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
static __device__ __forceinline__ uint64_t by_columns(unsigned at) {
  return (uint64_t)((at & 0x3ffff) >> 4) | (512ull << 16) | (64ull << 32) | (1ull << 62);
}
static __device__ __forceinline__ void settle(float *of, int count) {
  tl::wait_wgmma<0>();
  tl::warpgroup_fence_operand(of, count);
}
// s = queries . keys over 512 columns, under way.
static __device__ __forceinline__ void score(unsigned q, unsigned k, float *s) {
  constexpr auto BF16 = tl::DataType::kBFloat16, FP32 = tl::DataType::kFloat32;
  uint64_t a = by_rows(q), b = by_rows(k);
  tl::warpgroup_fence_operand(s, 32);
  tl::warpgroup_arrive();
  #pragma unroll
  for (int i = 0; i < 32; ++i) {
    unsigned step = ((i >> 2) * 8192 + (i & 3) * 32) >> 4;
    tl::wgmma_ss<BF16, BF16, FP32, 64, 64, 16, false, false, 1, 1>(a + step, b + step, (uint32_t *)s, i > 0);
  }
  tl::warpgroup_commit_batch();
  tl::warpgroup_fence_operand(s, 32);
}
// o += probabilities . 256 columns of the keys, under way. HALVES: 128 columns an instruction, which asks for fewer registers.
template <bool HALVES> static __device__ __forceinline__ void weigh(unsigned p, unsigned k, float *o) {
  constexpr auto BF16 = tl::DataType::kBFloat16, FP32 = tl::DataType::kFloat32;
  constexpr int PARTS = HALVES ? 2 : 1;
  uint64_t a = by_rows(p), b = by_columns(k);
  tl::warpgroup_fence_operand(o, 128);
  tl::warpgroup_arrive();
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    #pragma unroll
    for (int h = 0; h < PARTS; ++h)
      tl::wgmma_ss<BF16, BF16, FP32, 64, 256 / PARTS, 16, false, true, 1, 1>(a + (i * 32 >> 4), b + (i * 2048 + h * 16384 >> 4),
                                                                               (uint32_t *)(o + 64 * h), 1);
  }
  tl::warpgroup_commit_batch();
  tl::warpgroup_fence_operand(o, 128);
}

// A thread has two heads, `first_head()` and eight behind it, and of each block of eight columns two.
static __device__ __forceinline__ int first_head() { return (threadIdx.x & 127) / 32 * 16 + (threadIdx.x & 31) / 4; }

static __device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
// Scores to probabilities in `p`, the maximum beside them, and `ready` told. Bits of `low` and `high` say which of the 64 keys
// there are; m is the running maximum, f what sums of earlier tiles are multiplied by; `scale` is above zero.
static __device__ __forceinline__ void soften(float *s, unsigned low, unsigned high, float scale, float *m, float *f, unsigned p,
                                              float *top, Bar *ready) {
  int lane = threadIdx.x & 31;
  if ((low & high) != 0xffffffffu) {
    low >>= 2 * (lane & 3);
    high >>= 2 * (lane & 3);
    #pragma unroll
    for (int i = 0; i < 32; ++i)
      if (!(((i < 16 ? low : high) >> ((i >> 2 & 3) * 8 + (i & 1))) & 1)) s[i] = -INFINITY;
  }
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    float x = m[h];
    float y = s[2 * h];
    #pragma unroll
    for (int b = 0; b < 8; ++b) y = fmaxf(y, fmaxf(s[4 * b + 2 * h], s[4 * b + 2 * h + 1]));
    y = quad_max(y) * scale;
    m[h] = fmaxf(x, y);  // the true one, as the reference: with another, probabilities would be rounded elsewhere
    f[h] = exp2_fast(x - m[h]);
  }
  #pragma unroll
  for (int i = 0; i < 32; ++i) s[i] = exp2_fast(fmaf(s[i], scale, -m[i >> 1 & 1]));
  unsigned row = (threadIdx.x & 127) / 32 * 16 + (lane & 15);
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned w[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = bits_of(__floats2bfloat162_rn(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(p + swizzled(row, 2 * i + (lane >> 4))),
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
  }
  if ((lane & 3) == 0) {
    top[first_head()] = m[0];
    top[first_head() + 8] = m[1];
  }
  publish();
  bar_arrive(ready);
}
// The sum of the probabilities that `soften` left in s, when nobody waits any more.
static __device__ __forceinline__ void add_up(const float *s, const float *f, float *total) {
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    float x = s[2 * h] + s[2 * h + 1];
    #pragma unroll
    for (int b = 1; b < 8; ++b) x += s[4 * b + 2 * h] + s[4 * b + 2 * h + 1];
    total[h] = total[h] * f[h] + quad_sum(x);
  }
}
// Takes over the maximum of a tile that the other warpgroup scored.
static __device__ __forceinline__ void follow(const float *top, float *m, float *f, float *total) {
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    float x = top[first_head() + 8 * h];
    f[h] = exp2_fast(m[h] - x);
    m[h] = x;
    total[h] *= f[h];
  }
}
static __device__ __forceinline__ void rescale(float *o, const float *f) {
  #pragma unroll
  for (int i = 0; i < 128; ++i) o[i] *= f[i >> 1 & 1];
}

static __device__ __forceinline__ void rescale_if(float *o, const float *f) {
  if (__any_sync(0xffffffffu, f[0] != 1.f || f[1] != 1.f)) rescale(o, f);
}

// 16 * GROUPS accumulators of a thread to bf16 rows of which `rows` exist. Four lanes hold two columns each of a block of
// eight: they trade until each has a block, and store 16 bytes, 64 in a row. SPREAD: columns stand in the order of expand.cuh.
template <bool SPREAD, int GROUPS = 4>
static __device__ __forceinline__ void store_columns(const float *o, __nv_bfloat16 *out, int stride, int rows) {
  int lane = threadIdx.x & 3;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = first_head() + 8 * half;
    uint4 *to = reinterpret_cast<uint4 *>(out + (long long)row * stride) + lane;
    #pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      unsigned w[4];
      #pragma unroll
      for (int b = 0; b < 4; ++b)
        w[b] = bits_of(__floats2bfloat162_rn(o[16 * group + 4 * b + 2 * half], o[16 * group + 4 * b + 2 * half + 1]));
      unsigned x = __shfl_xor_sync(0xffffffffu, lane & 1 ? w[0] : w[1], 1);
      unsigned y = __shfl_xor_sync(0xffffffffu, lane & 1 ? w[2] : w[3], 1);
      unsigned a0 = lane & 1 ? x : w[0], a1 = lane & 1 ? w[1] : x, b0 = lane & 1 ? y : w[2], b1 = lane & 1 ? w[3] : y;
      unsigned c0 = __shfl_xor_sync(0xffffffffu, lane & 2 ? a0 : b0, 2);
      unsigned c1 = __shfl_xor_sync(0xffffffffu, lane & 2 ? a1 : b1, 2);
      uint4 v = lane & 2 ? make_uint4(c0, c1, b0, b1) : make_uint4(a0, a1, c0, c1);
      if (SPREAD)  // from (0, 4), (1, 5), (2, 6), (3, 7)
        v = make_uint4(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.x, v.y, 0x7632),
                       __byte_perm(v.z, v.w, 0x7632));
      store16_if(to + 4 * group, v, row < rows);
    }
  }
}

}  // namespace di
#endif
