// The k best values of a block of threads that holds them in registers (topk.py): by histograms of ever smaller ranges.
#ifndef DEEPINFER_SELECT_CUH
#define DEEPINFER_SELECT_CUH
#include <stdint.h>

#define DI_SELECT static __device__ __forceinline__

constexpr unsigned DI_ALL_LANES = 0xffffffffu;

// An integer that orders like the value, at least 1; 0 for what is never chosen: -inf and NaN.
DI_SELECT uint32_t di_order_key(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 equals 0
  const uint32_t order = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  return order - 0x00800000u < 0xff000001u ? order : 0u;
}

// Column of a segment that value `i` of a thread is: four neighbours at a time.
template <int THREADS>
DI_SELECT int di_column(int i) {
  return (i / 4 * THREADS + threadIdx.x) * 4 + i % 4;
}

// Four values at a multiple of their size: fp32, or bf16 by whatever name.
template <typename T>
DI_SELECT float4 di_four(const T* from) {
  if constexpr (sizeof(T) == 4) return __ldg(reinterpret_cast<const float4*>(from));
  const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
  return make_float4(__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000u), __uint_as_float(two.y << 16),
                     __uint_as_float(two.y & 0xffff0000u));
}

// The keys of a segment of which `limit` columns count. All loads of four are on their way before the first is looked at;
// a thread's values lie all over the row: near columns often have near scores.
template <int THREADS, int EACH, bool VECTOR, typename T>
DI_SELECT void di_load_keys(void* keys_, const T* row, int limit) {
  uint32_t* keys = static_cast<uint32_t*>(keys_);
  const float lowest = -__int_as_float(0x7f800000);
  float values[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) values[i] = lowest;
  if (VECTOR) {
#pragma unroll
    for (int i = 0; i < EACH; i += 4)
      if (di_column<THREADS>(i) + 4 <= limit)
        *reinterpret_cast<float4*>(values + i) = di_four(row + di_column<THREADS>(i));
  }
  if (!VECTOR || limit % 4) {
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      if (di_column<THREADS>(i) < limit && (!VECTOR || di_column<THREADS>(i - i % 4) + 4 > limit))
        values[i] = static_cast<float>(row[di_column<THREADS>(i)]);
  }
#pragma unroll
  for (int i = 0; i < EACH; ++i) keys[i] = di_order_key(values[i]);
}

// Right shift that puts a difference of at most `span` among BUCKETS buckets.
template <int BUCKETS>
DI_SELECT int di_shift(uint32_t span) {
  constexpr int LOG = 31 - __builtin_clz(BUCKETS);
  const int bits = 32 - __clz(span);
  return bits > LOG ? bits - LOG : 0;
}

struct DiBucket {
  int which, above, inside;  // -1 where there are too few values; values of higher buckets, of this one
};

// The bucket of the `need`-th value from the top, and zeros in the histogram. All threads have added to it and meet here.
template <int THREADS>
DI_SELECT DiBucket di_find_bucket(uint32_t* histogram, int* sums, int* told, int need) {
  constexpr int WARPS = THREADS / 32;
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, top = 2 * THREADS - 1 - 2 * t;
  __syncthreads();
  const int first = histogram[top], own = first + histogram[top - 1];
  histogram[top] = histogram[top - 1] = 0;
  int before = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(DI_ALL_LANES, before, d);
    if (lane >= d) before += other;
  }
  if (lane == 31) sums[warp] = before;
  __syncthreads();
  const int of_warp = lane < WARPS ? sums[lane] : 0;
  if (__reduce_add_sync(DI_ALL_LANES, of_warp) < need) return {-1, 0, 0};
  before += __reduce_add_sync(DI_ALL_LANES, lane < warp ? of_warp : 0) - own;
  if (before < need && need <= before + own) {
    const bool upper = need <= before + first;
    told[0] = upper ? top : top - 1;
    told[1] = upper ? before : before + first;
    told[2] = upper ? first : own - first;
  }
  __syncthreads();
  return {told[0], told[1], told[2]};
}

// Adds a value to the histogram of [low, high].
DI_SELECT void di_tally(uint32_t* histogram, uint32_t key, uint32_t low, uint32_t high, int shift) {
  if (key >= low && key <= high) atomicAdd(&histogram[(key - low) >> shift], 1u);
}

// The same, with one addition where all of a warp are in a bucket: a row of which too much is left has many equals.
DI_SELECT void di_tally_warp(uint32_t* histogram, uint32_t key, uint32_t low, uint32_t high, int shift) {
  const uint32_t bucket = key >= low && key <= high ? (key - low) >> shift : ~0u;
  int same;
  __match_all_sync(DI_ALL_LANES, bucket, &same);
  if (bucket != ~0u && (!same || threadIdx.x % 32 == 0)) atomicAdd(&histogram[bucket], same ? 32u : 1u);
}

DI_SELECT void di_mark(uint32_t* above, uint32_t* even, uint32_t key, int column, uint32_t low, bool tied) {
  if (key >= low) atomicOr(&(tied && key == low ? even : above)[column / 32], 1u << column % 32);
}

// Marks columns in two rows of bits: those of the values above the cut, and those of the values at the cut of which only
// the first are wanted (none where all of them are). Of `keys`, EACH a thread, `all`: whatever is not 0 is wanted.
//
// GROUPS maxima of a thread give a bound that the k best are at or above: the k-th largest of the maxima, as near as a
// histogram of them tells. What is at or above it goes to a pool of POOL values in shared memory, and histograms of the
// bucket that holds the k-th value follow until it holds wanted values only, or equal ones.
template <int THREADS, int EACH, int GROUPS, int POOL>
DI_SELECT void di_mark_best(const void* keys_, int k, bool all, void* histogram_, void* pool_keys_, void* pool_columns_,
                            void* above_, void* even_, void* sums_, void* told_) {
  constexpr int WARPS = THREADS / 32, BUCKETS = 2 * THREADS, WORDS = THREADS * EACH / 32;
  const uint32_t* keys = static_cast<const uint32_t*>(keys_);
  uint32_t* histogram = static_cast<uint32_t*>(histogram_);
  uint32_t* pool_keys = static_cast<uint32_t*>(pool_keys_);
  uint16_t* pool_columns = static_cast<uint16_t*>(pool_columns_);
  uint32_t *above = static_cast<uint32_t*>(above_), *even = static_cast<uint32_t*>(even_);
  int *sums = static_cast<int*>(sums_), *told = static_cast<int*>(told_);
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  histogram[t] = histogram[t + THREADS] = 0;
  if (t < WORDS) above[t] = even[t] = 0;
  if (t == 0) told[3] = 0;

  uint32_t best[GROUPS], least = ~0u, most = 0;
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    best[g] = keys[g];
#pragma unroll
    for (int i = 1; i < EACH / GROUPS; ++i) best[g] = max(best[g], keys[i * GROUPS + g]);
    least = min(least, best[g] - 1u);  // 0 is no value
    most = max(most, best[g]);
  }
  least = __reduce_min_sync(DI_ALL_LANES, least);
  most = __reduce_max_sync(DI_ALL_LANES, most);
  if (lane == 0) sums[32 + warp] = least, sums[64 + warp] = most;
  __syncthreads();
  least = __reduce_min_sync(DI_ALL_LANES, lane < WARPS ? static_cast<uint32_t>(sums[32 + lane]) : ~0u) + 1u;
  most = __reduce_max_sync(DI_ALL_LANES, lane < WARPS ? static_cast<uint32_t>(sums[64 + lane]) : 0u);

  uint32_t low = 1;
  if (!all && most) {
    const int shift = di_shift<BUCKETS>(most - least);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
      if (best[g]) atomicAdd(&histogram[(best[g] - least) >> shift], 1u);
    const DiBucket bound = di_find_bucket<THREADS>(histogram, sums, told, k);
    if (bound.which >= 0) low = least + (static_cast<uint32_t>(bound.which) << shift);
  }

  int own = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) own += keys[i] >= low;
  int place = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(DI_ALL_LANES, place, d);
    if (lane >= d) place += other;
  }
  int begin = 0;
  if (lane == 31) begin = atomicAdd(&told[3], place);
  place += __shfl_sync(DI_ALL_LANES, begin, 31) - own;
#pragma unroll
  for (int i = 0; i < EACH; ++i)
    if (keys[i] >= low) {
      if (place < POOL) pool_keys[place] = keys[i], pool_columns[place] = di_column<THREADS>(i);
      ++place;
    }
  __syncthreads();
  const int count = told[3];
  bool tied = false;
  if (count > k) {
    uint32_t high = most;
    int need = k;
    for (;;) {
      const int shift = di_shift<BUCKETS>(high - low);
      if (count <= POOL) {
        for (int i = t; i < count; i += THREADS) di_tally(histogram, pool_keys[i], low, high, shift);
      } else {
#pragma unroll
        for (int i = 0; i < EACH; ++i) di_tally_warp(histogram, keys[i], low, high, shift);
      }
      const DiBucket found = di_find_bucket<THREADS>(histogram, sums, told, need);
      need -= found.above;
      low += static_cast<uint32_t>(found.which) << shift;
      high = low + min(high - low, (1u << shift) - 1u);
      tied = found.inside != need;
      if (!tied || shift == 0) break;
    }
  }
  if (count <= POOL) {
    for (int i = t; i < count; i += THREADS) di_mark(above, even, pool_keys[i], pool_columns[i], low, tied);
  } else {
#pragma unroll
    for (int i = 0; i < EACH; ++i) di_mark(above, even, keys[i], di_column<THREADS>(i), low, tied);
  }
  __syncthreads();
}
#endif
