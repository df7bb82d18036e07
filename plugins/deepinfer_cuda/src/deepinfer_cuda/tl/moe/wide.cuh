// Consumers of the wide product (wide.py) on Hopper: codes become the register operand of wgmma, stages are unrolled.
#ifndef DEEPINFER_EXPERT_WIDE_CUH
#define DEEPINFER_EXPERT_WIDE_CUH
#include <tl_templates/cuda/common.h>
#include <tl_templates/cuda/instruction/wgmma.h>
#include <tl_templates/cuda/intrin.h>

// 64 outputs by 16 inputs of a fragment times the `ROWS` rows of a tile that start at `low`: the descriptor of a tile of
// 64 inputs, 128 bytes a row, swizzled over 8 rows. Its upper half is the same for all.
template <int ROWS>
DI_FN void di_multiply_rows(const uint32_t* a, uint32_t low, float* c) {
  uint64_t rows;
  asm("mov.b64 %0, {%1, %2};" : "=l"(rows) : "r"(low), "r"(0x40000040));
  tl::wgmma_rs<tl::DataType::kBFloat16, tl::DataType::kBFloat16, tl::DataType::kFloat32, 64, ROWS, 16, false, false, 1,
               1>(a, rows, reinterpret_cast<uint32_t*>(c), 1);
}

// All inputs times the first `HEIGHT` rows of a tile, and the sums to `ys`. A warpgroup has a slab.
template <int TILE, int GROUPS, int STAGES, int STEPS, bool GATED, int HEIGHT, typename Barrier, typename O>
DI_FN void di_wide_rows(const uint32_t* staged, const void* xs, Barrier* full, Barrier* empty, O* ys, int pitch,
                        const float* weights, int active, float limit) {
  constexpr int SLAB = 2 * 544, STAGE = GROUPS * SLAB;  // words of two units, and of all slabs of a stage
  float c[HEIGHT / 2];
  uint32_t a[16];
#pragma unroll
  for (int i = 0; i < HEIGHT / 2; ++i) c[i] = 0.0f;
  const int thread = threadIdx.x & 127;
  const uint32_t* mine = staged + (threadIdx.x >> 7) * SLAB;
  const uint32_t place = (static_cast<uint32_t>(__cvta_generic_to_shared(xs)) >> 4) | 1u << 16;
  const uint32_t rows = __shfl_sync(0xffffffffu, place, 0);  // tells the compiler that a warp agrees on it
#pragma unroll 1
  for (int round = 0; round < (STEPS + STAGES - 1) / STAGES; ++round) {
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      if (STEPS % STAGES && round * STAGES + s >= STEPS) break;
      full[s].wait(round & 1);
#pragma unroll
      for (int unit = 0; unit < 2; ++unit) {
        const uint32_t* from = mine + s * STAGE + unit * 544;
        const uint4 four = *reinterpret_cast<const uint4*>(from + 4 * thread);
        const uint32_t codes[4] = {four.x, four.y, four.z, four.w}, scales = from[512 + thread / 4];
        di_expand_e2m1<2>(codes, &scales, a);
        tl::warpgroup_fence_operand(a, 16);
        tl::warpgroup_fence_operand(c, HEIGHT / 2);
        tl::warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < 4; ++k) di_multiply_rows<HEIGHT>(a + 4 * k, rows + (s * 2 + unit) * TILE * 8 + k * 2, c);
        tl::warpgroup_commit_batch();
        tl::warpgroup_fence_operand(c, HEIGHT / 2);
        tl::warpgroup_fence_operand(a, 16);
        tl::wait_wgmma<0>();
      }
      empty[s].arrive();
    }
  }
  if constexpr (GATED)
    di_swiglu_tile<HEIGHT / 8>(c, ys, pitch, 0, weights, active, limit);
  else
    di_keep_tile<HEIGHT / 8>(c, ys, pitch, 0);
}

// The same with the first of the heights that holds the rows of the tile.
template <int TILE, int GROUPS, int STAGES, int STEPS, bool GATED, int HEIGHT, int... HIGHER,
          typename Barrier, typename O>
DI_FN void di_wide(const uint32_t* staged, const void* xs, Barrier* full, Barrier* empty, O* ys, int pitch,
                   const float* weights, int active, float limit) {
  if constexpr (sizeof...(HIGHER) > 0) {
    if (active > HEIGHT) {
      di_wide<TILE, GROUPS, STAGES, STEPS, GATED, HIGHER...>(staged, xs, full, empty, ys, pitch, weights, active,
                                                                    limit);
      return;
    }
  }
  di_wide_rows<TILE, GROUPS, STAGES, STEPS, GATED, HEIGHT>(staged, xs, full, empty, ys, pitch, weights, active,
                                                                  limit);
}

#endif
