// The coefficients of one row of hyper-connections: 24 logits -> pre, post and a doubly normalised 4 x 4 matrix.
#ifndef DEEPINFER_STREAMS_CUH
#define DEEPINFER_STREAMS_CUH

#define DI_STREAMS static __device__ __forceinline__

// Not fminf, which would make a number of a NaN.
DI_STREAMS float di_sigmoid(float v) { return 1.0f / (1.0f + expf(v < -80.0f ? 80.0f : -v)); }

// Within an ulp or two, which later rounds even out; 0 and infinity stay what they are. Sums are no subnormal numbers,
// for which the instruction would be wrapped in others.
DI_STREAMS float di_inverse(float v) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(v));
  return inverse;
}

// logits: C(C+2) of them; head: C pre, C post; comb: C x C, the source first.
template <int C>
DI_STREAMS void di_mixing(const void* logits_, void* head_, void* comb_, int iterations, float eps) {
  const float* logits = reinterpret_cast<const float*>(logits_);
  float* head = reinterpret_cast<float*>(head_);
  float* comb = reinterpret_cast<float*>(comb_);
#pragma unroll
  for (int j = 0; j < C; ++j) {
    head[j] = di_sigmoid(logits[j]) + eps;
    head[C + j] = di_sigmoid(logits[C + j]) * 2.0f;
  }
  float b[C][C];
#pragma unroll
  for (int i = 0; i < C; ++i) {
    float top = logits[2 * C + i * C], sum = 0.0f;
#pragma unroll
    for (int j = 1; j < C; ++j) top = fmaxf(top, logits[2 * C + i * C + j]);
#pragma unroll
    for (int j = 0; j < C; ++j) {
      b[i][j] = expf(logits[2 * C + i * C + j] - top);
      sum += b[i][j];
    }
    const float part = 1.0f / sum;
#pragma unroll
    for (int j = 0; j < C; ++j) b[i][j] = b[i][j] * part + eps;
  }
  for (int round = 0; round < iterations; ++round) {
    if (round > 0) {
#pragma unroll
      for (int i = 0; i < C; ++i) {
        float sum = eps;
#pragma unroll
        for (int j = 0; j < C; ++j) sum += b[i][j];
        const float part = di_inverse(sum);
#pragma unroll
        for (int j = 0; j < C; ++j) b[i][j] *= part;
      }
    }
#pragma unroll
    for (int j = 0; j < C; ++j) {
      float sum = eps;
#pragma unroll
      for (int i = 0; i < C; ++i) sum += b[i][j];
      const float part = di_inverse(sum);
#pragma unroll
      for (int i = 0; i < C; ++i) b[i][j] *= part;
    }
  }
#pragma unroll
  for (int i = 0; i < C; ++i) {
#pragma unroll
    for (int j = 0; j < C; ++j) comb[i * C + j] = b[i][j];
  }
}
#endif
