// Parts of products whose weight is stored in the order in which the matrix units read it from registers.
#ifndef DEEPINFER_PRODUCTS_CUH
#define DEEPINFER_PRODUCTS_CUH
#include <cuda_bf16.h>
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

// The accumulators of a warp, 16 outputs by ROWS, as [ROWS, TILE] in shared memory.
template <int TILE, int ROWS>
DI_PRODUCTS void di_keep_sums(const void* fragment, void* sums_, int thread) {
  const float* total = reinterpret_cast<const float*>(fragment);
  const int lane = thread % 32;
  float* sums = reinterpret_cast<float*>(sums_) + thread / 32 * 16 + lane / 4 + lane % 4 * 2 * TILE;
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) sums[(i / 4 * 8 + i % 2) * TILE + i / 2 % 2 * 8] = total[i];
}

// Floats of the outputs that each of PIECES blocks adds up.
template <int TILE, int ROWS, int PIECES>
constexpr int DI_SHARE = (TILE * ROWS / 4 + PIECES - 1) / PIECES * 4;

// Prepares `all` for the sums of the whole cluster: one thread calls it, before it arrives at a barrier of the cluster.
template <int TILE, int ROWS, int PIECES>
DI_PRODUCTS void di_expect_sums(uint64_t* all, int rank) {
  constexpr int SHARE = DI_SHARE<TILE, ROWS, PIECES>;
  const int own = TILE * ROWS - rank * SHARE;
  di_barrier_init(all, 1);
  di_barriers_ready();
  di_barrier_expect(all, (own < 0 ? 0 : own < SHARE ? own : SHARE) * 4 * PIECES);
}

// The accumulators of a warp to the blocks of the cluster that add them up: block r has the r-th share of the outputs,
// `received` there is [PIECES, share] and gets this block's, the `rank`-th; its barrier `all` counts the bytes.
template <int TILE, int ROWS, int PIECES>
DI_PRODUCTS void di_send_sums(const void* fragment, const void* received, const uint64_t* all, int rank, int thread) {
  constexpr int SHARE = DI_SHARE<TILE, ROWS, PIECES>;
  const float* total = reinterpret_cast<const float*>(fragment);
  const uint32_t base = di_shared_place(received) + rank * SHARE * 4, barrier = di_shared_place(all);
  const int lane = thread % 32, output = thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) {
    const int at = (i / 4 * 8 + i % 2 + lane % 4 * 2) * TILE + output + i / 2 % 2 * 8, to = at / SHARE;
    asm volatile(
        "{\n.reg .b32 place, there;\nmapa.shared::cluster.u32 place, %0, %2;\nmapa.shared::cluster.u32 there, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [place], %3, [there];\n}" ::"r"(
            base + at % SHARE * 4),
        "r"(barrier), "r"(to), "f"(total[i])
        : "memory");
  }
}

// Until the sums of the whole cluster are here.
DI_PRODUCTS void di_await_sums(uint64_t* all) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\nselp.b32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(di_shared_place(all))
        : "memory");
  }
}

// Arrives at the barrier of the cluster without making memory visible: nothing that it waits for is written.
DI_PRODUCTS void di_cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DI_PRODUCTS void di_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

DI_PRODUCTS float4 di_load_piece(uint32_t at, uint32_t rank) {
  uint32_t place;
  float4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(at), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(place)
               : "memory");
  return v;
}

DI_PRODUCTS void di_put4(float* y, float4 v) { *reinterpret_cast<float4*>(y) = v; }
DI_PRODUCTS void di_put4(__nv_bfloat16* y, float4 v) {
  __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(y) = *reinterpret_cast<uint2*>(pairs);
}

// sums: [ROWS, TILE] in the shared memory of each of PIECES blocks, or with SENT what they have sent here. Block `rank`
// adds up and writes its share, in the order of the pieces; rows from `count` and columns from `width` on are not there.
template <int TILE, int ROWS, int PIECES, int THREADS, bool SENT, typename T>
DI_PRODUCTS void di_add_pieces(const void* sums, void* y_, int pitch, int count, int width, int rank,
                               int thread) {
  constexpr int FOURS = TILE * ROWS / 4, SHARE = (FOURS + PIECES - 1) / PIECES;
  T* y = reinterpret_cast<T*>(y_);
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(sums));
  for (int i = thread; i < SHARE; i += THREADS) {
    const int four = (PIECES == 1 ? 0 : rank * SHARE) + i;
    const int row = four / (TILE / 4), column = four % (TILE / 4) * 4;
    if (four >= FOURS || row >= count) break;
    if (column >= width) continue;
    float4 total;
    if (PIECES == 1) {
      total = reinterpret_cast<const float4*>(sums)[four];
    } else {
      float4 piece[PIECES];
#pragma unroll
      for (int p = 0; p < PIECES; ++p)
        piece[p] = SENT ? reinterpret_cast<const float4*>(sums)[p * SHARE + i] : di_load_piece(base + four * 16, p);
      total = piece[0];
#pragma unroll
      for (int p = 1; p < PIECES; ++p) {
        total.x += piece[p].x;
        total.y += piece[p].y;
        total.z += piece[p].z;
        total.w += piece[p].w;
      }
    }
    di_put4(y + static_cast<int64_t>(row) * pitch + column, total);
  }
}
#endif
