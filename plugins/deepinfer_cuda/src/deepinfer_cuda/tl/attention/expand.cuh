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

// How codes of a format become bf16. Bit 7 of a byte of its marks says that the plain way is not enough.
template <class Entry> struct Spread;

// 16 E4M3 codes a block. PLAIN: no NaN, and a scale up to 134.
template <> struct Spread<V41> {
  static constexpr int BYTES = 528, CODES = 4, SCALES = 4;  // registers of a block's codes, and of all scales
  static __device__ __forceinline__ unsigned scale(const unsigned *sf, int block, int lane) {
    return byte_of(sf[block / 2], 2 * (block & 1) + lane / 2);
  }
  static __device__ __forceinline__ unsigned marks(const unsigned *w) {
    unsigned found = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i) found |= (w[i] & 0x7f7f7f7fu) + 0x01010101u;
    return found;
  }
  static __device__ __forceinline__ unsigned scale_marks(unsigned w) { return far_marks(w); }
  template <bool PLAIN> static __device__ __forceinline__ void decode(const unsigned *w, unsigned scale, bool present, unsigned *out) {
    bool near = PLAIN || scale <= 134;
    unsigned factor = PLAIN ? twice((scale + 120u) << 7) : present ? (near ? twice((scale + 120u) << 7) : 0x7b807b80u) : 0u;
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
};

// 16 E2M1 codes a block. A code in the fields of a bf16 is off by 2^-126; PLAIN puts that right together with the scale, which
// has to be below 4 and no NaN.
template <> struct Spread<V41Fp4> {
  static constexpr int BYTES = 288, CODES = 2, SCALES = 8;
  static __device__ __forceinline__ unsigned scale(const unsigned *sf, int block, int lane) { return byte_of(sf[block], lane); }
  static __device__ __forceinline__ unsigned marks(const unsigned *) { return 0; }
  static __device__ __forceinline__ unsigned scale_marks(unsigned w) { return (w & 0x7f7f7f7fu) + 0x38383838u; }
  template <bool PLAIN> static __device__ __forceinline__ void decode(const unsigned *w, unsigned scale, bool, unsigned *out) {
    const bf2 lift = as_bf2(0x7e807e80u);
    bf2 factor;
    if (PLAIN) {
      unsigned both = scale * 0x00010001u;
      factor = __hmul2(__hmul2(as_bf2(((both << 8) & 0x80008000u) | ((both << 4) & 0x07f007f0u)), as_bf2(0x7b807b80u)), lift);
    } else {
      factor = as_bf2(twice(e4m3_bits(scale)));
    }
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
};

// The entries that four lanes bring to their row of every tile, one after the other. Sixteen registers hold the codes of one (E2M1)
// or of half of one (E4M3), and what was expanded makes room for what follows, which so is on its way while its tile is not free.
struct Stream {
  unsigned codes[16], scales[8];
  long long at;  // an address, below zero where there is no entry
  int lane;

  __device__ __forceinline__ Stream(int lane_) : lane(lane_) {}
  template <class Entry> __device__ __forceinline__ const unsigned char *share(long long place) const {
    long long p = place + lane * Entry::PIECE;
    asm volatile("" : "+l"(p));  // one address with eight offsets
    return reinterpret_cast<const unsigned char *>(p);
  }
  // What is not there keeps the codes of another entry, with scales of 0: finite values, and nobody weighs them.
  template <class Entry> __device__ __forceinline__ void ask_scales(long long place) {
    at = place;
    #pragma unroll
    for (int i = 0; i < Spread<Entry>::SCALES; ++i) scales[i] = 0;
    Entry::scales(scales, reinterpret_cast<const unsigned char *>(at), at >= 0);
  }
  template <class Entry> __device__ __forceinline__ void begin(long long place) {
    ask_scales<Entry>(place);
    const unsigned char *p = share<Entry>(at);
    #pragma unroll
    for (int i = 0; i < 16; ++i) codes[i] = 0;
    #pragma unroll
    for (int b = 0; b < 16 / Spread<Entry>::CODES; ++b) Entry::codes(codes + b * Spread<Entry>::CODES, p, b, at >= 0);
  }
  static __device__ __forceinline__ void put(unsigned to, unsigned other, const unsigned *v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(other), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7]) : "memory");
  }
  // To row `key` of `tile`; `next`: the entry that follows, of the same format. `free` is called before the second half of columns.
  template <class Entry, class Free> __device__ __forceinline__ void expand(unsigned tile, int key, long long next, Free free) {
    using S = Spread<Entry>;
    const unsigned low = tile + swizzled(key, 2 * lane), high = tile + swizzled(key, 2 * lane + 1);
    constexpr int BLOCKS = 16 / S::CODES;
    const unsigned char *here = share<Entry>(at), *p = share<Entry>(next);
    unsigned found = 0;
    #pragma unroll
    for (int i = 0; i < S::SCALES; ++i) found |= S::scale_marks(scales[i]);
    #pragma unroll
    for (int b = 0; b < 8; ++b) {
      unsigned v[8], *w = codes + b % BLOCKS * S::CODES;
      if (b == 4) free();
      found |= S::marks(w);
      S::template decode<true>(w, S::scale(scales, b, lane), true, v);
      put(low + b * 8192, high + b * 8192, v);
      if (b + BLOCKS < 8) Entry::codes(w, here, b + BLOCKS, at >= 0);
      else Entry::codes(w, p, b + BLOCKS - 8, next >= 0);
    }
    if (__any_sync(0xffffffffu, (found & 0x80808080u) != 0 && at >= 0)) again<Entry>(tile, key);
    ask_scales<Entry>(next);
  }
  // Seldom: the codes once more from memory.
  template <class Entry> __device__ __forceinline__ void again(unsigned tile, int key) const {
    const unsigned char *p = reinterpret_cast<const unsigned char *>(at + lane * Entry::PIECE);
    unsigned sf[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    Entry::scales(sf, reinterpret_cast<const unsigned char *>(at), at >= 0);
    #pragma unroll 1
    for (int b = 0; b < 8; ++b) {
      unsigned raw[4] = {0, 0, 0, 0}, scale = 0, v[8];
      Entry::codes(raw, p, b, at >= 0);
      #pragma unroll
      for (int i = 0; i < 8; ++i) scale = b == i ? Spread<Entry>::scale(sf, i, lane) : scale;
      Spread<Entry>::template decode<false>(raw, scale, at >= 0, v);
      put(tile + b * 8192 + swizzled(key, 2 * lane), tile + b * 8192 + swizzled(key, 2 * lane + 1), v);
    }
  }
  // An entry sets out for the second-level cache: each lane asks for 64 bytes of every 256.
  template <class Entry> __device__ __forceinline__ void foresee(long long place) const {
    if (place < 0) return;
    #pragma unroll
    for (int from = 0; from < Spread<Entry>::BYTES; from += 256)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(place + min(from + 64 * lane, Spread<Entry>::BYTES - 1)));
  }
};

}  // namespace di
#endif
