/* The cube: operands in fractals in L1, sums in fp32 over ascending inputs, the result in fractals in L0C. */
#pragma once
template <int M, int K, int N, int PIECE, bool TRANSPOSED, class T, class S>
inline void ascend_gemm_l1(S *total, T *left, T *right, bool clear, int = 0, int = 0) {
  static_assert(TRANSPOSED, "the second operand has its inputs innermost");
  constexpr int C0 = 32 / sizeof(T);
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      S &sum = total[long(j / 16) * M * 16 + i * 16 + j % 16];
      S found = clear ? S(0) : sum;
      for (int k = 0; k < K; ++k)
        found += S(float(left[long(k / C0) * M * C0 + i * C0 + k % C0])) *
                 S(float(right[long(k / C0) * N * C0 + j * C0 + k % C0]));
      sum = found;
    }
}
