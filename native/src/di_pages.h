/* Memory that is carved from large chunks and given back as a whole: requests, and the arrays of steps.
 *
 * A step touches a few cache lines of every request, and some dozens of arrays. Were each a block of its own, the lines
 * of a thousand requests would lie on several thousand pages of 4 KiB, more than a processor's translation buffer holds,
 * and every line would cost a walk through the page tables. Chunks are therefore aligned to large pages, which the system
 * is asked for where it has them (madvise). They start small: a core of a few requests keeps its few kilobytes.
 *
 * Under AddressSanitizer each piece is a block of its own, so that a write past its end is seen. */
#ifndef DI_PAGES_H
#define DI_PAGES_H

#include <stddef.h>

typedef struct di_pages_chunk di_pages_chunk;
typedef struct di_pages {
    di_pages_chunk *chunks;
    char *at;                 /* what the newest chunk has left */
    size_t left;
    size_t chunk_bytes;       /* of the newest chunk, 0 = none yet */
} di_pages;

/* size zeroed bytes, 64-byte aligned; NULL when memory is short. */
void *di_pages_take(di_pages *p, size_t size);
/* Give all of it back. */
void di_pages_free(di_pages *p);

#endif
