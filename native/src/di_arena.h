/* Memory of a core. Two owners, nothing else allocates:
 *
 *   di_arena   what is sized at create; zeroed, 64-byte aligned, freed as a whole
 *   di_bins    per request one fixed struct from a slab and one buffer; size classes with free lists, so that churn
 *              does not grow the process. What is kept for reuse lies in large pages
 */
#ifndef DI_ARENA_H
#define DI_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "di_pages.h"

typedef struct di_arena_block di_arena_block;
typedef struct di_arena {
    di_arena_block *blocks;         /* arrays above DI_ARENA_LARGE bytes, each by itself */
    di_pages pages;                 /* the others */
    size_t bytes;
} di_arena;

enum { DI_ARENA_LARGE = 1 << 19 };
/* n * size zeroed bytes, or NULL when memory is short or the product overflows. n and size may be 0. */
void *di_arena_take(di_arena *a, size_t n, size_t size);
void di_arena_free(di_arena *a);

enum { DI_BIN_COUNT = 96, DI_BIN_KEEP = 1 << 20 };
typedef struct di_bin_head di_bin_head;
typedef struct di_slab_item di_slab_item;
typedef struct di_bins {
    di_bin_head *free[DI_BIN_COUNT];
    size_t kept_bytes;              /* on the free lists */
    di_slab_item *items;            /* structs to be handed out again */
    di_pages pages;                 /* kept until the end: the peak comes back */
} di_bins;

/* One struct of always the same size, a multiple of 64 bytes apart from the next; not zeroed. NULL when memory is
 * short. The caller holds the lock. */
void *di_slab_take(di_bins *b, size_t size);
/* item may be NULL. */
void di_slab_give(di_bins *b, void *item);

/* At least size bytes, not zeroed, 64-byte aligned; NULL when memory is short. The caller holds the lock. */
void *di_bins_take(di_bins *b, size_t size);
/* Give a buffer back. Small ones are kept for reuse, those above DI_BIN_KEEP bytes go to the system. */
void di_bins_give(di_bins *b, void *buffer);
void di_bins_free(di_bins *b);

#endif
