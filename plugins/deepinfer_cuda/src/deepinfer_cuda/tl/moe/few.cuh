// Few pairs sorted by one block (sort.py): ranks by votes of the warps, places by sums over the experts.
#ifndef DEEPINFER_EXPERT_FEW_CUH
#define DEEPINFER_EXPERT_FEW_CUH
#include <stdint.h>

// At most THREADS pairs. `shared` has room for THREADS / 32 + 1 numbers an expert, and one a warp.
template <int EXPERTS, int TILE, int THREADS>
static __device__ __forceinline__ void di_sort_few(
    const int64_t* ids, const float* weights, int* row_of, int* pair_of, float* sorted_weights, int* ends,
    int* tile_expert, int* tile_begin, int* tile_rows, int pairs, int slots, int* shared) {
  constexpr int WARPS = THREADS / 32, EACH = (EXPERTS + THREADS - 1) / THREADS;
  int* earlier = shared;                  // [warp][expert]: pairs of a warp, then of the warps before it
  int* begin = shared + WARPS * EXPERTS;  // first row of an expert
  int* sums = begin + EXPERTS;            // of a warp: rows, and tiles above them
  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  for (int i = t; i < WARPS * EXPERTS; i += THREADS) earlier[i] = 0;
  int known = t < pairs ? (int)ids[t] : -1;
  if (known >= EXPERTS) known = -1;
  const unsigned same = __match_any_sync(0xffffffffu, known);
  const int rank = __popc(same & ((1u << lane) - 1u));
  __syncthreads();
  if (known >= 0 && rank == 0) earlier[warp * EXPERTS + known] = __popc(same);
  __syncthreads();
  int count[EACH], own = 0;
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int expert = t * EACH + j;
    count[j] = 0;
    if (expert < EXPERTS)
      for (int w = 0; w < WARPS; ++w) {
        const int here = earlier[w * EXPERTS + expert];
        earlier[w * EXPERTS + expert] = count[j];
        count[j] += here;
      }
    own += count[j] | ((count[j] + TILE - 1) / TILE) << 16;
  }
  int before = own;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, d);
    if (lane >= d) before += other;
  }
  if (lane == 31) sums[warp] = before;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    if (w < warp) before += sums[w];
    all += sums[w];
  }
  before -= own;
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int expert = t * EACH + j, first = before & 0xffff, slot = before >> 16;
    if (expert < EXPERTS) {
      begin[expert] = first;
      ends[expert] = first + count[j];
      for (int i = 0; i * TILE < count[j]; ++i) {
        tile_expert[slot + i] = expert;
        tile_begin[slot + i] = first + i * TILE;
        tile_rows[slot + i] = min(TILE, count[j] - i * TILE);
      }
    }
    before += count[j] | ((count[j] + TILE - 1) / TILE) << 16;
  }
  __syncthreads();
  if (known >= 0) {
    const int place = begin[known] + earlier[warp * EXPERTS + known] + rank;
    row_of[t] = place;
    pair_of[place] = t;
    sorted_weights[place] = weights[t];
  } else if (t < pairs) {
    row_of[t] = -1;
  }
  for (int s = (all >> 16) + t; s < slots; s += THREADS) {
    tile_expert[s] = 0;
    tile_begin[s] = 0;
    tile_rows[s] = 0;
  }
  for (int r = (all & 0xffff) + t; r < pairs; r += THREADS) {
    pair_of[r] = -1;
    sorted_weights[r] = 0.0f;
  }
}

#endif
