// Number formats of spec/kernels.md 1.1 for every CUDA architecture of this plugin: E4M3, E2M1, UE8M0 and bf16 pairs.
//
// A "pair" is a 32-bit word of two bf16, the even element in the low half, as it lies in memory. Everything is exact to
// the byte: round to nearest even, saturating, the sign of zero kept. Only instructions that sm_89 and later have; the
// E2M1 conversion instruction exists from sm_100 on only, so E2M1 is integer arithmetic here, on pairs where that is
// exact (values over a power of two) and on fp32 where it is not.
#ifndef DEEPINFER_NUMBERS_CUH
#define DEEPINFER_NUMBERS_CUH
#include <cuda_bf16.h>
#include <stdint.h>

#define DI_FN static __device__ __forceinline__

// ---- bf16 pairs

DI_FN float di_lo(uint32_t pair) { return __uint_as_float(pair << 16); }
DI_FN float di_hi(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

DI_FN uint32_t di_pack(float lo, float hi) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}

DI_FN uint32_t di_mul2(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

DI_FN uint32_t di_add2(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

DI_FN uint32_t di_max2(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

DI_FN uint32_t di_min2(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

DI_FN uint32_t di_fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  return pair;
}

DI_FN uint32_t di_abs2(uint32_t pair) { return pair & 0x7fff7fffu; }

// The larger of both halves of a pair of magnitudes, in fp32.
DI_FN float di_top(uint32_t pair) { return fmaxf(di_lo(pair), di_hi(pair)); }

// ---- UE8M0 scales: the power of two that is not below amax / max

// Byte of the E4M3 scale; amax is floored at 1e-4. 448 = 1.75 * 2^8, and the first fp32 above 448 * 2^k over 448 rounds
// to something above 2^k, so the quotient's exponent can be read from amax itself.
DI_FN uint32_t di_ue8m0_of_e4m3(float amax) {
  const uint32_t bits = __float_as_uint(fmaxf(amax, 1e-4f));
  return bits >= 0x7f800000u ? 255u : ((bits + 0x1fffffu) >> 23) - 8u;
}

// Byte of the E2M1 scale; amax is floored at 6 * 2^-126. 6 = 1.5 * 2^2.
DI_FN uint32_t di_ue8m0_of_e2m1(float amax) {
  const uint32_t bits = __float_as_uint(fmaxf(amax, 6.0f * 1.17549435e-38f));
  return bits >= 0x7f800000u ? 255u : ((bits + 0x3fffffu) >> 23) - 2u;
}

// 2^(127 - byte), the factor of the quantised data; 0 for the byte of an infinite amax, so that infinity becomes NaN.
DI_FN float di_ue8m0_inverse(uint32_t byte) { return __uint_as_float(byte == 255u ? 0u : (254u - byte) << 23); }
DI_FN uint32_t di_ue8m0_inverse2(uint32_t byte) { return byte == 255u ? 0u : (254u - byte) * 0x00800080u; }

// 2^(byte - 127); byte 255 is NaN.
DI_FN float di_ue8m0(uint32_t byte) {
  return __uint_as_float(byte == 255u ? 0x7fffffffu : byte == 0u ? 0x00400000u : byte << 23);
}
DI_FN uint32_t di_ue8m0_pair(uint32_t byte) {
  return byte == 255u ? 0x7fff7fffu : byte == 0u ? 0x00400040u : byte * 0x00800080u;
}

// ---- E4M3

// Two codes in the low 16 bits, `lo` in the low byte. NaN stays NaN.
DI_FN uint32_t di_e4m3x2(float lo, float hi) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(hi), "f"(lo));
  return codes;
}

DI_FN uint32_t di_e4m3x4(float a, float b, float c, float d) { return di_e4m3x2(a, b) | (di_e4m3x2(c, d) << 16); }

// Two pairs, already over their scale, to four codes.
DI_FN uint32_t di_e4m3x4_of_pairs(uint32_t p, uint32_t q) { return di_e4m3x4(di_lo(p), di_hi(p), di_lo(q), di_hi(q)); }

// Codes 2i and 2i + 1 of a word of four as two fp16 (exact).
DI_FN uint32_t di_e4m3_half2(uint32_t word, int i) {
  uint32_t halves;
  const uint16_t codes = (uint16_t)(word >> (16 * i));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return halves;
}

DI_FN float di_half_lo(uint32_t halves) {
  float x;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(x) : "r"(halves));
  return x;
}
DI_FN float di_half_hi(uint32_t halves) {
  float x;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(halves));
  return x;
}

// Codes 2i and 2i + 1 of a word of four as a bf16 pair (exact).
DI_FN uint32_t di_e4m3_pair(uint32_t word, int i) {
  const uint32_t halves = di_e4m3_half2(word, i);
  return di_pack(di_half_lo(halves), di_half_hi(halves));
}

// One code, fp32.
DI_FN float di_e4m3(uint32_t code) { return di_half_lo(di_e4m3_half2(code, 0)); }

// The E4M3 scale of 16 E2M1 values: floor 6 * 2^-9, factor fp32(1 / 6), saturating.
DI_FN uint32_t di_e4m3_scale_of_e2m1(float amax) {
  return di_e4m3x2(fmaxf(amax, 6.0f * 0.001953125f) * 0.16666667163372040f, 0.0f) & 0xffu;
}

// fp32(1 / s), correctly rounded.
DI_FN float di_reciprocal(float s) { return __frcp_rn(s); }

// ---- E2M1: code = sign << 3 | index of {0, .5, 1, 1.5, 2, 3, 4, 6}
//
// The index of |x| <= 6 is min(2 x, x + 2, x / 2 + 4), rounded to an integer, ties to even: each line is the one below
// the others in its binade. Added to a number whose last place is 1, each line is rounded by its own fused multiply-add,
// and rounding keeps order, so the smallest sum holds the index in its low bits.

// Index of a magnitude |x| <= 6: sums of 2^23.
DI_FN uint32_t di_e2m1_index(float x) {
  const float s = fminf(fminf(__fmaf_rn(x, 2.0f, 8388608.0f), __fadd_rn(x, 8388610.0f)), __fmaf_rn(x, 0.5f, 8388612.0f));
  return __float_as_uint(s) & 7u;
}

// One fp32 value, saturating.
DI_FN uint32_t di_e2m1(float x) {
  return di_e2m1_index(fminf(fabsf(x), 6.0f)) | ((__float_as_uint(x) >> 28) & 8u);
}

// Eight fp32 values to eight codes, the first in the lowest nibble.
DI_FN uint32_t di_e2m1x8(float a, float b, float c, float d, float e, float f, float g, float h) {
  return di_e2m1(a) | (di_e2m1(b) << 4) | (di_e2m1(c) << 8) | (di_e2m1(d) << 12) | (di_e2m1(e) << 16) |
         (di_e2m1(f) << 20) | (di_e2m1(g) << 24) | (di_e2m1(h) << 28);
}

// Codes of a pair times a power of two, in bits 0 - 3 and 16 - 19; the product is within 6 and never rounded. Sums of
// 2^7, whose last place in bf16 is 1; the factors are twice the power, itself and half of it.
DI_FN uint32_t di_e2m1_codes2(uint32_t pair, uint32_t twice, uint32_t once, uint32_t half) {
  const uint32_t x = di_abs2(pair);
  const uint32_t s = di_min2(di_min2(di_fma2(x, twice, 0x43004300u), di_fma2(x, once, 0x43024302u)),
                             di_fma2(x, half, 0x43044304u));
  return (s & 0x00070007u) | ((pair >> 12) & 0x00080008u);
}

// Four pairs over a power-of-two scale (given as its inverse, twice) to eight codes, the first in the lowest nibble.
DI_FN uint32_t di_e2m1x8_of_pairs(uint32_t p, uint32_t q, uint32_t r, uint32_t s, uint32_t inverse) {
  const uint32_t twice = di_mul2(inverse, 0x40004000u), half = di_mul2(inverse, 0x3f003f00u);
  const uint32_t a = di_e2m1_codes2(p, twice, inverse, half) | (di_e2m1_codes2(q, twice, inverse, half) << 8);
  const uint32_t b = di_e2m1_codes2(r, twice, inverse, half) | (di_e2m1_codes2(s, twice, inverse, half) << 8);
  // Bytes of a: e0 e2 | e1 e3, of b: e4 e6 | e5 e7.
  return __byte_perm(a, b, 0x5410) | (__byte_perm(a, b, 0x7632) << 4);
}

// Codes i and i + 4 of a word of eight as a bf16 pair (exact): both lie 16 bits apart, where a pair's halves are. The
// three bits of the magnitude become the lowest exponent bits and the highest fraction bit; times 2^126 they are the
// value, the subnormal 0.5 too.
DI_FN uint32_t di_e2m1_far_pair(uint32_t word, int i) {
  const uint32_t sign = i < 3 ? word << (12 - 4 * i) : word;
  const uint32_t magnitude = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
  return di_mul2((sign & 0x80008000u) | (magnitude & 0x01c001c0u), 0x7e807e80u);
}

// Codes 2i and 2i + 1 of a word of eight as a bf16 pair (exact).
DI_FN uint32_t di_e2m1_pair(uint32_t word, int i) {
  const int k = (2 * i) & 3;
  return __byte_perm(di_e2m1_far_pair(word, k), di_e2m1_far_pair(word, k + 1), i < 2 ? 0x5410 : 0x7632);
}

// ---- arithmetic of rows, in one place so that every kernel rounds alike

// Sums of squares of a pair's halves, each on its own accumulator.
DI_FN float di_square_lo(uint32_t pair, float sum) { return __fmaf_rn(di_lo(pair), di_lo(pair), sum); }
DI_FN float di_square_hi(uint32_t pair, float sum) { return __fmaf_rn(di_hi(pair), di_hi(pair), sum); }

// 1 / sqrt(sum / width + eps), each operation correctly rounded.
DI_FN float di_inverse_rms(float sum, float width, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, width), eps));
}

// (x * rstd) * w, rounded to bf16.
DI_FN uint32_t di_normed(uint32_t pair, float rstd, float w0, float w1) {
  return di_pack(__fmul_rn(__fmul_rn(di_lo(pair), rstd), w0), __fmul_rn(__fmul_rn(di_hi(pair), rstd), w1));
}

// A pair turned by an angle; `sine` negated turns it back.
DI_FN uint32_t di_turned(uint32_t pair, float cosine, float sine) {
  const float x0 = di_lo(pair), x1 = di_hi(pair);
  return di_pack(__fmaf_rn(x0, cosine, -__fmul_rn(x1, sine)), __fmaf_rn(x0, sine, __fmul_rn(x1, cosine)));
}

// Two bytes to an address that is a multiple of two.
DI_FN int di_store16(void *address, uint32_t value) {
  *(uint16_t *)address = (uint16_t)value;
  return 0;
}

// Four bytes from an address that is a multiple of two, or of one.
DI_FN uint32_t di_load_halves(const void *address) {
  const uint16_t *p = (const uint16_t *)address;
  return (uint32_t)p[0] | ((uint32_t)p[1] << 16);
}
DI_FN uint32_t di_load_bytes(const void *address) {
  const uint8_t *p = (const uint8_t *)address;
  return (uint32_t)p[0] | ((uint32_t)p[1] << 8) | ((uint32_t)p[2] << 16) | ((uint32_t)p[3] << 24);
}

// Number of the highest set bit of `mask` at or below `lane`; -1: there is none.
DI_FN int di_last_marked(uint32_t mask, int lane) { return 31 - __clz(mask & (0xffffffffu >> (31 - lane))); }

#endif
