// What the wide attention kernels need beside TileLang: exp2, copies that zero, and rows sent within a cluster.
#ifndef DEEPINFER_ATTENTION_WIDE_CUH
#define DEEPINFER_ATTENTION_WIDE_CUH
namespace di {

// Memory of the neighbour in the cluster. A thread of 128 sends its 128 accumulators to the same thread there.
static __device__ __forceinline__ unsigned there(void *here, int rank) {
  unsigned at = (unsigned)__cvta_generic_to_shared(here), remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
  return remote;
}
static __device__ __forceinline__ void send_rows(const float *o, const float *m, const float *l, void *low, void *high,
                                          void *ms, void *ls, int rank) {
  int t = threadIdx.x & 127;
  unsigned a = there(low, rank) + 16 * t, b = there(high, rank) + 16 * t;
  #pragma unroll
  for (int i = 0; i < 16; ++i) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(a + i * 2048), "f"(o[4 * i]),
                 "f"(o[4 * i + 1]), "f"(o[4 * i + 2]), "f"(o[4 * i + 3]) : "memory");
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(b + i * 2048), "f"(o[64 + 4 * i]),
                 "f"(o[64 + 4 * i + 1]), "f"(o[64 + 4 * i + 2]), "f"(o[64 + 4 * i + 3]) : "memory");
  }
  if (t % 4 == 0) {
    unsigned row = 16 * (t / 32) + (t % 32) / 4, mm = there(ms, rank) + 4 * row, ll = there(ls, rank) + 4 * row;
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(mm + 32 * i), "f"(m[i]) : "memory");
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(ll + 32 * i), "f"(l[i]) : "memory");
    }
  }
}
// o = o * mine + what was sent * theirs; the accumulators 4i, 4i + 1 belong to a thread's first row.
static __device__ __forceinline__ void add_rows(float *o, const float *mine, const float *theirs, const void *low,
                                         const void *high) {
  int t = threadIdx.x & 127;
  #pragma unroll
  for (int i = 0; i < 32; ++i) {
    float4 x = reinterpret_cast<const float4 *>(i < 16 ? low : high)[(i & 15) * 128 + t];
    o[4 * i] = __fadd_rn(__fmul_rn(o[4 * i], mine[0]), __fmul_rn(x.x, theirs[0]));
    o[4 * i + 1] = __fadd_rn(__fmul_rn(o[4 * i + 1], mine[0]), __fmul_rn(x.y, theirs[0]));
    o[4 * i + 2] = __fadd_rn(__fmul_rn(o[4 * i + 2], mine[1]), __fmul_rn(x.z, theirs[1]));
    o[4 * i + 3] = __fadd_rn(__fmul_rn(o[4 * i + 3], mine[1]), __fmul_rn(x.w, theirs[1]));
  }
}

// 16 bytes to memory where `on`, without a branch.
static __device__ __forceinline__ void store16_if(uint4 *to, uint4 v, bool on) {
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n @p st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"((unsigned)on) : "memory");
}

// A thread's accumulators to bf16 rows of 256 columns, `stride` apart, of which `rows` exist. Four lanes hold two columns
// each of a block of eight: they trade until each has a block, and store 16 bytes, 64 in a row.
static __device__ __forceinline__ void store_rows(const float *o, void *out, int column, int stride, int rows) {
  int t = threadIdx.x & 127, lane = t & 3, first = 16 * (t / 32) + (t % 32) / 4;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    int row = first + 8 * half;
    uint4 *to = reinterpret_cast<uint4 *>(reinterpret_cast<__nv_bfloat16 *>(out) + column + (long long)row * stride) + lane;
    #pragma unroll
    for (int group = 0; group < 8; ++group) {
      unsigned w[4];
      #pragma unroll
      for (int b = 0; b < 4; ++b) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(o[16 * group + 4 * b + 2 * half], o[16 * group + 4 * b + 2 * half + 1]);
        w[b] = *reinterpret_cast<unsigned *>(&pair);
      }
      unsigned x = __shfl_xor_sync(0xffffffffu, lane & 1 ? w[0] : w[1], 1);
      unsigned y = __shfl_xor_sync(0xffffffffu, lane & 1 ? w[2] : w[3], 1);
      unsigned a0 = lane & 1 ? x : w[0], a1 = lane & 1 ? w[1] : x, b0 = lane & 1 ? y : w[2], b1 = lane & 1 ? w[3] : y;
      unsigned c0 = __shfl_xor_sync(0xffffffffu, lane & 2 ? a0 : b0, 2);
      unsigned c1 = __shfl_xor_sync(0xffffffffu, lane & 2 ? a1 : b1, 2);
      store16_if(to + 4 * group, lane & 2 ? make_uint4(c0, c1, b0, b1) : make_uint4(a0, a1, c0, c1), row < rows);
    }
  }
}

// 16 bytes to shared memory, not waited for; zeros where `at` < 0.
static __device__ __forceinline__ void copy16_async(void *to, const void *from, int at) {
  unsigned place = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(at < 0 ? 0 : 16) : "memory");
}

// Asks for `bytes` from `at` on in the second-level cache.
static __device__ __forceinline__ void prefetch_entry(const void *base, long long at, int bytes) {
  const char *p = reinterpret_cast<const char *>(base) + at;
  for (int i = 0; i < bytes; i += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(p + i));
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p + bytes - 1));
}

static __device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The value of the E2M1 code in the low four bits.
static __device__ __forceinline__ float e2m1_value(unsigned code) {
  unsigned magnitude = code & 7u;
  float value = magnitude < 2u ? 0.5f * magnitude : (1.0f + 0.5f * (magnitude & 1u)) * (float)(1u << (magnitude / 2u - 1u));
  return code & 8u ? -value : value;
}

}  // namespace di
#endif
