/* SipHash-2-4 with 128 bits of result (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", and the
 * 128-bit variant of their reference). A keyed hash: without the key nobody can make two inputs collide on purpose.
 *
 * The input is a sequence of 8-byte little-endian words and up to 7 bytes of tail, so that the result does not depend
 * on the byte order of the machine.
 */
#ifndef DI_SIPHASH_H
#define DI_SIPHASH_H

#include <stdint.h>

typedef struct di_siphash {
    uint64_t v0, v1, v2, v3;
    uint64_t bytes;           /* taken so far */
} di_siphash;

/* key = the 16 key bytes as two little-endian words. */
void di_siphash_start(di_siphash *s, const uint64_t key[2]);
void di_siphash_word(di_siphash *s, uint64_t word);
/* The last n_tail < 8 bytes, in the low bytes of tail; out = the 16 bytes of the result as two little-endian words. */
void di_siphash_end(di_siphash *s, uint64_t tail, unsigned n_tail, uint64_t out[2]);

#endif
