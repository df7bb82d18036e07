/* Reductions over threads: a tree over the participants in order. The device's own order is not known here. */
#pragma once
namespace tl {
struct SumOp { template <class T> T operator()(T a, T b) { return a + b; } };
struct MaxOp { template <class T> T operator()(T a, T b) { return a > b ? a : b; } };
struct MinOp { template <class T> T operator()(T a, T b) { return a < b ? a : b; } };
template <class Op, int threads, int scale = 1, int offset = 0> struct AscendAllReduce {
  template <class T> static T run(T value, T * = nullptr) {
    static T slots[shim::MOST_THREADS];
    const int t = int(threadIdx.x) - offset, base = t / threads * threads + t % scale;
    slots[t] = value;
    asc_syncthreads();
    T found[threads / scale];
    for (int i = 0; i < threads / scale; ++i) found[i] = slots[base + i * scale];
    asc_syncthreads();
    for (int n = threads / scale; n > 1; n = (n + 1) / 2)
      for (int i = 0; i < n / 2; ++i) found[i] = Op()(found[i], found[i + (n + 1) / 2]);
    return found[0];
  }
};
}  // namespace tl
