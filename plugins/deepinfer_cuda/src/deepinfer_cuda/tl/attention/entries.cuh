// Cache entries to bf16 (spec/kernels.md 1.3).
//
// Four neighbouring lanes share an entry: lane l of them holds columns 64 * i + 16 * l ..+ 15 of the i-th block of 64
// columns. A lane so reads 16 (E4M3) or 8 (E2M1) bytes at a time, and the 16-byte pieces that eight lanes store to a
// swizzled tile lie in different banks.
//
// Both formats are exact in bf16: E4M3 has four significant bits and a power of two as scale, the product of E2M1 and an
// E4M3 scale has six at most. Codes are shifted into the fields of a bf16, which leaves a value that is off by a power of
// two (2^-120 for E4M3, 2^-126 for E2M1, subnormal codes included); one or two multiplications put that right.
#ifndef DEEPINFER_ATTENTION_ENTRIES_CUH
#define DEEPINFER_ATTENTION_ENTRIES_CUH
#include <cuda_bf16.h>
namespace di {

using bf2 = __nv_bfloat162;

static __device__ __forceinline__ bf2 as_bf2(unsigned bits) { return *reinterpret_cast<bf2 *>(&bits); }
static __device__ __forceinline__ unsigned bits_of(bf2 v) { return *reinterpret_cast<unsigned *>(&v); }
static __device__ __forceinline__ unsigned twice(unsigned half) { return half | (half << 16); }

// bf16 bits of the UE8M0 scale `code`; 255 is NaN, 0 is subnormal.
static __device__ __forceinline__ unsigned ue8m0_bits(unsigned code) { return code == 0 ? 0x0040u : code == 255 ? 0x7fc0u : code << 7; }

// bf16 bits of the E4M3 scale `code`.
static __device__ __forceinline__ unsigned e4m3_bits(unsigned code) {
  unsigned shifted = ((code & 0x80u) << 8) | ((code & 0x7fu) << 4);
  unsigned value = bits_of(__hmul2(as_bf2(shifted), as_bf2(0x7b807b80u))) & 0xffffu;
  return (code & 0x7fu) == 0x7fu ? 0x7fc0u : value;
}

// Four E4M3 codes to four bf16, times `factor`, which holds 2^120 already.
static __device__ __forceinline__ void e4m3x4(unsigned w, bf2 factor, unsigned *out) {
  unsigned low = __byte_perm(w, 0, 0x1404), high = __byte_perm(w, 0, 0x3424);
  out[0] = bits_of(__hmul2(as_bf2((low & 0x80008000u) | ((low >> 4) & 0x07f007f0u)), factor));
  out[1] = bits_of(__hmul2(as_bf2((high & 0x80008000u) | ((high >> 4) & 0x07f007f0u)), factor));
}

// Codes 0x7f and 0xff are NaN.
static __device__ __forceinline__ unsigned nan_marks(unsigned w) { return ((w & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u; }

static __device__ __forceinline__ void put_nans(unsigned w, unsigned *out) {
  #pragma unroll
  for (int i = 0; i < 4; ++i)
    if (((w >> (8 * i)) & 0x7fu) == 0x7fu) out[i / 2] |= i & 1 ? 0x7fc00000u : 0x7fc0u;
}

// 16 E4M3 codes with one UE8M0 scale -> 16 bf16; zeros where there is no entry, whatever the codes. The plain case has
// no NaN code and a `scale` up to 134.
template <bool PLAIN>
static __device__ __forceinline__ void e4m3x16(const unsigned *w, unsigned scale, bool present, unsigned *out) {
  // 2^120 * 2^(scale - 127), where that is a normal bf16; in two steps where it is not.
  bool near = PLAIN || scale <= 134;
  unsigned factor = near ? twice((scale + 120u) << 7) : 0x7b807b80u;
  #pragma unroll
  for (int i = 0; i < 4; ++i) e4m3x4(w[i], as_bf2(present ? factor : 0u), out + 2 * i);
  if (!PLAIN && present) {
    bf2 rest = as_bf2(near ? 0x3f803f80u : twice(ue8m0_bits(scale)));
    #pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = bits_of(__hmul2(as_bf2(out[i]), rest));
    #pragma unroll
    for (int i = 0; i < 4; ++i) put_nans(w[i], out + 2 * i);
  }
}

// Bytes above 134.
static __device__ __forceinline__ unsigned far_marks(unsigned w) { return w & ((w & 0x7f7f7f7fu) + 0x79797979u) & 0x80808080u; }

// Eight E2M1 codes, low nibble first, times 2^126 and the bf16 `factor`.
static __device__ __forceinline__ void e2m1x8(unsigned w, bf2 factor, unsigned *out) {
  unsigned even = w << 4;
  const bf2 lift = as_bf2(0x7e807e80u);
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    // the codes 2i and 2i+1 into the top nibbles of the two halves
    unsigned pair = __byte_perm(even, w, (unsigned)(((4 + i) << 12) | ((4 + i) << 8) | (i << 4) | i));
    unsigned shifted = (pair & 0x80008000u) | ((pair >> 6) & 0x01c001c0u);
    out[i] = bits_of(__hmul2(__hmul2(as_bf2(shifted), lift), factor));
  }
}

static __device__ __forceinline__ void e2m1x16(const unsigned *w, unsigned scale, unsigned *out) {
  bf2 factor = as_bf2(twice(e4m3_bits(scale)));
  e2m1x8(w[0], factor, out);
  e2m1x8(w[1], factor, out + 4);
}

static __device__ __forceinline__ unsigned byte_of(unsigned w, int i) { return (w >> (8 * i)) & 0xffu; }

// Loads that do nothing where `on` is false, and no branch: what was there remains.
static __device__ __forceinline__ void load16_if(unsigned *to, const unsigned char *p, bool on) {
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3]) : "l"(p), "r"((unsigned)on));
}
static __device__ __forceinline__ void load8_if(unsigned *to, const unsigned char *p, bool on) {
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %3, 0;\n @p ld.global.v2.u32 {%0, %1}, [%2];\n}"
               : "+r"(to[0]), "+r"(to[1]) : "l"(p), "r"((unsigned)on));
}

// How a lane reads its share of an entry: eight registers of scales, four for the codes of each of eight blocks.
struct V41 {
  // the fifth register says whether there is an entry
  static __device__ __forceinline__ void scales(unsigned *sf, const unsigned char *p, bool on) { load16_if(sf, p + 512, on); }
  static constexpr int PIECE = 16;
  static __device__ __forceinline__ void codes(unsigned *raw, const unsigned char *p, int block, bool on) {
    load16_if(raw, p + 64 * block, on);
  }
  template <bool PLAIN>
  static __device__ __forceinline__ void decode(const unsigned *raw, const unsigned *sf, int block, int lane, unsigned *out) {
    e4m3x16<PLAIN>(raw, byte_of(sf[block / 2], 2 * (block & 1) + (lane >> 1)), sf[4] != 0, out);
  }
  // Whether all entries of the warp are of the plain case: asked once, so that what follows has no branches.
  static __device__ __forceinline__ bool plain(const unsigned *raw, const unsigned *sf) {
    unsigned marks = 0;
    #pragma unroll
    for (int i = 0; i < 32; ++i) marks |= nan_marks(raw[i]);
    #pragma unroll
    for (int i = 0; i < 4; ++i) marks |= far_marks(sf[i]);
    return !__any_sync(0xffffffffu, marks != 0 && sf[4] != 0);
  }
};

struct V41Fp4 {
  // no entry has scales of zero, and E2M1 has no NaN that a zero would not clear
  static __device__ __forceinline__ void scales(unsigned *sf, const unsigned char *p, bool on) {
    load16_if(sf, p + 256, on);
    load16_if(sf + 4, p + 272, on);
  }
  static constexpr int PIECE = 8;
  static __device__ __forceinline__ void codes(unsigned *raw, const unsigned char *p, int block, bool on) {
    load8_if(raw, p + 32 * block, on);
  }
  template <bool PLAIN>
  static __device__ __forceinline__ void decode(const unsigned *raw, const unsigned *sf, int block, int lane, unsigned *out) {
    e2m1x16(raw, byte_of(sf[block], lane), out);
  }
  static __device__ __forceinline__ bool plain(const unsigned *raw, const unsigned *sf) { return true; }
};

template <class A, class B> constexpr bool alike = false;
template <class A> constexpr bool alike<A, A> = true;

// Of the entry at byte `at` of the second cache where `second`, else of the first; none where `at` < 0.
template <class A, class B>
static __device__ __forceinline__ void load_scales(void *sf, const void *first, const void *other, int second, long long at) {
  unsigned *to = reinterpret_cast<unsigned *>(sf);
  bool on = at >= 0;
  #pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = 0;
  const unsigned char *p = reinterpret_cast<const unsigned char *>(second ? other : first) + at;
  to[4] = on && (alike<A, V41> && (!second || alike<B, V41>)) ? 1 : 0;
  A::scales(to, p, on && (alike<A, B> || !second));
  if (!alike<A, B>) B::scales(to, p, on && second);
}
// Address of a lane's first piece of that entry. The compiler may not look into it: it would work out the address of each
// of the eight pieces by itself instead of one address with eight offsets.
template <class A, class B>
static __device__ __forceinline__ long long share(const void *first, const void *other, int second, long long at, int lane) {
  long long p = reinterpret_cast<long long>(second ? other : first) + at + lane * (second ? B::PIECE : A::PIECE);
  asm volatile("" : "+l"(p));
  return p;
}
template <class A, class B>
static __device__ __forceinline__ void load_codes(void *raw, long long share, int second, long long at, int block) {
  unsigned *to = reinterpret_cast<unsigned *>(raw) + 4 * block;
  bool on = at >= 0;
  const unsigned char *p = reinterpret_cast<const unsigned char *>(share);
  A::codes(to, p, block, on && (alike<A, B> || !second));
  if (!alike<A, B>) B::codes(to, p, block, on && second);
}
template <class Entry> static __device__ __forceinline__ int are_plain(const void *raw, const void *sf) {
  return Entry::plain(reinterpret_cast<const unsigned *>(raw), reinterpret_cast<const unsigned *>(sf));
}
template <class Entry, bool PLAIN>
static __device__ __forceinline__ void decode_codes(const void *raw, const void *sf, int block, int lane, void *out) {
  Entry::template decode<PLAIN>(reinterpret_cast<const unsigned *>(raw) + 4 * block, reinterpret_cast<const unsigned *>(sf),
                                block, lane, reinterpret_cast<unsigned *>(out));
}

}  // namespace di
#endif
