/* What AscendC lowered by TileLang includes, for a processor: one core at a time, its threads as coroutines.
 *
 * It executes, and it looks: on-chip memory has the sizes of an Ascend 950 with a guard behind it, DMA addresses must be
 * aligned, threads must meet at the same barriers, and a wait must have a notify before it in the order of the source.
 * Copies happen at once, so it says nothing of hazards between pipes, nor of time.
 */
#pragma once
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

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
  bool is_clear(size_t begin, size_t n) const {  /* the first byte is that of clear, and each the one before it */
    return bytes[begin] == 0xA5 && !memcmp(bytes + begin, bytes + begin + 1, n - 1);
  }
  long used() const {
    size_t end = BYTES;
    while (end && is_clear(end - 512, 512)) end -= 512;
    while (end && bytes[end - 1] == 0xA5) --end;
    return long(end);
  }
  bool is_whole() const { return is_clear(BYTES, GUARD); }
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
namespace shim {
constexpr int MOST_EVENTS = 8;
inline int events[8][8][MOST_EVENTS];
inline int *event(int from, int to, int id) {
  if (id >= 0 && id < MOST_EVENTS) return &events[from][to][id];
  fail(EVENT);
  return &events[0][0][0];
}
}  // namespace shim
inline void asc_init() { memset(shim::events, 0, sizeof shim::events); }
inline void asc_sync_notify(pipe_t from, pipe_t to, event_t id) { ++*shim::event(from, to, id); }
inline void asc_sync_wait(pipe_t from, pipe_t to, event_t id) {
  if (--*shim::event(from, to, id) < 0) shim::fail(shim::EVENT);  /* on the device it would wait for ever */
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
/* A stack that runs threads one after another until one of them waits at a barrier: a region without any takes one. */
struct Fiber { jmp_buf place; ucontext_t start; char *stack; int thread; };
inline Fiber fibers[MOST_THREADS];
inline int made, running, begun, ended, threads;
inline jmp_buf scheduler;
inline void (*region)(const void *);
inline const void *given;
/* swapcontext would call the system each time, for the mask of signals. */
[[gnu::noinline]] inline void change(jmp_buf from, jmp_buf to) { if (!_setjmp(from)) _longjmp(to, 1); }
inline void enter() {
  Fiber &self = fibers[running];
  for (;;) {
    while (begun < threads) {
      const int place = begun++;
      self.thread = backwards ? threads - 1 - place : place;
      threadIdx = cce::dim3(self.thread, 0, 0);
      region(given);
      ++ended;
    }
    change(self.place, scheduler);
  }
}
[[gnu::noinline]] inline void resume(int fiber) {
  running = fiber;
  if (fiber < made) return change(scheduler, fibers[fiber].place);
  Fiber &f = fibers[made++];
  if (!f.stack) f.stack = static_cast<char *>(malloc(STACK));
  getcontext(&f.start);
  f.start.uc_stack.ss_sp = f.stack;
  f.start.uc_stack.ss_size = STACK;
  makecontext(&f.start, enter, 0);
  if (!_setjmp(scheduler)) setcontext(&f.start);
}
inline void run_threads(int count, void (*work)(const void *), const void *arguments) {
  if (count > MOST_THREADS) return fail(THREADS);
  region = work, given = arguments, threads = count, begun = ended = 0;
  int waiting = 0;
  while (begun < count) {  /* each thread up to its first barrier, in either order: results must not differ */
    resume(waiting);
    waiting = begun - ended;
  }
  while (waiting && !ended)
    for (int i = 0; i < count; ++i) resume(i);  /* each up to its next */
  if (ended == count) return;
  made = 0;  /* those that wait for ever are given up */
  fail(BARRIER);
}
}  // namespace shim
inline void asc_syncthreads() {
  shim::Fiber &self = shim::fibers[shim::running];
  shim::change(self.place, shim::scheduler);
  threadIdx = cce::dim3(self.thread, 0, 0);
}
template <auto F, class... A> inline void asc_vf_call(cce::dim3 d, A... arguments) {
  auto work = [=] { F(arguments...); };
  using Work = decltype(work);
  shim::run_threads(d.x * d.y * d.z, [](const void *w) { (*static_cast<const Work *>(w))(); }, &work);
}
#include <tl_templates/ascend/reduce.h>
