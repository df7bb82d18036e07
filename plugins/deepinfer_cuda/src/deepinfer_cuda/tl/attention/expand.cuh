// Entries of the caches to tiles of bf16 keys whose columns stand in the order 0 4 1 5 2 6 3 7 of each eight.
//
// In that order a word of eight E2M1 codes needs no byte moved: the two codes of a pair are 16 bits apart, so a pair is
// two shifts and two masks. Queries and output are put into this order and back, where that costs nothing. Lanes, exactness
// and how a code becomes a bf16 are those of entries.cuh.
#ifndef DEEPINFER_ATTENTION_EXPAND_CUH
#define DEEPINFER_ATTENTION_EXPAND_CUH
namespace di {

// 16 bytes `piece` of row `row` in a block of 64 columns, 128 bytes a row: where matrix products expect them.
static __device__ __forceinline__ unsigned swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// 16 E4M3 codes; PLAIN as e4m3x16 has it.
template <bool PLAIN>
static __device__ __forceinline__ void spread_e4m3(const unsigned *w, unsigned scale, bool present, unsigned *out) {
  bool near = PLAIN || scale <= 134;
  unsigned factor = present ? (near ? twice((scale + 120u) << 7) : 0x7b807b80u) : 0u;
  #pragma unroll
  for (int i = 0; i < 8; ++i) {
    int k = i & 3;
    unsigned pair = __byte_perm(w[i / 4 * 2], w[i / 4 * 2 + 1], (unsigned)(k | (k << 4) | ((4 + k) << 8) | ((4 + k) << 12)));
    unsigned v = bits_of(__hmul2(as_bf2((pair & 0x80008000u) | ((pair >> 4) & 0x07f007f0u)), as_bf2(factor)));
    if (!PLAIN && present) {
      v = bits_of(__hmul2(as_bf2(v), as_bf2(near ? 0x3f803f80u : twice(ue8m0_bits(scale)))));
      if ((pair & 0x7fu) == 0x7fu) v |= 0x7fc0u;
      if (((pair >> 16) & 0x7fu) == 0x7fu) v |= 0x7fc00000u;
    }
    out[i] = v;
  }
}

// 16 E2M1 codes. A code in the fields of a bf16 is off by 2^-126; PLAIN puts that right together with the scale, which has to
// be below 4 and no NaN.
template <bool PLAIN> static __device__ __forceinline__ void spread_e2m1(const unsigned *w, unsigned scale, unsigned *out) {
  const bf2 lift = as_bf2(0x7e807e80u);
  bf2 factor = as_bf2(twice(e4m3_bits(scale)));
  if (PLAIN) factor = __hmul2(factor, lift);
  #pragma unroll
  for (int i = 0; i < 8; ++i) {
    unsigned x = w[i / 4];
    int k = i & 3;
    unsigned signs = x << (12 - 4 * k), rest = k < 2 ? x << (6 - 4 * k) : x >> (4 * k - 6);
    bf2 v = as_bf2((signs & 0x80008000u) | (rest & 0x01c001c0u));
    if (!PLAIN) v = __hmul2(v, lift);
    out[i] = bits_of(__hmul2(v, factor));
  }
}

// Bytes of magnitude 0x48 and more: E4M3 scales from 4 on, and NaN.
static __device__ __forceinline__ unsigned large_marks(unsigned w) { return ((w & 0x7f7f7f7fu) + 0x38383838u) & 0x80808080u; }

template <class Entry> struct Spread;
template <> struct Spread<V41> {
  static constexpr int BYTES = 528;
  static __device__ __forceinline__ bool plain(const unsigned *raw, const unsigned *sf) { return V41::plain(raw, sf); }
  // scale of a lane's 16 columns in `block`, from registers and from memory
  static __device__ __forceinline__ unsigned scale(const unsigned *sf, int block, int lane) {
    return byte_of(sf[block / 2], 2 * (block & 1) + lane / 2);
  }
  static __device__ __forceinline__ unsigned scale_byte(const unsigned char *entry, int block, int lane) {
    return entry[512 + 2 * block + lane / 2];
  }
  template <bool PLAIN> static __device__ __forceinline__ void decode(const unsigned *raw, unsigned scale, bool present, unsigned *out) {
    spread_e4m3<PLAIN>(raw, scale, present, out);
  }
};
template <> struct Spread<V41Fp4> {
  static constexpr int BYTES = 288;
  static __device__ __forceinline__ bool plain(const unsigned *raw, const unsigned *sf) {
    unsigned marks = 0;
    #pragma unroll
    for (int i = 0; i < 8; ++i) marks |= large_marks(sf[i]);
    return !__any_sync(0xffffffffu, marks != 0);
  }
  static __device__ __forceinline__ unsigned scale(const unsigned *sf, int block, int lane) { return byte_of(sf[block], lane); }
  static __device__ __forceinline__ unsigned scale_byte(const unsigned char *entry, int block, int lane) {
    return entry[256 + 4 * block + lane];
  }
  template <bool PLAIN> static __device__ __forceinline__ void decode(const unsigned *raw, unsigned scale, bool, unsigned *out) {
    spread_e2m1<PLAIN>(raw, scale, out);
  }
};

// One entry a thread of four: in registers, and from there to a tile.
template <class First, class Other> struct Held {
  unsigned codes[32], scales[8];
  const unsigned char *window, *extra;
  int lane;

  __device__ __forceinline__ void load(int second, long long at) {
    load_scales<First, Other>(scales, window, extra, second, at);
    long long from = share<First, Other>(window, extra, second, at, lane);
    #pragma unroll
    for (int b = 0; b < 8; ++b) load_codes<First, Other>(codes, from, second, at, b);
  }
  static __device__ __forceinline__ void put(unsigned tile, int key, int lane, int block, const unsigned *v) {
    #pragma unroll
    for (int h = 0; h < 2; ++h)
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(tile + block * 8192 + swizzled(key, 2 * lane + h)), "r"(v[4 * h]),
                   "r"(v[4 * h + 1]), "r"(v[4 * h + 2]), "r"(v[4 * h + 3]) : "memory");
  }
  // To row `key` of `tile`. NEXT: each piece makes room for one of the entry at `next`, of formats First (or Other where
  // `second`), which is Next alone where that is known.
  template <class Entry, class Next, bool NEXT>
  __device__ __forceinline__ void expand(unsigned tile, int key, const unsigned char *cache, long long now, int second, long long next) {
    using S = Spread<Entry>;
    long long from = NEXT ? share<First, Other>(window, extra, second, next, lane) : 0;
    if (S::plain(codes, scales)) {
      #pragma unroll
      for (int b = 0; b < 8; ++b) {
        unsigned v[8];
        S::template decode<true>(codes + 4 * b, S::scale(scales, b, lane), scales[4] != 0, v);
        if (NEXT) load_codes<Next, Other>(codes, from, second, next, b);
        put(tile, key, lane, b, v);
      }
    } else {
      // seldom: the codes once more from memory, so that a loop will do
      const unsigned char *p = cache + now + lane * Entry::PIECE;
      #pragma unroll 1
      for (int b = 0; b < 8; ++b) {
        unsigned raw[4] = {0, 0, 0, 0}, v[8];
        Entry::codes(raw, p, b, now >= 0);
        unsigned scale = now < 0 ? 0 : S::scale_byte(cache + now, b, lane);
        S::template decode<false>(raw, scale, now >= 0, v);
        put(tile, key, lane, b, v);
      }
      if (NEXT) {
        #pragma unroll
        for (int b = 0; b < 8; ++b) load_codes<Next, Other>(codes, from, second, next, b);
      }
    }
  }
};

}  // namespace di
#endif
