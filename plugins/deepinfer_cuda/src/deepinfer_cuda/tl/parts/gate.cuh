// What the Engram gate needs beyond TileLang: three sums over a block, and the gate of a dot product.
#ifndef DEEPINFER_GATE_CUH
#define DEEPINFER_GATE_CUH

#define DI_GATE static __device__ __forceinline__

// sums[3] of every thread -> of the block, in every thread; the same order always. scratch: 2 x 3 x WARPS floats, of
// which `phase` (0 or 1, alternating from call to call) chooses a half, so that one barrier a call is enough.
template <int WARPS>
DI_GATE void di_block_sum3(void* sums_, void* scratch_, int thread, int phase) {
  float* sums = reinterpret_cast<float*>(sums_);
  float* scratch = reinterpret_cast<float*>(scratch_) + phase * 3 * WARPS;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
    if (thread % 32 == 0) scratch[i * WARPS + thread / 32] = sums[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += scratch[i * WARPS + w];
    sums[i] = sum;
  }
}

DI_GATE float di_gate(float dot) {
  const float size = fabsf(dot);
  const float least = size < 1e-6f ? 1e-6f : size;  // not fmaxf, which would make a number of a NaN
  return 1.0f / (1.0f + expf(-copysignf(sqrtf(least), dot)));
}
#endif
