// A product of at most 8 rows whose weight goes from memory to registers and nowhere else (streams.py).
#ifndef DEEPINFER_DENSE_STREAMS_CUH
#define DEEPINFER_DENSE_STREAMS_CUH
#include <cuda_bf16.h>
#include <stdint.h>

#include <type_traits>

DI_PRODUCTS uint4 di_stream_codes(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

DI_PRODUCTS void di_multiply_16(float* sum, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// PIECES x 16 outputs of a block times the inputs from `first` on of up to ROWS rows. Each of WARPS warps has every
// WARPS-th chunk of 32 inputs, so that a block reads adjacent bytes at a time, DEPTH of them on their way; a thread's 16
// bytes of a chunk are its part of the register operand.
// What depends on the kernel in front comes after the wait: the rows, of which a warp copies its own inputs.
template <int PIECES, int WARPS, int CHUNKS, int DEPTH, int ROWS, typename T>
DI_PRODUCTS void di_stream_rows(void* room, const void* codes_, const void* factors_, const void* x_, void* y_,
                                int block, int first, int64_t x_pitch, int64_t y_pitch, int count) {
  constexpr int SLICE = CHUNKS / WARPS, PITCH = SLICE * 64 + 16, FOURS = SLICE * 4, TILE = PIECES * 16;
  static_assert(CHUNKS % WARPS == 0 && SLICE <= 32 && DEPTH <= SLICE && ROWS <= 8, "no such cut");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint4* codes = reinterpret_cast<const uint4*>(codes_) +
                       (static_cast<int64_t>(block) * PIECES * CHUNKS + warp) * 32 + lane;
  uint4 held[PIECES][DEPTH];
#pragma unroll
  for (int c = 0; c < DEPTH; ++c)
#pragma unroll
    for (int p = 0; p < PIECES; ++p) held[p][c] = di_stream_codes(codes + (p * CHUNKS + c * WARPS) * 32);
  const uint32_t* factors = reinterpret_cast<const uint32_t*>(factors_) + block * TILE / 32 * CHUNKS + warp;
  const uint32_t own_factor = lane < SLICE ? __ldg(factors + lane * WARPS) : 0u;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const char* x = reinterpret_cast<const char*>(x_) + first * 2 + warp * 64;
  const uint32_t rows = di_shared_place(room) + warp * ROWS * PITCH;
  for (int i = lane; i < ROWS * FOURS; i += 32) {
    const int row = i / FOURS, four = i % FOURS, from = row < count ? row : count - 1;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(rows + row * PITCH + four * 16),
                 "l"(x + from * x_pitch * 2 + four / 4 * (WARPS * 64) + four % 4 * 16)
                 : "memory");
  }
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  __syncwarp();
  const uint32_t operand = rows + lane % ROWS * PITCH + lane / 8 * 16;
  float sum[PIECES][4] = {};
#pragma unroll
  for (int c = 0; c < SLICE; ++c) {
    uint32_t b[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(operand + c * 64)
                 : "memory");
    const uint32_t factor = __shfl_sync(0xffffffffu, own_factor, c);
#pragma unroll
    for (int p = 0; p < PIECES; ++p) {
      uint32_t a[8];
      di_unpack_e4m3<1>(a, &held[p][c % DEPTH], &factor);
      if (c + DEPTH < SLICE) held[p][c % DEPTH] = di_stream_codes(codes + (p * CHUNKS + (c + DEPTH) * WARPS) * 32);
      di_multiply_16(sum[p], a, b[0], b[1]);
      di_multiply_16(sum[p], a + 4, b[2], b[3]);
    }
  }
  // [warp][row][output] behind the rows, which other warps may still read
  float* sums = reinterpret_cast<float*>(reinterpret_cast<char*>(room) + WARPS * ROWS * PITCH);
#pragma unroll
  for (int p = 0; p < PIECES; ++p)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane % 4 * 2 + i % 2, output = p * 16 + lane / 4 + i / 2 * 8;
      if (row < ROWS) sums[(warp * ROWS + row) * TILE + output] = sum[p][i];
    }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * TILE; i += WARPS * 32) {
    float total = sums[i];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) total += sums[w * ROWS * TILE + i];
    if (i / TILE < count) {
      T* to = reinterpret_cast<T*>(y_) + i / TILE * y_pitch + block * TILE + i % TILE;
      if constexpr (std::is_same_v<T, float>)
        *to = total;
      else
        *to = __float2bfloat16_rn(total);
    }
  }
}
#endif
