// Parts of products whose weight is stored in the order in which the matrix units read it from registers.
#ifndef DEEPINFER_PRODUCTS_CUH
#define DEEPINFER_PRODUCTS_CUH
#include <stdint.h>

#define DI_PRODUCTS static __device__ __forceinline__

DI_PRODUCTS uint32_t di_scaled_pair(uint32_t pair, uint32_t factor) {
  uint32_t scaled;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(scaled) : "r"(pair), "r"(factor));
  return scaled;
}

// 16 codes a chunk of 32 inputs -> eight words of two bf16. Sign, exponent and mantissa of a code land in their places
// by shifts; the exponent bias that is then missing, 2^120, is in the factor together with the block's scale.
template <int CHUNKS>
DI_PRODUCTS void di_unpack_e4m3(void* fragment, const void* codes, const void* factors) {
  uint32_t* out = reinterpret_cast<uint32_t*>(fragment);
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const uint4 four = reinterpret_cast<const uint4*>(codes)[c * 32];
    const uint32_t factor = reinterpret_cast<const uint32_t*>(factors)[c];
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t w = words[i];
      out[c * 8 + 2 * i] = di_scaled_pair(((w << 8) & 0x80008000u) | ((w << 4) & 0x07f007f0u), factor);
      out[c * 8 + 2 * i + 1] = di_scaled_pair((w & 0x80008000u) | ((w >> 4) & 0x07f007f0u), factor);
    }
  }
}

// Counts a block's arrival; 1 in the last of BLOCKS, which then sees what all of them wrote. It leaves the counter at 0.
template <int THREADS, int BLOCKS>
DI_PRODUCTS int di_arrive(void* counter, int thread) {
  __shared__ int is_last;
  __threadfence();
  asm volatile("bar.sync 7, %0;" ::"n"(THREADS) : "memory");
  if (thread == 0) {
    int* arrived = reinterpret_cast<int*>(counter);
    is_last = atomicAdd(arrived, 1) == BLOCKS - 1;
    if (is_last) *arrived = 0;
  }
  asm volatile("bar.sync 7, %0;" ::"n"(THREADS) : "memory");
  if (is_last) __threadfence();
  return is_last;
}
#endif
