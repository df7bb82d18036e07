/* What AscendC lowered by TileLang includes, for a processor: one core at a time, its threads as coroutines.
 *
 * It executes, and it looks: on-chip memory has the sizes of an Ascend 950 with a guard behind it, DMA addresses must be
 * aligned, threads must meet at the same barriers, and a wait must have a notify before it in the order of the source.
 * Copies happen at once, so it says nothing of hazards between pipes, nor of time.
 */
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <ucontext.h>
#include <vector>

#define __gm__
#define __ubuf__
#define __cbuf__
#define __cc__
#define __ca__
#define __cb__
#define __global__
#define __vector__
#define __cube__
#define __mix__(...)
#define __simt_vf__ static
#define __simd_vf__ static
#define __simt_callee__
#define __aicore__
#define __launch_bounds__(n)

/* --- on-chip memory and faults ------------------------------------------------------------------------------- */
namespace shim {
enum fault { NONE = 0, OVERFLOW = 1, BARRIER = 2, ALIGNMENT = 3, EVENT = 4, THREADS = 5 };
constexpr size_t GUARD = 4096;
template <size_t BYTES> struct Memory {
  alignas(512) uint8_t bytes[BYTES + GUARD];
  void clear() { memset(bytes, 0xA5, sizeof bytes); }
  long used() const {
    long end = BYTES;
    const uint64_t *words = reinterpret_cast<const uint64_t *>(bytes);
    while (end && words[end / 8 - 1] == 0xA5A5A5A5A5A5A5A5) end -= 8;
    while (end && bytes[end - 1] == 0xA5) --end;
    return end;
  }
  bool is_whole() const {
    for (size_t i = BYTES; i < sizeof bytes; ++i)
      if (bytes[i] != 0xA5) return false;
    return true;
  }
};
inline Memory<248 * 1024> UB;
inline Memory<512 * 1024> L1;
inline Memory<256 * 1024> L0C;
inline Memory<64 * 1024> L0A, L0B;
inline int failed = NONE;
inline bool backwards = false;
inline void fail(fault what) { if (!failed) failed = what; }
template <class T> inline T *at(uint8_t *memory, long offset) { return reinterpret_cast<T *>(memory + offset); }
inline void aligned(const void *where, const uint8_t *memory) {
  if ((static_cast<const uint8_t *>(where) - memory) % 32) fail(ALIGNMENT);
}
}  // namespace shim

/* --- numbers --------------------------------------------------------------------------------------------------- */
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  bfloat16_t(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7FFFFFFF) > 0x7F800000) word |= 0x400000;  /* a NaN stays one */
    else word += 0x7FFF + ((word >> 16) & 1);                /* nearest, ties to even */
    bits = static_cast<uint16_t>(word >> 16);
  }
  operator float() const {
    uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
  }
};
struct alignas(4) bfloat16x2_t { bfloat16_t x, y; };
struct alignas(4) uint1 { uint32_t x; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) int2 { int32_t x, y; };
struct alignas(16) int4 { int32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int2 make_int2(int32_t x, int32_t y) { return {x, y}; }
#define SHIM_PAIRWISE(op) \
  inline float2 operator op(float2 a, float2 b) { return {a.x op b.x, a.y op b.y}; } \
  inline int2 operator op(int2 a, int2 b) { return {a.x op b.x, a.y op b.y}; }
SHIM_PAIRWISE(+) SHIM_PAIRWISE(-) SHIM_PAIRWISE(*) SHIM_PAIRWISE(/)
#undef SHIM_PAIRWISE
inline float2 __bfloat1622float2(bfloat16x2_t v) { return {float(v.x), float(v.y)}; }
inline bfloat16x2_t __float22bfloat162_rn(float2 v) { return {bfloat16_t(v.x), bfloat16_t(v.y)}; }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
template <class T> inline T max(T a, T b) { return a > b ? a : b; }
template <class T> inline T min(T a, T b) { return a < b ? a : b; }

namespace tl::limits {
constexpr float kFloatInf = __builtin_huge_valf(), kFloatNInf = -__builtin_huge_valf(), kFloatNaN = __builtin_nanf("");
}

/* --- pipes and events ------------------------------------------------------------------------------------------ */
enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };
enum event_t : int {};
enum asc_load_l2_cache_mode : int {};
enum asc_store_l2_cache_mode : int {};
enum asc_unit_flag_mode : int {};
enum asc_quant_mode : int {};
enum asc_relu_pre_mode : int {};
namespace shim { inline std::map<std::tuple<int, int, int>, int> events; }
inline void asc_init() { shim::events.clear(); }
inline void asc_sync_notify(pipe_t from, pipe_t to, event_t id) { ++shim::events[{from, to, id}]; }
inline void asc_sync_wait(pipe_t from, pipe_t to, event_t id) {
  if (--shim::events[{from, to, id}] < 0) shim::fail(shim::EVENT);  /* on the device it would wait for ever */
}
inline void asc_sync_pipe(pipe_t) {}

/* --- copies ---------------------------------------------------------------------------------------------------- */
inline void asc_copy_gm2ub_align(uint8_t *to, uint8_t *from, int blocks, int bytes, int, int, int,
                                 asc_load_l2_cache_mode, int from_step, int to_step) {
  shim::aligned(to, shim::UB.bytes);
  for (int i = 0; i < blocks; ++i) memcpy(to + long(i) * to_step, from + long(i) * from_step, bytes);
}
inline void asc_copy_ub2gm_align(uint8_t *to, uint8_t *from, int blocks, int bytes, asc_store_l2_cache_mode,
                                 int to_step, int from_step) {
  shim::aligned(from, shim::UB.bytes);
  for (int i = 0; i < blocks; ++i) memcpy(to + long(i) * to_step, from + long(i) * from_step, bytes);
}
namespace shim { inline int column_rows; }
inline void asc_set_gm2l1_nz_para(int, int, uint16_t rows, int) { shim::column_rows = rows; }
/* rows of ND to columns of fractals, each 32 bytes wide and `column_rows` high */
template <class T>
inline void asc_copy_gm2l1_nd2nz(T *to, T *from, int row_bytes, asc_load_l2_cache_mode, int rows, int columns, int, int) {
  constexpr int C0 = 32 / sizeof(T);
  shim::aligned(to, shim::L1.bytes);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c)
      to[long(c / C0) * shim::column_rows * C0 + r * C0 + c % C0] =
          *reinterpret_cast<T *>(reinterpret_cast<uint8_t *>(from) + long(r) * row_bytes + c * sizeof(T));
}
struct asc_fill_l1_para { uint64_t repeat, blk_num, dst_gap; };
template <class T> inline void asc_fill_l1(T *to, uint32_t value, asc_fill_l1_para p) {
  constexpr int C0 = 32 / sizeof(T);
  for (uint64_t r = 0; r < p.repeat; ++r)
    for (uint64_t i = 0; i < p.blk_num * C0; ++i) to[r * (p.blk_num + p.dst_gap) * C0 + i] = T(value);
}
template <class... A> inline void asc_set_l0c_copy_nz_para(A...) {}
template <class T, class S>
inline void asc_copy_l0c2gm(T *to, S *from, int columns, int rows, int to_step, int from_rows, asc_store_l2_cache_mode,
                            asc_unit_flag_mode, asc_quant_mode, asc_relu_pre_mode, int, int, int, int) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c)
      to[long(r) * to_step + c] = T(from[long(c / 16) * from_rows * 16 + r * 16 + c % 16]);
}

/* --- threads of a SIMT region ------------------------------------------------------------------------------------ */
inline int block_idx = 0;
namespace cce {
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
}  // namespace cce
inline cce::dim3 threadIdx(0, 0, 0);
namespace shim {
constexpr int MOST_THREADS = 2048;
constexpr size_t STACK = 64 * 1024;
struct Fiber { ucontext_t context; bool done; std::vector<uint8_t> stack; };
inline std::vector<Fiber> fibers(MOST_THREADS);
inline ucontext_t scheduler;
inline int running;
inline std::function<void()> body;
inline void enter() {
  body();
  fibers[running].done = true;
}
inline void run_threads(int count, std::function<void()> work) {
  if (count > MOST_THREADS) return fail(THREADS);
  body = std::move(work);
  for (int t = 0; t < count; ++t) {
    Fiber &f = fibers[t];
    f.done = false;
    f.stack.resize(STACK);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = &scheduler;
    makecontext(&f.context, enter, 0);
  }
  for (int left = count; left;) {
    int ended = 0;
    for (int i = 0; i < count; ++i) {  /* each thread up to its next barrier, in either order: results must not differ */
      running = backwards ? count - 1 - i : i;
      threadIdx = cce::dim3(running, 0, 0);
      swapcontext(&scheduler, &fibers[running].context);
      ended += fibers[running].done;
    }
    if (ended && ended != count) return fail(BARRIER);  /* some wait where others have ended */
    left -= ended;
  }
}
}  // namespace shim
inline void asc_syncthreads() {
  swapcontext(&shim::fibers[shim::running].context, &shim::scheduler);
}
template <auto F, class... A> inline void asc_vf_call(cce::dim3 d, A... arguments) {
  shim::run_threads(d.x * d.y * d.z, [=] { F(arguments...); });
}
#include <tl_templates/ascend/reduce.h>
