#include "di_siphash.h"

static uint64_t rotate(uint64_t x, unsigned by) { return x << by | x >> (64 - by); }

static void mix(di_siphash *s, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        s->v0 += s->v1;
        s->v2 += s->v3;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 = rotate(s->v0, 32);
        s->v2 += s->v1;
        s->v0 += s->v3;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 = rotate(s->v2, 32);
    }
}

void di_siphash_start(di_siphash *s, const uint64_t key[2])
{
    s->v0 = key[0] ^ 0x736f6d6570736575u;
    s->v1 = key[1] ^ 0x646f72616e646f6du ^ 0xee;    /* 0xee and 0xdd below mark the 128-bit variant */
    s->v2 = key[0] ^ 0x6c7967656e657261u;
    s->v3 = key[1] ^ 0x7465646279746573u;
    s->bytes = 0;
}

void di_siphash_word(di_siphash *s, uint64_t word)
{
    s->v3 ^= word;
    mix(s, 2);
    s->v0 ^= word;
    s->bytes += 8;
}

void di_siphash_end(di_siphash *s, uint64_t tail, unsigned n_tail, uint64_t out[2])
{
    /* The last word carries the input's length modulo 256 in its top byte. */
    di_siphash_word(s, (s->bytes + n_tail) << 56 | tail);
    s->v2 ^= 0xee;
    mix(s, 4);
    out[0] = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
    s->v1 ^= 0xdd;
    mix(s, 4);
    out[1] = s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}
