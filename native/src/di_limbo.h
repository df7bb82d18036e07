/* Units that lost their last reference while a launched step may still touch them (spec/engine.md 4.2).
 *
 * A unit released with epoch e (the newest step that uses it) may be handed out again when every step up to e is done.
 * Open epochs lie in (done, launched], at most depth + 1 of them, so depth + 1 buckets indexed by epoch hold
 * everything; a bucket keeps its release order.
 */
#ifndef DI_LIMBO_H
#define DI_LIMBO_H

#include <stdint.h>

enum { DI_MAX_DEPTH = 2, DI_LIMBO_BUCKETS = DI_MAX_DEPTH + 1 };

/* Unit ids linked by the pool's nodes; 0 = none. */
typedef struct di_unit_list {
    uint32_t head, tail, count;
} di_unit_list;

typedef struct di_limbo_bucket {
    uint64_t epoch;           /* meaningful while the list has units */
    di_unit_list units;
} di_limbo_bucket;

typedef struct di_limbo {
    di_limbo_bucket bucket[DI_LIMBO_BUCKETS];
    uint32_t count;           /* units in all buckets */
} di_limbo;

/* The bucket of an epoch; NULL if it still holds another epoch (more open epochs than buckets: a caller's error). */
di_limbo_bucket *di_limbo_bucket_of(di_limbo *l, uint64_t epoch);
/* A non-empty bucket with the smallest epoch <= done, or NULL. */
di_limbo_bucket *di_limbo_oldest(di_limbo *l, uint64_t done);

#endif
