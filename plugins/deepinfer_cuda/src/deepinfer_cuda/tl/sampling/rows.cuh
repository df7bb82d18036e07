// The order and the mass of tokens in a row of logits (spec/sampling.md 2.2, 2.5): what kernels of the sampler share.
#include <cstdint>

// N neighbours, at once where N is 4: the compiler of the language does not see that rows begin at multiples of 16 bytes.
template <int N> __device__ __forceinline__ void di_load(float* to, const float* from) {
  if constexpr (N == 4) {
    *(float4*)to = __ldg((const float4*)from);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = __ldg(from + i);
  }
}

template <int N> __device__ __forceinline__ void di_store(float* to, const float* from) {
  if constexpr (N == 4) {
    *(float4*)to = *(const float4*)from;
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }
}

// Larger for larger values, NaN above all; +0 and -0 are one value.
__device__ __forceinline__ unsigned di_order(float x) {
  if (x != x) return 0xffffffffu;
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A token's place in the order of its row: larger for the higher value, then for the lower id (below 2^18).
__device__ __forceinline__ unsigned long long di_place(unsigned order, int id) {
  return (unsigned long long)order << 18 | (unsigned)(0x3ffff - id);
}

__device__ __forceinline__ unsigned long long di_rank(float x, int id) { return di_place(di_order(x), id); }

__device__ __forceinline__ int di_id(unsigned long long rank) { return 0x3ffff - (int)(rank & 0x3ffff); }

// The value that a rank was made of, +0 for both zeros.
__device__ __forceinline__ float di_value(unsigned long long rank) {
  const unsigned order = (unsigned)(rank >> 18);
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

__device__ __forceinline__ unsigned long long di_larger(unsigned long long a, unsigned long long b) {
  return a > b ? a : b;
}

__device__ __forceinline__ unsigned long long di_warp_max(unsigned long long x) {
#pragma unroll
  for (int d = 16; d; d >>= 1) {
    const unsigned long long y = __shfl_xor_sync(0xffffffffu, x, d);
    x = y > x ? y : x;
  }
  return x;
}

__device__ __forceinline__ long long di_warp_sum(long long x) {
#pragma unroll
  for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}

// The same of sums below 2^32: one instruction.
__device__ __forceinline__ unsigned di_warp_sum32(unsigned x) { return __reduce_add_sync(0xffffffffu, x); }

// Sum over the lanes up to and with this one.
__device__ __forceinline__ long long di_warp_scan(long long x) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const long long y = __shfl_up_sync(0xffffffffu, x, d);
    if (lane >= d) x += y;
  }
  return x;
}

// a / b to the last bit, for an `inverse` of b that is rounded to nearest. Neither the quotient nor a rest may leave the
// normal numbers, except where only its smallness matters.
__device__ __forceinline__ float di_quotient(float a, float b, float inverse) {
  float q = a * inverse;
  q = __fmaf_rn(__fmaf_rn(-b, q, a), inverse, q);
  return __fmaf_rn(__fmaf_rn(-b, q, a), inverse, q);
}

// Logit over temperature relative to the peak's; exactly 0 at the peak. `cold` is one over the temperature.
__device__ __forceinline__ float di_scaled(float x, float peak, float temperature, float cold) {
  const float y = __fsub_rn(x, peak);
  if (temperature == 1.0f) return y;
  return y < -1e30f ? __fdiv_rn(y, temperature) : di_quotient(y, temperature, cold);
}

// exp of that: 1 at the peak.
__device__ __forceinline__ float di_relative(float x, float peak, float temperature, float cold) {
  return expf(di_scaled(x, peak, temperature, cold));
}

// 64 buckets to a factor of e, the peak in the first; falling with the value. Rounded by an addition: conversions run at
// an eighth of its rate.
__device__ __forceinline__ int di_bucket(float x, float peak, float temperature, float cold) {
  const float y = fminf(-64.0f * di_scaled(x, peak, temperature, cold), 2047.0f);
  return (int)(__float_as_uint(__fadd_rn(y, 8388608.0f)) & 0x7ffu);
}

// Whether a token is at or before another one in the order of the row.
__device__ __forceinline__ bool di_stays(float x, int id, float last, int last_id) {
  return x > last || (x == last && id <= last_id);
}

// Appends a value to a list with room for N; the count goes on where it is full.
template <int N> __device__ __forceinline__ void di_list(uint64_t* list, int64_t* count, unsigned long long value) {
  const unsigned long long at = atomicAdd((unsigned long long*)count, 1ull);
  if (at < N) list[at] = value;
}

// What a shared variable of this block is in another block of the cluster.
template <typename T> __device__ __forceinline__ T di_of_part(T* variable, int part) {
  return *(const volatile T*)__cluster_map_shared_rank(variable, part);
}

// Sum of such a variable over all blocks: every one of them is on its way before the first is added.
template <int PARTS> __device__ __forceinline__ long long di_sum_of_parts(const unsigned* variable) {
  if constexpr (PARTS == 1) {
    return *variable;
  } else {
    unsigned of[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; ++p) of[p] = di_of_part(variable, p);
    long long sum = 0;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) sum += of[p];
    return sum;
  }
}

// The same list, of the first block of the cluster.
template <int N> __device__ __forceinline__ void di_list_first(uint64_t* list, int64_t* count, unsigned long long value) {
  di_list<N>((uint64_t*)__cluster_map_shared_rank(list, 0), (int64_t*)__cluster_map_shared_rank(count, 0), value);
}

// The power of two that is at least n.
__device__ __forceinline__ int di_power(int n) { return n < 2 ? 1 : 1 << (32 - __clz(n - 1)); }

// Sorts n (a power of two) shared values, the largest first, with all threads of the block.
template <int THREADS> __device__ __forceinline__ void di_sort_falling(uint64_t* list, int n) {
  for (int run = 2; run <= n; run <<= 1) {
    for (int gap = run >> 1; gap; gap >>= 1) {
      for (int pair = threadIdx.x; pair < n >> 1; pair += THREADS) {
        const int low = 2 * pair - (pair & (gap - 1)), high = low + gap;
        const unsigned long long a = list[low], b = list[high];
        if ((a < b) == !(low & run)) list[low] = b, list[high] = a;
      }
      __syncthreads();
    }
  }
}

// Adds to a sum of 64 bits in two words: additions of 64 bits would be loops.
__device__ __forceinline__ void di_add_mass(unsigned* low, unsigned* high, long long mass) {
  const unsigned part = (unsigned)mass;
  unsigned upper = (unsigned)((unsigned long long)mass >> 32);
  if (part) upper += atomicAdd(low, part) > ~part;  // the sum passes 2^32
  if (upper) atomicAdd(high, upper);
}

__device__ __forceinline__ void di_increment(unsigned* count) { atomicAdd(count, 1u); }

// floor(e * 2^44) of e in [0, 1]: its fraction, shifted.
__device__ __forceinline__ long long di_mass(float e) {
  const unsigned bits = __float_as_uint(e), down = 127u - (bits >> 23);
  const unsigned long long fraction = (unsigned long long)((bits & 0x7fffffu) | 0x800000u) << 21;
  return (long long)(fraction >> (down < 63u ? down : 63u));
}

// floor(p * 2^31) of p = e / share, at most 1. `inverse` is one over the share, which is at least 1.
__device__ __forceinline__ unsigned di_weight(float e, float share, float inverse) {
  const unsigned bits = __float_as_uint(di_quotient(e, share, inverse));
  return __funnelshift_rc(((bits & 0x7fffffu) | 0x800000u) << 8, 0u, 127u - (bits >> 23));
}

// The same of a probability as it is given, which rounding may have put above 1.
__device__ __forceinline__ long long di_portion(float p) { return (long long)(unsigned)(p * 2147483648.0f); }

// exp of a log-probability; NaN counts as nothing.
__device__ __forceinline__ float di_probability(float logprob) { return logprob == logprob ? expf(logprob) : 0.0f; }

// floor(total * p / 2^31) for total < 2^62 and p <= 2^31.
__device__ __forceinline__ long long di_part(long long total, long long p) {
  return (total >> 31) * p + (((total & 0x7fffffffll) * p) >> 31);
}

// floor(key * total / 2^64) for total < 2^32.
__device__ __forceinline__ long long di_target(long long key, long long total) {
  const unsigned long long k = (unsigned long long)key, t = (unsigned long long)total;
  return (long long)(((k >> 32) * t + ((k & 0xffffffffull) * t >> 32)) >> 32);
}

// One step of SplitMix64.
__device__ __forceinline__ unsigned long long di_mix(unsigned long long z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// The number of a draw (spec/sampling.md 2.4). Cases of 3 and above are streams of their own.
__device__ __forceinline__ long long di_key(long long seed, long long position, int kind) {
  unsigned long long from = (unsigned long long)seed;
  if (kind > 2) from = di_mix(from ^ (unsigned long long)kind), kind = 0;
  const unsigned long long s = (3ull * (unsigned long long)position + kind) * 0x9e3779b97f4a7c15ull;
  return (long long)di_mix(from + (s ^ (s << 13)));
}

// Gumbel noise of token id under a key (spec/sampling.md 2.7).
__device__ __forceinline__ double di_gumbel(long long key, int id) {
  const unsigned long long z = di_mix((unsigned long long)key + (unsigned long long)id * 0x9e3779b97f4a7c15ull);
  return -log(-log(((double)(z >> 40) + 0.5) * 0x1p-24));
}

// Log-probability plus noise of token id, as a number that is larger for larger sums.
__device__ __forceinline__ unsigned long long di_noisy(float logprob, long long key, int id) {
  const double x = (double)logprob + di_gumbel(key, id);
  const unsigned long long bits = (unsigned long long)__double_as_longlong(x + 0.0);
  return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}
