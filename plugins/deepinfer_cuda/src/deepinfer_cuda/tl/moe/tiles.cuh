// Device text of the grouped product (grouped.py). A weight tile is a fragment of 64 rows a warpgroup: warp w holds rows
// 16w + lane / 4 and 8 more, columns 2 (lane % 4) + {0, 1} of every eight, for mma.sync and wgmma alike.
#ifndef DEEPINFER_EXPERT_TILES_CUH
#define DEEPINFER_EXPERT_TILES_CUH

// One half of a word in both: the multiplication that takes it reads the half itself.
DI_FN uint32_t di_low_twice(uint32_t pair) {
  uint32_t both;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(both) : "r"(pair));
  return both;
}
DI_FN uint32_t di_high_twice(uint32_t pair) {
  uint32_t both;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(both) : "r"(pair));
  return both;
}

// Words of eight E2M1 codes -> bf16 pairs, `GROUPS` groups of 32 columns of two rows. Word 2g + h holds row h of group
// g. A code's bits stand where a mask, after at most one shift, finds sign, exponent and mantissa of a bf16 (15, 8:6) in
// both halves: in place but for one bit of the mantissa (15, 8:7, 14), two bits lower (13, 6:4), six (9, 2:0), and twelve
// round the end of the word (3, 12:10). No four places of the same shape fill 16 bits, so one code must come in two
// pieces; this is the fewest instructions. The number is the value over 2^126 (also where E2M1 is subnormal), and the
// scale byte, the exponent of bf16, brings 2^126 back: one word holds the scales of both rows, and the multiplication
// takes the half that it needs.
DI_FN void di_expand_word(uint32_t q, uint32_t scale, uint32_t* to) {
  to[0] = di_mul2((q & 0x81808180u) | ((q >> 8) & 0x00400040u), scale);
  to[2] = di_mul2((q << 2) & 0x81C081C0u, scale);
  to[4] = di_mul2((q << 6) & 0x81C081C0u, scale);
  to[6] = di_mul2(__funnelshift_l(q, q, 12) & 0x81C081C0u, scale);
}
template <int GROUPS>
DI_FN void di_expand_e2m1(const uint32_t* codes, const uint32_t* scales, void* fragment) {
  uint32_t* out = reinterpret_cast<uint32_t*>(fragment);
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    const uint32_t both = __byte_perm(scales[group >> 1], 0, group & 1 ? 0x3424u : 0x1404u) >> 1;
    di_expand_word(codes[2 * group], di_low_twice(both), out + 8 * group);
    di_expand_word(codes[2 * group + 1], di_high_twice(both), out + 8 * group + 1);
  }
}

// A fragment whose slabs of 16 rows are 8 gate and 8 up rows -> SwiGLU in bf16, tile[row of the product][column].
template <int EIGHTS>
DI_FN void di_swiglu_tile(const float* c, void* tile, int pitch, int column0, const float* weights, int rows, float limit) {
  __nv_bfloat16* y = reinterpret_cast<__nv_bfloat16*>(tile) + column0 + (threadIdx.x >> 5) * 8 + ((threadIdx.x & 31) >> 2);
#pragma unroll
  for (int i = 0; i < 2 * EIGHTS; ++i) {
    const int row = (i >> 1) * 8 + (threadIdx.x & 3) * 2 + (i & 1), at = (i >> 1) * 4 + (i & 1);
    if (row < rows) {
      const uint32_t gu = di_pack(c[at], c[at + 2]);
      y[row * pitch] = __float2bfloat16_rn(di_swiglu(di_lo(gu), di_hi(gu), limit, weights[row]));
    }
  }
}

// The tile's rows, quantised in groups of 32 (values over E4M3 codes) when CAST, to `out`.
template <int ROWS, int COLUMNS, int THREADS, bool CAST>
DI_FN void di_store_hidden(const void* tile, int pitch, void* out, int out_pitch, int columns, int rows) {
  constexpr int EIGHTS = COLUMNS / 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS * EIGHTS; i += THREADS) {
    const int row = i / EIGHTS, column = i % EIGHTS * 8;
    uint4 raw = *reinterpret_cast<const uint4*>(reinterpret_cast<const __nv_bfloat16*>(tile) + row * pitch + column);
    uint32_t y[4] = {raw.x, raw.y, raw.z, raw.w};
    if (CAST) {
      float amax = di_amax8(y);
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
      di_round8(y, di_ue8m0_of_e4m3(amax));
    }
    if (row < rows && column < columns)
      *reinterpret_cast<uint4*>(reinterpret_cast<__nv_bfloat16*>(out) + (size_t)row * out_pitch + column) =
          make_uint4(y[0], y[1], y[2], y[3]);
  }
}

// A fragment as it is -> tile[row of the product][column].
template <int EIGHTS, typename O>
DI_FN void di_keep_tile(const float* c, O* tile, int pitch, int column0) {
  O* y = tile + column0 + (threadIdx.x >> 5) * 16 + ((threadIdx.x & 31) >> 2);
#pragma unroll
  for (int i = 0; i < 4 * EIGHTS; ++i)
    y[((i >> 2) * 8 + (threadIdx.x & 3) * 2 + (i & 1)) * pitch + (i >> 1 & 1) * 8] = O(c[i]);
}

template <int ROWS, int COLUMNS, int THREADS, typename O>
DI_FN void di_store_tile(const O* tile, int pitch, O* out, int out_pitch, int columns, int rows) {
  constexpr int HELD = 16 / sizeof(O), VECTORS = COLUMNS / HELD;
#pragma unroll 1
  for (int i = threadIdx.x; i < ROWS * VECTORS; i += THREADS) {
    const int row = i / VECTORS, column = i % VECTORS * HELD;
    if (row < rows && column < columns)
      *reinterpret_cast<uint4*>(out + (size_t)row * out_pitch + column) =
          *reinterpret_cast<const uint4*>(tile + row * pitch + column);
  }
}

#endif
